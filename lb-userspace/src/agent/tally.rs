//! What there is to count: kept up with each change, so that telling it costs nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Policy, Problem, ServicePort, ServicePortKey};
use crate::plan::{BackendKey, FrontendKey, Plan, Planner, Step};
use crate::serve::{Metrics, Usage};

#[derive(Default)]
pub struct Tally {
    /// Service ports whose policy asks for endpoints on this node, of which there are none.
    without_local: BTreeSet<ServicePortKey>,
    without_local_external: BTreeSet<ServicePortKey>,
    /// Frontends for which the kernel has no room, and that have been named.
    set_aside: BTreeSet<FrontendKey>,
}

impl Tally {
    /// Takes in service ports that have changed.
    pub fn count(&mut self, changed: &BTreeMap<ServicePortKey, Option<ServicePort>>) {
        for (key, port) in changed {
            let port = port.as_ref().filter(|port| port.local.is_empty());
            let internal = port.is_some_and(|port| port.internal_policy == Policy::Local);
            let external = port
                .is_some_and(|port| port.external_policy == Policy::Local && port.is_external());
            put(&mut self.without_local, key, internal);
            put(&mut self.without_local_external, key, external);
        }
    }

    /// Says under which index the kernel counts what a plan has changed.
    pub fn catalogue(
        changed: &BTreeMap<ServicePortKey, Vec<BackendKey>>,
        plan: &Plan,
        planner: &Planner,
        metrics: &Metrics,
    ) {
        metrics.catalogue(|catalog| {
            for step in &plan.retire {
                if let Step::RetireBackend { index, .. } = step {
                    catalog.backends.remove(index);
                }
            }
            for (key, backends) in changed {
                match planner.service_port_index(key) {
                    Some(index) => drop(catalog.service_ports.insert(key.clone(), index)),
                    None => drop(catalog.service_ports.remove(key)),
                }
                for backend in backends {
                    if let Some(index) = planner.backend_index(backend) {
                        catalog.backends.insert(index, *backend);
                    }
                }
            }
        });
    }

    /// Takes in the frontends that are set aside; what there is to say of those that newly are.
    pub fn set_aside<'a>(
        &mut self,
        now: impl Iterator<Item = &'a FrontendKey>,
        planner: &Planner,
    ) -> Vec<Problem> {
        let now: BTreeSet<FrontendKey> = now.copied().collect();
        let new = now.difference(&self.set_aside);
        let problem = |frontend: &FrontendKey| {
            let owner = planner.owner(frontend)?;
            Some(Problem {
                object: format!("Service {}", owner.service),
                field: String::new(),
                message: format!("{frontend} is not served: the map of frontends is full"),
            })
        };
        let problems = new.filter_map(problem).collect();
        self.set_aside = now;
        problems
    }

    pub fn tell(&self, planner: &Planner, lacking: usize, metrics: &Metrics) {
        let internal = self.without_local.len();
        metrics.set_no_local_endpoints(internal, self.without_local_external.len());
        metrics.set_without_room(lacking, self.set_aside.len());
        metrics.set_usage(Usage {
            frontends: planner.frontends() - self.set_aside.len(),
            service_ports: planner.service_ports(),
            backends: planner.backends(),
            pool_slots: planner.pool_slots(),
        });
    }
}

fn put(keys: &mut BTreeSet<ServicePortKey>, key: &ServicePortKey, within: bool) {
    if within {
        keys.insert(key.clone());
    } else {
        keys.remove(key);
    }
}

//! The kernel's counters, read at each scrape.
//!
//! The traffic of a service port or backend is exported once there is some: a node sees few of a
//! large cluster's, and thousands of zeros are useless. There is a limit for each of the two kinds,
//! and the first that had traffic are exported. They stay exported as long as they exist, since a
//! series must not come and go.

mod encode;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use lb_common::layout::{self, NeighbourEvent, Reason};
use lb_plan::BackendKey;
use lb_rules::model::ServicePortKey;

/// Default of `--metrics-max-objects` for service ports, and for endpoints.
pub const DEFAULT_METRICS_MAX_OBJECTS: usize = 2_000;

/// The index under which each service port is counted. Backends are read from the maps.
pub type Catalog = BTreeMap<ServicePortKey, u32>;

/// The kernel's counters. The agent implements it with the pinned maps.
pub trait Counters: Send {
    fn reasons(&self) -> Result<Vec<(Reason, u64)>>;
    fn neighbour_events(&self) -> Result<Vec<(NeighbourEvent, u64)>>;
    /// Zero for an index that no service port uses.
    fn service_port(&self, index: u32) -> Result<layout::Traffic>;
    /// Every backend and its index.
    fn backends(&self) -> Vec<(u32, BackendKey)>;
    fn backend(&self, index: u32) -> Result<layout::Traffic>;
    fn flow_tables(&self) -> Vec<FlowTable>;
}

/// How many flows the table of an address family holds, and its capacity.
pub struct FlowTable {
    pub family: &'static str,
    pub by_state: Vec<(&'static str, u64)>,
    pub capacity: u64,
}

type Open = Arc<dyn Fn() -> Result<Box<dyn Counters>> + Send + Sync>;

#[derive(Clone, Default)]
pub struct Traffic(Arc<Mutex<TrafficState>>);

struct TrafficState {
    catalog: Catalog,
    /// Limit for service ports, and for backends.
    most: usize,
    chosen_service_ports: Chosen<ServicePortKey>,
    chosen_backends: Chosen<BackendKey>,
    open: Option<Open>,
    /// Opened by the first scrape, and again after a failure.
    counters: Option<Box<dyn Counters>>,
}

impl Default for TrafficState {
    fn default() -> Self {
        Self {
            catalog: Catalog::default(),
            most: DEFAULT_METRICS_MAX_OBJECTS,
            chosen_service_ports: Chosen::default(),
            chosen_backends: Chosen::default(),
            open: None,
            counters: None,
        }
    }
}

/// The exported objects of one kind.
struct Chosen<K>(BTreeSet<K>);

impl<K> Default for Chosen<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Ord + Clone> Chosen<K> {
    /// Removes the objects above the limit from `counted`, and returns their number.
    fn choose(&mut self, counted: &mut Vec<(K, layout::Traffic)>, most: usize) -> u64 {
        let there: BTreeSet<&K> = counted.iter().map(|(key, _)| key).collect();
        self.0.retain(|key| there.contains(key));
        for (key, _) in counted.iter() {
            if self.0.len() >= most {
                break;
            }
            if !self.0.contains(key) {
                self.0.insert(key.clone());
            }
        }
        let all = counted.len();
        counted.retain(|(key, _)| self.0.contains(key));
        (all - counted.len()) as u64
    }
}

/// Everything that is read for one scrape.
#[derive(Default)]
struct Reading {
    reasons: Vec<(Reason, u64)>,
    neighbour_events: Vec<(NeighbourEvent, u64)>,
    service_ports: Vec<(ServicePortKey, layout::Traffic)>,
    backends: Vec<(BackendKey, layout::Traffic)>,
    flow_tables: Vec<FlowTable>,
    /// How many objects of each kind had traffic and are not exported.
    left_out: [(&'static str, u64); 2],
}

impl Traffic {
    /// Sets how to open the counters; without it there are none.
    pub fn read_from(&self, open: impl Fn() -> Result<Box<dyn Counters>> + Send + Sync + 'static) {
        let mut state = self.state();
        state.open = Some(Arc::new(open));
        state.counters = None;
    }

    pub fn catalogue(&self, change: impl FnOnce(&mut Catalog)) {
        change(&mut self.state().catalog);
    }

    pub(crate) fn limit_objects(&self, most: usize) {
        self.state().most = most;
    }

    fn state(&self) -> MutexGuard<'_, TrafficState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> Result<Reading> {
        let (counters, service_ports) = {
            let mut state = self.state();
            let counters = match (state.counters.take(), &state.open) {
                (Some(counters), _) => counters,
                (None, Some(open)) => open()?,
                (None, None) => return Ok(Reading::default()),
            };
            // The lock is released before the system calls: the agent must not wait for them.
            (counters, state.catalog.clone())
        };
        let mut reading = Reading {
            reasons: counters.reasons()?,
            neighbour_events: counters.neighbour_events()?,
            flow_tables: counters.flow_tables(),
            ..Reading::default()
        };
        for (key, index) in service_ports {
            let traffic = counters.service_port(index)?;
            if traffic != layout::Traffic::default() {
                reading.service_ports.push((key, traffic));
            }
        }
        for (index, key) in counters.backends() {
            let traffic = counters.backend(index)?;
            if traffic != layout::Traffic::default() {
                reading.backends.push((key, traffic));
            }
        }
        let mut state = self.state();
        let most = state.most;
        let service_ports = state.chosen_service_ports.choose(&mut reading.service_ports, most);
        let backends = state.chosen_backends.choose(&mut reading.backends, most);
        reading.left_out = [("service_port", service_ports), ("backend", backends)];
        state.counters = Some(counters);
        Ok(reading)
    }
}

impl Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Traffic")
    }
}

#[cfg(test)]
mod tests;

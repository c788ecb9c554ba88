//! The contents of a pinned data plane, without what may differ between equivalent ones: indexes
//! of backends and service ports, positions of tables, generations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use anyhow::Result;
use lb_common::layout::{self, Pool};
use lb_kernel::Tables;
use lb_plan::{BackendKey, BackendState, FrontendKey, Scope, SideEntry};

/// Equal contents serve the same, and have no additional entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// For each frontend: its entry, its owner, and its tables by scope, slot by slot.
    pub frontends: BTreeMap<String, [String; 3]>,
    /// All backends, used or not.
    pub backends: BTreeSet<String>,
    /// Tables without a frontend.
    pub stray_pools: usize,
    /// The bits of the prefilters.
    pub destination_bits: BTreeSet<String>,
    pub source_bits: BTreeSet<String>,
    pub side_entries: usize,
}

impl Contents {
    pub fn of(pin_path: &Path) -> Result<Self> {
        Self::read(&Tables::open(|name| pin_path.join(name))?)
    }

    pub fn read(tables: &Tables) -> Result<Self> {
        let snapshot = tables.snapshot()?;
        let pools: HashMap<u32, Pool> =
            snapshot.pools.iter().map(|found| (found.index, found.pool)).collect();
        let backends: HashMap<u32, (BackendKey, BackendState)> = snapshot
            .backends
            .iter()
            .filter_map(|found| Some((found.index, found.backend?)))
            .collect();
        let mut strays: BTreeSet<u32> = pools.keys().copied().collect();
        let owners: HashMap<u32, String> = snapshot.side_entries.iter().filter_map(owner).collect();
        let mut frontends = BTreeMap::new();
        for (key, frontend) in &snapshot.frontends {
            let [cluster, local] = Scope::BOTH.map(|scope| {
                let index = scope.pool_index(frontend.service_port);
                strays.remove(&index);
                let slots = pools.get(&index).map_or(Vec::new(), |&pool| tables.slots(pool));
                named(&slots, &backends).join(" ")
            });
            let owner = owners.get(&frontend.service_port);
            let entry = format!("{}, of {owner:?}", policies(frontend));
            frontends.insert(name(key), [entry, cluster, local]);
        }
        Ok(Self {
            frontends,
            backends: backends.values().map(|(key, state)| format!("{key} {state:?}")).collect(),
            stray_pools: strays.len(),
            destination_bits: debug(&snapshot.destination_bits),
            source_bits: debug(&snapshot.source_bits),
            side_entries: snapshot.side_entries.iter().collect::<BTreeSet<&SideEntry>>().len(),
        })
    }
}

fn owner(side_entry: &SideEntry) -> Option<(u32, String)> {
    match side_entry {
        SideEntry::Name { service_port, name } => Some((*service_port, format!("{name:?}"))),
        _ => None,
    }
}

fn name(key: &FrontendKey) -> String {
    format!("{}:{} {}", key.address, key.port, key.protocol)
}

fn policies(frontend: &layout::Frontend) -> String {
    // Indexes depend on the order of creation.
    let rest = layout::Frontend { service_port: 0, cluster_pool: 0, local_pool: 0, ..*frontend };
    format!("{rest:?}")
}

fn named(slots: &[u32], backends: &HashMap<u32, (BackendKey, BackendState)>) -> Vec<String> {
    let named = |index: &u32| match backends.get(index) {
        Some((key, _)) => key.to_string(),
        None => "nobody".to_owned(),
    };
    slots.iter().map(named).collect()
}

fn debug<T: std::fmt::Debug>(all: &[T]) -> BTreeSet<String> {
    all.iter().map(|one| format!("{one:?}")).collect()
}

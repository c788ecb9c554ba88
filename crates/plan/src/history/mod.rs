//! The earlier owners of the slots of tunnelled service ports ([`lb_common::slot_history`]).
//!
//! They are written before the pool that changes, so that a packet that meets the new owner finds
//! the earlier ones.
//!
//! Of the planner, only this module knows what a history contains. Others keep [`SlotHistory`] with the service port,
//! and call `change_history`, `remove_history`, `expire_history` and, at the start, `adopt_history`.

mod adopted;
mod exchange;

use std::collections::{HashMap, HashSet};

use lb_common::layout::PoolSlot;
use lb_common::slot_history::entries;
use lb_rules::model::{ServicePort, ServicePortKey};

use crate::backends::Backends;
use crate::key::{BackendKey, BackendNode, Scope};
use crate::pool_table::{Fit, PoolTable};
use crate::side_entry::SideEntry;
use crate::state::{Planner, ProgrammedPort};
use crate::step::{Plan, Step};
use crate::table::Table;

pub(crate) use adopted::AdoptedHistories;
pub use exchange::KnownHistory;
pub(crate) use lb_common::slot_history::SlotHistory;

/// How often histories are searched for entries that are too old, in seconds.
const EXPIRE_EVERY: u32 = 60;

/// What the planner knows about the histories of all service ports.
#[derive(Default)]
pub(crate) struct HistoryState {
    /// How long earlier owners are kept, in seconds; 0: none are.
    age: u32,
    /// When histories were last searched for old entries.
    expired_at: u32,
    /// The number of slots with earlier owners.
    rows: usize,
}

impl Planner {
    /// Gives a service port that takes over its index the history that it had there.
    pub(crate) fn adopt_history(&mut self, held: &mut ProgrammedPort) {
        let Some(adopted) = &mut self.adopted else { return };
        let rows = adopted.histories.take_rows(Scope::Cluster.pool_index(held.index));
        held.history = SlotHistory::of_rows(rows);
        self.history.rows += held.history.len();
    }

    /// Keeps the earlier owners of slots this long, in seconds; 0: keeps none.
    pub fn keeping_history(mut self, age: u32) -> Self {
        self.history.age = age;
        self
    }

    /// The number of slots with earlier owners.
    pub fn slots_with_history(&self) -> usize {
        self.history.rows
    }

    /// Plans the history of a service port's cluster pool after it got a new table, and returns it. To be called before
    /// members that left are released.
    pub(crate) fn change_history(
        &mut self,
        old: &ProgrammedPort,
        wanted: &ServicePort,
        table: &PoolTable,
        draining: &[BackendKey],
        protocol: u8,
        plan: &mut Plan,
    ) -> SlotHistory {
        let history = self.next_history(old, wanted, table, draining, protocol);
        self.replace_history(old.index, &old.history, &history, plan);
        history
    }

    /// Plans the removal of a service port's history.
    pub(crate) fn remove_history(&mut self, old: &ProgrammedPort, plan: &mut Plan) {
        self.replace_history(old.index, &old.history, &SlotHistory::default(), plan);
    }

    fn next_history(
        &self,
        old: &ProgrammedPort,
        wanted: &ServicePort,
        table: &PoolTable,
        draining: &[BackendKey],
        protocol: u8,
    ) -> SlotHistory {
        if self.history.age == 0 || !wanted.is_tunnelled() {
            return SlotHistory::default();
        }
        let slots = |port: &ServicePort, table: &PoolTable| {
            self.slots_of(port, table.region.size, protocol)
        };
        let keys = |port: &ServicePort, draining: &[BackendKey]| {
            let members = port.cluster.iter().map(|member| BackendKey::of(member, protocol));
            members.chain(draining.iter().copied()).collect::<Vec<_>>()
        };
        let before = keys(&old.service_port, &old.draining);
        let asked = asked(&self.backends, &keys(wanted, draining), &before, &old.history);
        let asked = |owner: u32| asked.get(&owner).copied();
        let before = &old.tables[Scope::Cluster as usize];
        let is_known = before.fit != Fit::Unknown && table.fit != Fit::Unknown;
        let is_same = before == table && old.service_port.cluster == wanted.cluster;
        let mut history = if is_known && !is_same {
            let (before, after) = (slots(&old.service_port, before), slots(wanted, table));
            old.history.after(&before, &after, self.now, asked)
        } else {
            old.history.clone()
        };
        history.retain(self.oldest(), asked);
        history.limit(self.room.history.saturating_sub(self.history.rows - old.history.len()));
        history
    }

    /// The time before which owners are forgotten.
    fn oldest(&self) -> u32 {
        self.now.saturating_sub(self.history.age)
    }

    /// The backends' indexes in the table of a service port's cluster pool.
    fn slots_of(&self, port: &ServicePort, size: u32, protocol: u8) -> Vec<u32> {
        Table::maglev(size, self.backends.weighted(&port.cluster, protocol)).slots()
    }

    /// Plans the difference between two histories of a service port's pool.
    fn replace_history(
        &mut self,
        index: u32,
        old: &SlotHistory,
        new: &SlotHistory,
        plan: &mut Plan,
    ) {
        let pool = Scope::Cluster.pool_index(index);
        for (slot, owners) in new.rows().filter(|(slot, owners)| old.get(*slot) != Some(owners)) {
            let side_entry = SideEntry::Earlier { slot: PoolSlot { pool, slot }, owners: *owners };
            plan.prepare.push(Step::SetSideEntry(side_entry));
        }
        for (slot, owners) in old.rows().filter(|(slot, _)| new.get(*slot).is_none()) {
            let side_entry = SideEntry::Earlier { slot: PoolSlot { pool, slot }, owners: *owners };
            plan.retire.push(Step::RemoveSideEntry(side_entry));
        }
        self.history.rows = self.history.rows + new.len() - old.len();
    }

    /// Forgets owners that lost their slots too long ago.
    pub(crate) fn expire_history(&mut self, plan: &mut Plan) {
        if self.history.rows == 0 || self.now < self.history.expired_at + EXPIRE_EVERY {
            return;
        }
        self.history.expired_at = self.now;
        let oldest = self.oldest();
        let keys: Vec<ServicePortKey> = self
            .held
            .iter()
            .filter(|(_, held)| !held.history.is_empty())
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            let Some(held) = self.held.get_mut(&key) else { continue };
            let index = held.index;
            let mut kept = held.history.clone();
            kept.forget(oldest);
            if kept == held.history {
                continue;
            }
            let old = std::mem::replace(&mut held.history, kept.clone());
            self.replace_history(index, &old, &kept, plan);
        }
    }
}

/// By the index of an owner of a slot: by which backend its node is asked about a connection, and the node. Of those that
/// are not `there` any more, which were in a pool `before` or are in the history, it is the first one there on the same
/// node.
fn asked(
    backends: &Backends,
    there: &[BackendKey],
    before: &[BackendKey],
    history: &SlotHistory,
) -> HashMap<u32, (u32, BackendNode)> {
    let mut first: HashMap<BackendNode, (BackendKey, u32)> = HashMap::new();
    let mut asked = HashMap::new();
    for key in there {
        let Some((index, place)) = backends.node_of(key) else { continue };
        asked.insert(index, (index, place));
        let first = first.entry(place).or_insert((*key, index));
        *first = (*first).min((*key, index));
    }
    let before = before.iter().filter_map(|key| backends.node_of(key));
    let mut gone: HashMap<u32, BackendNode> = before.collect();
    // An earlier agent may have left owners that were draining, and have gone meanwhile.
    let owners = history.rows().flat_map(|(_, row)| entries(row)).map(|owner| owner.backend);
    let is_known = |owner: &u32| asked.contains_key(owner) || gone.contains_key(owner);
    let unknown: HashSet<u32> = owners.filter(|owner| !is_known(owner)).collect();
    if !unknown.is_empty() {
        gone.extend(backends.nodes().filter(|(index, _)| unknown.contains(index)));
    }
    for (index, place) in gone {
        if let Some(&(_, other)) = first.get(&place) {
            asked.entry(index).or_insert((other, place));
        }
    }
    asked
}

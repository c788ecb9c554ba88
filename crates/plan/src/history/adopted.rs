//! The histories that an earlier agent left, until the first plan takes over or retires them.

use std::collections::HashMap;

use lb_common::layout::{EarlierOwners, PoolSlot};

use super::SlotHistory;
use crate::key::Scope;
use crate::side_entry::SideEntry;
use crate::state::{Planner, ProgrammedPort};
use crate::step::{Plan, Step};

/// Slots and their earlier owners, by pool.
#[derive(Default)]
pub(crate) struct AdoptedHistories(HashMap<u32, Vec<(u32, EarlierOwners)>>);

impl AdoptedHistories {
    pub fn insert(&mut self, slot: PoolSlot, owners: EarlierOwners) {
        self.0.entry(slot.pool).or_default().push((slot.slot, owners));
    }

    /// Plans the removal of those that no service port has taken over.
    pub fn retire(self, plan: &mut Plan) {
        for (pool, rows) in self.0 {
            let side_entry =
                |(slot, owners)| SideEntry::Earlier { slot: PoolSlot { pool, slot }, owners };
            plan.retire.extend(rows.into_iter().map(side_entry).map(Step::RemoveSideEntry));
        }
    }
}

impl Planner {
    /// Gives a service port that takes over its index the history that it had there.
    pub(crate) fn adopt_history(&mut self, held: &mut ProgrammedPort) {
        let Some(adopted) = &mut self.adopted else { return };
        let pool = Scope::Cluster.pool_index(held.index);
        held.history = SlotHistory::of_rows(adopted.histories.0.remove(&pool).unwrap_or_default());
        self.history.rows += held.history.len();
    }
}

//! The histories that an earlier agent left, until the first plan takes over or retires them.

use std::collections::HashMap;

use lb_common::layout::{EarlierOwners, PoolSlot};

use crate::side_entry::SideEntry;
use crate::step::{Plan, Step};

/// Slots and their earlier owners, by pool.
#[derive(Default)]
pub(crate) struct AdoptedHistories(HashMap<u32, Vec<(u32, EarlierOwners)>>);

impl AdoptedHistories {
    pub fn insert(&mut self, slot: PoolSlot, owners: EarlierOwners) {
        self.0.entry(slot.pool).or_default().push((slot.slot, owners));
    }

    /// Takes the slots of a pool and their earlier owners.
    pub(super) fn take_rows(&mut self, pool: u32) -> Vec<(u32, EarlierOwners)> {
        self.0.remove(&pool).unwrap_or_default()
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

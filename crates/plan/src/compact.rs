//! Makes room for a table when there are enough free slots, but not contiguous ones.
//!
//! The tables with the highest offsets move into gaps below them, where they fit, so that free
//! slots become contiguous. As in any swap, the new region is written first, and the old one is
//! free for the next plan.

use lb_common::layout::Pool;
use lb_rules::model::ServicePortKey;

use super::allocate::Region;
use super::key::Scope;
use super::pool_table::{Fit, PoolTable};
use super::state::Planner;
use super::step::{Plan, Step};
use super::table::Table;

/// Limit of slots that one plan moves: a few milliseconds.
const MOST_MOVED: u64 = 1 << 19;

impl Planner {
    /// Moves tables if this plan lacked room for some, and moving could make room.
    pub(super) fn compact(&mut self, plan: &mut Plan) {
        if plan.lack.least.is_none_or(|least| least > self.regions.free_slots()) {
            return;
        }
        let mut highest: Vec<(Region, ServicePortKey, Scope)> = Vec::new();
        for (key, held) in &self.held {
            for scope in Scope::BOTH {
                let PoolTable { region, fit } = held.tables[scope as usize];
                if region.size > 0 && fit != Fit::Unknown {
                    highest.push((region, key.clone(), scope));
                }
            }
        }
        highest.sort_unstable_by_key(|(region, ..)| std::cmp::Reverse(region.offset));
        let mut left = (4 * plan.lack.slots).min(MOST_MOVED);
        for (region, key, scope) in highest {
            if left == 0 {
                break;
            }
            if let Some(to) = self.regions.take_below(region) {
                self.move_table(&key, scope, to, plan);
                left = left.saturating_sub(u64::from(region.size));
            }
        }
    }

    fn move_table(&mut self, key: &ServicePortKey, scope: Scope, to: Region, plan: &mut Plan) {
        let Some(held) = self.held.get_mut(key) else { return };
        let protocol = key.protocol.number();
        let members = scope.members(&held.service_port);
        let table = Table::maglev(to.size, self.backends.weighted(members, protocol));
        plan.prepare.push(Step::WriteTable { offset: to.offset, table });
        plan.publish_pools.push(Step::SwapPool {
            index: scope.pool_index(held.index),
            pool: Pool { offset: to.offset, size: to.size },
        });
        let left = std::mem::replace(&mut held.tables[scope as usize].region, to);
        self.regions.give_back(left);
    }
}

//! Pools: their Maglev tables, each in a region of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use lb_common::layout::Pool;
use lb_common::maglev;

use crate::model::ServicePort;

use super::allocate::Region;
use super::{BackendKey, Held, MORE_ENDPOINTS, Plan, Planner, Scope, Step, Table};

impl Planner {
    /// Writes a pool's table into a region of its own, and swaps the pool to it. What does not
    /// fit is taken out of `wanted`, so that it is tried again with the next change.
    pub(super) fn refill(
        &mut self,
        index: u32,
        scope: Scope,
        protocol: u8,
        old: &Held,
        wanted: &mut Arc<ServicePort>,
        plan: &mut Plan,
    ) -> Region {
        let old_region = old.regions[scope as usize];
        let old_members = scope.members(&old.service_port);
        let members = scope.members(wanted);
        if old_members == members {
            return old_region;
        }
        let size = maglev::fitted_size(members.len());
        if size == 0 {
            self.empty_pool(index, scope, old_region, plan);
            return Region::EMPTY;
        }
        let Some(region) = self.regions.take(size) else {
            let full = format!(
                "no room for a table of {size} slots: the pool stays as it was; {MORE_ENDPOINTS}"
            );
            plan.lack(&scope, full);
            *scope.members_mut(Arc::make_mut(wanted)) = old_members.clone();
            return old_region;
        };
        let mut entries = Vec::with_capacity(members.len());
        let mut lacking = BTreeSet::new();
        for member in members {
            let key = BackendKey::new(member.address, member.port, protocol);
            let place = (member.local, member.node);
            match self.backends.acquire(key, place, &mut self.bits, plan) {
                Some(backend) => entries.push((key.identity(), backend)),
                None => {
                    let all = self.room.backends;
                    plan.lack(&key, format!("all {all} backends are in use; {MORE_ENDPOINTS}"));
                    lacking.insert(*member);
                }
            }
        }
        if !lacking.is_empty() {
            let members = scope.members_mut(Arc::make_mut(wanted));
            members.retain(|member| !lacking.contains(member));
        }
        let table = Table::maglev(region.size, entries);
        let pool = if table.is_empty() {
            Pool::default()
        } else {
            Pool { offset: region.offset, size: region.size }
        };
        plan.prepare.push(Step::WriteTable { offset: region.offset, table });
        plan.publish_pools.push(Step::SwapPool { index: scope.pool_index(index), pool });
        self.regions.give_back(old_region);
        region
    }

    pub(super) fn empty_pool(&mut self, index: u32, scope: Scope, region: Region, plan: &mut Plan) {
        if region.size == 0 {
            return;
        }
        let pool = Pool::default();
        plan.retire.push(Step::SwapPool { index: scope.pool_index(index), pool });
        self.regions.give_back(region);
    }
}

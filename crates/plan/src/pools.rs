//! Pools: their Maglev tables, each in its own region.
//!
//! A table is written into a free region, and then the pool is swapped to it. If no region is free,
//! the pool's own region is overwritten slot by slot, after the new backends have been written. At
//! any time each slot refers to an old or a new member. So a pool can always lose a backend that is
//! gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use lb_common::layout::Pool;
use lb_common::maglev;
use lb_rules::model::ServicePort;

use super::allocate::Region;
use super::key::{BackendKey, Scope};
use super::pool_table::{Fit, PoolTable};
use super::room::MORE_ENDPOINTS;
use super::state::{Planner, ProgrammedPort};
use super::step::{Plan, Step};
use super::table::{Table, WeightedBackend};

/// The result for a pool.
pub(super) enum Refilled {
    /// The members and the table are unchanged.
    Kept(PoolTable),
    /// The members were acquired again; the previous ones must be released.
    Replaced(PoolTable),
}

/// Where a table is written.
enum Placement {
    Free(Region),
    /// Over the current table.
    InPlace {
        size: u32,
    },
}

impl Planner {
    /// Writes the table of a pool's wanted members. What does not fit is removed from `wanted`, so
    /// that the next change tries it again.
    pub(super) fn refill(
        &mut self,
        index: u32,
        scope: Scope,
        protocol: u8,
        old: &ProgrammedPort,
        wanted: &mut Arc<ServicePort>,
        plan: &mut Plan,
    ) -> Refilled {
        let held = old.tables[scope as usize];
        let old_members = scope.members(&old.service_port);
        let members = scope.members(wanted);
        if held.fit == Fit::Exact && old_members == members {
            return Refilled::Kept(held);
        }
        if members.is_empty() {
            self.empty_pool(index, scope, held, plan);
            return Refilled::Replaced(PoolTable::EMPTY);
        }
        let fitted = maglev::fitted_size(members.len());
        let Some(place) = self.choose_placement(fitted, members.len(), held.region) else {
            let full = format!(
                "no room for a table of {fitted} slots: the pool stays as it was; {MORE_ENDPOINTS}"
            );
            plan.lack.add(fitted);
            plan.lack(&scope, full);
            *scope.members_mut(Arc::make_mut(wanted)) = old_members.clone();
            return Refilled::Kept(held);
        };
        if held.fit == Fit::Coarse
            && old_members == members
            && matches!(place, Placement::InPlace { size } if size == held.region.size)
        {
            lack_slots(scope, fitted, held.region.size, plan);
            return Refilled::Kept(held);
        }
        let mut entries = Vec::with_capacity(members.len());
        let mut lacking = BTreeSet::new();
        for member in members {
            let key = BackendKey::of(member, protocol);
            match self.backends.acquire(key, member, &mut self.bits, plan) {
                Some(index) => entries.push(WeightedBackend {
                    identity: key.identity(),
                    weight: member.weight,
                    index,
                }),
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
        let region = match place {
            Placement::Free(region) => {
                self.write_elsewhere(index, scope, held, region, entries, plan)
            }
            Placement::InPlace { size } => self.write_over(index, scope, held, size, entries, plan),
        };
        if region.size < fitted && lacking.is_empty() {
            lack_slots(scope, fitted, region.size, plan);
        }
        let fit = Fit::of(region.size, scope.members(wanted).len());
        Refilled::Replaced(PoolTable { region, fit })
    }

    /// The region for a table of `members`: a free one of the fitting size; otherwise the current
    /// one, if it is large enough; otherwise the largest free one that is larger than the current
    /// one and has a slot for each member; otherwise the current one. `None`: there is no room.
    fn choose_placement(&mut self, fitted: u32, members: usize, held: Region) -> Option<Placement> {
        if let Some(region) = self.regions.take(fitted) {
            return Some(Placement::Free(region));
        }
        if held.size >= fitted {
            return Some(Placement::InPlace { size: fitted });
        }
        let smaller = maglev::SIZES.into_iter().rev();
        let mut smaller =
            smaller.filter(|&size| size < fitted && size > held.size && size as usize >= members);
        if let Some(region) = smaller.find_map(|size| self.regions.take(size)) {
            return Some(Placement::Free(region));
        }
        (held.size > 0).then(|| Placement::InPlace { size: maglev::size_within(held.size) })
    }

    fn write_elsewhere(
        &mut self,
        index: u32,
        scope: Scope,
        held: PoolTable,
        region: Region,
        entries: Vec<WeightedBackend>,
        plan: &mut Plan,
    ) -> Region {
        let table = Table::maglev(region.size, entries);
        if table.is_empty() {
            self.regions.give_back(region);
            self.empty_pool(index, scope, held, plan);
            return Region::EMPTY;
        }
        plan.prepare.push(Step::WriteTable { offset: region.offset, table });
        plan.publish_pools.push(Step::SwapPool {
            index: scope.pool_index(index),
            pool: Pool { offset: region.offset, size: region.size },
        });
        self.regions.give_back(held.region);
        region
    }

    /// Writes all slots of the region, including those that are given back: a packet that has read
    /// the pool's old position may still read them.
    fn write_over(
        &mut self,
        index: u32,
        scope: Scope,
        held: PoolTable,
        size: u32,
        entries: Vec<WeightedBackend>,
        plan: &mut Plan,
    ) -> Region {
        let table = Table::maglev(size, entries);
        if table.is_empty() {
            self.empty_pool(index, scope, held, plan);
            return Region::EMPTY;
        }
        let Region { offset, size: before } = held.region;
        let table = table.repeated(before);
        plan.publish_pools.push(Step::WriteTable { offset, table });
        let region = Region { offset, size };
        if size < before {
            let pool = Pool { offset, size };
            plan.publish_pools.push(Step::SwapPool { index: scope.pool_index(index), pool });
            self.regions.give_back(Region { offset: offset + size, size: before - size });
        }
        region
    }

    pub(super) fn empty_pool(
        &mut self,
        index: u32,
        scope: Scope,
        table: PoolTable,
        plan: &mut Plan,
    ) {
        if table == PoolTable::EMPTY {
            return;
        }
        let pool = Pool::default();
        plan.retire.push(Step::SwapPool { index: scope.pool_index(index), pool });
        self.regions.give_back(table.region);
    }
}

fn lack_slots(scope: Scope, fitted: u32, size: u32, plan: &mut Plan) {
    let message = format!(
        "no room for a table of {fitted} slots: it has {size}, so connections spread less evenly; \
         {MORE_ENDPOINTS}"
    );
    plan.lack.add(fitted);
    plan.lack(&scope, message);
}

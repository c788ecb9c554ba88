//! Which Services have each address, and how many addresses of each pool are used.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::pools::{PoolIndex, Pools};
use super::range::{address_to_number, ends_in_0_or_255, number_to_address};
use super::runs::AddressRuns;
use crate::model::{AddressFamily, ServiceName};

/// The order in which Services get addresses: the oldest first. `None`, as of Services from files, is the oldest.
pub(crate) type SearchStart = (Option<Arc<str>>, ServiceName);

#[derive(Debug, Default)]
pub(crate) struct AddressLedger {
    users: BTreeMap<u128, BTreeSet<SearchStart>>,
    used: AddressRuns,
    /// Of each pool, the used addresses of each family.
    counts: Vec<[u64; 2]>,
}

impl AddressLedger {
    pub fn users(&self, address: IpAddr) -> impl Iterator<Item = &SearchStart> {
        self.users.get(&address_to_number(address)).into_iter().flatten()
    }

    pub fn insert(&mut self, pools: &Pools, address: IpAddr, turn: &SearchStart) {
        let number = address_to_number(address);
        let users = self.users.entry(number).or_default();
        let is_first = users.is_empty();
        users.insert(turn.clone());
        if is_first {
            self.used.insert(number);
            self.count(pools, number, |count| count + 1);
        }
    }

    /// Returns whether the address is free now.
    pub fn remove(&mut self, pools: &Pools, address: IpAddr, turn: &SearchStart) -> bool {
        let number = address_to_number(address);
        let Some(users) = self.users.get_mut(&number) else { return false };
        let was_user = users.remove(turn);
        if !was_user || !users.is_empty() {
            return false;
        }
        self.users.remove(&number);
        self.used.remove(number);
        self.count(pools, number, |count| count.saturating_sub(1));
        true
    }

    fn count(&mut self, pools: &Pools, number: u128, change: fn(u64) -> u64) {
        // Until they are counted again, the pools may be others.
        if let Some(counts) = pools.index_of(number).and_then(|index| self.counts.get_mut(index)) {
            let count = &mut counts[index_of(family(number))];
            *count = change(*count);
        }
    }

    /// Counts again, for other pools.
    pub(crate) fn recount(&mut self, pools: &Pools) {
        self.counts = vec![[0; 2]; pools.iter().count()];
        let numbers: Vec<u128> = self.users.keys().copied().collect();
        for number in numbers {
            self.count(pools, number, |count| count + 1);
        }
    }

    /// The number of a pool's addresses that Services have.
    pub fn used(&self, pool: PoolIndex, family: AddressFamily) -> u64 {
        self.counts.get(pool).map_or(0, |counts| counts[index_of(family)])
    }

    /// A pool's first address that no Service has.
    pub(crate) fn first_free(
        &self,
        pools: &Pools,
        pool: PoolIndex,
        family: AddressFamily,
    ) -> Option<IpAddr> {
        let pool = pools.get(pool);
        let ranges = pool.ranges.iter().filter(|range| range.family() == family);
        ranges.into_iter().find_map(|range| {
            let mut from = range.first();
            loop {
                let free = self.used.first_absent(from).filter(|free| range.contains(*free))?;
                if !(pool.avoid_buggy && ends_in_0_or_255(free)) {
                    return Some(number_to_address(free));
                }
                from = free.checked_add(1)?;
            }
        })
    }
}

fn family(number: u128) -> AddressFamily {
    AddressFamily::of(&number_to_address(number))
}

fn index_of(family: AddressFamily) -> usize {
    match family {
        AddressFamily::V4 => 0,
        AddressFamily::V6 => 1,
    }
}

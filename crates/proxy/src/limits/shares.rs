//! How many of something costly there are at the same time: in all, and for each source, which must leave room for
//! others.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::network;

#[derive(Clone, Debug)]
pub(crate) struct Shares {
    most: usize,
    most_per_source: usize,
    /// The networks that they are for. There are few, so they are searched.
    taken: Arc<Mutex<Vec<u64>>>,
}

/// Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Shares,
    network: u64,
}

impl Shares {
    pub fn new(most: usize, most_per_source: usize) -> Self {
        Self { most, most_per_source, taken: Arc::default() }
    }

    /// `None`: there are too many.
    pub fn take(&self, source: IpAddr) -> Option<Share> {
        let network = network(source);
        let mut taken = self.lock();
        let of_source = taken.iter().filter(|other| **other == network).count();
        if taken.len() >= self.most || of_source >= self.most_per_source {
            return None;
        }
        taken.push(network);
        Some(Share { shares: self.clone(), network })
    }

    #[cfg(test)]
    pub fn are_all_free(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.lock();
        if let Some(position) = taken.iter().position(|network| *network == self.network) {
            taken.swap_remove(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_leaves_room_for_others_and_shares_come_back() {
        let shares = Shares::new(3, 2);
        let (attacker, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let first = shares.take(attacker).unwrap();
        let second = shares.take(attacker).unwrap();
        assert!(shares.take(attacker).is_none());
        let third = shares.take(other).unwrap();
        assert!(shares.take(other).is_none());
        drop(first);
        let _fourth = shares.take(attacker).unwrap();
        drop((second, third));
        shares.take(other).unwrap();
    }
}

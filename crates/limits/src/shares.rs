//! How much of a common resource each client uses: connections, requests, bytes.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A resource that clients share.
///
/// Invariants:
/// - One client never holds more than `per_client`, so it cannot use up what others need.
/// - Clients without privilege together never hold more than `total` without the reserve, so a privileged client
///   finds room.
#[derive(Clone, Debug)]
pub struct Shares<K: Eq + Hash> {
    total: usize,
    per_client: usize,
    reserve: usize,
    used: Arc<Mutex<Used<K>>>,
}

#[derive(Debug)]
struct Used<K> {
    all: usize,
    by_client: HashMap<K, usize>,
}

/// What one client holds, until this is dropped.
#[derive(Debug)]
pub struct Share<K: Eq + Hash> {
    client: K,
    /// Most that all clients together may hold when this share grows.
    total: usize,
    amount: usize,
    shares: Shares<K>,
}

impl<K: Eq + Hash + Clone> Shares<K> {
    pub fn new(total: usize, per_client: usize) -> Self {
        let used = Used { all: 0, by_client: HashMap::new() };
        Self { total, per_client, reserve: 0, used: Arc::new(Mutex::new(used)) }
    }

    /// Keeps a part of the total for privileged clients.
    pub fn with_reserve(self, reserve: usize) -> Self {
        Self { reserve, ..self }
    }

    /// A share that contains nothing yet.
    pub fn empty(&self, client: K) -> Share<K> {
        let total = self.total.saturating_sub(self.reserve);
        Share { client, total, amount: 0, shares: self.clone() }
    }

    /// A share of a client that may use the reserve; it contains nothing yet.
    pub fn empty_privileged(&self, client: K) -> Share<K> {
        Share { client, total: self.total, amount: 0, shares: self.clone() }
    }

    /// Takes one; `None`: this client, or all together, hold too much.
    pub fn take(&self, client: K) -> Option<Share<K>> {
        let mut share = self.empty(client);
        share.grow(1).then_some(share)
    }

    /// Whether nobody holds anything.
    #[cfg(test)]
    pub(crate) fn are_unused(&self) -> bool {
        let used = self.lock();
        used.all == 0 && used.by_client.is_empty()
    }
}

impl<K: Eq + Hash> Shares<K> {
    /// The numbers, also after a panic of another thread: they change only after everything that can fail.
    fn lock(&self) -> MutexGuard<'_, Used<K>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Clone> Share<K> {
    /// Takes more. Returns false, and changes nothing, if the client or all together would hold too much.
    pub fn grow(&mut self, amount: usize) -> bool {
        let mut used = self.shares.lock();
        let own = used.by_client.get(&self.client).copied().unwrap_or_default();
        if own + amount > self.shares.per_client || used.all + amount > self.total {
            return false;
        }
        used.by_client.insert(self.client.clone(), own + amount);
        used.all += amount;
        drop(used);
        self.amount += amount;
        true
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut used = self.shares.lock();
        used.all -= self.amount;
        if let Some(own) = used.by_client.get_mut(&self.client) {
            *own -= self.amount;
            if *own == 0 {
                used.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Names = Shares<&'static str>;

    fn take_all(shares: &Names, client: &'static str) -> Vec<Share<&'static str>> {
        std::iter::from_fn(|| shares.take(client)).collect()
    }

    #[test]
    fn one_client_leaves_room_for_others_and_all_together_stay_below_the_total() {
        let shares = Names::new(3, 2);
        let mut attacker = take_all(&shares, "attacker");
        assert_eq!(attacker.len(), 2);
        let other = shares.take("other").unwrap();
        assert!(shares.take("other").is_none());
        attacker.pop();
        assert_eq!(take_all(&shares, "attacker").len(), 1);
        drop((attacker, other));
        assert!(shares.are_unused());
    }

    #[test]
    fn the_reserve_is_for_privileged_clients_whatever_others_hold() {
        let shares = Names::new(16, 8).with_reserve(2);
        let held: Vec<_> =
            ["a", "b", "c"].iter().flat_map(|name| take_all(&shares, name)).collect();
        assert_eq!(held.len(), 14);
        let mut agent = shares.empty_privileged("agent");
        assert!(agent.grow(2) && !agent.grow(1));
    }

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let shares = Names::new(16, 8);
        for _ in 0..3 {
            assert_eq!(take_all(&shares, "a").len(), 8);
        }
        assert!(shares.are_unused());
    }

    #[test]
    fn a_share_that_cannot_grow_stays_as_it_is() {
        let shares = Names::new(100, 50);
        let mut share = shares.empty("a");
        assert!(share.grow(30));
        assert!(!share.grow(21));
        assert!(share.grow(20));
    }
}

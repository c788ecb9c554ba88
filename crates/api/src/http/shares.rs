//! Limits what each client uses of a common resource: connections, requests, watches, bytes.
//!
//! Invariants:
//! - One user never holds more than half, so it cannot use up what others need.
//! - All clients except the agent together never hold more than seven eighths, so the agent always
//!   finds room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::identity::Identity;

#[derive(Debug, Clone)]
pub struct Shares {
    total: usize,
    used: Arc<Mutex<Used>>,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    of_user: HashMap<String, usize>,
}

/// What one user holds, until it is dropped.
#[derive(Debug)]
pub struct Share {
    user: String,
    is_agent: bool,
    amount: usize,
    shares: Shares,
}

impl Shares {
    pub fn new(total: usize) -> Self {
        Self { total, used: Arc::default() }
    }

    /// A share that contains nothing yet.
    pub fn empty(&self, identity: &Identity) -> Share {
        Share {
            user: identity.user.clone(),
            is_agent: identity.is_agent(),
            amount: 0,
            shares: self.clone(),
        }
    }

    pub fn take_one(&self, identity: &Identity) -> Option<Share> {
        let mut share = self.empty(identity);
        share.grow(1).then_some(share)
    }

    /// May be poisoned: the numbers are changed only after everything that can fail.
    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Returns false, and changes nothing, if the user would hold too much.
    pub fn grow(&mut self, amount: usize) -> bool {
        let total = self.shares.total;
        let for_all = if self.is_agent { total } else { total - total / 8 };
        let mut used = self.shares.lock();
        let own = used.of_user.get(&self.user).copied().unwrap_or_default();
        if own + amount > total.div_ceil(2) || used.all + amount > for_all {
            return false;
        }
        used.all += amount;
        used.of_user.insert(self.user.clone(), own + amount);
        drop(used);
        self.amount += amount;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.shares.lock();
        used.all -= self.amount;
        if let Some(own) = used.of_user.get_mut(&self.user) {
            *own -= self.amount;
            if *own == 0 {
                used.of_user.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Identity {
        Identity { user: name.to_owned(), groups: Vec::new() }
    }

    fn agent() -> Identity {
        Identity::agent()
    }

    fn take_all(shares: &Shares, identity: &Identity) -> Vec<Share> {
        std::iter::from_fn(|| shares.take_one(identity)).collect()
    }

    #[test]
    fn one_user_gets_at_most_half() {
        let shares = Shares::new(16);
        let held = take_all(&shares, &user("a"));
        assert_eq!(held.len(), 8);
        assert!(shares.take_one(&user("b")).is_some());
    }

    #[test]
    fn room_for_the_agent_remains_whatever_others_hold() {
        let shares = Shares::new(16);
        let held: Vec<_> =
            ["a", "b", "c"].iter().flat_map(|name| take_all(&shares, &user(name))).collect();
        assert_eq!(held.len(), 14);
        assert_eq!(take_all(&shares, &agent()).len(), 2);
    }

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let shares = Shares::new(16);
        for _ in 0..3 {
            assert_eq!(take_all(&shares, &user("a")).len(), 8);
        }
        assert!(shares.lock().of_user.is_empty());
        assert_eq!(shares.lock().all, 0);
    }

    #[test]
    fn a_share_that_cannot_grow_stays_as_it_is() {
        let shares = Shares::new(100);
        let mut share = shares.empty(&user("a"));
        assert!(share.grow(30));
        assert!(!share.grow(21));
        assert!(share.grow(20));
    }
}

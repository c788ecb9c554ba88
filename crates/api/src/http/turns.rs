//! Turns for expensive requests: large bodies and lists.
//!
//! Invariants:
//! - A few expensive requests run at a time, so memory and processor time are bounded.
//! - One user never holds all turns, and waits in its own queue. So the wait of a user depends on
//!   the number of users, not on how many requests another user sends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug, Clone)]
pub(crate) struct ExpensiveRequests {
    all: Arc<Semaphore>,
    each: usize,
    of_user: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

/// Held while an expensive request runs.
#[derive(Debug)]
pub(crate) struct ExpensivePermit {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl ExpensiveRequests {
    pub fn new(total: usize) -> Self {
        let all = Arc::new(Semaphore::new(total.max(2)));
        Self { all, each: (total / 2).max(1), of_user: Arc::default() }
    }

    /// Waits for a turn. `None` is never returned, except when the server ends.
    pub(crate) async fn acquire_permit(&self, user: &str) -> Option<ExpensivePermit> {
        let of_user = self.of(user).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(ExpensivePermit { _of_user: of_user, _of_all: of_all })
    }

    fn of(&self, user: &str) -> Arc<Semaphore> {
        // May be poisoned: the map is changed only by single operations.
        let mut of_user = self.of_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = of_user.get(user).and_then(Weak::upgrade) {
            return found;
        }
        of_user.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = Arc::new(Semaphore::new(self.each));
        of_user.insert(user.to_owned(), Arc::downgrade(&semaphore));
        semaphore
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// The turn, if it can be had without waiting.
    fn take_now(turns: &ExpensiveRequests, user: &str) -> Option<ExpensivePermit> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(turns.acquire_permit(user)).poll(&mut context) {
            std::task::Poll::Ready(turn) => turn,
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn one_user_never_holds_all_turns() {
        let turns = ExpensiveRequests::new(4);
        let held: Vec<_> = std::iter::from_fn(|| take_now(&turns, "a")).collect();
        assert_eq!(held.len(), 2);
        assert!(take_now(&turns, "b").is_some());
        drop(held);
        assert!(take_now(&turns, "a").is_some());
    }

    #[test]
    fn users_without_turns_are_removed() {
        let turns = ExpensiveRequests::new(4);
        for number in 0..100 {
            drop(take_now(&turns, &number.to_string()));
        }
        assert!(turns.of_user.lock().unwrap().len() <= 1);
    }
}

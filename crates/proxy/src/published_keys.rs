//! The keys that issuers of tokens publish, as all workers know them.
//!
//! Invariants:
//! - Each address is fetched by one worker at a time; no client can make it fetched more often than
//!   [`PublishedKeys`] allows, or end a fetch.
//! - A namespace has a bounded number of addresses, and of fetches at the same time: others find room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lb_http::jwt::{KeyAddress, KeySet, PublishedKeys, WhyFetch};
use lb_limits::{Share, Shares};
use tokio::sync::watch;

/// Addresses of one namespace: each may have keys that take 40 KiB.
const MOST_ADDRESSES: usize = 256;
/// Fetches at the same time, in all and for one namespace: each may have received a document of 256 KiB.
const MOST_FETCHES: usize = 64;
const MOST_FETCHES_PER_NAMESPACE: usize = 8;

/// The keys of one address.
pub(crate) type SharedKeys = Arc<watch::Sender<PublishedKeys>>;

#[derive(Debug)]
pub(crate) struct PublishedKeyCache {
    by_address: Mutex<HashMap<KeyAddress, SharedKeys>>,
    fetches: Shares<Arc<str>>,
}

impl Default for PublishedKeyCache {
    fn default() -> Self {
        let fetches = Shares::new(MOST_FETCHES, MOST_FETCHES_PER_NAMESPACE);
        Self { by_address: Mutex::default(), fetches }
    }
}

impl PublishedKeyCache {
    /// `None`: the namespace has too many other addresses.
    pub fn get(&self, address: &KeyAddress, now: Instant) -> Option<SharedKeys> {
        let mut by_address = lock(&self.by_address);
        if let Some(known) = by_address.get(address) {
            return Some(known.clone());
        }
        by_address.retain(|_, keys| Arc::strong_count(keys) > 1 || !keys.borrow().is_expired(now));
        let namespace = &address.namespace;
        let count = by_address.keys().filter(|known| known.namespace == *namespace).count();
        if count >= MOST_ADDRESSES {
            return None;
        }
        let keys = SharedKeys::default();
        by_address.insert(address.clone(), keys.clone());
        Some(keys)
    }

    /// A fetch that the caller has to make, if one is due.
    pub fn begin_fetch(
        &self,
        address: &KeyAddress,
        keys: &SharedKeys,
        why: WhyFetch,
        now: Instant,
    ) -> Option<KeyFetch> {
        if !keys.borrow().is_fetch_due(why, now) {
            return None;
        }
        let share = self.fetches.take(address.namespace.clone())?;
        let has_begun = keys.send_if_modified(|state| state.begin_fetch(why, now));
        has_begun.then(|| KeyFetch { keys: keys.clone(), fetched: None, _share: share })
    }
}

/// Ends when it is dropped, however that happens.
pub(crate) struct KeyFetch {
    keys: SharedKeys,
    fetched: Option<KeySet>,
    _share: Share<Arc<str>>,
}

impl KeyFetch {
    pub fn succeed(mut self, keys: KeySet) {
        self.fetched = Some(keys);
    }
}

impl Drop for KeyFetch {
    fn drop(&mut self) {
        let fetched = self.fetched.take();
        self.keys.send_modify(|state| state.end_fetch(fetched, Instant::now()));
    }
}

/// A panic leaves a map that is still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use lb_http::UpstreamName;
    use lb_http::upstream::UpstreamProtocol;

    use super::*;

    fn address(namespace: &str, number: usize) -> KeyAddress {
        let upstream = UpstreamName {
            namespace: "shared".into(),
            service: "id".into(),
            port: "80".into(),
            protocol: UpstreamProtocol::Http1,
            tls: None,
        };
        KeyAddress {
            namespace: namespace.into(),
            upstream,
            url: format!("http://id/{number}").parse().unwrap(),
        }
    }

    #[test]
    fn a_namespace_leaves_room_for_the_keys_and_fetches_of_others() {
        let cache = PublishedKeyCache::default();
        let now = Instant::now();
        let begin = |address: &KeyAddress| {
            let keys = cache.get(address, now)?;
            cache.begin_fetch(address, &keys, WhyFetch::Age, now)
        };
        let held: Vec<_> =
            (0..1000).map(|number| cache.get(&address("evil", number), now)).collect();
        assert_eq!(held.iter().flatten().count(), MOST_ADDRESSES);
        let fetches: Vec<_> =
            (0..100).filter_map(|number| begin(&address("evil", number))).collect();
        assert_eq!(fetches.len(), MOST_FETCHES_PER_NAMESPACE);
        assert!(begin(&address("good", 0)).is_some());
        drop((held, fetches));
        // What failed is forgotten when another one may be tried.
        let later = now + std::time::Duration::from_secs(60);
        assert!(cache.get(&address("evil", 1000), later).is_some());
        assert_eq!(lock(&cache.by_address).len(), 1);
    }

    #[test]
    fn a_fetch_that_is_given_up_ends() {
        let cache = PublishedKeyCache::default();
        let (address, now) = (address("shop", 0), Instant::now());
        let keys = cache.get(&address, now).unwrap();
        let fetch = cache.begin_fetch(&address, &keys, WhyFetch::Age, now);
        assert!(keys.borrow().is_fetching());
        assert!(cache.begin_fetch(&address, &keys, WhyFetch::UnknownKey, now).is_none());
        drop(fetch);
        assert!(!keys.borrow().is_fetching());
    }
}

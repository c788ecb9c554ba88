//! What issuers of tokens publish, as all workers know it: their keys, and where their servers are.
//!
//! Invariants:
//! - Each address is fetched by one worker at a time; no client can make it fetched more often than
//!   [`Published`] allows, or end a fetch.
//! - A namespace has a bounded number of addresses, and of fetches at the same time: others find room.
//! - A route's worker looks its address up once. No later request of it waits for others that look something up.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lb_http::jwt::KeySet;
use lb_http::oidc::{ProviderDocument, SignInFailure};
use lb_http::published::{DocumentAddress, IssuerDocument, Published, WhyFetch};
use lb_http::trace::shorten_text;
use lb_limits::{ClientNetwork, Rate, RateLimiter, Share, Shares};
use tokio::sync::watch;

/// Addresses of one namespace and kind: each may have keys that take 50 KiB.
const MOST_ADDRESSES: usize = 64;
/// Fetches at the same time, in all and for one namespace: each may have received a document of 256 KiB. Issuers that
/// hang stop all others only if they are those of 32 namespaces.
const MOST_FETCHES: usize = 128;
const MOST_FETCHES_PER_NAMESPACE: usize = 4;
/// Codes of logins that are exchanged at the same time, in all, for one namespace, and of it for one source: anyone can
/// begin a login and make codes up. Each may have received 256 KiB. Providers that hang stop all others only if they are
/// those of 32 namespaces.
const MOST_EXCHANGES: usize = 1024;
const MOST_EXCHANGES_PER_NAMESPACE: usize = 32;
const MOST_EXCHANGES_PER_SOURCE: usize = 4;
/// How long a route that found no room does not look for it again.
const REFUSED: Duration = Duration::from_secs(10);
/// Of what is logged about documents and logins.
const WARNINGS: Rate = Rate::new(Duration::from_secs(1), 10);
/// Of an error in the log.
const MOST_ERROR_OCTETS: usize = 500;

/// The document of one address.
pub(crate) type SharedDocument<T> = Arc<watch::Sender<Published<T>>>;

/// Counts an exchange until it is dropped.
#[derive(Debug)]
pub(crate) struct ExchangeShare {
    _namespace: Share<Arc<str>>,
    _source: Share<(Arc<str>, ClientNetwork)>,
}

/// What issuers publish, and who asks them.
#[derive(Debug)]
pub(crate) struct Issuers {
    pub keys: PublishedCache<KeySet>,
    pub providers: PublishedCache<ProviderDocument>,
    exchanges: Shares<Arc<str>>,
    exchanges_by_source: Shares<(Arc<str>, ClientNetwork)>,
    /// Of what is logged about logins.
    warnings: Mutex<RateLimiter<Instant>>,
}

impl Issuers {
    /// `fetch_interval`: between two fetches of an address.
    pub fn new(fetch_interval: Duration) -> Self {
        let fetches = Shares::new(MOST_FETCHES, MOST_FETCHES_PER_NAMESPACE);
        Self {
            keys: PublishedCache::new(fetch_interval, fetches.clone()),
            providers: PublishedCache::new(fetch_interval, fetches),
            exchanges: Shares::new(MOST_EXCHANGES, MOST_EXCHANGES_PER_NAMESPACE),
            exchanges_by_source: Shares::new(MOST_EXCHANGES, MOST_EXCHANGES_PER_SOURCE),
            warnings: Mutex::new(RateLimiter::new(WARNINGS)),
        }
    }

    /// Room for a request to a provider; `None`: the client, its namespace, or all together, have too many.
    pub fn begin_exchange(&self, namespace: &Arc<str>, client: IpAddr) -> Option<ExchangeShare> {
        let source = (namespace.clone(), ClientNetwork::from(client));
        let of_source = self.exchanges_by_source.take(source)?;
        let of_namespace = self.exchanges.take(namespace.clone())?;
        Some(ExchangeShare { _namespace: of_namespace, _source: of_source })
    }

    /// Clients can make logins fail.
    pub fn warn_about_login(&self, provider: &DocumentAddress, error: &SignInFailure) {
        if lock(&self.warnings).take(Instant::now()) {
            let DocumentAddress { namespace, url, .. } = provider;
            let error = shorten_error(&error.to_string());
            tracing::warn!(%namespace, provider = %url, error, "a user could not sign in");
        }
    }
}

/// The documents of one kind.
#[derive(Debug)]
pub(crate) struct PublishedCache<T> {
    by_address: Mutex<HashMap<DocumentAddress, SharedDocument<T>>>,
    fetches: Shares<Arc<str>>,
    /// Of each address.
    fetch_interval: Duration,
    warnings: Mutex<RateLimiter<Instant>>,
}

/// The document of a route's address, once its worker has looked it up.
pub(crate) struct DocumentSlot<T> {
    document: OnceCell<SharedDocument<T>>,
    /// When there was no room for it.
    refused: Cell<Option<Instant>>,
}

impl<T> Default for DocumentSlot<T> {
    fn default() -> Self {
        Self { document: OnceCell::new(), refused: Cell::new(None) }
    }
}

impl<T: IssuerDocument> DocumentSlot<T> {
    /// `address`: always that of the route. `None`: there is no room for its document.
    pub fn get(
        &self,
        cache: &PublishedCache<T>,
        address: &DocumentAddress,
        now: Instant,
    ) -> Option<&SharedDocument<T>> {
        if let Some(document) = self.document.get() {
            return Some(document);
        }
        if self.refused.get().is_some_and(|at| now.saturating_duration_since(at) < REFUSED) {
            return None;
        }
        let Some(document) = cache.get(address, now) else {
            self.refused.set(Some(now));
            return None;
        };
        Some(self.document.get_or_init(|| document))
    }
}

impl<T: IssuerDocument> PublishedCache<T> {
    fn new(fetch_interval: Duration, fetches: Shares<Arc<str>>) -> Self {
        Self {
            by_address: Mutex::default(),
            fetches,
            fetch_interval,
            warnings: Mutex::new(RateLimiter::new(WARNINGS)),
        }
    }

    /// `None`: the routes of the namespace use too many other addresses.
    pub fn get(&self, address: &DocumentAddress, now: Instant) -> Option<SharedDocument<T>> {
        let mut by_address = lock(&self.by_address);
        if let Some(known) = by_address.get(address) {
            return Some(known.clone());
        }
        let is_held = |keys: &SharedDocument<T>| Arc::strong_count(keys) > 1;
        by_address.retain(|_, keys| is_held(keys) || !keys.borrow().is_expired(now));
        let is_of_namespace = |known: &DocumentAddress| known.namespace == address.namespace;
        if by_address.keys().filter(|known| is_of_namespace(known)).count() >= MOST_ADDRESSES {
            // What a new address has replaced is kept for a fault of its issuer only.
            by_address.retain(|known, keys| is_held(keys) || !is_of_namespace(known));
        }
        if by_address.keys().filter(|known| is_of_namespace(known)).count() >= MOST_ADDRESSES {
            drop(by_address);
            self.warn(address, "the namespace has documents at too many addresses", now);
            return None;
        }
        let keys = Arc::new(watch::Sender::new(Published::new(self.fetch_interval)));
        by_address.insert(address.clone(), keys.clone());
        Some(keys)
    }

    /// `error`: may have what an issuer has written.
    pub fn warn(&self, address: &DocumentAddress, error: &str, now: Instant) {
        if lock(&self.warnings).take(now) {
            let DocumentAddress { namespace, upstream, url } = address;
            let error = shorten_error(error);
            tracing::warn!(%namespace, %upstream, %url, error, "cannot fetch what an issuer publishes");
        }
    }

    /// A fetch that the caller has to make, if one is due.
    pub fn begin_fetch(
        &self,
        address: &DocumentAddress,
        document: &SharedDocument<T>,
        why: WhyFetch,
        now: Instant,
    ) -> Option<DocumentFetch<T>> {
        if !document.borrow().is_fetch_due(why, now) {
            return None;
        }
        let Some(share) = self.fetches.take(address.namespace.clone()) else {
            self.warn(
                address,
                "too many other fetches of the namespace, or in all, are running",
                now,
            );
            return None;
        };
        let has_begun = document.send_if_modified(|state| state.begin_fetch(why, now));
        has_begun.then(|| DocumentFetch {
            document: document.clone(),
            fetched: None,
            _share: share,
        })
    }
}

/// Ends when it is dropped, however that happens.
pub(crate) struct DocumentFetch<T: IssuerDocument> {
    document: SharedDocument<T>,
    fetched: Option<T>,
    _share: Share<Arc<str>>,
}

impl<T: IssuerDocument> DocumentFetch<T> {
    pub fn succeed(mut self, fetched: T) {
        self.fetched = Some(fetched);
    }
}

impl<T: IssuerDocument> Drop for DocumentFetch<T> {
    fn drop(&mut self) {
        let fetched = self.fetched.take();
        self.document.send_modify(|state| state.end_fetch(fetched, Instant::now()));
    }
}

fn shorten_error(error: &str) -> String {
    shorten_text(error.as_bytes(), MOST_ERROR_OCTETS)
}

/// A panic leaves what is still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use lb_http::UpstreamName;
    use lb_http::upstream::UpstreamProtocol;

    use super::*;

    fn cache() -> PublishedCache<KeySet> {
        Issuers::new(Duration::from_secs(10)).keys
    }

    fn address(namespace: &str, number: usize) -> DocumentAddress {
        let upstream = UpstreamName {
            namespace: "shared".into(),
            service: "id".into(),
            port: "80".into(),
            protocol: UpstreamProtocol::Http1,
            tls: None,
        };
        DocumentAddress {
            namespace: namespace.into(),
            upstream,
            url: format!("http://id/{number}").parse().unwrap(),
        }
    }

    #[test]
    fn a_namespace_leaves_room_for_the_keys_and_fetches_of_others() {
        let cache = cache();
        let now = Instant::now();
        let begin = |address: &DocumentAddress| {
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
        let later = now + Duration::from_secs(60);
        assert!(cache.get(&address("evil", 1000), later).is_some());
        assert_eq!(lock(&cache.by_address).len(), 1);
    }

    #[test]
    fn issuers_that_hang_stop_no_others() {
        let cache = cache();
        let now = Instant::now();
        let begin = |address: &DocumentAddress| {
            cache.begin_fetch(address, &cache.get(address, now)?, WhyFetch::Age, now)
        };
        let hang = |number: usize| begin(&address(&format!("evil-{}", number % 31), number));
        let fetches: Vec<_> = (0..1000).filter_map(hang).collect();
        assert_eq!(fetches.len(), 31 * MOST_FETCHES_PER_NAMESPACE);
        assert!(begin(&address("good", 0)).is_some());
    }

    /// Clients begin them, with codes that they have made up.
    #[test]
    fn logins_of_a_client_or_namespace_leave_room_for_those_of_others() {
        let issuers = Issuers::new(Duration::from_secs(10));
        let begin = |namespace: &str, source: [u8; 4]| {
            issuers.begin_exchange(&namespace.into(), source.into())
        };
        let attacker = [192, 0, 2, 1];
        let running: Vec<_> = (0..1000).filter_map(|_| begin("shop", attacker)).collect();
        assert_eq!(running.len(), MOST_EXCHANGES_PER_SOURCE);
        assert!(begin("shop", [192, 0, 2, 2]).is_some());
        assert!(begin("other", attacker).is_some());
        drop(running);
        assert!(begin("shop", attacker).is_some());
        // With many sources, one namespace; with many namespaces, all but one that is left.
        let network = |number: u8| (0..=255).map(move |host| [198, 51, number, host]);
        let of_all = |number: u8| {
            network(number).filter_map(move |source| begin(&format!("evil-{number}"), source))
        };
        let running: Vec<_> = (0..31).flat_map(of_all).collect();
        assert_eq!(running.len(), 31 * MOST_EXCHANGES_PER_NAMESPACE);
        assert!(begin("shop", attacker).is_some());
    }

    #[test]
    fn a_route_looks_its_address_up_once() {
        let (cache, now, address) = (cache(), Instant::now(), address("shop", 0));
        let slot = DocumentSlot::default();
        let first = slot.get(&cache, &address, now).unwrap().clone();
        let locked = lock(&cache.by_address);
        assert!(Arc::ptr_eq(&first, slot.get(&cache, &address, now).unwrap()));
        drop(locked);
        assert!(Arc::ptr_eq(&first, &cache.get(&address, now).unwrap()), "of all workers");
    }

    #[test]
    fn a_route_without_room_finds_it_later() {
        let (cache, now) = (cache(), Instant::now());
        let of = |number: usize| cache.get(&address("shop", number), now);
        let mut held: Vec<_> = (0..MOST_ADDRESSES).map(of).collect();
        let (slot, wanted) = (DocumentSlot::default(), address("shop", 1000));
        assert!(slot.get(&cache, &wanted, now).is_none());
        // Keys that could still be used, but no route does.
        held.pop();
        assert!(slot.get(&cache, &wanted, now).is_none(), "not looked for with each request");
        assert!(slot.get(&cache, &wanted, now + REFUSED).is_some());
    }

    #[test]
    fn a_fetch_that_is_given_up_ends() {
        let cache = cache();
        let (address, now) = (address("shop", 0), Instant::now());
        let keys = cache.get(&address, now).unwrap();
        let fetch = cache.begin_fetch(&address, &keys, WhyFetch::Age, now);
        assert!(keys.borrow().is_fetching());
        assert!(cache.begin_fetch(&address, &keys, WhyFetch::UnknownKey, now).is_none());
        drop(fetch);
        assert!(!keys.borrow().is_fetching());
    }
}

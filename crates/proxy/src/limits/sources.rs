//! What each source takes of the whole proxy: connections, requests, and memory that HTTP/2 buffers for it.
//!
//! All workers share it. A lock is taken once for each connection; a request of the connection's own source changes one
//! number of that source.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lb_limits::ClientNetwork;

use crate::metrics::Refusal;
use crate::settings::ProxyLimits;

#[derive(Debug)]
pub(crate) struct Sources {
    connections: AtomicUsize,
    limits: Most,
    hasher: RandomState,
    shards: [Mutex<HashMap<u64, Arc<SourceUsage>>>; SHARDS],
}

#[derive(Debug)]
struct Most {
    connections: usize,
    per_source: usize,
    requests: usize,
    buffer: usize,
    connection_buffer: usize,
}

/// Workers that accept at the same time rarely meet in one of so many.
const SHARDS: usize = 16;

/// What every connection of HTTP/2 may buffer: its window cannot be smaller (RFC 9113, 6.9.2).
const LEAST_BUFFER: usize = (1 << 16) - 1;

#[derive(Debug, Default)]
struct SourceUsage {
    connections: AtomicUsize,
    requests: AtomicUsize,
    /// Octets that were granted to its connections.
    buffer: AtomicUsize,
}

/// A source that is remembered until the last reference is dropped.
#[derive(Debug)]
pub(crate) struct SourceRef {
    sources: Arc<Sources>,
    key: u64,
    /// `None` only while it is dropped.
    source: Option<Arc<SourceUsage>>,
}

/// A counted connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    sources: Arc<Sources>,
    /// `None`: the connection is not limited by its source.
    source: Option<SourceRef>,
    granted: usize,
}

impl Sources {
    pub fn new(limits: &ProxyLimits) -> Arc<Self> {
        Arc::new(Self {
            connections: AtomicUsize::new(0),
            limits: Most {
                connections: limits.connections,
                per_source: limits.connections_per_source,
                requests: limits.requests_per_source,
                buffer: limits.source_buffer,
                connection_buffer: limits.connection_buffer as usize,
            },
            hasher: RandomState::new(),
            shards: Default::default(),
        })
    }

    /// Counts a connection in total.
    pub fn admit(self: &Arc<Self>) -> Result<Permit, Refusal> {
        let permit = Permit { sources: self.clone(), source: None, granted: 0 };
        // The permit that is dropped on refusal takes it back.
        if self.connections.fetch_add(1, Ordering::Relaxed) >= self.limits.connections {
            return Err(Refusal::Total);
        }
        Ok(permit)
    }

    pub fn source(self: &Arc<Self>, address: IpAddr) -> SourceRef {
        // Hashed with random keys, so that no one can choose sources of one shard.
        let key = self.hasher.hash_one(ClientNetwork::from(address));
        let source = self.shard(key).entry(key).or_default().clone();
        SourceRef { sources: self.clone(), key, source: Some(source) }
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, HashMap<u64, Arc<SourceUsage>>> {
        // The lowest bits are the map's own.
        let shard = &self.shards[(key >> 48) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds 1 unless there are as many as `most`.
fn count(counter: &AtomicUsize, most: usize) -> bool {
    if counter.fetch_add(1, Ordering::Relaxed) < most {
        return true;
    }
    counter.fetch_sub(1, Ordering::Relaxed);
    false
}

impl SourceRef {
    fn get(&self) -> &SourceUsage {
        // It is there until the reference is dropped.
        self.source.as_ref().expect("source was dropped")
    }

    /// Whether it may have one more request at the same time. Then [`SourceRef::end_request`] has to follow.
    pub(crate) fn begin_request(&self) -> bool {
        count(&self.get().requests, self.sources.limits.requests)
    }

    pub(crate) fn end_request(&self) {
        self.get().requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for SourceRef {
    fn drop(&mut self) {
        let mut shard = self.sources.shard(self.key);
        self.source = None;
        if shard.get(&self.key).is_some_and(|source| Arc::strong_count(source) == 1) {
            shard.remove(&self.key);
        }
    }
}

impl Permit {
    /// Counts the connection for its source, too.
    pub(crate) fn count_source(&mut self, address: IpAddr) -> Result<(), Refusal> {
        let source = self.sources.source(address);
        if !count(&source.get().connections, self.sources.limits.per_source) {
            return Err(Refusal::Source);
        }
        self.source = Some(source);
        Ok(())
    }

    pub fn source(&self) -> Option<&SourceRef> {
        self.source.as_ref()
    }

    /// How many octets the connection may have buffered in each direction. The first connections of a source get as
    /// much as one may have; when the source's share is used up, further ones get the least that HTTP/2 allows.
    pub(crate) fn grant_buffer(&mut self) -> usize {
        let limits = &self.sources.limits;
        let Some(source) = &self.source else { return limits.connection_buffer };
        let granted = &source.get().buffer;
        let before = granted.fetch_add(limits.connection_buffer, Ordering::Relaxed);
        self.granted += limits.connection_buffer;
        if before + limits.connection_buffer > limits.buffer {
            granted.fetch_sub(limits.connection_buffer, Ordering::Relaxed);
            self.granted -= limits.connection_buffer;
            return LEAST_BUFFER.min(limits.connection_buffer);
        }
        limits.connection_buffer
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.sources.connections.fetch_sub(1, Ordering::Relaxed);
        if let Some(source) = &self.source {
            source.get().connections.fetch_sub(1, Ordering::Relaxed);
            source.get().buffer.fetch_sub(self.granted, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn limits(connections: usize, connections_per_source: usize) -> ProxyLimits {
        ProxyLimits { connections, connections_per_source, ..ProxyLimits::default() }
    }

    #[test]
    fn connections_are_limited_in_total_and_per_source() {
        let sources = Sources::new(&limits(3, 2));
        let from = |text: &str| {
            let mut permit = sources.admit()?;
            permit.count_source(source(text)).map(|()| permit)
        };
        let first = from("192.0.2.1").unwrap();
        let _second = from("::ffff:192.0.2.1").unwrap();
        assert_eq!(from("192.0.2.1").unwrap_err(), Refusal::Source);
        let _third = from("192.0.2.2").unwrap();
        assert_eq!(from("192.0.2.3").unwrap_err(), Refusal::Total);
        drop(first);
        from("192.0.2.1").unwrap();
    }

    #[test]
    fn addresses_of_one_subscriber_count_together() {
        let sources = Sources::new(&limits(9, 1));
        let mut permits: Vec<_> = (0..3).map(|_| sources.admit().unwrap()).collect();
        permits[0].count_source(source("2001:db8:0:1::1")).unwrap();
        permits[1].count_source(source("2001:db8:0:1::2")).unwrap_err();
        permits[2].count_source(source("2001:db8:0:2::1")).unwrap();
        drop(permits);
        assert!(sources.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }

    #[test]
    fn requests_of_a_source_are_limited_with_and_without_its_connection() {
        let sources =
            Sources::new(&ProxyLimits { requests_per_source: 2, ..ProxyLimits::default() });
        let mut permit = sources.admit().unwrap();
        permit.count_source(source("192.0.2.1")).unwrap();
        let own = permit.source().unwrap();
        // As behind a proxy that names the client.
        let named = sources.source(source("192.0.2.1"));
        assert!(own.begin_request() && named.begin_request());
        assert!(!own.begin_request() && !named.begin_request());
        assert!(sources.source(source("192.0.2.2")).begin_request());
        named.end_request();
        assert!(own.begin_request());
        drop(named);
        assert!(!own.begin_request());
        drop(permit);
        assert!(sources.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }

    #[test]
    fn what_a_source_buffers_is_bounded() {
        let (connection_buffer, source_buffer) = (1 << 20, 2 << 20);
        let limits = ProxyLimits { connection_buffer, source_buffer, ..ProxyLimits::default() };
        let sources = Sources::new(&limits);
        let permit = |text| {
            let mut permit = sources.admit().unwrap();
            permit.count_source(source(text)).unwrap();
            permit
        };
        let mut all = [(); 3].map(|()| permit("192.0.2.1"));
        let granted: Vec<_> = all.iter_mut().map(Permit::grant_buffer).collect();
        assert_eq!(granted, [1 << 20, 1 << 20, LEAST_BUFFER]);
        assert_eq!(permit("192.0.2.2").grant_buffer(), 1 << 20);
        all[0] = permit("192.0.2.1");
        assert_eq!(all[0].grant_buffer(), 1 << 20);
        assert_eq!(permit("192.0.2.1").grant_buffer(), LEAST_BUFFER);
    }
}

//! What clients may take: connections here, time in [`patience`], passwords in [`verifications`].

pub(crate) mod patience;
pub(crate) mod verifications;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::metrics::Refusal;

/// Counts the connections of all workers, in total and per source. Taken once for each connection, so its locks are
/// not on the path of requests.
#[derive(Debug)]
pub(crate) struct Connections {
    total: AtomicUsize,
    most: usize,
    most_per_source: usize,
    hasher: RandomState,
    shards: [Mutex<HashMap<u64, usize>>; SHARDS],
}

/// Workers that accept at the same time rarely meet in one of so many.
const SHARDS: usize = 16;

/// A counted connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    connections: Arc<Connections>,
    source: Option<u64>,
}

/// A source as one number: of IPv4 the address, of IPv6 the /64.
fn network(source: IpAddr) -> u64 {
    match source.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64 | 1 << 63,
    }
}

impl Connections {
    pub fn new(most: usize, most_per_source: usize) -> Arc<Self> {
        Arc::new(Self {
            total: AtomicUsize::new(0),
            most,
            most_per_source,
            hasher: RandomState::new(),
            shards: Default::default(),
        })
    }

    /// Counts a connection in total.
    pub fn admit(self: &Arc<Self>) -> Result<Permit, Refusal> {
        let permit = Permit { connections: self.clone(), source: None };
        // The permit that is dropped on refusal takes it back.
        if self.total.fetch_add(1, Ordering::Relaxed) >= self.most {
            return Err(Refusal::Total);
        }
        Ok(permit)
    }

    fn key(&self, source: IpAddr) -> u64 {
        // Hashed with random keys, so that no one can choose sources of one shard.
        self.hasher.hash_one(network(source))
    }

    fn shard(&self, key: u64) -> std::sync::MutexGuard<'_, HashMap<u64, usize>> {
        // The lowest bits are the map's own.
        let shard = &self.shards[(key >> 48) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Counts the connection for its source, too.
    pub fn count_source(&mut self, source: IpAddr) -> Result<(), Refusal> {
        let key = self.connections.key(source);
        let mut shard = self.connections.shard(key);
        let count = shard.entry(key).or_default();
        if *count >= self.connections.most_per_source {
            return Err(Refusal::Source);
        }
        *count += 1;
        self.source = Some(key);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.connections.total.fetch_sub(1, Ordering::Relaxed);
        let Some(key) = self.source else { return };
        let mut shard = self.connections.shard(key);
        if let Some(count) = shard.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                shard.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn connections_are_limited_in_total_and_per_source() {
        let connections = Connections::new(3, 2);
        let from = |text: &str| {
            let mut permit = connections.admit()?;
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
        let connections = Connections::new(9, 1);
        let mut permits: Vec<_> = (0..3).map(|_| connections.admit().unwrap()).collect();
        permits[0].count_source(source("2001:db8:0:1::1")).unwrap();
        permits[1].count_source(source("2001:db8:0:1::2")).unwrap_err();
        permits[2].count_source(source("2001:db8:0:2::1")).unwrap();
        drop(permits);
        assert!(connections.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }
}

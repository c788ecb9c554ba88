//! The TLS handshakes in progress. Their clients are unknown, so none of them may make others wait.
//!
//! Invariants:
//! - A new handshake always begins. When there are too many, the oldest one of the peer with the
//!   most ends. A real client needs milliseconds, so only a peer that opens connections faster than
//!   `limit` in that time can end it.
//! - At most `limit` handshakes are in progress.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

#[derive(Debug, Clone)]
pub struct Handshakes {
    limit: usize,
    entries: Arc<Mutex<Entries>>,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    /// From the oldest to the youngest.
    queue: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    peer: IpAddr,
    /// Dropped to end the handshake.
    _end: oneshot::Sender<()>,
}

/// A handshake in progress, until it is dropped.
#[derive(Debug)]
pub struct Handshake {
    number: u64,
    entries: Arc<Mutex<Entries>>,
    end: oneshot::Receiver<()>,
}

impl Handshakes {
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), entries: Arc::default() }
    }

    pub fn begin(&self, peer: IpAddr) -> Handshake {
        let mut entries = lock(&self.entries);
        if entries.queue.len() >= self.limit {
            entries.end_one();
        }
        let number = entries.next;
        entries.next += 1;
        let (sender, end) = oneshot::channel();
        entries.queue.push_back(Entry { number, peer, _end: sender });
        Handshake { number, entries: Arc::clone(&self.entries), end }
    }

    /// Makes room, for example when there are no free file descriptors.
    pub fn end_one(&self) {
        lock(&self.entries).end_one();
    }
}

impl Entries {
    fn end_one(&mut self) {
        let mut of_peer: HashMap<IpAddr, usize> = HashMap::new();
        for entry in &self.queue {
            *of_peer.entry(entry.peer).or_default() += 1;
        }
        let most = of_peer.values().copied().max();
        let oldest = self.queue.iter().position(|entry| of_peer.get(&entry.peer).copied() == most);
        if let Some(oldest) = oldest {
            self.queue.remove(oldest);
        }
    }
}

impl Handshake {
    /// Returns when the handshake must end to make room for another.
    pub async fn ended(&mut self) {
        let _ = (&mut self.end).await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        lock(&self.entries).queue.retain(|entry| entry.number != self.number);
    }
}

/// May be poisoned: every change of the entries is a single operation.
fn lock(entries: &Mutex<Entries>) -> MutexGuard<'_, Entries> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const FEW: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn has_ended(handshake: &mut Handshake) -> bool {
        !matches!(handshake.end.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    #[test]
    fn the_oldest_handshake_of_the_peer_with_the_most_makes_room() {
        let handshakes = Handshakes::new(4);
        let mut few = handshakes.begin(FEW);
        let mut many: Vec<_> = (0..3).map(|_| handshakes.begin(MANY)).collect();
        let mut newest = handshakes.begin(FEW);
        let ended: Vec<bool> = many.iter_mut().map(has_ended).collect();
        assert_eq!(ended, [true, false, false]);
        assert!(!has_ended(&mut few) && !has_ended(&mut newest));
    }

    #[test]
    fn a_finished_handshake_leaves_its_slot() {
        let handshakes = Handshakes::new(1);
        drop(handshakes.begin(MANY));
        let mut first = handshakes.begin(MANY);
        assert!(!has_ended(&mut first));
        let mut second = handshakes.begin(FEW);
        assert!(has_ended(&mut first) && !has_ended(&mut second));
    }

    #[test]
    fn no_number_of_handshakes_exceeds_the_limit() {
        let handshakes = Handshakes::new(8);
        let begun: Vec<_> = (0..1000).map(|_| handshakes.begin(MANY)).collect();
        assert_eq!(lock(&handshakes.entries).queue.len(), 8);
        drop(begun);
        assert!(lock(&handshakes.entries).queue.is_empty());
    }
}

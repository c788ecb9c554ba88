//! Passwords that are being verified. Anyone can send one, and each takes a processor for up to a second.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::{JoinHandle, spawn_blocking};

use super::network;

/// Those of one worker, running or waiting, with the networks that they come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verifications(Arc<Mutex<Vec<u64>>>);

const MOST: usize = 16;
/// One source must leave room for the others.
const MOST_PER_SOURCE: usize = 8;

impl Verifications {
    /// Verifies on another thread. `None`: there are too many already. It counts until it has ended, even if the
    /// client does not wait for that.
    pub fn run<T: Send + 'static>(
        &self,
        source: IpAddr,
        verify: impl FnOnce() -> T + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        let counted = self.count(network(source))?;
        Some(spawn_blocking(move || {
            let result = verify();
            drop(counted);
            result
        }))
    }

    fn count(&self, network: u64) -> Option<Counted> {
        let mut running = self.lock();
        let of_source = running.iter().filter(|other| **other == network).count();
        if running.len() >= MOST || of_source >= MOST_PER_SOURCE {
            return None;
        }
        running.push(network);
        Some(Counted { verifications: self.clone(), network })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Counted {
    verifications: Verifications,
    network: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut running = self.verifications.lock();
        if let Some(position) = running.iter().position(|network| *network == self.network) {
            running.swap_remove(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_verification_counts_until_it_ends_and_a_source_leaves_room_for_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let verifications = Verifications::default();
        let (attacker, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        runtime.block_on(async {
            let (end, wait) = mpsc::channel::<()>();
            let wait = Arc::new(Mutex::new(wait));
            let verify = |source| {
                let wait = wait.clone();
                verifications.run(source, move || {
                    let _ = wait.lock().unwrap().recv();
                })
            };
            // The client goes away each time.
            let admitted = (0..100).filter(|_| verify(attacker).is_some()).count();
            assert_eq!(admitted, MOST_PER_SOURCE);
            let last = verify(other).unwrap();
            drop(end);
            last.await.unwrap();
            while !verifications.lock().is_empty() {
                tokio::task::yield_now().await;
            }
        });
    }
}

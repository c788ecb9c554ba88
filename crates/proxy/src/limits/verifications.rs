//! Passwords that are being verified. Anyone can send one, and each takes a processor for up to a second.

use std::net::IpAddr;

use lb_limits::{ClientNetwork, Shares};
use tokio::task::{JoinHandle, spawn_blocking};

/// The verifications of one worker, running or waiting.
#[derive(Clone, Debug)]
pub(crate) struct Verifications(Shares<ClientNetwork>);

const MOST: usize = 16;
const MOST_PER_SOURCE: usize = 8;

impl Default for Verifications {
    fn default() -> Self {
        Self(Shares::new(MOST, MOST_PER_SOURCE))
    }
}

impl Verifications {
    /// Verifies on another thread. `None`: there are too many already. It counts until it has ended, even if the
    /// client does not wait for that.
    pub fn run<T: Send + 'static>(
        &self,
        source: IpAddr,
        verify: impl FnOnce() -> T + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        let share = self.0.take(source.into())?;
        Some(spawn_blocking(move || {
            let result = verify();
            drop(share);
            result
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

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
            while !verifications.0.are_unused() {
                tokio::task::yield_now().await;
            }
        });
    }
}

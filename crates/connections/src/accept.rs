//! The accept loop of all servers.

use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use nix::errno::Errno;
use tokio::task::yield_now;
use tokio::time::sleep;

/// Pause after an error that the next attempt would meet again.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until the future is dropped, and hands each to `begin`, which must not block.
///
/// `free_descriptor` closes a connection when there are no file descriptors; it returns false if none can be closed.
pub async fn accept_connections<C, F: Future<Output = Result<C>>>(
    mut accept: impl FnMut() -> F,
    mut begin: impl FnMut(C),
    mut free_descriptor: impl FnMut() -> bool,
) {
    let mut is_failing = false;
    loop {
        match accept().await {
            Ok(connection) => {
                is_failing = false;
                begin(connection);
            }
            Err(error) if is_of_client(&error) => {}
            // The descriptor of a closed connection is free as soon as its task has been run.
            Err(error) if lacks_descriptors(&error) && free_descriptor() => yield_now().await,
            Err(error) => {
                if !is_failing {
                    tracing::warn!(%error, "connections cannot be accepted; trying again");
                }
                is_failing = true;
                sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// The client has gone before its connection was accepted.
fn is_of_client(error: &Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

fn lacks_descriptors(error: &Error) -> bool {
    let lacks = [Errno::EMFILE, Errno::ENFILE].map(|errno| errno as i32);
    error.raw_os_error().is_some_and(|errno| lacks.contains(&errno))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use tokio::sync::Notify;

    use super::*;

    /// Accepts with the given results in turn, and then waits for ever.
    async fn accepted(results: Vec<Result<u32>>, can_free: bool) -> (Vec<u32>, usize) {
        let results = RefCell::new(results.into_iter());
        let (accepted, freed, all) = (RefCell::new(Vec::new()), Cell::new(0), Notify::new());
        let accept = || async {
            let next = results.borrow_mut().next();
            match next {
                Some(result) => result,
                None => {
                    all.notify_one();
                    std::future::pending().await
                }
            }
        };
        let free = || {
            freed.set(freed.get() + 1);
            can_free
        };
        tokio::select! {
            () = accept_connections(accept, |number| accepted.borrow_mut().push(number), free) => {}
            () = all.notified() => {}
        }
        (accepted.take(), freed.get())
    }

    fn lacking() -> Result<u32> {
        Err(Errno::EMFILE.into())
    }

    #[tokio::test(start_paused = true)]
    async fn no_error_ends_the_loop() {
        let gone = Err(ErrorKind::ConnectionAborted.into());
        let results = vec![Ok(1), gone, Ok(2), lacking(), Ok(3), Err(Error::other("?")), Ok(4)];
        assert_eq!(accepted(results, true).await, (vec![1, 2, 3, 4], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_error_that_would_come_again_causes_a_pause() {
        let paused = async |results, can_free| {
            let start = tokio::time::Instant::now();
            accepted(results, can_free).await;
            start.elapsed() >= ERROR_PAUSE
        };
        assert!(
            !paused(vec![Ok(1), Err(ErrorKind::ConnectionReset.into()), lacking()], true).await
        );
        assert!(paused(vec![lacking(), Ok(1)], false).await);
    }
}

//! Two streams whose octets are exchanged until both have ended: after an upgrade, and for passthrough.

use std::cell::Cell;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::time::sleep;

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelEnd {
    Closed,
    /// No octet came in either direction for too long.
    Idle,
    Failed,
}

/// Octets that a tunnel buffers in each direction. WebSockets are many and mostly idle.
const BUFFER: usize = 8 << 10;

/// Copies in both directions. Returns the octets from `a` to `b` and from `b` to `a`.
pub(crate) async fn join_streams<A, B>(a: A, b: B, idle: Duration) -> (TunnelEnd, u64, u64)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let last = Rc::new(Cell::new(Instant::now()));
    let counts = [Rc::new(Cell::new(0)), Rc::new(Cell::new(0))];
    let mut a = Noted { stream: a, last: last.clone(), read: counts[0].clone() };
    let mut b = Noted { stream: b, last: last.clone(), read: counts[1].clone() };
    let mut copy = pin!(copy_bidirectional_with_sizes(&mut a, &mut b, BUFFER, BUFFER));
    let mut timer = pin!(sleep(idle));
    let end = loop {
        tokio::select! {
            biased;
            result = &mut copy => break if result.is_ok() { TunnelEnd::Closed } else { TunnelEnd::Failed },
            () = &mut timer => {
                let quiet = last.get().elapsed();
                if quiet >= idle {
                    break TunnelEnd::Idle;
                }
                timer.as_mut().reset(tokio::time::Instant::now() + (idle - quiet));
            }
        }
    };
    (end, counts[0].get(), counts[1].get())
}

/// Notes when octets come.
struct Noted<S> {
    stream: S,
    last: Rc<Cell<Instant>>,
    read: Rc<Cell<u64>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, to));
        self.read.set(self.read.get() + (to.filled().len() - before) as u64);
        self.last.set(Instant::now());
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

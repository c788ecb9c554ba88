//! The byte stream of a connection, with or without TLS, and what is known about its progress.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// One type for all streams: code that is generic over streams is compiled once.
pub(crate) enum ProxyStream {
    Tcp(Prefixed),
    Server(Box<tokio_rustls::server::TlsStream<Prefixed>>),
    Client(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

/// A connection of which some octets have been read already.
pub(crate) struct Prefixed<S = TcpStream> {
    pub prefix: Bytes,
    pub stream: S,
}

impl From<TcpStream> for Prefixed {
    fn from(stream: TcpStream) -> Self {
        Self { prefix: Bytes::new(), stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, to);
        }
        let count = to.remaining().min(self.prefix.len());
        to.put_slice(&self.prefix[..count]);
        self.prefix.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

macro_rules! on_stream {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            ProxyStream::Tcp($stream) => $call,
            ProxyStream::Server($stream) => $call,
            ProxyStream::Client($stream) => $call,
        }
    };
}

impl AsyncRead for ProxyStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        on_stream!(self, stream => Pin::new(stream).poll_read(cx, to))
    }
}

impl AsyncWrite for ProxyStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => Pin::new(stream).poll_write(cx, from))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => Pin::new(stream).poll_write_vectored(cx, from))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}

/// What a connection's stream has done.
#[derive(Debug)]
pub(crate) struct Progress {
    epoch: Instant,
    read: Cell<u64>,
    /// Since when the peer takes no octets: milliseconds since `epoch`, plus 1; 0: it does.
    blocked_at: Cell<u64>,
    /// The peer has to take octets that were written already.
    flush_waits: Cell<bool>,
    begun: Notify,
}

impl Progress {
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            epoch: Instant::now(),
            read: Cell::new(0),
            blocked_at: Cell::new(0),
            flush_waits: Cell::new(false),
            begun: Notify::new(),
        })
    }

    /// Octets that were read.
    pub fn read(&self) -> u64 {
        self.read.get()
    }

    /// Waits for the first octet.
    pub async fn begun(&self) {
        if self.read() == 0 {
            self.begun.notified().await;
        }
    }

    /// Since when the peer takes no octets.
    pub(crate) fn blocked_since(&self) -> Option<Instant> {
        let at = self.blocked_at.get().checked_sub(1)?;
        Some(self.epoch + Duration::from_millis(at))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    fn count_read(&self, count: usize) {
        let before = self.read();
        self.read.set(before + count as u64);
        if before == 0 {
            self.begun.notify_one();
        }
    }

    fn note_write(&self, blocked: bool) {
        self.flush_waits.set(false);
        self.note_blocked(blocked);
    }

    /// A flush with nothing left to write says nothing about a write that waits.
    fn note_flush(&self, blocked: bool) {
        if blocked && self.blocked_at.get() == 0 {
            self.flush_waits.set(true);
            self.note_blocked(true);
        } else if !blocked && self.flush_waits.replace(false) {
            self.note_blocked(false);
        }
    }

    fn note_blocked(&self, blocked: bool) {
        let was_blocked = self.blocked_at.get() != 0;
        match (was_blocked, blocked) {
            (false, true) => self.blocked_at.set(self.now() + 1),
            (true, false) => self.blocked_at.set(0),
            _ => {}
        }
    }
}

/// A client's stream that notes its progress.
pub(crate) struct WatchedStream {
    pub stream: ProxyStream,
    pub progress: Rc<Progress>,
}

/// A stream that can end with an error for the peer.
pub(crate) trait ResetOnClose {
    /// Makes the peer lose what it has not read, and fail, when the stream is dropped.
    fn reset_on_close(&self);
}

impl ResetOnClose for WatchedStream {
    fn reset_on_close(&self) {
        let stream = match &self.stream {
            ProxyStream::Tcp(stream) => &stream.stream,
            ProxyStream::Server(stream) => &stream.get_ref().0.stream,
            ProxyStream::Client(stream) => stream.get_ref().0,
        };
        // Fails only for a socket that is closed.
        let _ = stream.set_zero_linger();
    }
}

impl WatchedStream {
    pub fn new(stream: ProxyStream) -> Self {
        Self { stream, progress: Progress::new() }
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = to.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, to))?;
        this.progress.count_read(to.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_write(cx, from);
        this.progress.note_write(result.is_pending());
        result
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_write_vectored(cx, from);
        this.progress.note_write(result.is_pending());
        result
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_flush(cx);
        this.progress.note_flush(result.is_pending());
        result
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream whose octets wait in a buffer, as those of TLS do, is not blocked once all were taken.
    #[test]
    fn a_peer_that_takes_everything_is_not_blocked() {
        let progress = Progress::new();
        progress.note_write(false);
        progress.note_flush(true);
        assert!(progress.blocked_since().is_some());
        progress.note_flush(false);
        assert!(progress.blocked_since().is_none());
        // A write that waits is not hidden by a flush that has nothing to do, whichever of them waited first.
        for flush_waited in [false, true] {
            progress.note_flush(flush_waited);
            progress.note_write(true);
            progress.note_flush(false);
            assert!(progress.blocked_since().is_some());
            progress.note_write(false);
            assert!(progress.blocked_since().is_none());
        }
    }
}

//! What was received on a connection and not yet used: heads, and bodies as they come.

use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::task::yield_now;

use super::chunked::{ChunkDecoder, Decoded, TrailerLimits};
use super::fields::Malformed;

/// First read of a message. Most heads and short bodies fit.
const FIRST_READ: usize = 8 << 10;
/// Largest read of a body.
const LARGEST_READ: usize = 64 << 10;
/// Octets of a body after which other tasks get their turn, however fast the peer is.
const FAIR_SHARE: usize = 64 << 10;

pub(crate) struct ReadBuffer {
    pub input: BytesMut,
    /// Octets at the beginning of the input in which a head does not end.
    scanned: usize,
    pub reading: Reading,
    /// The last read found more than there was room for.
    was_full: bool,
    /// Octets of the body that were read without waiting.
    read_at_once: usize,
    /// Octets that were read.
    pub read: u64,
    /// More octets in all are an error.
    pub most_read: u64,
}

/// What comes next in the input.
pub(crate) enum Reading {
    /// No message is expected, or it was complete.
    Nothing,
    Head,
    Length(u64),
    /// Boxed, because most connections are idle most of the time.
    Chunked(Box<ChunkDecoder>),
    UntilClosed,
    /// The message broke off.
    Broken,
}

impl Reading {
    pub fn chunked(limits: TrailerLimits) -> Self {
        Self::Chunked(Box::new(ChunkDecoder::new(limits)))
    }
}

impl ReadBuffer {
    pub fn new(reading: Reading) -> Self {
        Self {
            input: BytesMut::new(),
            scanned: 0,
            reading,
            was_full: false,
            read_at_once: 0,
            read: 0,
            most_read: u64::MAX,
        }
    }

    pub fn expect_head(&mut self) {
        (self.reading, self.scanned) = (Reading::Head, 0);
    }

    /// Whether a look at the input may find the end of a head, or an error in its first part.
    pub fn may_have_head(&mut self) -> bool {
        let length = self.input.len();
        let from = self.scanned.min(length).saturating_sub(3);
        let is_first = self.scanned == 0;
        self.scanned = length;
        length > 0 && (is_first || has_end_of_head(&self.input[from..]))
    }

    /// Reads into the input. 0: the peer has closed the connection.
    pub fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        stream: Option<&mut S>,
        cx: &mut Context<'_>,
        size: usize,
    ) -> Poll<io::Result<usize>> {
        let stream = stream.ok_or(io::ErrorKind::NotConnected)?;
        let read = if self.input.is_empty() && !self.was_full {
            // Memory for what came, not for what may come: malloc is fast up to a KiB.
            let mut octets = [MaybeUninit::uninit(); FIRST_READ];
            let mut octets = ReadBuf::uninit(&mut octets);
            let read = Pin::new(stream).poll_read(cx, &mut octets);
            self.input.extend_from_slice(octets.filled());
            self.was_full = octets.remaining() == 0;
            read.map_ok(|()| octets.filled().len())
        } else {
            if self.input.capacity() - self.input.len() < FIRST_READ / 4 {
                self.input.reserve(size);
            }
            let room = self.input.capacity() - self.input.len();
            let read = pin!(stream.read_buf(&mut self.input)).poll(cx);
            self.was_full = matches!(read, Poll::Ready(Ok(count)) if count == room);
            read
        };
        if read.is_pending() && self.input.is_empty() {
            // A peer that sends nothing takes no memory.
            self.input = BytesMut::new();
        }
        let count = ready!(read)?;
        self.read += count as u64;
        if self.read > self.most_read {
            return Poll::Ready(Err(io::Error::other("too many octets")));
        }
        Poll::Ready(Ok(count))
    }

    /// Reads more of a head. 0: the peer has closed the connection.
    pub fn poll_fill_head<S: AsyncRead + Unpin>(
        &mut self,
        stream: Option<&mut S>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.poll_fill(stream, cx, FIRST_READ)
    }

    /// The next part of the body. After an error, there is nothing more.
    pub fn poll_body<S: AsyncRead + Unpin>(
        &mut self,
        mut stream: Option<&mut S>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Malformed>>> {
        loop {
            let size = match &mut self.reading {
                Reading::Nothing | Reading::Head => return Poll::Ready(None),
                Reading::Broken => return Poll::Ready(Some(Err(Malformed))),
                Reading::Length(rest) => {
                    if !self.input.is_empty() {
                        let most = usize::try_from(*rest).unwrap_or(usize::MAX);
                        let data = self.input.split_to(self.input.len().min(most)).freeze();
                        *rest -= data.len() as u64;
                        if *rest == 0 {
                            self.reading = Reading::Nothing;
                        }
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    usize::try_from(*rest).unwrap_or(usize::MAX)
                }
                Reading::Chunked(decoder) => match decoder.decode(&mut self.input) {
                    Err(Malformed) => {
                        self.reading = Reading::Broken;
                        continue;
                    }
                    Ok(Decoded::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    Ok(Decoded::End(trailers)) => {
                        self.reading = Reading::Nothing;
                        return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                    }
                    Ok(Decoded::Partial) => LARGEST_READ,
                },
                Reading::UntilClosed => {
                    if !self.input.is_empty() {
                        let data = self.input.split().freeze();
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    LARGEST_READ
                }
            };
            if self.read_at_once >= FAIR_SHARE {
                self.read_at_once = 0;
                // Unlike waking the task at once, this also looks at all sockets before.
                return pin!(yield_now()).poll(cx).map(|()| None);
            }
            let size = size.clamp(FIRST_READ, LARGEST_READ);
            let Poll::Ready(count) = self.poll_fill(stream.as_deref_mut(), cx, size) else {
                self.read_at_once = 0;
                return Poll::Pending;
            };
            self.read_at_once += count.as_ref().map_or(0, |count| *count);
            match (count, &self.reading) {
                (Ok(0), Reading::UntilClosed) => self.reading = Reading::Nothing,
                (Ok(0) | Err(_), _) => self.reading = Reading::Broken,
                (Ok(_), _) => {}
            }
        }
    }

    /// Whether nothing more of the body is to come.
    pub fn is_body_complete(&self) -> bool {
        matches!(self.reading, Reading::Nothing)
    }

    /// Whether more of a body is to come.
    pub fn has_body(&self) -> bool {
        matches!(self.reading, Reading::Length(_) | Reading::Chunked(_) | Reading::UntilClosed)
    }

    /// How much of the body is still to come.
    pub fn body_size(&self) -> SizeHint {
        match self.reading {
            Reading::Nothing => SizeHint::with_exact(0),
            Reading::Length(rest) => SizeHint::with_exact(rest),
            _ => SizeHint::default(),
        }
    }
}

/// Whether an empty line is in a part of a head.
fn has_end_of_head(part: &[u8]) -> bool {
    let mut line_ends = part.iter().enumerate().filter(|(_, octet)| **octet == b'\n');
    line_ends.any(|(at, _)| matches!(part[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Sends without end.
    struct Endless;

    impl AsyncRead for Endless {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            to: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            to.initialize_unfilled();
            to.advance(to.remaining());
            Poll::Ready(Ok(()))
        }
    }

    /// A body that is always there would keep the thread from all other connections.
    #[test]
    fn a_fast_peer_leaves_others_their_turn() {
        let mut read_buffer = ReadBuffer::new(Reading::UntilClosed);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            let mut at_once = 0;
            while let Poll::Ready(frame) = read_buffer.poll_body(Some(&mut Endless), &mut cx) {
                at_once += frame.unwrap().unwrap().into_data().unwrap().len();
                assert!(at_once <= FAIR_SHARE + LARGEST_READ);
            }
            assert!(at_once >= FAIR_SHARE);
        }
    }

    /// A body of which little has come yet must not cost a buffer for much.
    #[test]
    fn a_peer_that_sends_nothing_takes_no_memory() {
        struct Sends(usize);

        impl AsyncRead for Sends {
            fn poll_read(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
                to: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                if self.0 == 0 {
                    return Poll::Pending;
                }
                let count = self.0.min(to.remaining());
                to.initialize_unfilled_to(count);
                to.advance(count);
                self.0 -= count;
                Poll::Ready(Ok(()))
            }
        }

        let mut cx = Context::from_waker(Waker::noop());
        for sent in [0, 1, FIRST_READ, FIRST_READ + 1, LARGEST_READ, LARGEST_READ + FIRST_READ] {
            let mut read_buffer = ReadBuffer::new(Reading::Length(u64::MAX));
            let mut stream = Sends(sent);
            let mut received = 0;
            // The first end may be that of the connection's share of the thread.
            for _ in 0..2 {
                while let Poll::Ready(frame) = read_buffer.poll_body(Some(&mut stream), &mut cx) {
                    received += frame.unwrap().unwrap().into_data().unwrap().len();
                }
            }
            assert_eq!((received, read_buffer.input.capacity()), (sent, 0));
        }
    }

    #[test]
    fn the_end_of_a_head_is_found_however_it_is_cut() {
        for head in ["a\r\n\r\n", "a\n\n", "a\n\r\n", "a\r\n\n", "\r\n\r\na\r\n\r\n"] {
            for cut in 1..head.len() {
                let mut read_buffer = ReadBuffer::new(Reading::Head);
                read_buffer.input.extend_from_slice(&head.as_bytes()[..cut]);
                assert!(read_buffer.may_have_head());
                read_buffer.input.extend_from_slice(&head.as_bytes()[cut..]);
                assert!(read_buffer.may_have_head(), "{head:?} {cut}");
            }
        }
        let mut read_buffer = ReadBuffer::new(Reading::Head);
        read_buffer.input.extend_from_slice(b"GET / HTTP/1.1\r\n");
        assert!(read_buffer.may_have_head());
        read_buffer.input.extend_from_slice(b"A: b\r\n");
        assert!(!read_buffer.may_have_head());
    }
}

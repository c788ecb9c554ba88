//! What has to be written on a connection.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

/// Parts of bodies up to this size are copied behind the head: that costs less than a vectored write.
const COPIED: usize = 1 << 10;
/// Such parts are gathered until there are this many octets.
const GATHERED: usize = 8 << 10;

/// Written in this order: text, data, and what comes after the data.
#[derive(Default)]
pub(crate) struct Output {
    /// Heads, sizes of chunks, small parts of bodies, trailers.
    pub text: Vec<u8>,
    text_written: usize,
    data: Bytes,
    after: &'static [u8],
    /// The stream may hold back octets that were written, as TLS does.
    is_unflushed: bool,
    written: u64,
}

impl Output {
    /// Whether the peer's system has everything.
    pub fn is_done(&self) -> bool {
        !self.has_octets() && !self.is_unflushed
    }

    fn has_octets(&self) -> bool {
        self.text_written < self.text.len() || self.has_data()
    }

    fn has_data(&self) -> bool {
        !self.data.is_empty() || !self.after.is_empty()
    }

    /// Whether a part of a body may be added. Otherwise the peer has to take something first.
    pub fn has_room(&self) -> bool {
        !self.has_data() && self.text.len() < GATHERED
    }

    /// Octets that were written since the output was made or cleared.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Drops what was not written, and its memory.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds a part of a body. Only if there is room.
    pub(super) fn put_data(&mut self, data: Bytes, after: &'static [u8]) {
        if data.len() <= COPIED {
            self.text.extend_from_slice(&data);
            self.text.extend_from_slice(after);
        } else {
            (self.data, self.after) = (data, after);
        }
    }

    pub(super) fn put_chunk_size(&mut self, size: usize) {
        // Writing into memory does not fail.
        let _ = write!(self.text, "{size:X}\r\n");
    }

    fn advance(&mut self, mut count: usize) {
        let of_text = count.min(self.text.len() - self.text_written);
        self.text_written += of_text;
        count -= of_text;
        let of_data = count.min(self.data.len());
        self.data.advance(of_data);
        self.after = &self.after[count - of_data..];
    }

    pub fn poll_write_to<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.has_octets() {
            let text = &self.text[self.text_written..];
            let written = if self.has_data() {
                let slices =
                    [IoSlice::new(text), IoSlice::new(&self.data), IoSlice::new(self.after)];
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices))?
            } else {
                ready!(Pin::new(&mut *stream).poll_write(cx, text))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written as u64;
            self.is_unflushed = true;
            self.advance(written);
        }
        self.text.clear();
        self.text_written = 0;
        ready!(Pin::new(stream).poll_flush(cx))?;
        self.is_unflushed = false;
        Poll::Ready(Ok(()))
    }
}

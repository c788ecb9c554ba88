//! What the client of an HTTP/2 connection has not taken of its responses. Hyper holds it after the body has ended, so it
//! is counted by the octets themselves: a [`Chunk`] ends when it was written or its stream was reset.
//!
//! Invariant: a connection buffers no more than its limit and one frame of an endpoint.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Buf, Bytes};
use slab::Slab;

use crate::metrics::WorkerCounters;

pub(crate) struct Outgoing {
    counters: Arc<WorkerCounters>,
    most: usize,
    octets: Cell<usize>,
    streams: RefCell<Slab<StreamBacklog>>,
    /// Bodies that wait until there is room.
    waiting: RefCell<Vec<Waker>>,
}

struct StreamBacklog {
    octets: usize,
    /// Since when the client has taken nothing although there is something to take.
    stalled_since: Option<Instant>,
}

impl Outgoing {
    pub fn new(counters: Arc<WorkerCounters>, most: usize) -> Rc<Self> {
        Rc::new(Self {
            counters,
            most,
            octets: Cell::new(0),
            streams: RefCell::default(),
            waiting: RefCell::default(),
        })
    }

    /// Follows one response. Until hyper has asked for its body, the client has to take the head.
    pub fn begin(self: &Rc<Self>, now: Instant) -> Rc<Reader> {
        let stream = StreamBacklog { octets: 0, stalled_since: Some(now) };
        let key = self.streams.borrow_mut().insert(stream);
        Rc::new(Reader { outgoing: self.clone(), key })
    }

    pub fn is_empty(&self) -> bool {
        self.octets.get() == 0
    }

    /// Since when a client has not taken any octet of one of its responses: of the one that has waited for longest.
    pub(crate) fn stalled_since(&self) -> Option<Instant> {
        self.streams.borrow().iter().filter_map(|(_, stream)| stream.stalled_since).min()
    }

    fn change(&self, octets: usize) {
        let before = self.octets.replace(octets);
        // Only this thread writes it.
        let all = self.counters.buffered.load(Ordering::Relaxed);
        let all = all.wrapping_add(octets as u64).wrapping_sub(before as u64);
        self.counters.buffered.store(all, Ordering::Relaxed);
        if before >= self.most && octets < self.most {
            self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        }
    }
}

/// Follows one response. It ends when the body and all octets of it are gone.
pub(crate) struct Reader {
    outgoing: Rc<Outgoing>,
    key: usize,
}

impl Reader {
    /// Waits until the connection may buffer more. Hyper asks for more of this response.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        self.change(|stream| {
            if stream.octets == 0 {
                stream.stalled_since = None;
            }
        });
        if self.outgoing.octets.get() < self.outgoing.most {
            return Poll::Ready(());
        }
        self.outgoing.waiting.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    }

    pub fn chunk(self: &Rc<Self>, octets: Bytes) -> Chunk {
        let count = octets.len();
        if count > 0 {
            self.outgoing.change(self.outgoing.octets.get() + count);
            self.change(|stream| {
                stream.octets += count;
                stream.stalled_since.get_or_insert_with(Instant::now);
            });
        }
        Chunk { octets, reader: Some(self.clone()) }
    }

    fn taken(&self, count: usize) {
        if count == 0 {
            return;
        }
        self.outgoing.change(self.outgoing.octets.get() - count);
        self.change(|stream| {
            stream.octets -= count;
            stream.stalled_since = (stream.octets > 0).then(Instant::now);
        });
    }

    fn change(&self, change: impl FnOnce(&mut StreamBacklog)) {
        change(&mut self.outgoing.streams.borrow_mut()[self.key]);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.outgoing.streams.borrow_mut().remove(self.key);
    }
}

/// Octets of a response.
pub(crate) struct Chunk {
    octets: Bytes,
    /// `None` in HTTP/1, whose responses wait for the client one after the other: the stream shows whether it reads.
    reader: Option<Rc<Reader>>,
}

impl From<Bytes> for Chunk {
    fn from(octets: Bytes) -> Self {
        Self { octets, reader: None }
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.octets.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.octets
    }

    fn advance(&mut self, count: usize) {
        self.octets.advance(count);
        if let Some(reader) = &self.reader {
            reader.taken(count);
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        if let Some(reader) = &self.reader {
            reader.taken(count);
        }
        self.octets.split_to(count)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            reader.taken(self.octets.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn outgoing(most: usize) -> Rc<Outgoing> {
        Outgoing::new(Metrics::new(1).add_worker(), most)
    }

    #[test]
    fn octets_count_until_they_are_written_or_dropped() {
        let outgoing = outgoing(8);
        let reader = outgoing.begin(Instant::now());
        let cx = Context::from_waker(Waker::noop());
        assert!(reader.poll_room(&cx).is_ready());
        assert_eq!(outgoing.stalled_since(), None);
        let mut chunk = reader.chunk(Bytes::from_static(b"0123456789"));
        // The body has ended, and the client has yet to take it.
        assert!(reader.poll_room(&cx).is_pending());
        drop(reader);
        let since = outgoing.stalled_since().unwrap();
        chunk.advance(1);
        assert!(outgoing.stalled_since().unwrap() > since);
        assert!(outgoing.begin(since).poll_room(&cx).is_pending());
        chunk.advance(2);
        assert!(outgoing.begin(since).poll_room(&cx).is_ready());
        assert_eq!(outgoing.counters.buffered.load(Ordering::Relaxed), 7);
        drop(chunk);
        assert_eq!(outgoing.stalled_since(), None);
        assert!(outgoing.is_empty() && outgoing.streams.borrow().is_empty());
        assert_eq!(outgoing.counters.buffered.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_stream_that_is_read_does_not_hide_one_that_is_not() {
        let outgoing = outgoing(100);
        let now = Instant::now();
        let cx = Context::from_waker(Waker::noop());
        let readers = [(); 2].map(|()| outgoing.begin(now));
        assert!(readers.iter().all(|reader| reader.poll_room(&cx).is_ready()));
        let mut chunks = readers.each_ref().map(|reader| reader.chunk(Bytes::from_static(b"123")));
        let since = outgoing.stalled_since().unwrap();
        chunks[1].advance(1);
        assert_eq!(outgoing.stalled_since(), Some(since));
        chunks[0].advance(1);
        assert!(outgoing.stalled_since().unwrap() > since);
    }
}

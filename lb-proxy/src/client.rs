//! A client's connection, as its requests and its driver share it.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use slab::Slab;

use crate::io::Progress;
use crate::limits::Permit;
use crate::limits::patience::Waiting;
use crate::metrics::{CutOff, Listener};
use crate::tls::{ClientTls, Protocol};
use crate::worker::Worker;

pub(crate) struct Client {
    pub worker: Rc<Worker>,
    pub listener: Listener,
    /// The connection's other end.
    pub peer: SocketAddr,
    /// Where the connection comes from: the peer, or what it reports by the PROXY protocol.
    pub source: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
    pub tls: Option<ClientTls>,
    pub protocol: Protocol,
    pub progress: Arc<Progress>,
    active: Cell<u32>,
    used: Cell<u32>,
    cancelled: Cell<u32>,
    idle_since: Cell<Instant>,
    /// Responses that wait for the client to take them, each with the time since when.
    waiting: RefCell<Slab<Option<Instant>>>,
    order: Cell<Option<Order>>,
    waker: RefCell<Option<Waker>>,
    slot: Cell<Option<usize>>,
    /// Ends when the connection does, or the tunnel that it became.
    _permit: Permit,
}

/// What the driver of the connection has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Close after the current requests.
    Drain,
    CutOff(CutOff),
}

/// What is known when a connection begins.
pub(crate) struct Arrival {
    pub listener: Listener,
    pub peer: SocketAddr,
    pub source: SocketAddr,
    pub local: SocketAddr,
    pub permit: Permit,
}

impl Client {
    pub fn new(
        worker: &Rc<Worker>,
        arrival: Arrival,
        tls: Option<ClientTls>,
        protocol: Protocol,
        progress: Arc<Progress>,
    ) -> Rc<Self> {
        let Arrival { listener, peer, source, local, permit } = arrival;
        worker.counters.opened(listener);
        let client = Rc::new(Self {
            worker: worker.clone(),
            listener,
            peer,
            source,
            local,
            tls,
            protocol,
            progress,
            active: Cell::new(0),
            used: Cell::new(0),
            cancelled: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
            waiting: RefCell::default(),
            order: Cell::new(None),
            waker: RefCell::default(),
            slot: Cell::new(None),
            _permit: permit,
        });
        client.slot.set(Some(worker.clients.borrow_mut().insert(Rc::downgrade(&client))));
        client
    }

    pub fn source_ip(&self) -> IpAddr {
        self.source.ip().to_canonical()
    }

    /// Whether there was a request.
    pub fn was_used(&self) -> bool {
        self.used.get() > 0
    }

    pub fn begin_request(&self) {
        self.active.set(self.active.get() + 1);
        self.used.set(self.used.get().saturating_add(1));
        self.progress.expect_nothing();
    }

    /// `cancelled`: the client reset the stream before its response was complete.
    pub fn end_request(&self, cancelled: bool, now: Instant) {
        self.active.set(self.active.get() - 1);
        self.idle_since.set(now);
        self.progress.expect_nothing();
        if cancelled && self.protocol == Protocol::Http2 {
            self.cancelled.set(self.cancelled.get().saturating_add(1));
            let finished = self.used.get() - self.cancelled.get().min(self.used.get());
            let most = self.worker.limits().resets.saturating_add(finished);
            if self.cancelled.get() > most {
                self.order(Order::CutOff(CutOff::Resets));
            }
        }
    }

    pub fn order(&self, order: Order) {
        // What was cut off is not drained.
        if !matches!(self.order.get(), Some(Order::CutOff(_))) {
            self.order.set(Some(order));
        }
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// The current order. Later ones wake the task.
    pub fn poll_order(&self, waker: &Waker) -> Option<Order> {
        let mut current = self.waker.borrow_mut();
        if !current.as_ref().is_some_and(|current| current.will_wake(waker)) {
            *current = Some(waker.clone());
        }
        self.order.get()
    }

    /// A response body that the client has to take. With HTTP/1, the stream shows whether it does. It waits from the
    /// beginning: a stream whose window is closed is never asked for its body.
    pub fn watch_reader(self: &Rc<Self>, now: Instant) -> Option<Reader> {
        (self.protocol == Protocol::Http2).then(|| {
            let key = self.waiting.borrow_mut().insert(Some(now));
            Reader { client: self.clone(), key }
        })
    }

    pub fn waiting(&self) -> Waiting {
        let oldest = self.waiting.borrow().iter().filter_map(|(_, since)| *since).min();
        let blocked = self.progress.blocked_since();
        let blocked_since = oldest.into_iter().chain(blocked).min();
        Waiting {
            active: self.active.get(),
            idle_since: self.idle_since.get(),
            was_used: self.was_used(),
            // In HTTP/2, frames for the connection itself arrive at any time.
            head_since: match self.protocol {
                Protocol::Http1 => self.progress.received_since(),
                Protocol::Http2 => None,
            },
            blocked_since,
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.worker.counters.closed(self.listener);
        if let Some(slot) = self.slot.get() {
            self.worker.clients.borrow_mut().remove(slot);
        }
    }
}

/// See [`Client::watch_reader`].
pub(crate) struct Reader {
    client: Rc<Client>,
    key: usize,
}

impl Reader {
    /// The client has octets to take, or it has taken all.
    pub fn set_waiting(&self, since: Option<Instant>) {
        if let Some(slot) = self.client.waiting.borrow_mut().get_mut(self.key) {
            *slot = since;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.client.waiting.borrow_mut().remove(self.key);
    }
}

//! A client's connection, as its requests and its driver share it.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

use crate::io::Progress;
use crate::limits::patience::ConnectionWait;
use crate::limits::{Permit, SourceRef};
use crate::metrics::{CutOff, Listener};
use crate::orders::{ConnectionOrders, Order};
use crate::outgoing::{Outgoing, Reader};
use crate::tls::{ClientTls, HttpVersion};
use crate::worker::Worker;

pub(crate) struct ClientConnection {
    pub worker: Rc<Worker>,
    pub listener: Listener,
    /// The connection's other end.
    pub peer: SocketAddr,
    /// Where the connection comes from: the peer, or what it reports by the PROXY protocol.
    pub source: SocketAddr,
    /// The address and port that the client connected to: what the PROXY protocol reports, or the listener's address
    /// with the port of the settings.
    pub local: SocketAddr,
    pub tls: Option<ClientTls>,
    pub protocol: HttpVersion,
    pub progress: Rc<Progress>,
    /// Octets that HTTP/2 may buffer in each direction.
    pub buffer: usize,
    active: Cell<u32>,
    used: Cell<u32>,
    cancelled: Cell<u32>,
    idle_since: Cell<Instant>,
    /// Empty in HTTP/1.
    outgoing: Rc<Outgoing>,
    pub orders: Rc<ConnectionOrders>,
    /// Where the worker has the orders.
    slot: usize,
    /// Ends when the connection does, or the tunnel that it became.
    permit: Permit,
}

/// What is known when a connection begins.
pub(crate) struct Arrival {
    pub listener: Listener,
    pub peer: SocketAddr,
    pub source: SocketAddr,
    pub local: SocketAddr,
    pub permit: Permit,
}

impl ClientConnection {
    pub fn new(
        worker: &Rc<Worker>,
        arrival: Arrival,
        tls: Option<ClientTls>,
        protocol: HttpVersion,
        progress: Rc<Progress>,
    ) -> Rc<Self> {
        let Arrival { listener, peer, source, local, mut permit } = arrival;
        let buffer = match protocol {
            HttpVersion::Http1 => 0,
            HttpVersion::Http2 => permit.grant_buffer(),
        };
        worker.counters.opened(listener);
        let orders = Rc::new(ConnectionOrders::default());
        let slot = worker.connections.borrow_mut().insert(orders.clone());
        Rc::new(Self {
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
            outgoing: Outgoing::new(worker.counters.clone(), buffer),
            buffer,
            orders,
            slot,
            permit,
        })
    }

    pub(crate) fn source_ip(&self) -> IpAddr {
        self.source.ip().to_canonical()
    }

    /// Whether there was a request.
    pub(crate) fn was_used(&self) -> bool {
        self.used.get() > 0
    }

    pub(crate) fn begin_request(&self) {
        self.active.set(self.active.get() + 1);
        self.used.set(self.used.get().saturating_add(1));
    }

    /// `cancelled`: the client reset the stream before its response was complete.
    pub(crate) fn end_request(&self, cancelled: bool, now: Instant) {
        self.active.set(self.active.get() - 1);
        self.idle_since.set(now);
        if cancelled && self.protocol == HttpVersion::Http2 {
            self.cancelled.set(self.cancelled.get().saturating_add(1));
            let finished = self.used.get() - self.cancelled.get().min(self.used.get());
            let most = self.worker.limits().resets.saturating_add(finished);
            if self.cancelled.get() > most {
                self.orders.give_order(Order::CutOff(CutOff::Resets));
            }
        }
    }

    /// Follows a response whose body the client has to take. With HTTP/1, the stream shows whether it does.
    pub fn begin_response(&self) -> Option<Rc<Reader>> {
        (self.protocol == HttpVersion::Http2).then(|| self.outgoing.begin(Instant::now()))
    }

    /// Counts a request for the client that it comes from. `None`: it has too many.
    pub(crate) fn count_request(self: &Rc<Self>, address: IpAddr) -> Option<InFlight> {
        let source = if address == self.source_ip() {
            let Some(source) = self.permit.source() else { return Some(InFlight(None)) };
            return source
                .begin_request()
                .then(|| InFlight(Some(CountedSource::Own(self.clone()))));
        } else {
            self.worker.shared.sources.source(address)
        };
        source.begin_request().then(|| InFlight(Some(CountedSource::Named(source))))
    }

    /// `head_since`: when the first octets of an incomplete head came.
    pub fn waiting(&self, head_since: Option<Instant>) -> ConnectionWait {
        let stalled = self.outgoing.stalled_since();
        let blocked = self.progress.blocked_since();
        ConnectionWait {
            is_active: self.active.get() > 0 || !self.outgoing.is_empty(),
            idle_since: self.idle_since.get(),
            was_used: self.was_used(),
            head_since,
            blocked_since: stalled.into_iter().chain(blocked).min(),
        }
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.worker.counters.closed(self.listener);
        self.worker.connections.borrow_mut().remove(self.slot);
    }
}

/// A request that counts for a client, until it is dropped. `None`: none is counted.
pub(crate) struct InFlight(Option<CountedSource>);

enum CountedSource {
    /// For the source of the connection.
    Own(Rc<ClientConnection>),
    /// For the client that a trusted proxy names.
    Named(SourceRef),
}

impl Drop for InFlight {
    fn drop(&mut self) {
        match &self.0 {
            None => {}
            Some(CountedSource::Named(source)) => source.end_request(),
            Some(CountedSource::Own(client)) => {
                if let Some(source) = client.permit.source() {
                    source.end_request();
                }
            }
        }
    }
}

//! Processes on this node itself: their sockets are led to a backend when they dial, so that
//! their packets need no translation.
//!
//! # Invariants
//! - What a process sees of its peer is what it dialled, never the backend.
//! - An end that is no Service's is left as it was dialled.
//! - A flow is followed only as long as its backend is the one that was chosen.
//!
//! Tests: beside the code, and `tests/tests/sockets.rs` with real programs.

use super::parse::{Place, Segment};
use super::{End, FamilyTables, Network, select};
use crate::family::Address;
use crate::hash::mix;
use crate::header::protocol;
use crate::layout::{Backend, Reason, Side, SocketEnd, SocketFlow};

/// What is remembered of sockets.
pub trait SocketTables<F: Network>: FamilyTables<F> {
    /// This node's own address: what its processes are to a Service.
    fn own_address(&self) -> F::Address;
    /// Where a connected socket was led.
    fn connected(&self, cookie: u64) -> Option<SocketFlow<F>>;
    /// False if there is no room.
    fn set_connected(&self, cookie: u64, flow: &SocketFlow<F>) -> bool;
    fn remove_connected(&self, cookie: u64);
    fn unconnected(&self, end: &SocketEnd<F>) -> Option<SocketFlow<F>>;
    /// False if there is no room.
    fn set_unconnected(&self, end: &SocketEnd<F>, flow: &SocketFlow<F>) -> bool;
    fn remove_unconnected(&self, end: &SocketEnd<F>);
}

/// A socket, by its cookie, and the transport protocol it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    pub cookie: u64,
    pub protocol: u8,
}

/// What happens to what a socket dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketVerdict<A> {
    /// It is no Service's: it goes where it was to go.
    Pass,
    /// It goes to this end instead.
    Translate(End<A>),
    /// The process is told at once that nobody serves there; the reason has been counted.
    Refuse(Reason),
    /// A packet would be dropped. A socket can't be left to wait for an answer that no packet
    /// asks for, so the process is told that there is no way; the reason has been counted.
    Drop(Reason),
}

/// A socket is to be connected to `end`.
#[inline(always)]
pub fn connect<F: Network, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    end: End<F::Address>,
) -> SocketVerdict<F::Address> {
    let chosen = choose(tables, socket, end);
    if let Ok(None) = chosen {
        // It may have been connected to a Service before.
        tables.remove_connected(socket.cookie);
    }
    open(tables, chosen, |flow| tables.set_connected(socket.cookie, flow))
}

/// A socket sends a datagram to `end`, to which it is not connected.
#[inline(always)]
pub fn send<F: Network, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    end: End<F::Address>,
) -> SocketVerdict<F::Address> {
    if let Some(flow) = followed(tables, socket, end) {
        return SocketVerdict::Translate(flow.backend());
    }
    let chosen = choose(tables, socket, end);
    if let Ok(None) = chosen
        && tables.may_be_source(end.address, end.port, socket.protocol)
    {
        // A backend, dialled by its own name: that is whom its answers come from now.
        tables.remove_unconnected(&answers_of(socket, end));
    }
    open(tables, chosen, |flow| {
        tables.set_unconnected(&sends_of(socket, flow.frontend()), flow)
            && tables.set_unconnected(&answers_of(socket, flow.backend()), flow)
    })
}

/// Whom a socket dialled that has received a datagram from `end`; `None` if `end` itself.
#[inline(always)]
pub fn receive<F: Network, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    end: End<F::Address>,
) -> Option<End<F::Address>> {
    if !tables.may_be_source(end.address, end.port, socket.protocol) {
        return None;
    }
    peer_name(tables, socket, end).or_else(|| {
        let flow = tables.unconnected(&answers_of(socket, end))?;
        (flow.backend() == end).then(|| flow.frontend())
    })
}

/// Whom a socket dialled that is connected to `end`; `None` if `end` itself.
#[inline(always)]
pub fn peer_name<F: Network, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    end: End<F::Address>,
) -> Option<End<F::Address>> {
    let flow = tables.connected(socket.cookie)?;
    (flow.backend() == end).then(|| flow.frontend())
}

/// A socket is closed.
#[inline(always)]
pub fn release<F: Network, T: SocketTables<F>>(tables: &T, cookie: u64) {
    tables.remove_connected(cookie);
}

impl<F: Network> SocketFlow<F> {
    /// Whether the backend that was chosen is there still. `backend` is what its index names now.
    #[inline(always)]
    pub fn leads_to(&self, backend: &Backend<F::Address>) -> bool {
        backend.protocol != 0 && backend.generation == self.backend_generation
    }

    #[inline(always)]
    pub fn frontend(&self) -> End<F::Address> {
        End { address: self.frontend, port: self.frontend_port }
    }

    #[inline(always)]
    pub fn backend(&self) -> End<F::Address> {
        End { address: self.backend, port: self.backend_port }
    }
}

/// The flow that a datagram belongs to, if its backend is there still.
#[inline(always)]
fn followed<F: Network, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    end: End<F::Address>,
) -> Option<SocketFlow<F>> {
    if !tables.may_be_destination(end.address) {
        return None;
    }
    let goes_on = |flow: &SocketFlow<F>| {
        let backend = tables.backend(flow.backend_index);
        flow.frontend() == end && backend.is_some_and(|backend| flow.leads_to(&backend))
    };
    // A connected socket hears only the backend that it is connected to.
    if let Some(flow) = tables.connected(socket.cookie).filter(goes_on) {
        return Some(flow);
    }
    let flow = tables.unconnected(&sends_of(socket, end)).filter(goes_on)?;
    // The flow is noted twice; one note may have made room for others without the other.
    let answers = answers_of(socket, flow.backend());
    let noted = tables.unconnected(&answers).is_some_and(|found| found.frontend() == end);
    (noted || tables.set_unconnected(&answers, &flow)).then_some(flow)
}

/// Where the flow is noted for what the socket sends to a frontend.
#[inline(always)]
fn sends_of<F: Network>(socket: Socket, frontend: End<F::Address>) -> SocketEnd<F> {
    SocketEnd::new(socket.cookie, frontend.address, frontend.port, Side::Frontend)
}

/// Where the flow is noted for what the socket receives from a backend.
#[inline(always)]
fn answers_of<F: Network>(socket: Socket, backend: End<F::Address>) -> SocketEnd<F> {
    SocketEnd::new(socket.cookie, backend.address, backend.port, Side::Backend)
}

/// Chooses a backend for a process on this node; `None` if `end` is no Service's.
#[inline(always)]
fn choose<F: Network, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    end: End<F::Address>,
) -> Result<Option<SocketFlow<F>>, Reason> {
    // NodePorts are stored under it. A process that dials it means itself.
    if end.address == F::Address::unspecified() || !tables.may_be_destination(end.address) {
        return Ok(None);
    }
    let segment = Segment {
        place: Place { network: 0, transport: 0, protocol: socket.protocol },
        source: tables.own_address(),
        destination: end.address,
        source_port: stand_in(socket.cookie),
        destination_port: end.port,
        tcp_flags: 0,
    };
    let Some(mut frontend) = select::frontend(tables, &segment) else {
        tables.count(Reason::NoFrontend);
        return Ok(None);
    };
    // As if it had gone out and come back.
    frontend.external_local = 0;
    let choice = select::backend(tables, &segment, &frontend)?;
    Ok(Some(SocketFlow {
        frontend: end.address,
        backend: choice.backend.address,
        frontend_port: end.port,
        backend_port: choice.backend.port,
        service_port: frontend.service_port,
        backend_index: choice.index,
        backend_generation: choice.backend.generation,
    }))
}

/// Stands for the port that a socket has not got yet: another one for another socket.
#[inline(always)]
fn stand_in(cookie: u64) -> u16 {
    mix(cookie) as u16
}

/// Keeps what was chosen, and says what that means for the socket.
#[inline(always)]
fn open<F: Network, T: SocketTables<F>>(
    tables: &T,
    chosen: Result<Option<SocketFlow<F>>, Reason>,
    keep: impl FnOnce(&SocketFlow<F>) -> bool,
) -> SocketVerdict<F::Address> {
    let reason = match chosen {
        Ok(None) => return SocketVerdict::Pass,
        Ok(Some(flow)) if keep(&flow) => {
            tables.count_new_flow(flow.service_port, flow.backend_index);
            return SocketVerdict::Translate(flow.backend());
        }
        Ok(Some(_)) => Reason::FlowTableFull,
        Err(reason) => reason,
    };
    tables.count(reason);
    match reason {
        Reason::NoBackend => SocketVerdict::Refuse(reason),
        _ => SocketVerdict::Drop(reason),
    }
}

/// Whether processes reach Services by this protocol: whether its sockets ask before they dial.
#[inline(always)]
pub fn is_served(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP)
}

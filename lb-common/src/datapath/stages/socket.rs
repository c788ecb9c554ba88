//! Processes of the node itself: their sockets connect to a backend directly, so their packets need
//! no translation.
//!
//! # Invariants
//! - A process sees the frontend that it connected to as its peer, never the backend.
//! - An address and port that belong to no Service are not changed.
//! - A flow is used only as long as its backend has not been removed or replaced.
//!
//! Tests: `tests/tests/host/sockets.rs`, and `tests/tests/node/sockets.rs` with real programs.

use crate::datapath::carried::End;
use crate::datapath::redispatch::Redispatch;
use crate::datapath::select::{self, Connection, Origin, affinity};
use crate::datapath::tables::{Counters, FamilyTables};
use crate::datapath::wire::parse::PacketFamily;
use crate::family::Address;
use crate::hash::mix;
use crate::header::protocol;
use crate::layout::{
    Backend, Frontend, FrontendKey, NO_BACKEND, Reason, Side, SocketEnd, SocketFlow,
};

/// State of sockets.
pub trait SocketTables<F: PacketFamily>: FamilyTables<F> {
    /// This node's own address, as the client address of its processes.
    fn own_address(&self) -> F::Address;
    /// Whether processes reach NodePorts at the loopback address.
    fn opens_loopback(&self) -> bool;
    /// The backend of a connected socket.
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
    /// Whether it is connected, and so receives from its peer only.
    pub connected: bool,
}

/// What happens to a connection or datagram of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketVerdict<A> {
    /// The call is not addressed to a Service, and not changed.
    Pass,
    /// The call goes to this address and port instead.
    Translate(End<A>),
    /// The connection is refused; the reason has been counted.
    Refuse(Reason),
    /// Where a packet would be dropped, the system call fails with "no route", so that the process
    /// does not wait for a reply. The reason has been counted.
    Drop(Reason),
}

/// A socket is about to connect to `end`.
#[inline(always)]
pub fn connect_socket<F: PacketFamily, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    end: End<F::Address>,
) -> SocketVerdict<F::Address> {
    let mut flow = SocketFlow::dialling(end);
    let verdict = match choose_for_socket(tables, socket, &mut flow) {
        Ok(()) if tables.set_connected(socket.cookie, &flow) => lead_to_backend(tables, &flow),
        Ok(()) => verdict_for_reason(tables, Reason::FlowTableFull),
        Err(reason) => verdict_for_reason(tables, reason),
    };
    if let SocketVerdict::Pass = verdict {
        // It may have been connected to a Service before.
        tables.remove_connected(socket.cookie);
    }
    verdict
}

/// A socket sends a datagram to `end`, to which it is not connected.
#[inline(always)]
pub fn send_from_socket<F: PacketFamily, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    end: End<F::Address>,
) -> SocketVerdict<F::Address> {
    if let Some(flow) = flow_of_datagram(tables, socket, end) {
        return SocketVerdict::Translate(flow.backend());
    }
    let mut flow = SocketFlow::dialling(end);
    let verdict = match choose_for_socket(tables, socket, &mut flow) {
        Ok(()) if keep_unconnected(tables, socket, &flow) => lead_to_backend(tables, &flow),
        Ok(()) => verdict_for_reason(tables, Reason::FlowTableFull),
        Err(reason) => verdict_for_reason(tables, reason),
    };
    if let SocketVerdict::Pass = verdict
        && tables.may_be_source(end.address, end.port, socket.protocol)
    {
        // A datagram directly to a backend: from now on, its replies keep the backend's address.
        tables.remove_unconnected(&reply_key(socket, end));
    }
    verdict
}

/// The source that a process sees when its socket receives a datagram from `end`: the frontend to
/// which it sent. `None` if it sent to `end` itself.
#[inline(always)]
pub fn source_for_socket<F: PacketFamily, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    end: End<F::Address>,
) -> Option<End<F::Address>> {
    // Without the prefilter: a backend's last reply may arrive after the backend was removed.
    if socket.connected {
        return peer_name(tables, socket, end);
    }
    let flow = tables.unconnected(&reply_key(socket, end))?;
    (flow.backend() == end).then(|| flow.frontend())
}

/// The peer that a process sees of a socket that is connected to `end`: the frontend to which it
/// connected. `None` if it connected to `end` itself.
#[inline(always)]
pub fn peer_name<F: PacketFamily, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    end: End<F::Address>,
) -> Option<End<F::Address>> {
    let flow = tables.connected(socket.cookie)?;
    (flow.backend() == end).then(|| flow.frontend())
}

/// A socket is closed.
#[inline(always)]
pub fn release_socket<F: PacketFamily, T: SocketTables<F>>(tables: &T, cookie: u64) {
    tables.remove_connected(cookie);
}

impl<F: PacketFamily> SocketFlow<F> {
    /// A flow whose backend has not been chosen yet.
    #[inline(always)]
    fn dialling(frontend: End<F::Address>) -> Self {
        Self {
            frontend: frontend.address,
            backend: F::Address::unspecified(),
            frontend_port: frontend.port,
            backend_port: 0,
            service_port: 0,
            backend_index: NO_BACKEND,
            backend_generation: 0,
        }
    }

    /// Whether the chosen backend still exists. `backend` is the one that has its index now.
    #[inline(always)]
    pub fn leads_to(&self, backend: &Backend<F::Address>) -> bool {
        is_same(backend, self.backend_generation)
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

/// The flow that a datagram belongs to, if its backend still exists.
#[inline(always)]
fn flow_of_datagram<F: PacketFamily, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    end: End<F::Address>,
) -> Option<SocketFlow<F>> {
    if !may_be_frontend(tables, end.address) {
        return None;
    }
    // A connected socket receives only from the backend that it is connected to.
    if socket.connected
        && let Some(flow) = tables.connected(socket.cookie)
        && flow.frontend() == end
    {
        let (index, generation) = (flow.backend_index, flow.backend_generation);
        return is_there(tables, index, generation, true).then_some(flow);
    }
    let flow = tables.unconnected(&sends_of(socket, end))?;
    // Datagrams move to another backend as soon as no pool contains theirs.
    let (index, generation) = (flow.backend_index, flow.backend_generation);
    if flow.frontend() != end || !is_there(tables, index, generation, false) {
        return None;
    }
    // The flow is stored twice; the LRU map may have evicted one of the two.
    let reply = reply_key(socket, flow.backend());
    let noted = tables.unconnected(&reply).is_some_and(|found| found.frontend() == end);
    (noted || tables.set_unconnected(&reply, &flow)).then_some(flow)
}

/// Whether the chosen backend still exists; `draining`: or is terminating and keeps connections.
///
/// Not inlined in the kernel either: the compiler would merge it with the comparisons around it,
/// and the verifier would see reads of uninitialized registers.
#[inline(never)]
fn is_there<F: PacketFamily, T: SocketTables<F>>(
    tables: &T,
    index: u32,
    generation: u32,
    draining: bool,
) -> bool {
    tables.backend(index).is_some_and(|backend| {
        is_same(&backend, generation) && (draining || !backend.is_draining())
    })
}

#[inline(always)]
fn is_same<A>(backend: &Backend<A>, generation: u32) -> bool {
    backend.protocol != 0 && backend.generation == generation
}

/// The key for datagrams that the socket sends to a frontend.
#[inline(always)]
fn sends_of<F: PacketFamily>(socket: Socket, frontend: End<F::Address>) -> SocketEnd<F> {
    SocketEnd::new(socket.cookie, frontend.address, frontend.port, Side::Frontend)
}

/// The key for datagrams that the socket receives from a backend.
#[inline(always)]
fn reply_key<F: PacketFamily>(socket: Socket, backend: End<F::Address>) -> SocketEnd<F> {
    SocketEnd::new(socket.cookie, backend.address, backend.port, Side::Backend)
}

#[inline(always)]
fn keep_unconnected<F: PacketFamily, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    flow: &SocketFlow<F>,
) -> bool {
    tables.set_unconnected(&sends_of(socket, flow.frontend()), flow)
        && tables.set_unconnected(&reply_key(socket, flow.backend()), flow)
}

/// Chooses a backend for a process on this node, and writes it into the flow.
///
/// Not inlined in the kernel either, like [`is_there`]. There, such a function can return only a
/// number.
#[inline(never)]
fn choose_for_socket<F: PacketFamily, T: SocketTables<F>>(
    tables: &T,
    socket: Socket,
    flow: &mut SocketFlow<F>,
) -> Result<(), Reason> {
    let end = flow.frontend();
    // NodePorts are stored under the unspecified address, but a process that connects to that
    // address means its own node.
    if end.address == F::Address::unspecified() || !may_be_frontend(tables, end.address) {
        return Err(Reason::NoFrontend);
    }
    let connection = Connection {
        client: tables.own_address(),
        client_port: stand_in(socket.cookie),
        address: end.address,
        port: end.port,
        protocol: socket.protocol,
        begins: 1,
    };
    let frontend = find_socket_frontend(tables, &connection)?;
    let choice =
        select::choose_backend(tables, &connection, &frontend, Origin::Inside, Redispatch::NONE)?;
    if frontend.affinity != 0 {
        let (service_port, generation) = (frontend.service_port, choice.backend.generation);
        affinity::store_affinity(tables, connection.client, service_port, choice.index, generation);
    }
    flow.backend = choice.backend.address;
    flow.backend_port = choice.backend.port;
    flow.service_port = frontend.service_port;
    flow.backend_index = choice.index;
    flow.backend_generation = choice.backend.generation;
    Ok(())
}

/// Whether a process may mean a Service by an address.
#[inline(always)]
fn may_be_frontend<F: PacketFamily, T: SocketTables<F>>(tables: &T, address: F::Address) -> bool {
    if address == F::Address::loopback() {
        tables.opens_loopback()
    } else {
        tables.may_be_destination(address)
    }
}

/// The frontend that a process connects to. At the loopback address only NodePorts are open, and only to processes: no
/// map has an entry of that address, so that packets from outside never match it.
#[inline(always)]
fn find_socket_frontend<F: PacketFamily, T: SocketTables<F>>(
    tables: &T,
    connection: &Connection<F>,
) -> Result<Frontend, Reason> {
    if connection.address != F::Address::loopback() {
        return select::find_frontend(tables, connection);
    }
    let (any, port) = (F::Address::unspecified(), connection.port);
    let node_port = tables.frontend(&FrontendKey::new(any, port, connection.protocol));
    node_port.ok_or(Reason::NoFrontend)
}

/// Stands for the client port, which the socket does not have yet. Differs between sockets.
#[inline(always)]
fn stand_in(cookie: u64) -> u16 {
    mix(cookie) as u16
}

#[inline(always)]
fn lead_to_backend<F: PacketFamily, T: SocketTables<F>>(
    tables: &T,
    flow: &SocketFlow<F>,
) -> SocketVerdict<F::Address> {
    tables.count_new_flow(flow.service_port, flow.backend_index);
    SocketVerdict::Translate(flow.backend())
}

#[inline(always)]
fn verdict_for_reason<A, T: Counters>(tables: &T, reason: Reason) -> SocketVerdict<A> {
    match reason {
        // Not counted: most connections of processes are not to Services.
        Reason::NoFrontend => return SocketVerdict::Pass,
        _ => tables.count(reason),
    }
    match reason {
        Reason::NoBackend | Reason::NoSuchPort => SocketVerdict::Refuse(reason),
        _ => SocketVerdict::Drop(reason),
    }
}

/// Whether the kernel calls cgroup hooks for this protocol.
#[inline(always)]
pub fn is_served(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP)
}

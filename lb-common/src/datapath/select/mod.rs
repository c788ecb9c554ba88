//! Which backend a new flow goes to: frontend → pool by policy → Maglev slot → backend.

pub mod affinity;

use super::redispatch::Redispatch;
use super::segment::Segment;
use super::tables::{FamilyTables, PoolTables};
use super::wire::parse::PacketFamily;
use crate::branchless::{choose, is_zero};
use crate::family::Address;
use crate::hash;
use crate::layout::{
    Backend, FlowKind, Forwarding, Frontend, FrontendKey, FrontendKind, Pool, Reason, TunnelTarget,
};

/// A connection as its client opens it.
#[derive(Clone, Copy)]
pub struct Connection<F: PacketFamily> {
    pub client: F::Address,
    pub client_port: u16,
    pub address: F::Address,
    pub port: u16,
    pub protocol: u8,
    /// 1 if the packet may begin it, else 0. Without branches: the verifier would follow the selection for
    /// both.
    pub begins: u64,
}

impl<F: PacketFamily> Connection<F> {
    /// The connection that a client's packet belongs to.
    #[inline(always)]
    pub fn by(segment: &Segment<F>) -> Self {
        Self {
            client: segment.source,
            client_port: segment.source_port,
            address: segment.destination,
            port: segment.destination_port,
            protocol: segment.headers.protocol,
            begins: segment.may_begin(),
        }
    }
}

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Outside,
    /// In a pod of this node, or on the node itself.
    Inside,
}

pub struct Choice<F: PacketFamily> {
    pub index: u32,
    pub backend: Backend<F::Address>,
}

/// Finds the frontend: the exact address and port, or a NodePort if the address is this node's.
#[inline(always)]
pub fn find_frontend<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
) -> Result<Frontend, Reason> {
    let Connection { address, port, protocol, .. } = *connection;
    if let Some(found) = tables.frontend(&FrontendKey::new(address, port, protocol)) {
        return Ok(found);
    }
    // The entry with port 0 describes the address itself.
    let itself = tables.frontend(&FrontendKey::new(address, 0, 0)).ok_or(Reason::NoFrontend)?;
    if itself.belongs_to_services() {
        return Err(Reason::NoSuchPort);
    }
    let any = FrontendKey::new(F::Address::unspecified(), port, protocol);
    tables.frontend(&any).ok_or(Reason::NoFrontend)
}

/// The frontend at an address and port, for any client.
pub fn frontend_at<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    address: F::Address,
    port: u16,
    protocol: u8,
) -> Option<Frontend> {
    let client = F::Address::default();
    let connection = Connection::<F> { client, client_port: 0, address, port, protocol, begins: 1 };
    find_frontend(tables, &connection).ok()
}

/// Chooses a backend.
#[inline(always)]
pub fn choose_backend<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
    frontend: &Frontend,
    origin: Origin,
    redispatch: Redispatch,
) -> Result<Choice<F>, Reason> {
    if !frontend.leads_somewhere() {
        return Err(Reason::CorruptFrontend);
    }
    admit_client(tables, connection, frontend)?;
    let local = is_local_wanted(frontend, origin);
    let wanted = pool_of(frontend, local);
    let pool = tables.pool(wanted).ok_or(Reason::NoSuchPool)?;
    if pool.size == 0 {
        let elsewhere = local && frontend.populated != 0;
        return Err(if elsewhere { Reason::NoLocalBackend } else { Reason::NoBackend });
    }
    if u64::from(frontend.affinity) * redispatch.is_absent() != 0
        && let Some((index, backend)) =
            affinity::recall_affinity(tables, connection, frontend, wanted)
    {
        return Ok(Choice { index, backend });
    }
    let hash = redispatch.turn(slot_hash(connection));
    let index = slot_owner(tables, pool, hash).ok_or(Reason::NoSuchSlot)?;
    let backend = tables.backend(index).ok_or(Reason::NoSuchBackend)?;
    if backend.protocol != connection.protocol {
        return Err(Reason::NoSuchBackend);
    }
    Ok(Choice { index, backend })
}

/// The hash that selects the slot of a connection.
#[inline(always)]
fn slot_hash<F: PacketFamily>(connection: &Connection<F>) -> u32 {
    let Connection { client, client_port, address, port, protocol, .. } = *connection;
    hash::spread::<F>(client, client_port, address, port, protocol)
}

/// The index of the backend to which the slot of a hash leads, of a pool that has some.
#[inline(always)]
fn slot_owner<T: PoolTables>(tables: &T, pool: Pool, hash: u32) -> Option<u32> {
    // Saturates (without branches), and the last index is never a slot. Wrapping would select a slot of another pool.
    let slot = u64::from(pool.offset) + u64::from(hash::scale(hash, pool.size));
    tables.slot((slot | (slot >> 32).wrapping_neg()) as u32)
}

#[inline(always)]
fn pool_of(frontend: &Frontend, local: bool) -> u32 {
    if local { frontend.local_pool } else { frontend.cluster_pool }
}

/// How a connection that its backend does not serve finds another in its pool, if there is one.
#[inline(always)]
pub fn search_other_backend<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
    (backend, kind): (u32, FlowKind),
    frontend: &Frontend,
    origin: Origin,
) -> Option<Redispatch> {
    let pool = tables.pool(pool_of(frontend, is_local_wanted(frontend, origin)))?;
    if pool.size == 0 {
        return None;
    }
    let hash = slot_hash(connection);
    // A connection that moves again does not return to its first backend.
    let first = slot_owner(tables, pool, hash)?;
    let moved = 1 - is_zero(kind.moves().into());
    let first = choose(moved, first.into(), backend.into());
    // Without branches, and to the end, for the verifier.
    let mut found = Redispatch::NONE.number().into();
    for slots in 0..Redispatch::TRIES {
        let redispatch = Redispatch::past(slots, kind.moves());
        let index = u64::from(slot_owner(tables, pool, redispatch.turn(hash))?);
        let is_avoided = is_zero(index ^ u64::from(backend)) | is_zero(index ^ first);
        let is_first = is_zero(found) & (1 - is_avoided);
        found = choose(is_first, redispatch.number().into(), found);
    }
    Some(Redispatch::from_number(found as u32))
}

/// Whether the client may use the frontend: source ranges apply to load balancer addresses.
#[inline(always)]
fn admit_client<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
    frontend: &Frontend,
) -> Result<(), Reason> {
    let restricted = frontend.restricted != 0 && frontend.kind == FrontendKind::LoadBalancer as u8;
    if restricted && !tables.is_source_allowed(frontend.service_port, connection.client) {
        return Err(Reason::SourceNotAllowed);
    }
    Ok(())
}

/// The backend on this node that a tunnelled packet's tag names. Source ranges are checked here,
/// too: the outer header proves little about the sender.
#[inline(always)]
pub fn find_tunnel_target<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
    frontend: &Frontend,
    tag: u32,
) -> Result<Choice<F>, Reason> {
    admit_client(tables, connection, frontend)?;
    let target = TunnelTarget { service_port: frontend.service_port, tag };
    let index = tables.target(target).ok_or(Reason::NoSuchTarget)?;
    let backend = tables.backend(index).ok_or(Reason::NoSuchBackend)?;
    if backend.protocol != connection.protocol || !backend.is_local() {
        return Err(Reason::NoSuchTarget);
    }
    Ok(Choice { index, backend })
}

/// The tunnel to the backend for clients outside, if there is one. NodePort connections use no
/// tunnel: the client uses this node's own address, so replies cannot come from another node.
#[inline(always)]
pub fn tunnel_to_backend<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    frontend: &Frontend,
    choice: &Choice<F>,
) -> Option<FlowKind> {
    let tunnelled = frontend.kind != FrontendKind::NodePort as u8
        && !choice.backend.is_local()
        && choice.backend.node != F::Address::default();
    let kind = FlowKind::FORWARDED.and(FlowKind::TUNNELLED);
    let in_udp = frontend.forwarding == Forwarding::Gue as u8
        || frontend.forwarding == Forwarding::Auto as u8
            && tunnelled
            && tables.decapsulates(choice.backend.node.into());
    if tunnelled && frontend.forwarding == Forwarding::Ipip as u8 {
        Some(kind)
    } else if tunnelled && in_udp {
        Some(kind.and(FlowKind::IN_UDP))
    } else {
        None
    }
}

/// Whether the local pool applies, by the frontend's policy and the client's location. A client
/// inside that uses an external kind of frontend may get backends of any node, as if its packet had
/// left the cluster and come back.
#[inline(always)]
fn is_local_wanted(frontend: &Frontend, origin: Origin) -> bool {
    let matters = origin == Origin::Outside || frontend.kind == FrontendKind::ClusterIp as u8;
    matters && frontend.wants_local()
}

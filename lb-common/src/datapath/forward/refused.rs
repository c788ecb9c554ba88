//! Connections that their backend has refused, or does not reply to.

use super::carry::copy_decision;
use super::lookup;
use crate::conntrack;
use crate::datapath::carried::{Decision, Draft};
use crate::datapath::redispatch::{Redispatch, may_move};
use crate::datapath::select::{self, Connection, Origin};
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;
use crate::layout::{FlowKind, FlowState, Frontend, Reason};

/// The function [`Function::Redispatch`](crate::datapath::Function), for the stored segment, which repeats or refuses the
/// SYN of the flow at the drafted location. Returns how its connection finds another backend, or 0; stores the decision
/// about a reply.
#[inline(always)]
pub fn redispatch_flow<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> u32 {
    end_unserved_flow(tables).unwrap_or(Redispatch::REPLACED).number()
}

#[inline(always)]
fn end_unserved_flow<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Option<Redispatch> {
    let draft = tables.draft()?;
    let Draft { segment, decision, at, inside, .. } = draft;
    let found = conntrack::find_at(tables.flow_bucket(at.bucket())?, *at, |flow, _| {
        copy_decision(decision, &Decision::of_reply(flow));
        Some(())
    })?;
    let opens = segment.opens();
    let repeated = lookup::repeated_syn(tables, segment, &found, decision.kind);
    let connection = Connection {
        client: decision.destination.address,
        client_port: decision.destination.port,
        address: decision.source.address,
        port: decision.source.port,
        protocol: segment.headers.protocol,
        begins: 1,
    };
    // Where the client of a reply is, is not known: then by the pool that has the fewer backends.
    let is_inside = opens && *inside != 0;
    let origin = if is_inside { Origin::Inside } else { Origin::Outside };
    // Silence may be a lost packet: a client does not leave its backend for one.
    let may_leave = |frontend: &Frontend| frontend.affinity == 0 || !opens || repeated.is_refused();
    let backend = (decision.backend_index, decision.kind);
    let other = find_other_backend(tables, &connection, backend, origin, may_leave);
    if !opens {
        // The backend may have accepted the connection meanwhile, on another CPU.
        if found.state() != FlowState::SynSent {
            return Some(Redispatch::NONE);
        }
        found.refuse(!other.is_none());
        return Some(other);
    }
    if !repeated.exists() {
        return Some(Redispatch::NONE);
    }
    if other.is_none() {
        found.keep_unserved(tables.now());
    } else {
        found.release();
        tables.count(Reason::Moved);
    }
    Some(other)
}

/// How the connection of a flow to `backend`, with its kind, finds another backend.
#[inline(always)]
fn find_other_backend<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
    backend: (u32, FlowKind),
    origin: Origin,
    may_leave: impl Fn(&Frontend) -> bool,
) -> Redispatch {
    if may_move(backend.1) == 0 {
        return Redispatch::NONE;
    }
    select::find_frontend(tables, connection)
        .ok()
        .filter(|frontend| may_leave(frontend))
        .and_then(|frontend| {
            select::search_other_backend(tables, connection, backend, &frontend, origin)
        })
        .unwrap_or(Redispatch::NONE)
}

//! ICMP errors about packets of flows that another node has.
//!
//! Routers send an error about a backend's reply to the Service's address, and with equal-cost paths to
//! any node. What a request of the quoted client would do, the error does, too: the pool's table leads
//! it through a tunnel to the node of the backend, which alone knows the flow and translates the error.

use crate::conntrack::Location;
use crate::datapath::redispatch::Redispatch;
use crate::datapath::select::{self, Connection, Origin};
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;
use crate::layout::Direction;

/// The function [`Function::ChooseForError`](crate::datapath::Function): stores the decision for an error
/// that quotes a reply to the stored segment. False if a request would use no tunnel, or if there were
/// too many such errors lately: they are as easy to forge as any packet.
#[inline(always)]
pub fn choose_quoted_backend<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let Some(draft) = tables.draft() else { return false };
    let connection = Connection::by(&draft.segment);
    let Ok(frontend) = select::find_frontend(tables, &connection) else { return false };
    let choice =
        select::choose_backend(tables, &connection, &frontend, Origin::Outside, Redispatch::NONE);
    let Ok(choice) = choice else { return false };
    let Some(kind) = select::tunnel_to_backend(tables, &frontend, &choice) else { return false };
    if !tables.may_ask() {
        return false;
    }
    draft.at = Location::NONE;
    let decision = &mut draft.decision;
    decision.service_port = frontend.service_port;
    decision.backend_index = choice.index;
    decision.backend_generation = choice.backend.generation as u16;
    decision.direction = Direction::Forward;
    decision.kind = kind;
    true
}

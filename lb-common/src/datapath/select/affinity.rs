//! Session affinity: clients that stay with their backend.
//!
//! # Invariant
//! Whatever begins a connection stores its backend, also if the flow table has no entry for it. A
//! connection without an entry follows what is stored, however old that is, and every packet renews it. So
//! it stays with its backend, and so do its client's other connections, until the backend leaves the
//! pool or the map forgets the client.

use super::Connection;
use crate::branchless::choose;
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;
use crate::layout::{Affinity, AffinityKey, Backend, Frontend, Member, Ticks};

/// The backend that the client stays with, as long as its pool has it.
#[inline(always)]
pub fn recall_affinity<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
    frontend: &Frontend,
    pool: u32,
) -> Option<(u32, Backend<F::Address>)> {
    let found = tables.affinity(&AffinityKey::new(connection.client, frontend.service_port))?;
    // What is in the middle of a connection belongs to one that began in time.
    let limit = choose(connection.begins, Ticks::in_seconds(frontend.affinity).into(), u64::MAX);
    if u64::from(tables.now().since(found.used)) > limit {
        return None;
    }
    if !tables.is_member(Member { pool, backend: found.backend }) {
        return None;
    }
    let backend: Backend<F::Address> = tables.backend(found.backend)?;
    let same = backend.protocol != 0 && backend.generation == found.generation;
    same.then_some((found.backend, backend))
}

/// Stores the backend to which the client has opened a flow.
#[inline(always)]
pub fn store_affinity<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    client: F::Address,
    service_port: u32,
    backend: u32,
    generation: u32,
) {
    let affinity = Affinity { backend, generation, used: tables.now() };
    tables.set_affinity(&AffinityKey::new(client, service_port), affinity);
}

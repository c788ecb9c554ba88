//! Session affinity: clients that stay with their backend.

use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;
use crate::layout::{Affinity, AffinityKey, Backend, Frontend, Member, Ticks};

/// The backend that the client stays with, as long as its pool has it.
#[inline(always)]
pub fn remembered<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    client: F::Address,
    frontend: &Frontend,
    pool: u32,
) -> Option<(u32, Backend<F::Address>)> {
    let found = tables.affinity(&AffinityKey::new(client, frontend.service_port))?;
    if tables.now().since(found.used) > Ticks::in_seconds(frontend.affinity) {
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
pub fn remember<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    client: F::Address,
    service_port: u32,
    backend: u32,
    generation: u32,
) {
    let affinity = Affinity { backend, generation, used: tables.now() };
    tables.set_affinity(&AffinityKey::new(client, service_port), affinity);
}

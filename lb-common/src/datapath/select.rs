//! Which backend a new flow goes to: frontend → pool by policy → Maglev slot → backend.

use super::FamilyTables;
use super::parse::{Network, Segment};
use crate::hash;
use crate::layout::{Backend, Frontend, FrontendKey, FrontendKind, Reason};

pub struct Choice<F: Network> {
    pub index: u32,
    pub backend: Backend<F::Address>,
}

/// Finds what the client dialled: the exact address and port, else, on an address of this
/// node, a NodePort.
#[inline(always)]
pub fn frontend<F: Network, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> Option<Frontend> {
    use crate::family::Address;

    let port = segment.destination_port;
    let protocol = segment.place.protocol;
    if let Some(found) = tables.frontend(&FrontendKey::new(segment.destination, port, protocol)) {
        return Some(found);
    }
    // The entry with port 0 says what the address itself is.
    let address = tables.frontend(&FrontendKey::new(segment.destination, 0, 0))?;
    if address.kind != FrontendKind::NodeAddress as u8 {
        return None;
    }
    tables.frontend(&FrontendKey::new(F::Address::unspecified(), port, protocol))
}

/// Chooses a backend for a client outside the cluster.
#[inline(always)]
pub fn backend<F: Network, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
    frontend: &Frontend,
) -> Result<Choice<F>, Reason> {
    let policy = if frontend.kind == FrontendKind::ClusterIp as u8 {
        frontend.internal_local
    } else {
        frontend.external_local
    };
    let local = policy != 0;
    let wanted = if local { frontend.local_pool } else { frontend.cluster_pool };
    let pool = tables.pool(wanted).ok_or(Reason::CorruptTable)?;
    if pool.size == 0 {
        return Err(if local { Reason::NoLocalBackend } else { Reason::NoBackend });
    }
    let hash = hash::spread::<F>(
        segment.source,
        segment.source_port,
        segment.destination,
        segment.destination_port,
        segment.place.protocol,
    );
    let slot = pool.offset.wrapping_add(hash::scale(hash, pool.size));
    let index = tables.slot(slot).ok_or(Reason::CorruptTable)?;
    let backend = tables.backend(index).ok_or(Reason::CorruptTable)?;
    if backend.protocol == 0 {
        return Err(Reason::CorruptTable);
    }
    Ok(Choice { index, backend })
}

//! The owners of a connection's slot: the current one, then the earlier ones, the last one first.

use crate::datapath::carried::Owners;
use crate::datapath::function::Function;
use crate::datapath::select::{Choice, Connection};
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;
use crate::family::Address;
use crate::hash;
use crate::layout::{Backend, Frontend, HISTORY_DEPTH, PoolSlot};

/// What [`Function::ExamineOwner`] says about an owner, in one number.
#[derive(Clone, Copy)]
pub struct Owner(u32);

impl Owner {
    const EXISTS: u32 = 1;
    /// The owner serves the connection, and its node is not the current owner's.
    const COUNTS: u32 = 1 << 1;
    const LOCAL: u32 = 1 << 2;
    const CAN_BE_ASKED: u32 = 1 << 3;
    /// From this bit on the tag by which a tunnelled packet names it.
    const TAG: u32 = 16;
}

/// Which owner is looked for.
#[derive(Clone, Copy)]
pub enum SoughtOwner {
    /// The first one on this node.
    Local,
    /// The one that is to be asked as this one in order, from 1.
    Nth(u32),
    /// The one with this tag, among the first `number` that are asked.
    Asked { number: u32, tag: u16 },
}

impl SoughtOwner {
    const LOCAL: u32 = 0;
    const NTH: u32 = 1;
    const ASKED: u32 = 2;
}

/// Finds an owner of the slot of the stored segment's connection.
#[inline(always)]
pub fn find_owner<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
    frontend: &Frontend,
    wanted: SoughtOwner,
) -> Option<Choice<F>> {
    let Connection { client, client_port, address, port, protocol, .. } = *connection;
    let pool = tables.pool(frontend.cluster_pool).filter(|pool| pool.size != 0)?;
    let hash = hash::spread::<F>(client, client_port, address, port, protocol);
    let slot = hash::scale(hash, pool.size);
    let owners = &mut tables.draft()?.owners;
    owners.slot = PoolSlot { pool: frontend.cluster_pool, slot };
    owners.first = pool.offset.saturating_add(slot);
    (owners.wanted, owners.number, owners.tag) = match wanted {
        SoughtOwner::Local => (SoughtOwner::LOCAL, 0, 0),
        SoughtOwner::Nth(number) => (SoughtOwner::NTH, number, 0),
        SoughtOwner::Asked { number, tag } => (SoughtOwner::ASKED, number, tag.into()),
    };
    owners.count = 0;
    if tables.call(Function::FindOwner) == 0 {
        return None;
    }
    let index = tables.draft()?.owners.index;
    let backend: Backend<F::Address> = tables.backend(index)?;
    (backend.protocol == protocol).then_some(Choice { index, backend })
}

/// The function [`Function::FindOwner`]: 0 if there is none.
#[inline(always)]
pub fn search_owners<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> u32 {
    for position in 0..=HISTORY_DEPTH as u32 {
        let Some(draft) = tables.draft() else { return 0 };
        draft.owners.position = position;
        let owner = Owner(tables.call(Function::ExamineOwner));
        if owner.0 & Owner::EXISTS == 0 {
            return 0;
        }
        let Some(draft) = tables.draft() else { return 0 };
        if owner.0 & Owner::COUNTS != 0 && is_wanted(&mut draft.owners, owner) {
            return 1;
        }
    }
    0
}

#[inline(always)]
fn is_wanted<F: PacketFamily>(owners: &mut Owners<F>, owner: Owner) -> bool {
    if owners.wanted == SoughtOwner::LOCAL {
        return owner.0 & Owner::LOCAL != 0;
    }
    if owner.0 & Owner::CAN_BE_ASKED == 0 {
        return false;
    }
    owners.count += 1;
    if owners.wanted == SoughtOwner::NTH {
        owners.count == owners.number
    } else {
        owners.count <= owners.number && owner.0 >> Owner::TAG == owners.tag
    }
}

/// The function [`Function::ExamineOwner`].
#[inline(always)]
pub fn examine_owner<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> u32 {
    let Some(draft) = tables.draft() else { return 0 };
    let protocol = draft.segment.headers.protocol;
    let Owners { slot, first, position, .. } = draft.owners;
    let index =
        if position == 0 { tables.slot(first) } else { tables.earlier_owner(slot, position - 1) };
    let Some(index) = index else { return 0 };
    let Some(backend): Option<Backend<F::Address>> = tables.backend(index) else { return 0 };
    let none = F::Address::unspecified();
    draft.owners.index = index;
    if position == 0 {
        draft.owners.current = backend.node;
    } else if backend.node == draft.owners.current && backend.node != none {
        // The current owner's node has been asked.
        return Owner::EXISTS;
    }
    if backend.protocol != protocol {
        return Owner::EXISTS;
    }
    let tag = u32::from(hash::backend_tag(backend.address, backend.port)) << Owner::TAG;
    let mut owner = Owner::EXISTS | Owner::COUNTS | tag;
    if backend.is_local() {
        owner |= Owner::LOCAL;
    } else if can_be_asked::<F, T>(tables, &backend) {
        owner |= Owner::CAN_BE_ASKED;
    }
    owner
}

/// Whether a backend is on another node that returns what it does not know. Connections of those
/// here are known.
#[inline(always)]
pub fn can_be_asked<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    backend: &Backend<F::Address>,
) -> bool {
    !backend.is_local()
        && backend.node != F::Address::unspecified()
        && tables.returns(backend.node.into())
}

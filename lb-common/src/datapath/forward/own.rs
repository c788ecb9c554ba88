//! Which addresses are this node's own.

use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::PacketFamily;
use crate::layout::{FrontendKey, FrontendKind};

/// Whether an address belongs to this node: to the interface on which the packet arrived, or to
/// another one.
#[inline(always)]
pub fn is_own<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    address: F::Address,
) -> bool {
    let device = tables.device(packet.device());
    device.is_some_and(|device| F::address_of(&device) == address)
        || tables
            .frontend(&FrontendKey::new(address, 0, 0))
            .is_some_and(|entry| entry.kind == FrontendKind::NodeAddress as u8)
}

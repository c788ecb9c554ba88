//! The maximum segment size of connections through tunnels.
//!
//! Only the client's packets go through the tunnel. Their size is limited by what the backend announces in
//! its SYN-ACK, which leaves from the backend's node: it is reduced there to what fits with the
//! tunnel's headers. The client's SYN limits the backend's packets, which use no tunnel.

use core::mem::offset_of;

use crate::checksum::Delta;
use crate::datapath::segment::Headers;
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::outer::{KEYED, UDP};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::PacketFamily;
use crate::header::{Tcp, TcpOption};
use crate::layout::{Reason, TunnelKey};

/// Options that are examined. The segment size is nearly always the first.
const OPTIONS: usize = 6;

/// Reduces the segment size in a backend's SYN-ACK to a client whose packets come through a tunnel.
/// By the MTU of the interface where it leaves: nodes use the same one for tunnels.
#[inline(never)]
pub fn segment_size<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    headers: Headers,
) -> Result<(), Reason> {
    packet.keep_whole();
    let Some(device) = tables.device(packet.device()) else { return Ok(()) };
    let keyed = tables.tunnel_key(TunnelKey::Current) != 0;
    let tunnel = size_of::<F::Header>() + if keyed { KEYED } else { UDP };
    let overhead = (tunnel + size_of::<F::Header>() + size_of::<Tcp>()) as u32;
    let most = device.mtu.saturating_sub(overhead);
    let Some(at) = find_segment_size(packet, headers.transport) else { return Ok(()) };
    let field: &mut [u8; 2] = packet.header_mut(at).ok_or(Reason::Unwritable)?;
    let announced = u16::from_be_bytes(*field);
    if u32::from(announced) <= most || most == 0 {
        return Ok(());
    }
    let reduced = most as u16;
    *field = reduced.to_be_bytes();
    // The checksum is over pairs of octets, counted from the header.
    let delta = if (at - headers.transport).is_multiple_of(2) {
        Delta::of_port(announced, reduced)
    } else {
        Delta::of_port(announced.swap_bytes(), reduced.swap_bytes())
    };
    let checksum = headers.transport + offset_of!(Tcp, checksum);
    packet
        .update_transport_checksum::<F>(checksum, Delta::default(), delta, false)
        .ok_or(Reason::Unwritable)
}

/// The offset of the announced segment size.
#[inline(always)]
fn find_segment_size<P: Packet>(packet: &P, transport: usize) -> Option<usize> {
    let tcp: &Tcp = packet.header(transport)?;
    let length = usize::from(tcp.data_offset >> 4) * 4;
    let mut offset = size_of::<Tcp>();
    for _ in 0..OPTIONS {
        let at = packet.blur(transport + offset);
        if offset + size_of::<TcpOption>() > length {
            return None;
        }
        let option: &TcpOption = packet.header(at)?;
        match (option.kind, option.length) {
            (TcpOption::END, _) => return None,
            (TcpOption::NOTHING, _) => offset += 1,
            (TcpOption::SEGMENT_SIZE, 4) if offset + 4 <= length => {
                return Some(packet.blur(at + size_of::<TcpOption>()));
            }
            (_, length @ 2..) => offset += usize::from(length),
            _ => return None,
        }
    }
    None
}

//! The interface and link-layer address to which a packet is sent.

use super::refuse;
use crate::branchless::is_zero;
use crate::conntrack::Hops;
use crate::datapath::rejection::Rejection;
use crate::datapath::route::{NextHop, Query, Route};
use crate::datapath::tables::{FamilyTables, Tables};
use crate::datapath::verdict::{Verdict, drop_for};
use crate::datapath::wire::link;
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::PacketFamily;
use crate::header::{Ethernet, NetworkHeader};
use crate::layout::{Device, Direction, Reason};
use crate::verifier::{hide, opaque, rarely};
use crate::word::set_link_address;

/// How a packet leaves.
#[derive(Default)]
pub struct Out {
    device: u32,
    /// How: [`Out::AWAY`], [`Out::BACK`] or [`Out::UNRESOLVED`]. To the verifier it is any number, or it
    /// would follow the rest of the path once for each.
    how: u32,
    neighbour: [u8; 6],
    source: [u8; 6],
}

/// The length of a packet on the wire from its IP header on, which is at `network`.
#[inline(always)]
pub fn network_length<F: PacketFamily, P: Packet>(packet: &P, network: usize) -> u32 {
    packet.wire_length(claimed_length::<F, P>(packet, network)).saturating_sub(network as u32)
}

/// The length of a packet according to its header at `network`; more than any packet has, if there is
/// none.
#[inline(always)]
pub fn claimed_length<F: PacketFamily, P: Packet>(packet: &P, network: usize) -> u32 {
    let header = packet.header::<F::Header>(network);
    header.map_or(u32::MAX, |header| network as u32 + header.length())
}

/// Finds the packet's next hop: stored in its flow, or by a route lookup.
#[inline(always)]
pub fn find_next_hop<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    hops: Option<Hops<'_>>,
    direction: Direction,
    query: &Query<F>,
) -> Result<Out, Verdict> {
    // The epoch is read first, so what is resolved afterwards is never older than it.
    let epoch = tables.network_epoch();
    let remembered = hops.and_then(|hops| hops.get(direction, epoch));
    let next = match remembered {
        Some(word) => NextHop::from_word(word),
        None => match look_up_route(packet, query) {
            Route::Known { next, mtu } => {
                let word = word_to_store(tables, next, mtu);
                if word != 0
                    && let Some(hops) = hops
                {
                    hops.set(direction, epoch, word);
                }
                next
            }
            other => return without_next_hop(packet, tables, other).map(Out::unresolved),
        },
    };
    by(packet, tables, next, query.length)
}

/// A next hop as flows store it; 0 if each packet must ask for it, because its route has a smaller MTU than its
/// interface.
#[inline(always)]
pub fn word_to_store<T: Tables>(tables: &T, next: NextHop, mtu: u32) -> u64 {
    // Opaque: the compiler would compare the MTU also if there is no device, and the verifier refuses to read it.
    let most = match tables.device(next.device) {
        Some(device) => opaque(device.mtu.into()),
        None => opaque(0),
    };
    if u64::from(mtu) < most { 0 } else { next.to_word() }
}

/// Few packets need a route lookup, so it has its own stack frame.
#[inline(never)]
pub fn look_up_route<F: PacketFamily, P: Packet>(packet: &P, query: &Query<F>) -> Route {
    packet.route(query)
}

/// The interface of a route to a next hop that the stack must resolve, or the verdict for a packet that
/// has no route here.
#[inline(always)]
pub fn without_next_hop<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    route: Route,
) -> Result<u32, Verdict> {
    match route {
        Route::NoNeighbour(device) if packet.resolves() => Ok(device),
        Route::NoNeighbour(_) => {
            tables.count(Reason::NoNeighbour);
            Err(Verdict::Defer)
        }
        Route::TooBig(mtu) => {
            Err(refuse::refuse_with_icmp(packet, tables, Rejection::too_big(mtu)))
        }
        Route::None | Route::Known { .. } => Err(drop_for(tables, Reason::NoRoute)),
    }
}

#[inline(always)]
fn by<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    next: NextHop,
    length: u32,
) -> Result<Out, Verdict> {
    let NextHop { device, neighbour } = next;
    let Some(known) = tables.device(device) else {
        return if packet.resolves() { Ok(Out::unresolved(device)) } else { Err(Verdict::Defer) };
    };
    if length > known.mtu {
        return Err(refuse::refuse_with_icmp(packet, tables, Rejection::too_big(known.mtu)));
    }
    // 1 if the packet arrived on it, else 0.
    let how = is_zero(u64::from(device ^ packet.device())) as u32;
    // Its VLAN tag is not valid on another interface.
    if !packet.resolves() {
        if known.flags & Device::REDIRECT << how == 0 {
            return Err(Verdict::Defer);
        }
        if packet.is_tagged() {
            rarely();
            if how != Out::BACK {
                return Err(Verdict::Defer);
            }
        }
    }
    Ok(Out { device, how, neighbour, source: known.link_address })
}

impl Out {
    /// Through another interface than the one that the packet arrived on.
    const AWAY: u32 = 0;
    /// Through the interface that the packet arrived on.
    const BACK: u32 = 1;
    /// The stack resolves the next hop.
    const UNRESOLVED: u32 = 2;

    const _FLAGS: () = assert!(Device::TRANSMIT == Device::REDIRECT << Self::BACK);

    #[inline(always)]
    pub fn device(&self) -> u32 {
        self.device
    }

    #[inline(always)]
    fn unresolved(device: u32) -> Self {
        Self { device, how: hide(Self::UNRESOLVED, device), neighbour: [0; 6], source: [0; 6] }
    }

    /// Writes the link-layer header.
    #[inline(always)]
    pub fn leave<P: Packet>(self, packet: &mut P) -> Result<Verdict, Reason> {
        packet.leave_by(self.device);
        if packet.is_raw() {
            // The stack writes the addresses, or removes the header again if the next device has
            // none.
            link::add_header(packet).ok_or(Reason::Unwritable)?;
            return Ok(Verdict::Resolve);
        }
        if self.how == Self::UNRESOLVED {
            return Ok(Verdict::Resolve);
        }
        let ethernet: &mut Ethernet = packet.header_mut(0).ok_or(Reason::Unwritable)?;
        set_link_address(&mut ethernet.source, self.source);
        set_link_address(&mut ethernet.destination, self.neighbour);
        Ok(if self.how == Self::AWAY { Verdict::Redirect } else { Verdict::Transmit })
    }
}

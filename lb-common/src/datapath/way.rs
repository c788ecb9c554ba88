//! By which device a packet leaves, and to whom.

use super::parse::{Network, Place};
use super::{Direction, FamilyTables, Packet, Rejection, Verdict, answer, ingress};
use crate::family::Family;
use crate::header::{Ethernet, NetworkHeader};
use crate::layout::{Device, Reason, Ways};

/// What the routing tables are asked.
pub struct Query<F: Family> {
    pub to: F::Address,
    pub from: F::Address,
    pub protocol: u8,
    /// Of the packet, from its IP header on; 0 if it will be cut to fit.
    pub length: u32,
}

/// A device, and who takes the packet behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NextHop {
    pub device: u32,
    pub neighbour: [u8; 6],
}

/// What the routing tables answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Known(NextHop),
    /// The device is known, the link-layer address behind it is not yet.
    NoNeighbour(u32),
    /// Only packets up to this length fit.
    TooBig(u32),
    None,
}

/// How a packet leaves.
#[derive(Default)]
pub struct Out {
    device: u32,
    /// Whether the packet came in by it.
    back: bool,
    /// Whether the stack is to find out to whom.
    unresolved: bool,
    neighbour: [u8; 6],
    source: [u8; 6],
}

impl NextHop {
    /// As one word, as flows keep it; `None` if the device's index does not fit.
    #[inline(always)]
    fn to_word(self) -> Option<u64> {
        let [a, b, c, d, e, f] = self.neighbour;
        let word = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        (self.device < 1 << 16).then_some(word | u64::from(self.device) << 48)
    }

    #[inline(always)]
    fn from_word(word: u64) -> Self {
        let [a, b, c, d, e, f, ..] = word.to_le_bytes();
        Self { device: (word >> 48) as u32, neighbour: [a, b, c, d, e, f] }
    }
}

/// The length of a packet on the wire from its IP header on.
#[inline(always)]
pub fn network_length<P: Packet>(packet: &P, place: Place) -> u32 {
    packet.wire_length().saturating_sub(place.network as u32)
}

/// Finds the packet's way out: as its flow remembers it, or by asking.
#[inline(always)]
pub fn out<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    ways: &Ways,
    direction: Direction,
    query: &Query<F>,
) -> Result<Out, Verdict> {
    let epoch = tables.network_epoch();
    let (hop, resolved_in) = match direction {
        Direction::Forward => (&ways.hops[0], &ways.epochs[0]),
        Direction::Reverse => (&ways.hops[1], &ways.epochs[1]),
    };
    // The epoch first: it is written last.
    let fresh = resolved_in.load() == epoch;
    let word = hop.load();
    let next = if fresh && word != 0 {
        NextHop::from_word(word)
    } else {
        match ask(packet, query) {
            Route::Known(next) => {
                if let Some(word) = next.to_word() {
                    hop.store(word);
                    resolved_in.store(epoch);
                }
                next
            }
            other => return unresolved(packet, tables, other),
        }
    };
    by(packet, tables, next, query.length)
}

/// Routing is asked for few packets: what it needs is kept off the ladder's stack frame.
#[inline(never)]
pub fn ask<F: Network, P: Packet>(packet: &P, query: &Query<F>) -> Route {
    packet.route(query)
}

#[inline(always)]
fn unresolved<P: Packet, T: super::Tables>(
    packet: &P,
    tables: &T,
    route: Route,
) -> Result<Out, Verdict> {
    match route {
        Route::NoNeighbour(device) if packet.resolves() => Ok(Out::unresolved(device)),
        Route::NoNeighbour(_) => {
            tables.count(Reason::NoNeighbour);
            Err(Verdict::Defer)
        }
        Route::TooBig(mtu) => Err(answer::later(packet, tables, Rejection::too_big(mtu))),
        Route::None | Route::Known(_) => Err(ingress::drop_for(tables, Reason::NoRoute)),
    }
}

#[inline(always)]
fn by<P: Packet, T: super::Tables>(
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
        return Err(answer::later(packet, tables, Rejection::too_big(known.mtu)));
    }
    let back = device == packet.device();
    // A tag that came with the packet is not the other device's.
    let needed = if back { Device::TRANSMIT } else { Device::REDIRECT };
    if !packet.resolves() && (known.flags & needed == 0 || !back && packet.is_tagged()) {
        return Err(Verdict::Defer);
    }
    Ok(Out { device, back, unresolved: false, neighbour, source: known.link_address })
}

/// Notes that a packet is forwarded once more.
#[inline(always)]
pub fn hop<F: Network, P: Packet>(packet: &mut P, place: Place) -> Result<(), Reason> {
    let network: &mut F::Header = packet.header_mut(place.network).ok_or(Reason::Unwritable)?;
    network.decrement_hop_limit();
    Ok(())
}

impl Out {
    #[inline(always)]
    pub fn device(&self) -> u32 {
        self.device
    }

    #[inline(always)]
    fn unresolved(device: u32) -> Self {
        Self { device, back: false, unresolved: true, neighbour: [0; 6], source: [0; 6] }
    }

    /// Writes the link-layer header.
    #[inline(always)]
    pub fn leave<P: Packet>(self, packet: &mut P) -> Result<Verdict, Reason> {
        packet.leave_by(self.device);
        if self.unresolved {
            return Ok(Verdict::Resolve);
        }
        let ethernet: &mut Ethernet = packet.header_mut(0).ok_or(Reason::Unwritable)?;
        ethernet.source = self.source;
        ethernet.destination = self.neighbour;
        Ok(if self.back { Verdict::Transmit } else { Verdict::Redirect })
    }
}

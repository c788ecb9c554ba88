//! Packets as hooks provide them.

use crate::checksum::Delta;
use crate::family::Family;
use crate::header::{Ethernet, Header, NetworkHeader, QINQ, VLAN};

use super::link::{self, Frame};
use crate::datapath::function::PacketFunction;
use crate::datapath::route::{Query, Route};
use crate::word::number16;

/// Instead of a size: the packet's pieces have sizes of their own (the kernel's `GSO_BY_FRAGS`).
pub const BY_PIECES: u32 = 0xffff;

/// A packet's bytes, from the start of its Ethernet header, and the operations of its hook.
pub trait Packet: Sized {
    /// What is behind the interface on which the packet arrived.
    fn role(&self) -> Role;

    /// Changes the role, also for the stages that follow.
    fn set_role(&mut self, role: Role);

    /// Whether the packet has arrived on no interface: it was sent on this machine. False in a hook of arriving
    /// packets.
    fn is_sent_here(&self) -> bool;

    /// The index of the interface on which the packet arrived, or through which it leaves.
    fn device(&self) -> u32;

    /// Whether the hook can have the stack resolve a next hop's link-layer address, and can send
    /// through every interface. XDP cannot, and defers packets that need this to tc.
    fn resolves(&self) -> bool;

    /// Runs a function on the packet, whose network header, of the family `F`, is at `network`: `execute`, or the same
    /// as a function of its own. Stages only.
    fn call<F: Family>(
        &self,
        function: PacketFunction,
        network: usize,
        execute: impl FnOnce() -> u32,
    ) -> u32;

    /// The offset and type of the network header.
    #[inline(always)]
    fn frame(&self) -> Option<Frame> {
        link::parse_frame(self)
    }

    /// Whether the packet starts with its network header, as on wireguard, ipip and tun interfaces.
    #[inline(always)]
    fn is_raw(&self) -> bool {
        false
    }

    /// The payload size of the segments into which this packet will be split (GSO); 0 if it is sent
    /// as it is.
    #[inline(always)]
    fn segment(&self) -> u32 {
        0
    }

    /// Whether it consists of SCTP's headers, and of pieces for which the kernel repeats them where the packet leaves
    /// the machine. The pieces have DATA only, and are not for us: what is pulled out of one makes its chunk too short.
    #[inline(always)]
    fn is_in_pieces(&self) -> bool {
        self.segment() == BY_PIECES
    }

    /// The length on the wire of a packet whose headers claim this length. Segments are assumed to
    /// have the smallest headers, so that one that fits is never reported as too big.
    #[inline(always)]
    fn wire_length(&self, claimed: u32) -> u32 {
        match self.segment() {
            0 => self.length_if(claimed),
            // They are made for the path already, and have sizes of their own.
            BY_PIECES => 0,
            segment => segment + if self.is_raw() { 0 } else { 14 } + 20 + 20,
        }
    }

    /// Whether the kernel has recognised the frame as one for this machine. False in a hook that
    /// runs before that, or that cannot know.
    #[inline(always)]
    fn is_received(&self) -> bool {
        false
    }

    /// Whether the packet's bytes contain VLAN tags.
    #[inline(always)]
    fn is_tagged(&self) -> bool {
        let ethernet: Option<&Ethernet> = self.header(0);
        ethernet.is_some_and(|ethernet| {
            let ether_type = number16(&ethernet.ether_type);
            ether_type == VLAN || ether_type == QINQ
        })
    }

    /// Decrements TTL or hop limit, which must be above 0, of the header at `network`.
    #[inline(always)]
    fn decrement_hop_limit<F: Family>(&mut self, network: usize) -> Option<()> {
        let header: &mut F::Header = self.header_mut(network)?;
        header.decrement_hop_limit();
        Some(())
    }

    /// Sets TTL or hop limit of the header at `network`.
    #[inline(always)]
    fn set_hop_limit<F: Family>(&mut self, network: usize, limit: u8) -> Option<()> {
        let header: &mut F::Header = self.header_mut(network)?;
        header.set_hop_limit(limit);
        Some(())
    }

    /// Sets the interface through which the packet will leave.
    fn leave_by(&mut self, device: u32);

    /// For the verifier, without an effect: the function that begins with it also writes to the packet. To
    /// one that only reads, with its own stack frame, the compiler passes the packet's bounds instead of
    /// the packet, and the verifier takes them for plain numbers.
    #[inline(always)]
    fn keep_whole(&mut self) {
        self.leave_by(0);
    }

    /// Queries the kernel's routing tables.
    fn route<F: Family>(&self, query: &Query<F>) -> Route;

    /// Makes room before the first byte, with undefined contents. Invalidates all views.
    fn grow_front(&mut self, bytes: usize) -> Option<()>;

    /// Removes bytes from the front. Invalidates all views.
    fn shrink_front(&mut self, bytes: usize) -> Option<()>;

    /// Makes room for the headers of a tunnel between the link-layer header and the network header,
    /// which is at `network`. Both network headers are of family `F`. If there are more bytes than
    /// an outer header without options needs, it is followed by a UDP header.
    #[inline(always)]
    fn make_room<F: Family>(&mut self, network: usize, bytes: usize) -> Option<()> {
        self.grow_front(bytes)?;
        if self.is_raw() {
            return Some(());
        }
        link::move_to_front(self, network, bytes)
    }

    /// Removes what is between the link-layer header and the inner network header, which is `bytes`
    /// behind the outer one and of the same family.
    #[inline(always)]
    fn close_up<F: Family>(&mut self, network: usize, bytes: usize) -> Option<()> {
        if !self.is_raw() {
            link::move_to_back(self, network, bytes)?;
        }
        self.shrink_front(bytes)
    }

    /// Truncates the packet, or appends zeros.
    fn resize(&mut self, length: u32) -> Option<()>;

    /// A view of the header at `offset`; `None` if the packet is too short for it.
    fn header<H: Header>(&self, offset: usize) -> Option<&H>;

    fn header_mut<H: Header>(&mut self, offset: usize) -> Option<&mut H>;

    /// Returns `offset`, which is below 2^14.
    ///
    /// In the kernel it hides the possible values of an offset from the verifier, which would
    /// otherwise follow the rest of the program once for every combination of tags and extension
    /// headers.
    #[inline(always)]
    fn blur(&self, offset: usize) -> usize {
        offset
    }

    /// The length of the whole packet in bytes, including what cannot be viewed.
    fn length(&self) -> u32;

    /// Like `length`, for a packet whose headers claim this length. If that many bytes can be viewed, they are the
    /// whole packet, and a hook need not call a helper.
    #[inline(always)]
    fn length_if(&self, _claimed: u32) -> u32 {
        self.length()
    }

    /// Updates the transport checksum at `offset` for a changed address and port.
    ///
    /// The two are separate because the checksum may be left to a network card. Then the field has
    /// only the sum of the pseudo header, with the addresses. `optional`: a field of zero means
    /// that there is no checksum, and no other checksum may become zero (UDP).
    #[inline(always)]
    fn update_transport_checksum<F: Family>(
        &mut self,
        offset: usize,
        address: Delta,
        port: Delta,
        optional: bool,
    ) -> Option<()> {
        let field: &mut [u8; 2] = self.header_mut(offset)?;
        address.plus(port).update_unless_absent(field, optional);
        Some(())
    }
}

/// What is behind an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Hosts outside this node.
    #[default]
    External,
    /// A pod of this node.
    Workload,
    /// A process of this node, whose packet leaves through the interface ([`stages::node`](crate::datapath)).
    Node,
}

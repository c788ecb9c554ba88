//! Packets as hooks give them.

use crate::checksum::{self, Delta};
use crate::family::Family;
use crate::header::{Ethernet, Header, QINQ, VLAN};

use super::link;
use super::parse::{self, Frame};
use crate::datapath::route::{Query, Route};

/// A packet's bytes, from the start of its Ethernet header, and what its hook can do with it.
pub trait Packet: Sized {
    /// Who is behind the device that the packet came in by.
    fn role(&self) -> Role;

    /// The index of the device that the packet came in by.
    fn device(&self) -> u32;

    /// Whether the hook can have the stack find out a next hop's link-layer address, and can
    /// send by every device. The one before it leaves such packets to it.
    fn resolves(&self) -> bool;

    /// Where the network header is.
    #[inline(always)]
    fn frame(&self) -> Option<Frame> {
        parse::frame(self)
    }

    /// Whether the packet begins with its network header, as on wireguard, ipip and tun devices.
    #[inline(always)]
    fn is_raw(&self) -> bool {
        false
    }

    /// How many bytes of its payload each packet gets that a device will cut this one into; 0 if
    /// it leaves as it is.
    #[inline(always)]
    fn segment(&self) -> u32 {
        0
    }

    /// The length of what leaves on the wire. A segment's headers are taken to be the smallest
    /// ones: one that fits is never said to be too big.
    #[inline(always)]
    fn wire_length(&self) -> u32 {
        match self.segment() {
            0 => self.length(),
            segment => segment + if self.is_raw() { 0 } else { 14 } + 20 + 20,
        }
    }

    /// Whether VLAN tags stand in its bytes.
    #[inline(always)]
    fn is_tagged(&self) -> bool {
        let ethernet: Option<&Ethernet> = self.header(0);
        ethernet.is_some_and(|ethernet| {
            let ether_type = u16::from_be_bytes(ethernet.ether_type);
            ether_type == VLAN || ether_type == QINQ
        })
    }

    /// Says by which device the packet is to leave.
    fn leave_by(&mut self, device: u32);

    /// Asks where packets from here leave for an address.
    fn route<F: Family>(&self, query: &Query<F>) -> Route;

    /// Makes room before the first byte; what is in it is not known. Void all views.
    fn grow_front(&mut self, bytes: usize) -> Option<()>;

    /// Cuts off bytes before the first one. Void all views.
    fn shrink_front(&mut self, bytes: usize) -> Option<()>;

    /// Makes room for the headers of a tunnel between the link-layer header and the network
    /// header, which is at `network` and, as will be the outer one, of family `F`. What is more
    /// than a header of it without options is for UDP's.
    #[inline(always)]
    fn make_room<F: Family>(&mut self, network: usize, bytes: usize) -> Option<()> {
        self.grow_front(bytes)?;
        if self.is_raw() {
            return Some(());
        }
        link::move_to_front(self, network, bytes)
    }

    /// Takes away what is between the link-layer header and the inner network header, which is so
    /// many bytes behind the outer one and of its family.
    #[inline(always)]
    fn close_up<F: Family>(&mut self, network: usize, bytes: usize) -> Option<()> {
        if !self.is_raw() {
            link::move_to_back(self, network, bytes)?;
        }
        self.shrink_front(bytes)
    }

    /// Cuts off, or adds zeros, at the end.
    fn resize(&mut self, length: u32) -> Option<()>;

    /// Lays a header over the bytes at `offset`; `None` if the packet ends before it does.
    fn header<H: Header>(&self, offset: usize) -> Option<&H>;

    fn header_mut<H: Header>(&mut self, offset: usize) -> Option<&mut H>;

    /// Returns `offset`, which is below 2^14.
    ///
    /// In the kernel it hides which of its possible values an offset has: the verifier would
    /// follow all that comes after once for every combination of tags and extension headers.
    #[inline(always)]
    fn blur(&self, offset: usize) -> usize {
        offset
    }

    /// The length of the whole packet in bytes, also of what cannot be viewed.
    fn length(&self) -> u32;

    /// The same of a packet that, by its headers, is so long: whatever can be viewed to there is all
    /// there is, and a hook need not ask.
    #[inline(always)]
    fn length_if(&self, _said: u32) -> u32 {
        self.length()
    }

    /// Brings the transport checksum at `offset` up to date with a changed address and port.
    ///
    /// The two come apart because a device that completes checksums by itself has only the
    /// pseudo header, with the addresses, in the field. `optional`: an all-zero field means
    /// that there is no checksum, and no other field may become zero (UDP).
    #[inline(always)]
    fn update_transport_checksum<F: Family>(
        &mut self,
        offset: usize,
        address: Delta,
        port: Delta,
        optional: bool,
    ) -> Option<()> {
        let field: &mut [u8; 2] = self.header_mut(offset)?;
        if optional && *field == [0, 0] {
            return Some(());
        }
        *field = checksum::written(address.plus(port).apply(*field), optional);
        Some(())
    }
}

/// Who is behind a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The world outside this node.
    #[default]
    External,
    /// A pod of this node.
    Workload,
}

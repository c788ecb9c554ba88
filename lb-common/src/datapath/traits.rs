use crate::checksum::Delta;
use crate::family::Family;
use crate::header::Header;
use crate::layout::{Backend, FlowBucket, Frontend, FrontendKey, Pool, Reason, Settings, Ticks};

/// A packet's bytes, from the start of its Ethernet header.
pub trait Packet {
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

    /// Brings the transport checksum at `offset` up to date with a changed address and port.
    ///
    /// The two come apart because a device that completes checksums by itself has only the
    /// pseudo header, with the addresses, in the field. `optional`: an all-zero field means
    /// that there is no checksum, and no other field may become zero (UDP).
    #[inline(always)]
    fn update_transport_checksum(
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
        *field = address.plus(port).apply(*field);
        if optional && *field == [0, 0] {
            *field = [0xff, 0xff];
        }
        Some(())
    }
}

/// Which way a packet of a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the backend.
    Forward,
    /// From the backend to the client.
    Reverse,
}

/// What the data plane knows apart from the packet, and where it leaves its counts.
pub trait Tables {
    fn settings(&self) -> Settings;
    fn now(&self) -> Ticks;
    fn pool(&self, index: u32) -> Option<Pool>;
    /// The backend index in one slot of `POOL_SLOTS`.
    fn slot(&self, index: u32) -> Option<u32>;
    fn count(&self, reason: Reason);
    fn count_packet(&self, service_port: u32, backend: u32, direction: Direction, bytes: u32);
    fn count_new_flow(&self, service_port: u32, backend: u32);
}

/// The tables that each address family has for itself.
pub trait FamilyTables<F: Family>: Tables {
    /// The prefilter: false if no frontend has this address.
    fn may_be_destination(&self, address: F::Address) -> bool;
    /// The prefilter for answers: false if no backend has this end.
    fn may_be_source(&self, address: F::Address, port: u16, protocol: u8) -> bool;
    fn frontend(&self, key: &FrontendKey<F>) -> Option<Frontend>;
    fn backend(&self, index: u32) -> Option<Backend<F::Address>>;
    fn flow_mask(&self) -> u32;
    fn flow_bucket(&self, index: u32) -> Option<&FlowBucket<F>>;
}

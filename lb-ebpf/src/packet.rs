//! The contexts of the hooks as the data plane's `Packet`.
//!
//! The verifier wants to see every view checked against the packet's end, by pointers it knows;
//! slices hide that from it.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR};
use aya_ebpf::helpers::{bpf_l4_csum_replace, bpf_xdp_get_buff_len};
use aya_ebpf::programs::{TcContext, XdpContext};
use lb_common::checksum::Delta;
use lb_common::datapath::Packet;
use lb_common::header::Header;

/// A context that lets its packet be viewed.
trait View {
    fn start(&self) -> usize;
    fn end(&self) -> usize;

    #[inline(always)]
    fn view<H: Header>(&self, offset: usize) -> Option<&H> {
        // SAFETY: within the packet by the check of `place`; `Header` may lie anywhere.
        self.place::<H>(offset).map(|header| unsafe { &*header })
    }

    #[inline(always)]
    fn view_mut<H: Header>(&mut self, offset: usize) -> Option<&mut H> {
        // SAFETY: as above; the borrow of the context is exclusive.
        self.place::<H>(offset).map(|header| unsafe { &mut *header })
    }

    /// Where `H` is at `offset`, if it fits.
    #[inline(always)]
    fn place<H: Header>(&self, offset: usize) -> Option<*mut H> {
        let address = self.start() + offset;
        (address + size_of::<H>() <= self.end()).then_some(address as *mut H)
    }
}

impl View for XdpContext {
    #[inline(always)]
    fn start(&self) -> usize {
        self.data()
    }

    #[inline(always)]
    fn end(&self) -> usize {
        self.data_end()
    }
}

impl View for TcContext {
    #[inline(always)]
    fn start(&self) -> usize {
        self.data()
    }

    #[inline(always)]
    fn end(&self) -> usize {
        self.data_end()
    }
}

/// `offset`, mixed with eight bits that are always 0, which neither compiler nor verifier knows:
/// to them the result is any number below `MAX_OFFSET`.
#[inline(always)]
fn blur(offset: usize, below_2_to_24: u32) -> usize {
    let zero = (below_2_to_24 >> 24) as usize;
    offset ^ (zero | zero << 6)
}

pub struct XdpPacket {
    context: XdpContext,
}

impl XdpPacket {
    #[inline(always)]
    pub fn new(context: XdpContext) -> Self {
        Self { context }
    }
}

impl Packet for XdpPacket {
    #[inline(always)]
    fn header<H: Header>(&self, offset: usize) -> Option<&H> {
        self.context.view(offset)
    }

    #[inline(always)]
    fn header_mut<H: Header>(&mut self, offset: usize) -> Option<&mut H> {
        self.context.view_mut(offset)
    }

    #[inline(always)]
    fn blur(&self, offset: usize) -> usize {
        // SAFETY: the context is the one this program was called with. No device has that many
        // queues.
        blur(offset, unsafe { (*self.context.ctx).rx_queue_index })
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        // SAFETY: the context is the one this program was called with.
        unsafe { bpf_xdp_get_buff_len(self.context.ctx) as u32 }
    }
}

pub struct TcPacket {
    context: TcContext,
}

/// The most that the headers of a packet of ours take: Ethernet with two tags, IPv6 with a few
/// extension headers, TCP.
const HEADERS: u32 = 192;

impl TcPacket {
    /// Makes sure that the headers can be viewed: they may lie in the packet's pages.
    #[inline(always)]
    pub fn new(context: TcContext) -> Self {
        let linear = (context.data_end() - context.data()) as u32;
        let wanted = if context.len() < HEADERS { context.len() } else { HEADERS };
        if linear < wanted {
            // If it fails the views fail, and the packet passes as malformed.
            let _ = context.pull_data(wanted);
        }
        Self { context }
    }
}

impl Packet for TcPacket {
    #[inline(always)]
    fn header<H: Header>(&self, offset: usize) -> Option<&H> {
        self.context.view(offset)
    }

    #[inline(always)]
    fn header_mut<H: Header>(&mut self, offset: usize) -> Option<&mut H> {
        self.context.view_mut(offset)
    }

    #[inline(always)]
    fn blur(&self, offset: usize) -> usize {
        // No packet is that long.
        blur(offset, self.context.len())
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.context.len()
    }

    /// By the kernel's helper: it knows whether the field holds a whole checksum or only the
    /// pseudo header's sum, which the device is to complete.
    #[inline(always)]
    fn update_transport_checksum(
        &mut self,
        offset: usize,
        address: Delta,
        port: Delta,
        optional: bool,
    ) -> Option<()> {
        let flags = if optional { u64::from(BPF_F_MARK_MANGLED_0) } else { 0 };
        for (delta, pseudo) in [(address, u64::from(BPF_F_PSEUDO_HDR)), (port, 0)] {
            // SAFETY: the context is the one this program was called with. A size of 0 in the
            // flags makes `to` a difference.
            let result = unsafe {
                bpf_l4_csum_replace(
                    self.context.as_ptr().cast(),
                    offset as u32,
                    0,
                    u64::from(delta.raw()),
                    flags | pseudo,
                )
            };
            if result != 0 {
                return None;
            }
        }
        Some(())
    }
}

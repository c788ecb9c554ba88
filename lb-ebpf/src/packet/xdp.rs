//! A frame in XDP, as the driver received it.

use aya_ebpf::EbpfContext;
use aya_ebpf::programs::XdpContext;
use lb_common::datapath::{DEFERRED, Packet, PacketFunction, Query, Role, Route};
use lb_common::family::Family;
use lb_common::header::Header;

use super::context::RawFrame;
use super::xdp_functions::call_xdp;
use super::{View, blur, route};

impl View for XdpContext {
    #[inline(always)]
    fn bounds(&self) -> (usize, usize) {
        (self.data(), self.data_end())
    }
}

pub struct XdpPacket {
    context: XdpContext,
    left_by: u32,
}

impl XdpPacket {
    #[inline(always)]
    pub fn new(context: XdpContext) -> Self {
        Self { context, left_by: 0 }
    }

    #[inline(always)]
    pub fn left_by(&self) -> u32 {
        self.left_by
    }

    #[inline(always)]
    pub fn context(&self) -> &XdpContext {
        &self.context
    }

    #[inline(always)]
    fn frame_of_context(&self) -> RawFrame {
        RawFrame::of(&self.context)
    }

    /// How much of the packet can be accessed: only its first buffer.
    #[inline(always)]
    fn viewed(&self) -> u32 {
        (self.context.data_end() - self.context.data()) as u32
    }

    /// Marks the packet for the tc program of the same interface, which is to handle it; false if the
    /// driver cannot.
    #[inline(always)]
    pub fn defer(&mut self) -> bool {
        if self.frame_of_context().move_metadata(-(size_of::<u32>() as i32)).is_none() {
            return false;
        }
        let (mark, data) = (self.context.metadata(), self.context.data());
        if mark + size_of::<u32>() > data {
            return false;
        }
        // SAFETY: before the packet's start, by the check.
        unsafe { (mark as *mut u32).write(DEFERRED) };
        true
    }
}

impl Packet for XdpPacket {
    #[inline(always)]
    fn role(&self) -> Role {
        Role::External
    }

    #[inline(always)]
    fn set_role(&mut self, _: Role) {}

    #[inline(always)]
    fn is_sent_here(&self) -> bool {
        false
    }

    #[inline(always)]
    fn device(&self) -> u32 {
        self.frame_of_context().interface()
    }

    #[inline(always)]
    fn call<F: Family>(
        &self,
        function: PacketFunction,
        network: usize,
        _: impl FnOnce() -> u32,
    ) -> u32 {
        call_xdp::<F>(function, self.frame_of_context().pointer(), network)
    }

    #[inline(always)]
    fn resolves(&self) -> bool {
        false
    }

    #[inline(always)]
    fn leave_by(&mut self, device: u32) {
        self.left_by = device;
    }

    #[inline(always)]
    fn route<F: Family>(&self, query: &Query<F>) -> Route {
        route(self.context.as_ptr(), self.device(), query)
    }

    #[inline(always)]
    fn grow_front(&mut self, bytes: usize) -> Option<()> {
        self.frame_of_context().move_start(-(bytes as i32))
    }

    #[inline(always)]
    fn shrink_front(&mut self, bytes: usize) -> Option<()> {
        self.frame_of_context().move_start(bytes as i32)
    }

    #[inline(always)]
    fn resize(&mut self, length: u32) -> Option<()> {
        self.frame_of_context().move_end(length.wrapping_sub(self.length()) as i32)
    }

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
        // The first buffer is a page at most.
        blur(offset, self.viewed())
    }

    #[inline(always)]
    fn length_if(&self, claimed: u32) -> u32 {
        let viewed = self.viewed();
        if claimed <= viewed { viewed } else { self.length() }
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.frame_of_context().length()
    }
}

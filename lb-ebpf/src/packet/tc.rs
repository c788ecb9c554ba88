//! A packet in tc: an `sk_buff`.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{
    BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L4_UDP,
    BPF_F_ADJ_ROOM_FIXED_GSO, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR,
    bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
};
use aya_ebpf::programs::TcContext;
use lb_common::checksum::{self, Delta};
use lb_common::datapath::{
    BY_PIECES, Frame, Packet, PacketFunction, Query, Role, Route, parse_frame,
};
use lb_common::family::{Family, V4, V6};
use lb_common::header::{Ethernet, Header, NetworkHeader};
use lb_common::word::{pair, set_pair};

use super::buffer::{self, Field};
use super::context::Buffer;
use super::tc_functions::call_tc;
use super::{View, blur, route};

impl View for TcContext {
    #[inline(always)]
    fn bounds(&self) -> (usize, usize) {
        (self.data(), self.data_end())
    }
}

/// `STAGE`: an earlier program has handed the packet over.
pub struct TcPacket<const STAGE: bool> {
    context: TcContext,
    left_by: u32,
    /// In the first program only; stages read it from the control block.
    origin: Origin,
}

/// What a packet's hook knows about the interface.
#[derive(Clone, Copy)]
pub struct Origin {
    pub role: Role,
    /// Its packets have no link-layer header.
    pub raw: bool,
}

/// What the first program passes to stages in the packet's control block. With the offset of the
/// network header in it, stages need not distinguish link-layer headers, which would double their
/// paths for the verifier.
#[derive(Clone, Copy)]
struct ControlBlock(u32);

impl ControlBlock {
    const WORKLOAD: u32 = 1;
    const RAW: u32 = 1 << 1;
    const IPV6: u32 = 1 << 2;
    /// The packet is IP, and the bits from `NETWORK` on are the offset of its header.
    const IP: u32 = 1 << 3;
    const NODE: u32 = 1 << 4;
    const ROLE: u32 = Self::WORKLOAD | Self::NODE;
    const NETWORK: u32 = 8;
    /// More than an Ethernet header with two tags takes.
    const LONGEST: u32 = 0x3f;

    #[inline(always)]
    fn new(origin: Origin, frame: Option<Frame>) -> Self {
        let role = Self::of_role(origin.role);
        let raw = if origin.raw { Self::RAW } else { 0 };
        let frame = frame.map_or(0, |Frame { ether_type, network }| {
            let family =
                if ether_type == V4::ETHER_TYPE { Self::IP } else { Self::IP | Self::IPV6 };
            let is_ip = ether_type == V4::ETHER_TYPE || ether_type == V6::ETHER_TYPE;
            if is_ip { family | (network as u32) << Self::NETWORK } else { 0 }
        });
        Self(role | raw | frame)
    }

    #[inline(always)]
    fn of_role(role: Role) -> u32 {
        match role {
            Role::External => 0,
            Role::Workload => Self::WORKLOAD,
            Role::Node => Self::NODE,
        }
    }

    #[inline(always)]
    fn origin(self) -> Origin {
        let role = match self.0 & Self::ROLE {
            0 => Role::External,
            Self::WORKLOAD => Role::Workload,
            _ => Role::Node,
        };
        Origin { role, raw: self.0 & Self::RAW != 0 }
    }

    #[inline(always)]
    fn frame(self) -> Option<Frame> {
        if self.0 & Self::IP == 0 {
            return None;
        }
        let ether_type = if self.0 & Self::IPV6 == 0 { V4::ETHER_TYPE } else { V6::ETHER_TYPE };
        Some(Frame { ether_type, network: (self.0 >> Self::NETWORK & Self::LONGEST) as usize })
    }
}

/// The VLAN in a tag, beside its priority.
const VLAN_ID: u32 = 0xfff;

/// `linux/if_packet.h`: a unicast frame to an address that is not the interface's.
const PACKET_OTHERHOST: u32 = 3;

/// Upper limit for the headers of a packet that is handled: Ethernet with two tags, IPv6 with a few
/// extension headers, TCP.
const HEADERS: u32 = 192;

impl TcPacket<true> {
    /// The packet of a stage.
    #[inline(always)]
    pub fn handed_over(context: TcContext) -> Self {
        Self::new(context, Origin { role: Role::External, raw: false })
    }

    /// The packet of a function that a stage has called.
    #[inline(always)]
    pub fn again(context: TcContext) -> Self {
        Self { context, left_by: 0, origin: Origin { role: Role::External, raw: false } }
    }
}

#[inline(always)]
fn control_block(buffer: Buffer) -> ControlBlock {
    ControlBlock(buffer.control_word())
}

/// Whether the packet has a VLAN tag in its metadata: then it is for a VLAN interface above this
/// one. A tag with VLAN 0 is only a priority, and the stack takes it off.
#[inline(always)]
pub fn is_of_vlan(context: &TcContext) -> bool {
    let buffer = Buffer::of(context);
    buffer.has_tag() != 0 && buffer.tag() & VLAN_ID != 0
}

/// Takes off such a tag as the stack would, which does not see a packet that is sent from here.
#[inline(always)]
pub fn remove_priority(context: &TcContext) {
    let buffer = Buffer::of(context);
    if buffer.has_tag() != 0 && buffer.tag() & VLAN_ID == 0 {
        // If it fails, the packet is sent with the tag.
        let _ = buffer.remove_tag();
    }
}

/// What the kernel knows about the link-layer header. A tag in its metadata is not in its bytes.
#[inline(always)]
pub fn frame_of(context: &TcContext) -> Frame {
    let ether_type = Buffer::of(context).protocol() as u16;
    Frame { ether_type: u16::from_be(ether_type), network: size_of::<Ethernet>() }
}

/// The mark of XDP ([`DEFERRED`](lb_common::datapath::DEFERRED)); 0 if there is none.
#[inline(always)]
pub fn mark_of_xdp(context: &TcContext) -> u32 {
    let buffer = Buffer::of(context);
    let (mark, data) = (buffer.metadata_start() as usize, buffer.start() as usize);
    // SAFETY: before the packet's start, by the check.
    if mark + size_of::<u32>() <= data { unsafe { (mark as *const u32).read() } } else { 0 }
}

impl<const STAGE: bool> TcPacket<STAGE> {
    /// Read at each use: from a read on, the verifier follows each value on a path of its own.
    #[inline(always)]
    fn origin(&self) -> Origin {
        if STAGE { control_block(self.buffer()).origin() } else { self.origin }
    }

    /// IPv6 has no checksum of its own: the card's sum over the whole packet, if there is one,
    /// changes with the hop limit.
    #[inline(always)]
    fn follow_hop_limit<F: Family>(&mut self, before: u8, after: u8) {
        let v6 = F::ETHER_TYPE == V6::ETHER_TYPE;
        if v6 && matches!(buffer::checksum_field(self.buffer().pointer()), Field::Other) {
            // The hop limit is the second octet of a word; whatever the first one is, it cancels out.
            let change = Delta::of_port(before.into(), after.into());
            self.buffer().update_card_sum(u32::from(change.raw()));
        }
    }

    /// Writes the control block for the next stage.
    #[inline(always)]
    pub fn hand_over(&self) {
        let control = if STAGE {
            control_block(self.buffer())
        } else {
            ControlBlock::new(self.origin, self.frame())
        };
        self.buffer().set_control_word(control.0);
    }

    /// Makes sure that the headers can be accessed: they may be in the packet's pages, but not if it is in pieces.
    #[inline(always)]
    pub fn new(context: TcContext, origin: Origin) -> Self {
        let linear = (context.data_end() - context.data()) as u32;
        let wanted = if context.len() < HEADERS { context.len() } else { HEADERS };
        let is_in_pieces = Buffer::of(&context).segment_size() == BY_PIECES;
        if linear < wanted && !is_in_pieces {
            // If it fails, accesses fail, and the packet passes as malformed.
            let _ = context.pull_data(wanted);
        }
        Self { context, left_by: 0, origin }
    }

    #[inline(always)]
    pub fn left_by(&self) -> u32 {
        self.left_by
    }

    #[inline(always)]
    pub fn context(&self) -> &TcContext {
        &self.context
    }

    #[inline(always)]
    fn buffer(&self) -> Buffer {
        Buffer::of(&self.context)
    }

    /// Adds or removes bytes behind the link-layer header; the size of segments stays the same.
    #[inline(always)]
    fn adjust_room(&mut self, bytes: i32, flags: u32) -> Option<()> {
        let flags = u64::from(flags | BPF_F_ADJ_ROOM_FIXED_GSO);
        self.buffer().adjust_room(bytes, BPF_ADJ_ROOM_MAC, flags)
    }

    /// Updates a checksum by the kernel's helper, which knows whether the field contains a checksum
    /// or only the sum of the pseudo header. The result of one call shows which of the two it was,
    /// so the rest is done here without another call.
    ///
    /// There may also be the card's sum over the whole packet. In IPv4 a changed address changes
    /// that sum only through this field, because the header has its own checksum: a flag reports
    /// that to the helper. In IPv6 address and field cancel out, as ports always do.
    #[inline(always)]
    fn update_by_helper<F: Family>(
        &mut self,
        offset: usize,
        address: Delta,
        port: Delta,
        optional: bool,
    ) -> Option<()> {
        let old = *self.header::<[u8; 2]>(offset)?;
        let v4 = F::ETHER_TYPE == V4::ETHER_TYPE;
        let (first, second) = if v4 { (address, port) } else { (port, address) };
        // Many Services use the same port as their backends.
        let (by_helper, rest) =
            if first.is_nothing() { (second, Delta::default()) } else { (first, second) };
        if by_helper.is_nothing() {
            return Some(());
        }
        let pseudo = if v4 && !address.is_nothing() { BPF_F_PSEUDO_HDR } else { 0 };
        let mangled = if optional { BPF_F_MARK_MANGLED_0 } else { 0 };
        let (change, flags) = (u64::from(by_helper.raw()), u64::from(pseudo | mangled));
        self.buffer().replace_checksum(offset as u32, 0, change, flags)?;
        let field = self.header_mut::<[u8; 2]>(offset)?;
        if *field == checksum::written(by_helper.apply(old), optional) {
            *field = checksum::written(rest.apply(*field), optional);
        } else if !v4 {
            *field = checksum::written(address.add_to_sum(*field), optional);
        }
        Some(())
    }
}

impl<const STAGE: bool> Packet for TcPacket<STAGE> {
    #[inline(always)]
    fn frame(&self) -> Option<Frame> {
        if STAGE { control_block(self.buffer()).frame() } else { parse_frame(self) }
    }

    #[inline(always)]
    fn role(&self) -> Role {
        self.origin().role
    }

    #[inline(always)]
    fn call<F: Family>(
        &self,
        function: PacketFunction,
        network: usize,
        _: impl FnOnce() -> u32,
    ) -> u32 {
        call_tc::<F>(function, self.buffer().pointer(), network)
    }

    #[inline(always)]
    fn is_raw(&self) -> bool {
        self.origin().raw
    }

    #[inline(always)]
    fn set_role(&mut self, role: Role) {
        if STAGE {
            let ControlBlock(word) = control_block(self.buffer());
            self.buffer()
                .set_control_word(word & !ControlBlock::ROLE | ControlBlock::of_role(role));
        } else {
            self.origin.role = role;
        }
    }

    #[inline(always)]
    fn is_sent_here(&self) -> bool {
        self.buffer().arrived_on() == 0
    }

    #[inline(always)]
    fn device(&self) -> u32 {
        self.buffer().interface()
    }

    #[inline(always)]
    fn resolves(&self) -> bool {
        true
    }

    #[inline(always)]
    fn is_received(&self) -> bool {
        self.buffer().packet_type() != PACKET_OTHERHOST
    }

    #[inline(always)]
    fn segment(&self) -> u32 {
        self.buffer().segment_size()
    }

    #[inline(always)]
    fn decrement_hop_limit<F: Family>(&mut self, network: usize) -> Option<()> {
        let header: &mut F::Header = self.header_mut(network)?;
        header.decrement_hop_limit();
        self.follow_hop_limit::<F>(1, 0);
        Some(())
    }

    #[inline(always)]
    fn set_hop_limit<F: Family>(&mut self, network: usize, limit: u8) -> Option<()> {
        let header: &mut F::Header = self.header_mut(network)?;
        let before = header.hop_limit();
        header.set_hop_limit(limit);
        self.follow_hop_limit::<F>(before, limit);
        Some(())
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
        self.buffer().grow_front(bytes as u32, 0)
    }

    /// No helper does only this.
    #[inline(always)]
    fn shrink_front(&mut self, _: usize) -> Option<()> {
        None
    }

    /// By the helper that also records how segments of the packet are encapsulated. It refuses a
    /// packet with such a record: one that came through a tunnel from a node on this machine, as in
    /// kind. That record is right for the new tunnel, too, because the inner headers have not moved.
    #[inline(always)]
    fn make_room<F: Family>(&mut self, _: usize, bytes: usize) -> Option<()> {
        let v4 = F::ETHER_TYPE == V4::ETHER_TYPE;
        let outer = if v4 { BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 } else { BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 };
        let udp = if bytes > size_of::<F::Header>() { BPF_F_ADJ_ROOM_ENCAP_L4_UDP } else { 0 };
        match self.adjust_room(bytes as i32, outer | udp) {
            None => self.adjust_room(bytes as i32, 0),
            done => done,
        }
    }

    #[inline(always)]
    fn close_up<F: Family>(&mut self, _: usize, bytes: usize) -> Option<()> {
        self.adjust_room(-(bytes as i32), 0)
    }

    #[inline(always)]
    fn resize(&mut self, length: u32) -> Option<()> {
        self.buffer().resize(length, 0)
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
        // No packet is that long.
        blur(offset, self.context.len())
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.context.len()
    }

    /// Depending on the contents of the field, where the kernel shows that without a call;
    /// otherwise by its helper.
    #[inline(always)]
    fn update_transport_checksum<F: Family>(
        &mut self,
        offset: usize,
        address: Delta,
        port: Delta,
        optional: bool,
    ) -> Option<()> {
        let field = pair(self.header(offset)?);
        if optional && field == [0, 0] {
            return Some(());
        }
        let updated = match buffer::checksum_field(self.buffer().pointer()) {
            Field::Checksum => address.plus(port).apply(field),
            Field::Begun => address.add_to_sum(field),
            Field::Other => {
                return self.update_by_helper::<F>(offset, address, port, optional);
            }
        };
        set_pair(self.header_mut(offset)?, checksum::written(updated, optional));
        Some(())
    }
}

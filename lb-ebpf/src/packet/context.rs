//! Contexts of tc and XDP: their fields, and the helpers that take one, as safe functions.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{__sk_buff, BPF_F_INGRESS, xdp_md};
use aya_ebpf::helpers::{
    bpf_csum_update, bpf_l4_csum_replace, bpf_redirect, bpf_redirect_neigh, bpf_skb_adjust_room,
    bpf_skb_change_head, bpf_skb_change_tail, bpf_skb_vlan_pop, bpf_xdp_adjust_head,
    bpf_xdp_adjust_meta, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len,
};
use aya_ebpf::programs::{TcContext, XdpContext};

/// The `sk_buff` of a tc program, which the kernel keeps valid while the program runs.
#[derive(Clone, Copy)]
pub struct Buffer(*mut __sk_buff);

/// The frame of an XDP program, which the kernel keeps valid while the program runs.
#[derive(Clone, Copy)]
pub struct RawFrame(*mut xdp_md);

/// Defines functions that read a field of the context.
macro_rules! fields {
    ($($(#[$about:meta])* $name:ident: $field:ident)*) => {
        $(
            $(#[$about])*
            #[inline(always)]
            pub fn $name(self) -> u32 {
                // SAFETY: the context is the one this program was called with.
                unsafe { (*self.0).$field }
            }
        )*
    };
}

/// Defines functions that call a helper with the context and numbers. They return `None` if it fails.
macro_rules! helpers {
    ($($(#[$about:meta])* $name:ident($($argument:ident: $number:ty),*) by $helper:ident)*) => {
        $(
            $(#[$about])*
            #[inline(always)]
            pub fn $name(self, $($argument: $number),*) -> Option<()> {
                // SAFETY: the context is the one this program was called with; the others are numbers.
                let result = unsafe { $helper(self.0, $($argument),*) };
                (result == 0).then_some(())
            }
        )*
    };
}

impl Buffer {
    #[inline(always)]
    pub fn of(context: &TcContext) -> Self {
        Self(context.as_ptr().cast())
    }

    #[inline(always)]
    pub fn pointer(self) -> *mut __sk_buff {
        self.0
    }

    fields! {
        interface: ifindex
        /// The interface on which the packet arrived; 0 if it was sent on this machine.
        arrived_on: ingress_ifindex
        protocol: protocol
        packet_type: pkt_type
        segment_size: gso_size
        has_tag: vlan_present
        tag: vlan_tci
        metadata_start: data_meta
        start: data
    }

    helpers! {
        /// Adds or removes bytes behind the link-layer header.
        adjust_room(bytes: i32, mode: u32, flags: u64) by bpf_skb_adjust_room
        /// Updates a transport checksum. A size of 0 in the flags makes `to` a difference.
        replace_checksum(offset: u32, from: u64, to: u64, flags: u64) by bpf_l4_csum_replace
        grow_front(bytes: u32, flags: u64) by bpf_skb_change_head
        resize(length: u32, flags: u64) by bpf_skb_change_tail
        remove_tag() by bpf_skb_vlan_pop
    }

    /// Changes the card's sum over the whole packet, if there is one.
    #[inline(always)]
    pub fn update_card_sum(self, change: u32) {
        // SAFETY: the context is the one this program was called with. It fails if there is no such sum.
        let _ = unsafe { bpf_csum_update(self.0, change) };
    }

    /// The first word of the control block, which the program leaves to the next one.
    #[inline(always)]
    pub fn control_word(self) -> u32 {
        // SAFETY: the context is the one this program was called with.
        unsafe { (*self.0).cb[0] }
    }

    #[inline(always)]
    pub fn set_control_word(self, word: u32) {
        // SAFETY: the context is the one this program was called with.
        unsafe { (*self.0).cb[0] = word };
    }
}

impl RawFrame {
    #[inline(always)]
    pub fn of(context: &XdpContext) -> Self {
        Self(context.ctx)
    }

    #[inline(always)]
    pub fn pointer(self) -> *mut xdp_md {
        self.0
    }

    fields! {
        interface: ingress_ifindex
    }

    helpers! {
        /// Moves the first byte: forwards if positive.
        move_start(bytes: i32) by bpf_xdp_adjust_head
        /// Moves the start of the metadata in front of the frame: towards the frame if positive.
        move_metadata(bytes: i32) by bpf_xdp_adjust_meta
        /// Moves the end: appends bytes if positive.
        move_end(bytes: i32) by bpf_xdp_adjust_tail
    }

    /// The length of the whole frame, with what cannot be viewed.
    #[inline(always)]
    pub fn length(self) -> u32 {
        // SAFETY: the context is the one this program was called with.
        unsafe { bpf_xdp_get_buff_len(self.0) as u32 }
    }
}

/// The action that sends the packet through an interface.
#[inline(always)]
pub fn redirect(interface: u32) -> i32 {
    // SAFETY: takes numbers only.
    unsafe { bpf_redirect(interface, 0) as i32 }
}

/// The action of tc that hands the packet to the stack, as one that has arrived on an interface.
#[inline(always)]
pub fn redirect_into(interface: u32) -> i32 {
    // SAFETY: takes numbers only.
    unsafe { bpf_redirect(interface, u64::from(BPF_F_INGRESS)) as i32 }
}

/// The action of tc that sends the packet through an interface to the next hop that the stack finds and resolves.
#[inline(always)]
pub fn redirect_resolved(interface: u32) -> i32 {
    // SAFETY: without parameters the kernel looks up the route itself.
    unsafe { bpf_redirect_neigh(interface, core::ptr::null_mut(), 0, 0) as i32 }
}

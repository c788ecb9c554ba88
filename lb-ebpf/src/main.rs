//! Millrace's programs: one entry point per hook. What happens to a packet is decided in
//! `lb_common::datapath`; here contexts become packets, maps become tables, verdicts become the
//! hook's return codes.

#![no_std]
#![no_main]

mod maps;
mod packet;
mod socket;
mod tables;

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use lb_common::datapath::{Verdict, forward, reverse};

use crate::packet::{TcPacket, XdpPacket};
use crate::tables::KernelTables;

/// Packets arriving on an external device.
#[xdp(frags)]
pub fn external_in(context: XdpContext) -> u32 {
    match forward(&mut XdpPacket::new(context), &KernelTables) {
        Verdict::Pass => xdp_action::XDP_PASS,
        Verdict::Drop(_) => xdp_action::XDP_DROP,
    }
}

/// Packets that a pod sends.
#[classifier]
pub fn workload_in(context: TcContext) -> i32 {
    match forward(&mut TcPacket::new(context), &KernelTables) {
        Verdict::Pass => TC_ACT_UNSPEC,
        Verdict::Drop(_) => TC_ACT_SHOT,
    }
}

/// Packets leaving by a device, external or a pod's.
#[classifier]
pub fn external_out(context: TcContext) -> i32 {
    match reverse(&mut TcPacket::new(context), &KernelTables) {
        // Not OK: programs behind ours still want to see the packet.
        Verdict::Pass => TC_ACT_UNSPEC,
        Verdict::Drop(_) => TC_ACT_SHOT,
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // A program with a reachable panic does not pass the verifier: this loop has no end.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 7] = *b"GPL v2\0";

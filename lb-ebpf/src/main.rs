//! Millrace's programs: one entry point per hook and stage. `lb_common::datapath` decides what
//! happens to a packet; this crate turns contexts into packets, maps into tables, and verdicts into
//! the hook's return codes.

#![no_std]
#![no_main]

mod clock;
mod events;
mod functions;
mod maps;
mod messages;
mod packet;
mod socket;
mod tables;

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action};
use aya_ebpf::helpers::bpf_clone_redirect;
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use lb_common::datapath::{
    ARRIVE, DEFERRED, Packet, REPORT, Role, Stage, Verdict, arp, egress, ingress, ingress_raw,
    passed, stage,
};
use lb_common::family::{Family, V6};
use lb_common::layout::{Ending, Reason};

use crate::maps::{TC_STAGES, XDP_STAGES};
use crate::packet::{
    Origin, TcPacket, XdpPacket, frame_of, is_of_vlan, mark_of_xdp, redirect, redirect_into,
    redirect_resolved, remove_priority,
};
use crate::tables::KernelTables;

// The macros split each function in two. The code for most packets is inlined into its entry point:
// each return costs several ns on CPUs with mitigations for `srso` or `retbleed`.

/// Packets that arrive on an external interface.
#[xdp(frags)]
#[inline(always)]
pub fn external_in(context: XdpContext) -> u32 {
    let mut packet = XdpPacket::new(context);
    let verdict = ingress(&mut packet, &KernelTables);
    xdp_action_of(verdict, packet)
}

/// The programs of the stages, generated from the list of stages.
macro_rules! define_programs {
    ($($(#[$about:meta])* $stage:ident($($xdp:ident)?, $tc:ident))*) => {
        $(
            $(
                #[xdp(frags)]
                #[inline(always)]
                pub fn $xdp(context: XdpContext) -> u32 {
                    xdp_stage(Stage::$stage, context)
                }
            )?

            #[classifier]
            #[inline(always)]
            pub fn $tc(context: TcContext) -> i32 {
                tc_stage(Stage::$stage, context)
            }
        )*
    };
}

lb_common::for_each_stage!(define_programs);

/// Whether a stage overwrites the packet, which is therefore reported before.
#[inline(always)]
fn writes_over(stage: Stage) -> bool {
    matches!(stage, Stage::Reset | Stage::Reject)
}

/// Reports a packet, which then ends as was decided before.
#[xdp(frags)]
pub fn xdp_report(context: XdpContext) -> u32 {
    let mut packet = XdpPacket::new(context);
    let passed = events::action() == xdp_action::XDP_PASS;
    events::report(&mut packet, if passed { Ending::Passed } else { Ending::Dropped })
        .unwrap_or(xdp_action::XDP_DROP)
}

#[inline(always)]
fn xdp_stage(which: Stage, context: XdpContext) -> u32 {
    let mut packet = XdpPacket::new(context);
    if writes_over(which) {
        events::report_rejected(&mut packet);
        messages::replies(which as u32, packet.device());
    }
    let verdict = stage(which, &mut packet, &KernelTables);
    xdp_action_of(verdict, packet)
}

#[inline(always)]
fn xdp_action_of(verdict: Verdict, mut packet: XdpPacket) -> u32 {
    match verdict {
        Verdict::Pass => xdp_action::XDP_PASS,
        Verdict::Decline => xdp_end(packet, xdp_action::XDP_PASS),
        Verdict::Drop => xdp_end(packet, xdp_action::XDP_DROP),
        Verdict::Transmit => xdp_action::XDP_TX,
        Verdict::Redirect => redirect(packet.left_by()) as u32,
        Verdict::Defer | Verdict::Resolve if packet.defer() => xdp_action::XDP_PASS,
        Verdict::Defer | Verdict::Resolve => {
            messages::not_marked(packet.device());
            tables::count(Reason::Unwritable);
            xdp_action::XDP_DROP
        }
        // Marked or not: it must not be lost.
        Verdict::Yield => {
            packet.defer();
            xdp_action::XDP_PASS
        }
        // With a constant index the kernel turns the tail call into a direct jump. New flows use
        // these.
        Verdict::Next(next) => match next.stage() {
            Stage::Open => xdp_go_on(packet, Stage::Open),
            Stage::Begin => xdp_go_on(packet, Stage::Begin),
            Stage::Snat => xdp_go_on(packet, Stage::Snat),
            Stage::Send => xdp_go_on(packet, Stage::Send),
            other => xdp_go_on(packet, other),
        },
    }
}

#[inline(always)]
fn xdp_go_on(packet: XdpPacket, next: Stage) -> u32 {
    // SAFETY: nothing is left to be dropped.
    unsafe { XDP_STAGES.tail_call(packet.context(), next as u32) };
    messages::stage_is_missing(next as u32);
    tables::count(Reason::CorruptTable);
    xdp_action::XDP_DROP
}

/// The end of a packet for which a reason was counted.
#[inline(always)]
fn xdp_end(packet: XdpPacket, action: u32) -> u32 {
    if events::is_noted(action) {
        // SAFETY: nothing is left to be dropped. If it fails, nothing is reported.
        unsafe { XDP_STAGES.tail_call(packet.context(), REPORT) };
    }
    action
}

/// Packets that XDP has left to tc, and those that ask for an announced address.
#[classifier]
pub fn external_deferred(context: TcContext) -> i32 {
    if is_of_vlan(&context) {
        return TC_ACT_UNSPEC;
    }
    if mark_of_xdp(&context) == DEFERRED {
        // The program for interfaces without XDP, so that the verifier need not check all of it twice.
        // SAFETY: nothing is left to be dropped.
        unsafe { TC_STAGES.tail_call(&context, ARRIVE) };
        messages::stage_is_missing(ARRIVE);
        tables::count(Reason::CorruptTable);
        return TC_ACT_SHOT;
    }
    let frame = frame_of(&context);
    if frame.ether_type != arp::ETHER_TYPE && frame.ether_type != V6::ETHER_TYPE {
        return TC_ACT_UNSPEC;
    }
    let packet = TcPacket::<false>::new(context, Origin { role: Role::External, raw: false });
    match passed(&packet, frame) {
        Verdict::Next(_) => tc_go_on(packet, Stage::Neighbour),
        _ => TC_ACT_UNSPEC,
    }
}

/// Packets that arrive on an external interface without XDP.
#[classifier]
#[inline(always)]
pub fn external_in_tc(context: TcContext) -> i32 {
    if is_of_vlan(&context) {
        return TC_ACT_UNSPEC;
    }
    tc_ingress(context, Role::External)
}

/// Packets that arrive on an interface without link-layer headers.
#[classifier]
#[inline(always)]
pub fn raw_in(context: TcContext) -> i32 {
    let origin = Origin { role: Role::External, raw: true };
    let mut packet = TcPacket::<false>::new(context, origin);
    let verdict = ingress_raw(&mut packet, &KernelTables);
    tc_action_of(verdict, packet)
}

/// Packets that a pod sends.
#[classifier]
#[inline(always)]
pub fn workload_in(context: TcContext) -> i32 {
    tc_ingress(context, Role::Workload)
}

#[inline(always)]
fn tc_ingress(context: TcContext, role: Role) -> i32 {
    let mut packet = TcPacket::<false>::new(context, Origin { role, raw: false });
    let verdict = ingress(&mut packet, &KernelTables);
    tc_action_of(verdict, packet)
}

/// Packets that leave through an external interface or a pod's.
#[classifier]
#[inline(always)]
pub fn out(context: TcContext) -> i32 {
    tc_egress(context, false)
}

/// Packets that leave through an interface without link-layer headers.
#[classifier]
#[inline(always)]
pub fn raw_out(context: TcContext) -> i32 {
    tc_egress(context, true)
}

#[inline(always)]
fn tc_egress(context: TcContext, raw: bool) -> i32 {
    let mut packet = TcPacket::<false>::new(context, Origin { role: Role::External, raw });
    let verdict = egress(&mut packet, &KernelTables);
    tc_action_of(verdict, packet)
}

/// Transmits a frame of the agent, which runs this program with the frame as its packet and the
/// interface in the context. It is attached nowhere. Returns the helper's error, or 0.
#[classifier]
pub fn transmit(context: TcContext) -> i32 {
    let buffer = context.skb.skb;
    // SAFETY: the context is the one this program was called with.
    unsafe { bpf_clone_redirect(buffer, (*buffer).ifindex, 0) as i32 }
}

/// Reports a packet, which then ends as was decided before.
#[classifier]
pub fn tc_report(context: TcContext) -> i32 {
    let mut packet = TcPacket::handed_over(context);
    let passed = events::action() == TC_ACT_UNSPEC as u32;
    events::report(&mut packet, if passed { Ending::Passed } else { Ending::Dropped })
        .map_or(TC_ACT_SHOT, |action| action as i32)
}

#[inline(always)]
fn tc_stage(which: Stage, context: TcContext) -> i32 {
    let mut packet = TcPacket::handed_over(context);
    if writes_over(which) {
        events::report_rejected(&mut packet);
        messages::replies(which as u32, packet.device());
    }
    let verdict = stage(which, &mut packet, &KernelTables);
    tc_action_of(verdict, packet)
}

#[inline(always)]
fn tc_action_of<const STAGE: bool>(verdict: Verdict, packet: TcPacket<STAGE>) -> i32 {
    if matches!(verdict, Verdict::Transmit | Verdict::Redirect | Verdict::Resolve) {
        remove_priority(packet.context());
    }
    match verdict {
        // Not OK: tc programs after this one must see the packet, too.
        Verdict::Pass | Verdict::Defer | Verdict::Yield => TC_ACT_UNSPEC,
        Verdict::Decline => tc_end(packet, TC_ACT_UNSPEC),
        Verdict::Drop => tc_end(packet, TC_ACT_SHOT),
        Verdict::Transmit if packet.role() == Role::Node => redirect_into(packet.device()),
        Verdict::Transmit => redirect(packet.device()),
        Verdict::Redirect => redirect(packet.left_by()),
        Verdict::Resolve => redirect_resolved(packet.left_by()),
        // As in XDP.
        Verdict::Next(next) => match next.stage() {
            Stage::Open => tc_go_on(packet, Stage::Open),
            Stage::Begin => tc_go_on(packet, Stage::Begin),
            Stage::Snat => tc_go_on(packet, Stage::Snat),
            Stage::Send => tc_go_on(packet, Stage::Send),
            other => tc_go_on(packet, other),
        },
    }
}

#[inline(always)]
fn tc_go_on<const STAGE: bool>(packet: TcPacket<STAGE>, next: Stage) -> i32 {
    packet.hand_over();
    // SAFETY: nothing is left to be dropped.
    unsafe { TC_STAGES.tail_call(packet.context(), next as u32) };
    messages::stage_is_missing(next as u32);
    tables::count(Reason::CorruptTable);
    TC_ACT_SHOT
}

/// The end of a packet for which a reason was counted.
#[inline(always)]
fn tc_end<const STAGE: bool>(packet: TcPacket<STAGE>, action: i32) -> i32 {
    if events::is_noted(action as u32) {
        packet.hand_over();
        // SAFETY: nothing is left to be dropped. If it fails, nothing is reported.
        unsafe { TC_STAGES.tail_call(packet.context(), REPORT) };
    }
    action
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // The verifier rejects a program with a reachable panic, so this loop never runs.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 7] = *b"GPL v2\0";

//! Reports packets that end for a reason to `millrace drops`.
//!
//! Most packets end for no reason, and are not affected. A reason is noted where it is counted;
//! when the packet ends, a separate program with its own stack reports it. Without a listener this
//! costs one load.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use lb_common::datapath::{Packet, describe_packet};
use lb_common::layout::{Ending, Listener, PacketEvent};

use crate::clock::now;
use crate::maps::{EVENTS, LISTENER, SCRATCH, UNREPORTED};
use crate::tables::own_entry;

/// The listener, if there is one.
#[inline(always)]
fn listener() -> Option<Listener> {
    let listener = LISTENER.get_ptr(0)?;
    // SAFETY: the map has the entry, and the listener writes whole aligned words.
    unsafe {
        let reasons = (&raw const (*listener).reasons).read_volatile();
        if reasons == 0 {
            return None;
        }
        let until = (&raw const (*listener).until).read_volatile();
        Some(Listener { until, token: 0, reasons })
    }
}

/// Notes why this packet will end. If no listener asked for the reason, that is noted, too:
/// otherwise the note of an earlier packet would count for this one.
#[inline(always)]
pub fn note(reason: u32) {
    let Some(listener) = listener() else { return };
    let noted_reason = if listener.hears(reason, now()) { reason + 1 } else { 0 };
    if let Some(scratch) = own_entry(&SCRATCH, 0) {
        scratch.noted_reason = noted_reason;
    }
}

/// Whether this packet is reported before its program returns `action`.
#[inline(always)]
pub fn is_noted(action: u32) -> bool {
    note_action(action) != 0
}

/// A global function, which the verifier checks once for all callers. Returns the packet's noted reason.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn note_action(action: u32) -> u32 {
    if listener().is_none() {
        return 0;
    }
    let Some(scratch) = own_entry(&SCRATCH, 0) else { return 0 };
    scratch.action = action;
    scratch.noted_reason
}

/// The action that the reporting program returns.
#[inline(always)]
pub fn action() -> u32 {
    own_entry(&SCRATCH, 0).map_or(0, |scratch| scratch.action)
}

/// Reports a noted packet; returns its action.
#[inline(always)]
pub fn report<P: Packet>(packet: &mut P, ending: Ending) -> Option<u32> {
    let scratch = own_entry(&SCRATCH, 0)?;
    let action = scratch.action;
    let noted_reason = scratch.noted_reason;
    if noted_reason == 0 {
        return Some(action);
    }
    scratch.noted_reason = 0;
    if !scratch.events.take(now()) {
        count_unreported();
        return Some(action);
    }
    // SAFETY: the helper takes nothing and only reads a clock.
    let time = unsafe { bpf_ktime_get_ns() };
    let mut event = PacketEvent {
        time,
        reason: noted_reason - 1,
        ending: ending as u8,
        ..PacketEvent::default()
    };
    describe_packet(packet, &mut event);
    if EVENTS.output(event, 0).is_err() {
        count_unreported();
    }
    Some(action)
}

/// Reports a packet that is about to be overwritten by a reply, if it was noted.
#[inline(never)]
pub fn report_rejected<P: Packet>(packet: &mut P) {
    if is_noted(0) {
        let _ = report(packet, Ending::Answered);
    }
}

#[inline(always)]
fn count_unreported() {
    if let Some(unreported) = own_entry(&UNREPORTED, 0) {
        *unreported += 1;
    }
}

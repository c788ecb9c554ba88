//! What the benchmark wraps around a program under test.
//!
//! BPF_PROG_TEST_RUN gives every repetition the packet that the previous one left. A translated
//! packet is not addressed to a Service any more, so the benchmark would measure misses. The
//! wrapper restores the packet's headers, gives it the next client, and tail-calls the program.
//! The same wrapper around an empty program measures the cost of the wrapper.

#![no_std]
#![no_main]

use aya_ebpf::bindings::{TC_ACT_OK, TC_ACT_SHOT, xdp_action};
use aya_ebpf::btf_maps::{Array, PerCpuArray, ProgramArray};
use aya_ebpf::helpers::{bpf_redirect, bpf_xdp_adjust_head, bpf_xdp_adjust_tail};
use aya_ebpf::macros::{btf_map, classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use lb_common::bench::{BenchEnd, HEADERS, MAX_ENDS, SINK_PORT, Template};
use lb_common::verifier::opaque;

#[btf_map]
static TEMPLATE: Array<Template, 1> = Array::new();

/// Addresses and ports for templates that are not made from a client's number.
#[btf_map]
static ENDS: Array<BenchEnd, MAX_ENDS> = Array::new();

/// The number of the next packet.
#[btf_map]
static SEQUENCE: Array<u64, 1> = Array::new();

/// The program under test, at index 0. A program array holds programs of one type.
#[btf_map]
static XDP_UNDER_TEST: ProgramArray<1> = ProgramArray::new();

#[btf_map]
static TC_UNDER_TEST: ProgramArray<1> = ProgramArray::new();

/// The index of the interface through which `send_xdp` sends.
#[btf_map]
static DEVICE: Array<u32, 1> = Array::new();

/// Number of datagrams that the sink has consumed.
#[btf_map]
static ARRIVED: PerCpuArray<u64, 1> = PerCpuArray::new();

#[xdp(frags)]
pub fn wrap_xdp(context: XdpContext) -> u32 {
    restore_length(&context);
    if restore(context.data(), context.data_end()) {
        // SAFETY: nothing is left to be dropped.
        unsafe { XDP_UNDER_TEST.tail_call(&context, 0) };
    }
    xdp_action::XDP_ABORTED
}

#[classifier]
pub fn wrap_tc(context: TcContext) -> i32 {
    if restore(context.data(), context.data_end()) {
        // SAFETY: nothing is left to be dropped.
        unsafe { TC_UNDER_TEST.tail_call(&context, 0) };
    }
    TC_ACT_SHOT
}

#[xdp(frags)]
pub fn empty_xdp(_: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

/// Bytes that [`grow_xdp`] adds: as many as a tunnel.
const GROWTH: i32 = 28;

/// Adds bytes in front of the packet.
#[xdp(frags)]
pub fn grow_xdp(context: XdpContext) -> u32 {
    // SAFETY: the context is the one this program was called with.
    match unsafe { bpf_xdp_adjust_head(context.ctx, -GROWTH) } {
        0 => xdp_action::XDP_PASS,
        _ => xdp_action::XDP_ABORTED,
    }
}

/// Sends the wrapper's packets through an interface, to be forwarded by the program under test.
#[xdp(frags)]
pub fn send_xdp(_: XdpContext) -> u32 {
    match DEVICE.get(0) {
        // SAFETY: the helper takes numbers only, and fails if the interface does not exist.
        Some(&device) => unsafe { bpf_redirect(device, 0) as u32 },
        None => xdp_action::XDP_ABORTED,
    }
}

/// At the receiving end: counts and consumes datagrams for the sink, and passes everything else.
#[xdp(frags)]
pub fn sink_xdp(context: XdpContext) -> u32 {
    if !is_for_sink(context.data(), context.data_end()) {
        return xdp_action::XDP_PASS;
    }
    let Some(count) = ARRIVED.get_ptr_mut(0) else { return xdp_action::XDP_ABORTED };
    // SAFETY: this CPU's own copy; a program is not interrupted by itself.
    unsafe { *count += 1 };
    xdp_action::XDP_DROP
}

/// Whether it is UDP over IPv4 without options for the sink's port.
#[inline(always)]
fn is_for_sink(start: usize, end: usize) -> bool {
    const VERSION: usize = 14;
    const PROTOCOL: usize = VERSION + 9;
    const PORT: usize = VERSION + 20 + 2;
    if start + PORT + 2 > end {
        return false;
    }
    // SAFETY: within the packet, by the check above.
    let octet = |at: usize| unsafe { *((start + at) as *const u8) };
    let [high, low] = SINK_PORT.to_be_bytes();
    octet(VERSION) == 0x45 && octet(PROTOCOL) == 17 && octet(PORT) == high && octet(PORT + 1) == low
}

#[classifier]
pub fn empty_tc(_: TcContext) -> i32 {
    TC_ACT_OK
}

/// Gives the packet the length that it had before the last run.
#[inline(always)]
fn restore_length(context: &XdpContext) {
    let Some(template) = TEMPLATE.get(0) else { return };
    // Otherwise the compiler would add the length to a pointer, as a number of 32 bits.
    let length = opaque((context.data_end() - context.data()) as u64) as i32;
    let more = length - template.length as i32;
    if more == 0 {
        return;
    }
    // If it fails, the packet is too short, or no longer than it can get.
    // SAFETY: the context is the one the program was called with.
    unsafe {
        if template.at_front != 0 {
            bpf_xdp_adjust_head(context.ctx, more);
        } else {
            bpf_xdp_adjust_tail(context.ctx, -more);
        }
    }
}

/// Writes the next packet; false if the given packet is too short.
#[inline(always)]
fn restore(start: usize, end: usize) -> bool {
    if start + HEADERS > end {
        return false;
    }
    let (Some(template), Some(sequence)) = (TEMPLATE.get(0), SEQUENCE.get_ptr_mut(0)) else {
        return false;
    };
    // SAFETY: the benchmark runs one program at a time.
    let number = unsafe {
        *sequence += 1;
        *sequence as u32
    };
    let (address, port) = if template.listed == 0 {
        template.client(number)
    } else {
        // In the order of the list, so that the next ones are in the cache.
        match ENDS.get(number & template.client_mask) {
            Some(end) => (end.address, end.port as u16),
            None => return false,
        }
    };
    let address_at = start + (template.address_offset as usize & (HEADERS - 1));
    let port_at = start + (template.port_offset as usize & (HEADERS - 1));
    // SAFETY: within the packet, each by the check before it; the verifier accepts unaligned writes
    // only where the CPU supports them.
    unsafe {
        // Word by word: otherwise it becomes a call of a memcpy that copies byte by byte.
        for (word, &bytes) in template.headers.iter().enumerate() {
            (start as *mut u64).add(word).write_volatile(bytes);
        }
        if address_at + 4 > end || port_at + 2 > end {
            return false;
        }
        (address_at as *mut u32).write(address.to_be());
        (port_at as *mut u16).write(port.to_be());
    }
    true
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 7] = *b"GPL v2\0";

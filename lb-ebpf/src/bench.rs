//! What the benchmark wraps around a program under test.
//!
//! BPF_PROG_TEST_RUN gives every repetition the packet that the one before left. A translated
//! packet is no Service's any more, so without help one would measure the miss. The wrapper
//! writes the packet's headers back, gives it the next client, and tail-calls the program.
//! The same wrapper around an empty program tells what the wrapper itself costs.

#![no_std]
#![no_main]

use aya_ebpf::bindings::{TC_ACT_OK, TC_ACT_SHOT, xdp_action};
use aya_ebpf::btf_maps::{Array, ProgramArray};
use aya_ebpf::macros::{btf_map, classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use lb_common::bench::{HEADERS, Template};

#[btf_map]
static TEMPLATE: Array<Template, 1> = Array::new();

/// How many packets were made; the next one's number.
#[btf_map]
static SEQUENCE: Array<u64, 1> = Array::new();

/// The program under test, at index 0; a program array is for one type of programs.
#[btf_map]
static XDP_UNDER_TEST: ProgramArray<1> = ProgramArray::new();

#[btf_map]
static TC_UNDER_TEST: ProgramArray<1> = ProgramArray::new();

#[xdp(frags)]
pub fn wrap_xdp(context: XdpContext) -> u32 {
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

#[classifier]
pub fn empty_tc(_: TcContext) -> i32 {
    TC_ACT_OK
}

/// Makes the next packet; false if the packet given is no place for it.
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
    let (address, port) = template.client(number);
    let address_at = start + (template.address_offset as usize & (HEADERS - 1));
    let port_at = start + (template.port_offset as usize & (HEADERS - 1));
    // SAFETY: within the packet, each by the check before it; packets may be written unaligned
    // where the verifier lets this pass.
    unsafe {
        // Word by word, or it becomes a call of a memcpy that goes byte by byte.
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

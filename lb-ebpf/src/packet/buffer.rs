//! What the kernel knows of a packet, and the packet's context does not tell.

use core::mem::transmute;

use aya_ebpf::bindings::__sk_buff;
use lb_common::branchless::opaque;
use lb_common::layout::{BUFFER_OF_CONTEXT, BufferSum};

use crate::maps::BUFFER_SUM;

/// What is in a packet's checksum field.
pub enum Field {
    /// A checksum, and nothing else depends on it.
    Checksum,
    /// The pseudo header's sum: the device that sends the packet makes a checksum of it.
    Begun,
    /// A checksum that goes together with the card's sum over the whole packet, or it isn't known what.
    Other,
}

/// Costs no call: the verifier makes one move of what looks like one.
#[inline(always)]
pub fn checksum_field(context: *mut __sk_buff) -> Field {
    // The agent sets it after compilation: the compiler must not know what is in it.
    let place = opaque(&raw const BUFFER_SUM as u64) as *const BufferSum;
    // SAFETY: a live static, which nobody writes while a program runs.
    let BufferSum { offset, shift } = unsafe { *place };
    if offset == 0 {
        return Field::Other;
    }
    // SAFETY: the agent has made this a call of `bpf_cast_to_kern_ctx` where it has told the place;
    // elsewhere the verifier removes it.
    let octet = unsafe {
        let buffer_of: unsafe extern "C" fn(*mut __sk_buff) -> *const u8 =
            transmute(BUFFER_OF_CONTEXT as usize);
        *buffer_of(context).add(offset as usize)
    };
    match octet >> shift & BufferSum::MASK {
        BufferSum::NONE | BufferSum::UNNECESSARY => Field::Checksum,
        BufferSum::PARTIAL => Field::Begun,
        _ => Field::Other,
    }
}

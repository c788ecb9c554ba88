//! What the kernel knows about a packet and the context does not contain.

use core::mem::transmute;

use aya_ebpf::bindings::__sk_buff;
use lb_common::layout::{BUFFER_OF_CONTEXT, BufferSum};
use lb_common::verifier::opaque;

use crate::maps::BUFFER_SUM;

/// The contents of a packet's checksum field.
pub enum Field {
    /// A checksum, and nothing else depends on it.
    Checksum,
    /// The sum of the pseudo header. The sending device completes it.
    Begun,
    /// A checksum that has to stay consistent with the card's sum over the whole packet, or
    /// unknown.
    Other,
}

/// Costs no call: the verifier replaces it by a move.
#[inline(always)]
pub fn checksum_field(context: *mut __sk_buff) -> Field {
    // The agent sets it after compilation, so the compiler must not assume its value.
    let place = opaque(&raw const BUFFER_SUM as u64) as *const BufferSum;
    // SAFETY: a live static that is not written while a program runs.
    let BufferSum { offset, shift } = unsafe { *place };
    if offset == 0 {
        return Field::Other;
    }
    // SAFETY: where the agent has set the offset it has made this a call of `bpf_cast_to_kern_ctx`;
    // elsewhere the verifier removes the code.
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

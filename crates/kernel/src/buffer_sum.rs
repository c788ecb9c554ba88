//! Lets tc programs read the checksum state that the kernel keeps for a packet
//! (`sk_buff.ip_summed`) without the cost of a call. This needs a kfunc of Linux 6.2, which aya
//! cannot resolve.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use lb_common::layout::{BUFFER_OF_CONTEXT, BufferSum};
use nix::libc::c_long;

use super::system_call::bpf;
use super::types::{TYPES, Types};

/// An instruction: opcode, registers, offset and immediate.
/// <https://docs.kernel.org/bpf/standardization/instruction-set.html>
type Instruction = [u8; 8];

/// Calls a helper, unless the source register says otherwise.
const CALL: u8 = 0x85;
const OF_KERNEL: u8 = registers(0, 2);

const fn registers(to: u8, from: u8) -> u8 {
    if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from }
}

/// How programs on this kernel read the checksum state.
#[derive(Clone, Copy)]
pub struct Access {
    /// BTF id of the kernel function that returns the `sk_buff`; `None` if programs can't call it.
    function: Option<u32>,
    /// The position of the checksum state in the `sk_buff`.
    pub place: BufferSum,
}

/// Finds out what this kernel supports.
pub fn detect_access() -> Access {
    const NONE: Access = Access { function: None, place: BufferSum::UNKNOWN };
    let Some((function, place)) = fs::read(TYPES).ok().and_then(|types| find_function(&types))
    else {
        return NONE;
    };
    if let Err(error) = try_out(function, place) {
        tracing::warn!(
            error = format!("{error:#}"),
            "programs cannot read sk_buff checksum state; tc checks each packet, which is slower"
        );
        return NONE;
    }
    Access { function: Some(function), place }
}

/// The object, with the stand-in resolved to this kernel's function.
pub fn resolve_stand_in(object: &[u8], access: Access) -> Cow<'_, [u8]> {
    match access.function {
        Some(function) => with_call_of(object, function).into(),
        None => object.into(),
    }
}

/// Has the kernel verify a program with the same access as the data plane's. Kernels differ in what
/// they allow, and nothing depends on this program if it is refused.
fn try_out(function: u32, place: BufferSum) -> io::Result<()> {
    const BPF_PROG_LOAD: c_long = 5;
    const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
    /// The beginning of `union bpf_attr`; the rest is zero.
    #[repr(C)]
    struct Attributes {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
    }
    let program = [
        instruction(CALL, OF_KERNEL, function),
        // The offset is added from a register, as in the data plane's programs, which read it from
        // a map.
        instruction(0xb7, registers(2, 0), place.offset),
        instruction(0x0f, registers(0, 2), 0),
        // Read one octet, and exit.
        instruction(0x71, registers(0, 0), 0),
        instruction(0x95, 0, 0),
    ];
    let attributes = Attributes {
        kind: BPF_PROG_TYPE_SCHED_CLS,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
    };
    // SAFETY: the kernel reads the instructions and the licence, which live until after the call.
    let descriptor = unsafe { bpf(BPF_PROG_LOAD, &attributes) }?;
    // SAFETY: a new descriptor, with no other owner.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
    Ok(())
}

fn instruction(code: u8, registers: u8, number: u32) -> Instruction {
    let [a, b, c, d] = number.to_ne_bytes();
    [code, registers, 0, 0, a, b, c, d]
}

/// The id of the function that returns the `sk_buff`, and the position of the checksum state.
fn find_function(types: &[u8]) -> Option<(u32, BufferSum)> {
    let types = Types::parse(types)?;
    let function = types.function("bpf_cast_to_kern_ctx")?;
    let bit = types.bit_of_member("sk_buff", "ip_summed")?;
    Some((function, BufferSum { offset: bit / 8, shift: bit % 8 }))
}

fn with_call_of(object: &[u8], function: u32) -> Vec<u8> {
    let mut object = object.to_vec();
    let stand_in = instruction(CALL, 0, BUFFER_OF_CONTEXT);
    let call = instruction(CALL, OF_KERNEL, function);
    for place in object.chunks_exact_mut(8).filter(|place| **place == stand_in) {
        place.copy_from_slice(&call);
    }
    object
}

#[cfg(test)]
mod tests {
    use aya::util::KernelVersion;

    use super::*;

    #[test]
    fn only_the_stand_in_becomes_a_call_of_the_kfunc() {
        let [helper, ours] = [1, BUFFER_OF_CONTEXT].map(|number| instruction(CALL, 0, number));
        let called = instruction(CALL, OF_KERNEL, 63_539);
        let object = [&helper[..], &ours, &helper, &[0; 3]].concat();
        let expected = [&helper[..], &called, &helper, &[0; 3]].concat();
        assert_eq!(with_call_of(&object, 63_539), expected);
    }

    #[test]
    fn the_checksum_state_is_found_if_the_kernel_has_the_kfunc() {
        let has_function =
            KernelVersion::current().is_ok_and(|it| it >= KernelVersion::new(6, 2, 0));
        let Ok(types) = fs::read(TYPES) else { return };
        let found = find_function(&types);
        assert_eq!(found.is_some(), has_function);
        assert!(found.is_none_or(|(_, place)| place.offset > 64 && place.shift < 7), "{found:?}");
    }
}

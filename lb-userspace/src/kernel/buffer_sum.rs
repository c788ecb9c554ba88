//! Lets the programs of tc see what the kernel knows of a packet's checksum, where it can be had
//! without a call: of Linux 6.2 on, by a function that the loader of the object knows nothing of.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use lb_common::layout::{BUFFER_OF_CONTEXT, BufferSum};
use nix::libc::c_long;

use super::preflight::TYPES;
use super::system_call::bpf;
use super::types::Types;

/// An instruction: its code, registers, offset and number.
/// <https://docs.kernel.org/bpf/standardization/instruction-set.html>
type Instruction = [u8; 8];

/// Of a helper, unless the registers say otherwise.
const CALL: u8 = 0x85;
const OF_KERNEL: u8 = registers(0, 2);

const fn registers(to: u8, from: u8) -> u8 {
    if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from }
}

/// How programs get at a packet's description on this kernel.
#[derive(Clone, Copy)]
pub struct Access {
    /// The kernel's function that leads to the description; none if programs can't call it.
    function: Option<u32>,
    /// Where in the description the word is.
    pub place: BufferSum,
}

/// Asks the kernel.
pub fn access() -> Access {
    const NONE: Access = Access { function: None, place: BufferSum::UNKNOWN };
    let Some((function, place)) = fs::read(TYPES).ok().and_then(|types| find(&types)) else {
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

/// The object as this kernel is given it.
pub fn resolved(object: &[u8], access: Access) -> Cow<'_, [u8]> {
    match access.function {
        Some(function) => with_call_of(object, function).into(),
        None => object.into(),
    }
}

/// Has the kernel verify a program that does what ours do. Kernels differ in what they allow, and of a
/// program that is refused here nobody depends.
fn try_out(function: u32, place: BufferSum) -> io::Result<()> {
    const BPF_PROG_LOAD: c_long = 5;
    const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
    /// As much of `union bpf_attr` as is not zero.
    #[repr(C)]
    struct Attributes {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
    }
    let program = [
        instruction(CALL, OF_KERNEL, function),
        // The offset is added from a register, as the programs do it: they read it from a map.
        instruction(0xb7, registers(2, 0), place.offset),
        instruction(0x0f, registers(0, 2), 0),
        // An octet is read, and the program ends.
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
    // SAFETY: a new descriptor, that nobody else has.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
    Ok(())
}

fn instruction(code: u8, registers: u8, number: u32) -> Instruction {
    let [a, b, c, d] = number.to_ne_bytes();
    [code, registers, 0, 0, a, b, c, d]
}

/// The function that leads to a packet's description, and where in that the word is.
fn find(types: &[u8]) -> Option<(u32, BufferSum)> {
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
    fn only_what_stands_for_the_function_becomes_its_call() {
        let [helper, ours] = [1, BUFFER_OF_CONTEXT].map(|number| instruction(CALL, 0, number));
        let called = instruction(CALL, OF_KERNEL, 63_539);
        let object = [&helper[..], &ours, &helper, &[0; 3]].concat();
        let expected = [&helper[..], &called, &helper, &[0; 3]].concat();
        assert_eq!(with_call_of(&object, 63_539), expected);
    }

    #[test]
    fn a_kernel_that_has_the_function_tells_where_the_word_is() {
        let has_function =
            KernelVersion::current().is_ok_and(|it| it >= KernelVersion::new(6, 2, 0));
        let Ok(types) = fs::read(TYPES) else { return };
        let found = find(&types);
        assert_eq!(found.is_some(), has_function);
        assert!(found.is_none_or(|(_, place)| place.offset > 64 && place.shift < 7), "{found:?}");
    }
}

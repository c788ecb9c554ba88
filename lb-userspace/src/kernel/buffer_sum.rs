//! Lets the programs of tc see what the kernel knows of a packet's checksum, where it can be had
//! without a call: of Linux 6.2 on, by a function that the loader of the object knows nothing of.

use std::borrow::Cow;
use std::fs;

use lb_common::layout::{BUFFER_OF_CONTEXT, BufferSum};

use super::preflight::{TYPES, is_compiled};
use super::types::Types;

/// An instruction: a call of a helper, then one of a function of the kernel's.
/// <https://docs.kernel.org/bpf/standardization/instruction-set.html#call-instruction>
const CALL: [u8; 4] = [0x85, 0, 0, 0];
const CALL_OF_KERNEL: [u8; 4] =
    [0x85, if cfg!(target_endian = "little") { 0x20 } else { 0x02 }, 0, 0];

/// The object as this kernel is given it, and what goes with that.
pub fn resolved(object: &[u8]) -> (Cow<'_, [u8]>, BufferSum) {
    let found =
        is_compiled().then(|| fs::read(TYPES).ok()).flatten().and_then(|types| find(&types));
    match found {
        Some((function, place)) => (with_call_of(object, function).into(), place),
        None => (object.into(), BufferSum::UNKNOWN),
    }
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
    for instruction in object.chunks_exact_mut(8) {
        if instruction == [CALL, BUFFER_OF_CONTEXT.to_ne_bytes()].concat() {
            instruction[..4].copy_from_slice(&CALL_OF_KERNEL);
            instruction[4..].copy_from_slice(&function.to_ne_bytes());
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use aya::util::KernelVersion;

    use super::*;

    #[test]
    fn only_what_stands_for_the_function_becomes_its_call() {
        let helper = [&CALL[..], &1_u32.to_ne_bytes()].concat();
        let ours = [&CALL[..], &BUFFER_OF_CONTEXT.to_ne_bytes()].concat();
        let object = [&helper[..], &ours, &helper, &[0; 3]].concat();
        let called = [&CALL_OF_KERNEL[..], &63_539_u32.to_ne_bytes()].concat();
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

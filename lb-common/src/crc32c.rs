//! Updates SCTP's checksum for a change of the header without reading the payload.
//!
//! CRC32c is linear: a change of some bytes changes the checksum by the checksum of the change,
//! with all other bytes 0. Each zero byte multiplies the checksum by a constant modulo the
//! polynomial, so only the length of the payload matters.
//!
//! Numbers are polynomials over one bit, mirrored, as in CRC32c: bit 31 is the coefficient of 1.

const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;
/// x^8: the factor of one byte.
const BYTE: u32 = ONE >> 8;

/// x^(8n) for n from 0 to 255, and for multiples of 256.
static BYTES: [u32; 256] = powers(BYTE);
static BLOCKS: [u32; 256] = powers(product(powers(BYTE)[255], BYTE));

/// x^8 times each number below 256.
static REMAINDERS: [u32; 256] = {
    let mut remainders = [0; 256];
    let mut number = 0;
    while number < remainders.len() {
        remainders[number] = product(number as u32, BYTE);
        number += 1;
    }
    remainders
};

/// The change (xor) of the checksum of `length` bytes if the first four change by `change`.
///
/// Not inlined, because frequently run programs use it in several places.
#[inline(always)]
pub fn of_change(change: [u8; 4], length: u16) -> u32 {
    crc32c_of_change(u32::from_le_bytes(change), length.into())
}

/// Without branches. In the kernel a global function, which the verifier checks once for all callers.
#[inline(never)]
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
extern "C" fn crc32c_of_change(change: u32, length: u32) -> u32 {
    let bytes = BYTES[(length & 0xff) as usize];
    let blocks = BLOCKS[(length >> 8 & 0xff) as usize];
    multiply(multiply(change, bytes), blocks)
}

#[inline(always)]
fn multiply(one: u32, other: u32) -> u32 {
    // The product is mirrored, too: the lower half has the higher powers.
    let product = carryless(u64::from(one), u64::from(other)) << 1;
    let mut higher = product as u32;
    for _ in 0..size_of::<u32>() {
        higher = higher >> 8 ^ REMAINDERS[(higher & 0xff) as usize];
    }
    higher ^ (product >> 32) as u32
}

/// The carry-less product of two numbers below 2^32.
///
/// Multiplies every fourth bit at a time: carries, from sums of at most eight, stay in the three
/// bits in between.
#[inline(always)]
fn carryless(one: u64, other: u64) -> u64 {
    const EVERY_FOURTH: u64 = 0x1111_1111_1111_1111;
    let mut product = 0;
    for shift in 0..4 {
        let mut sum = 0;
        for part in 0..4 {
            let of_one = one & EVERY_FOURTH << part;
            sum ^= of_one.wrapping_mul(other & EVERY_FOURTH << ((shift + 4 - part) & 3));
        }
        product |= sum & EVERY_FOURTH << shift;
    }
    product
}

const fn product(mut one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    while other != 0 {
        if other & ONE != 0 {
            product ^= one;
        }
        one = one >> 1 ^ (POLYNOMIAL & (one & 1).wrapping_neg());
        other <<= 1;
    }
    product
}

const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut exponent = 1;
    while exponent < powers.len() {
        powers[exponent] = product(powers[exponent - 1], base);
        exponent += 1;
    }
    powers
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_updated_checksum_equals_a_computed_one(
            old: [u8; 4], new: [u8; 4],
            rest in prop::collection::vec(any::<u8>(), 0..=usize::from(u16::MAX) - 4),
        ) {
            let before = crc32c::crc32c(&[&old[..], &rest].concat());
            let after = crc32c::crc32c(&[&new[..], &rest].concat());
            let change = (u32::from_ne_bytes(old) ^ u32::from_ne_bytes(new)).to_ne_bytes();
            let length = 4 + rest.len() as u16;
            prop_assert_eq!(before ^ of_change(change, length), after);
        }
    }

    #[test]
    fn lengths_where_the_tables_meet() {
        for length in [4, 255, 256, 257, 511, 512, 0xfeff, 0xff00, 0xffff] {
            let mut bytes = vec![0x5a; length];
            let before = crc32c::crc32c(&bytes);
            bytes[..4].copy_from_slice(&[0x5a ^ 1, 0x5a ^ 2, 0x5a ^ 4, 0x5a ^ 0x80]);
            let change = of_change([1, 2, 4, 0x80], length as u16);
            assert_eq!(before ^ change, crc32c::crc32c(&bytes), "{length}");
        }
    }
}

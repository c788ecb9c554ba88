//! Incremental one's complement checksums (RFC 1624, equation 3).
//!
//! Sums are over 16-bit words in memory order: the byte order of a one's complement sum does not
//! matter as long as all terms have the same.

use crate::address::Address;
use crate::word::{pair, set_pair};

/// What the replacement of some words adds to a sum that includes them.
///
/// It is folded to 16 bits only when it is used. Each adds less than 2^36, and a packet has few.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta(u64);

impl Delta {
    #[inline(always)]
    pub fn of_address<A: Address>(old: A, new: A) -> Self {
        // Multiples of 0xffff are zero, and no sum that is subtracted is larger than this one.
        const ZERO: u64 = 4 * u32::MAX as u64;
        Self(new.sum() + (ZERO - old.sum()))
    }

    /// `old` and `new` in host order.
    #[inline(always)]
    pub fn of_port(old: u16, new: u16) -> Self {
        Self(u64::from(new.to_be()) + u64::from(!old.to_be()))
    }

    /// The change of a word at an even offset, in packet order.
    #[inline(always)]
    pub fn of_octets(old: [u8; 4], new: [u8; 4]) -> Self {
        let [old, new] = [old, new].map(u32::from_ne_bytes);
        Self(u64::from(new) + u64::from(!old))
    }

    #[inline(always)]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// Whether it changes no sum. One's complement has two zeros.
    #[inline(always)]
    pub fn is_nothing(self) -> bool {
        let sum = self.raw();
        sum == 0 || sum == u16::MAX
    }

    /// The delta in the format of the kernel's helpers.
    #[inline(always)]
    pub fn raw(self) -> u16 {
        fold(self.0)
    }

    /// Updates a checksum field.
    #[inline(always)]
    pub fn update(self, field: &mut [u8; 2]) {
        set_pair(field, self.apply(pair(field)));
    }

    /// Updates the field of a transport checksum, unless it is zero and `optional`: then there is no
    /// checksum (UDP), and no other one may become zero.
    #[inline(always)]
    pub fn update_unless_absent(self, field: &mut [u8; 2], optional: bool) {
        let before = pair(field);
        if !optional || before != [0, 0] {
            set_pair(field, written(self.apply(before), optional));
        }
    }

    /// The checksum field after the replacement.
    #[inline(always)]
    pub fn apply(self, field: [u8; 2]) -> [u8; 2] {
        let sum = u64::from(!u16::from_ne_bytes(field)) + self.0;
        (!fold(sum)).to_ne_bytes()
    }

    /// The field after the replacement if it has a sum that a network card completes. Differs from the result of
    /// [`Self::apply`] unless the delta is zero.
    #[inline(always)]
    pub fn add_to_sum(self, field: [u8; 2]) -> [u8; 2] {
        let sum = u64::from(u16::from_ne_bytes(field)) + self.0;
        fold(sum).to_ne_bytes()
    }
}

/// A field as it is written. `optional`: zero would mean that there is no checksum (UDP).
#[inline(always)]
pub fn written(field: [u8; 2], optional: bool) -> [u8; 2] {
    if optional && field == [0, 0] { [0xff, 0xff] } else { field }
}

/// A sum for a checksum, while its parts are added.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    #[inline(always)]
    pub fn address<A: Address>(self, address: A) -> Self {
        Self(self.0 + address.sum())
    }

    /// In host order.
    #[inline(always)]
    pub fn word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word.to_be()))
    }

    /// In packet order, at an even offset.
    #[inline(always)]
    pub fn octets(self, octets: [u8; 4]) -> Self {
        Self(self.0 + u64::from(u32::from_ne_bytes(octets)))
    }

    #[inline(always)]
    pub fn checksum(self) -> [u8; 2] {
        (!fold(self.0)).to_ne_bytes()
    }
}

/// The sum in 16 bits.
#[inline(always)]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::{Address4, Address6};

    /// The checksum of whole words, computed without tricks.
    fn checksum(bytes: &[u8]) -> [u8; 2] {
        let mut sum = 0u32;
        for pair in bytes.chunks_exact(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    #[test]
    fn a_delta_of_equal_values_changes_nothing() {
        let address = Address4::from([192, 0, 2, 1]);
        assert!(Delta::of_port(80, 80).is_nothing());
        assert!(Delta::of_address(address, address).is_nothing());
        assert!(!Delta::of_port(80, 8080).is_nothing());
    }

    proptest! {
        #[test]
        fn an_updated_checksum_never_equals_an_updated_sum(
            field: [u8; 2], old_port: u16, new_port: u16,
        ) {
            let delta = Delta::of_port(old_port, new_port);
            prop_assume!(!delta.is_nothing());
            let (whole, sum) = (delta.apply(field), delta.add_to_sum(field));
            for optional in [false, true] {
                prop_assert_ne!(written(whole, optional), written(sum, optional));
                prop_assert_ne!(written(whole, optional), field);
            }
        }

        #[test]
        fn an_updated_checksum_equals_a_computed_one(
            rest in prop::array::uniform8(any::<u8>()),
            old: [u8; 4], new: [u8; 4], old_port: u16, new_port: u16,
        ) {
            // A real sum is never zero, because it includes a version or length.
            let rest = [&[0x45, 0], &rest[..]].concat();
            let before = [&rest[..], &old, &old_port.to_be_bytes()].concat();
            let after = [&rest[..], &new, &new_port.to_be_bytes()].concat();
            let delta = Delta::of_address(Address4::from(old), Address4::from(new))
                .plus(Delta::of_port(old_port, new_port));
            prop_assert_eq!(delta.apply(checksum(&before)), checksum(&after));
        }

        #[test]
        fn an_updated_checksum_equals_a_computed_one_for_ipv6(old: [u8; 16], new: [u8; 16]) {
            let before = [&[0x60, 1][..], &old].concat();
            let after = [&[0x60, 1][..], &new].concat();
            let delta = Delta::of_address(Address6::from(old), Address6::from(new));
            prop_assert_eq!(delta.apply(checksum(&before)), checksum(&after));
        }
    }
}

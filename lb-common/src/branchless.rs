//! Decisions without branches.
//!
//! The kernel's verifier follows every combination of branches, which are too many if each of
//! sixteen entries is a branch. These functions need one path, and the compiler cannot turn them
//! into branches again.

use crate::verifier::opaque;

/// 1 for a number of 2^63 and more, else 0. Neither compiler nor verifier knows that it is one of them:
/// the verifier of Linux 6.18 would follow both if it were a mask for a constant.
#[inline(always)]
pub fn sign(number: u64) -> u64 {
    opaque(opaque(number) >> 63)
}

/// 1 for 0, and 0 for other numbers below 2^63.
#[inline(always)]
pub fn is_zero(number: u64) -> u64 {
    sign(number.wrapping_sub(1))
}

/// `one` if the bit is 1, `other` if it is 0.
///
/// The compiler must not combine the mask with a constant: the verifier would follow both values of
/// the mask separately.
#[inline(always)]
pub fn choose(bit: u64, one: u64, other: u64) -> u64 {
    other ^ (opaque(one ^ other) & opaque(bit.wrapping_neg()))
}

/// The larger of two numbers that are less than 2^63 apart.
#[inline(always)]
pub fn larger(one: i64, other: i64) -> i64 {
    let ahead = one.wrapping_sub(other);
    // The sign, in all bits.
    let behind = opaque((ahead >> 63) as u64) as i64;
    one.wrapping_sub(ahead & behind)
}

/// The smaller of two numbers that are less than 2^63 apart.
#[inline(always)]
pub fn smaller(one: i64, other: i64) -> i64 {
    let ahead = one.wrapping_sub(other);
    // As above.
    let behind = opaque((ahead >> 63) as u64) as i64;
    other.wrapping_add(ahead & behind)
}

/// The number if it is below 2^31, else 0: then it is a negative difference.
#[inline(always)]
pub fn at_least_zero(number: u32) -> u32 {
    let negative = opaque(u64::from(number >> 31));
    number & opaque(negative.wrapping_sub(1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_choices() {
        assert_eq!([0, 1, 1 << 30, 1 << 31, u32::MAX].map(at_least_zero), [0, 1, 1 << 30, 0, 0]);
        assert_eq!([is_zero(0), is_zero(1), is_zero(i64::MAX as u64)], [1, 0, 0]);
        assert_eq!([choose(1, 3, 5), choose(0, 3, 5)], [3, 5]);
        assert_eq!(
            [larger(3, 5), larger(5, 3), larger(4, 4), larger(-1, i64::MIN + 1)],
            [5, 5, 4, -1]
        );
        assert_eq!(
            [smaller(3, 5), smaller(5, 3), smaller(4, 4), smaller(-1, i64::MIN + 1)],
            [3, 3, 4, i64::MIN + 1]
        );
    }
}

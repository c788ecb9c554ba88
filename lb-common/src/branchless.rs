//! Decisions without branches.
//!
//! The kernel's verifier follows every combination of branches: of a choice made at each of sixteen
//! entries, too many. These make one path of them, and keep the compiler from seeing through it.

/// The number itself, of which the compiler knows nothing.
#[inline(always)]
pub fn opaque(number: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut number = number;
        // SAFETY: copies a register to itself. An instruction there must be: the kernel takes no
        // two lines of source for one.
        unsafe {
            core::arch::asm!("{0} = {0}", inout(reg) number, options(pure, nomem, nostack));
        }
        number
    }
    #[cfg(not(target_arch = "bpf"))]
    number
}

/// What the compiler knows of memory it knows no more.
#[inline(always)]
pub fn forget() {
    #[cfg(target_arch = "bpf")]
    {
        let mut number = 0_u64;
        // SAFETY: as above; without `nomem` it may have changed anything.
        unsafe {
            core::arch::asm!("{0} = {0}", inout(reg) number, options(nostack));
        }
        let _ = number;
    }
}

/// 1 for a number of 2^63 and more, else 0.
#[inline(always)]
fn sign(number: u64) -> u64 {
    opaque(opaque(number) >> 63)
}

/// 1 for 0, and 0 for other numbers below 2^63.
#[inline(always)]
pub fn is_zero(number: u64) -> u64 {
    sign(number.wrapping_sub(1))
}

/// `one` if the bit is 1, `other` if it is 0.
///
/// No constant may meet the mask: the verifier would follow both of its values apart.
#[inline(always)]
pub fn choose(bit: u64, one: u64, other: u64) -> u64 {
    other ^ (opaque(one ^ other) & opaque(bit.wrapping_neg()))
}

/// The larger of two numbers that are less than 2^63 apart.
#[inline(always)]
pub fn larger(one: i64, other: i64) -> i64 {
    let ahead = one.wrapping_sub(other);
    // All bits of it are the sign.
    let behind = opaque((ahead >> 63) as u64) as i64;
    one.wrapping_sub(ahead & behind)
}

/// The number itself below 2^31, and 0 for others: those are differences below zero.
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
    }
}

//! Access to fields of headers as whole words, at any alignment.
//!
//! On BPF the compiler would read or write octets of a view one by one. The CPUs on which the programs
//! run access unaligned words of packets with one instruction; elsewhere the verifier rejects the
//! program. A word that was written as octets, and is read as a word soon afterwards, makes a CPU wait.

use crate::address::{Address4, Address6};

/// A type that any octets are a value of.
///
/// # Safety
/// No pattern of bits is invalid for it.
pub(crate) unsafe trait Word: Copy {}

// SAFETY: numbers, and octets of addresses.
unsafe impl Word for u16 {}
// SAFETY: as above.
unsafe impl Word for u32 {}
// SAFETY: as above.
unsafe impl Word for Address4 {}
// SAFETY: as above.
unsafe impl Word for Address6 {}

/// A number in network order.
#[inline(always)]
pub fn number16(octets: &[u8; 2]) -> u16 {
    u16::from_be(load(octets))
}

/// A number in network order.
#[inline(always)]
pub fn number32(octets: &[u8; 4]) -> u32 {
    u32::from_be(load(octets))
}

#[inline(always)]
pub fn set_number16(octets: &mut [u8; 2], number: u16) {
    store(octets, number.to_be());
}

/// Two octets as they are, such as a checksum.
#[inline(always)]
pub fn pair(octets: &[u8; 2]) -> [u8; 2] {
    load::<2, u16>(octets).to_ne_bytes()
}

#[inline(always)]
pub fn set_pair(octets: &mut [u8; 2], pair: [u8; 2]) {
    store(octets, u16::from_ne_bytes(pair));
}

/// A link-layer address, as two words.
#[inline(always)]
pub fn link_address(octets: &[u8; 6]) -> [u8; 6] {
    let (first, rest) = parts(octets);
    let [a, b, c, d] = load::<4, u32>(first).to_ne_bytes();
    let [e, f] = load::<2, u16>(rest).to_ne_bytes();
    [a, b, c, d, e, f]
}

#[inline(always)]
pub fn set_link_address(octets: &mut [u8; 6], [a, b, c, d, e, f]: [u8; 6]) {
    // SAFETY: four octets, and two behind them, as in an address.
    let (first, rest) = unsafe {
        let start = octets.as_mut_ptr();
        (&mut *start.cast::<[u8; 4]>(), &mut *start.add(4).cast::<[u8; 2]>())
    };
    store(first, u32::from_ne_bytes([a, b, c, d]));
    store(rest, u16::from_ne_bytes([e, f]));
}

#[inline(always)]
fn parts(octets: &[u8; 6]) -> (&[u8; 4], &[u8; 2]) {
    let start = octets.as_ptr();
    // SAFETY: four octets, and two behind them, as in an address.
    unsafe { (&*start.cast(), &*start.add(4).cast()) }
}

#[inline(always)]
pub(crate) fn load<const N: usize, W: Word>(octets: &[u8; N]) -> W {
    const { assert!(size_of::<W>() == N) };
    let word = octets.as_ptr().cast::<W>();
    // SAFETY: as many octets as the word has, and any are valid; about the alignment see above.
    unsafe { if cfg!(target_arch = "bpf") { word.read() } else { word.read_unaligned() } }
}

#[inline(always)]
pub(crate) fn store<const N: usize, W: Word>(octets: &mut [u8; N], new: W) {
    const { assert!(size_of::<W>() == N) };
    let word = octets.as_mut_ptr().cast::<W>();
    // SAFETY: as in `load`.
    unsafe {
        if cfg!(target_arch = "bpf") {
            word.write(new);
        } else {
            word.write_unaligned(new);
        }
    }
}

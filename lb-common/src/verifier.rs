//! Spells for the kernel's verifier: calls without an effect on what is computed, which compiler or
//! verifier would otherwise know too much, or too little, about.
//!
//! The verifier follows every combination of branches, and each value that it knows as a constant on
//! a path of its own. The compiler rearranges code in ways that the verifier refuses. One spell is a
//! method, because it needs the packet: [`Packet::keep_whole`](crate::datapath::Packet).

/// Returns the number, hidden from the compiler's optimizations: it cannot merge, move or guess it. So it does
/// not combine tests of the number, nor merge the code of two paths.
#[inline(always)]
pub fn opaque(number: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut number = number;
        // SAFETY: copies a register to itself. There must be an instruction: the kernel rejects two
        // lines of source for the same instruction.
        unsafe {
            core::arch::asm!("{0} = {0}", inout(reg) number, options(pure, nomem, nostack));
        }
        number
    }
    #[cfg(not(target_arch = "bpf"))]
    number
}

/// Returns the number, hidden from the compiler and from the verifier by any number that neither of
/// them knows. By addition and subtraction: to the verifier the result is any number, whatever it
/// knew about the first one. Across `^` it would keep that the high bits are 0.
#[inline(always)]
pub fn hide(number: u32, unknown: u32) -> u32 {
    (opaque(u64::from(number.wrapping_add(unknown))) as u32).wrapping_sub(unknown)
}

/// Returns the number in a register of its own, in which the compiler keeps it only where it is used from
/// here on. In a loop it would otherwise keep a value across rounds, and save a register before the first
/// one has written it, which the verifier refuses.
#[inline(always)]
pub fn apart(number: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let copy;
        // SAFETY: copies a register.
        unsafe {
            core::arch::asm!(
                "{0} = {1}",
                out(reg) copy,
                in(reg) number,
                options(pure, nomem, nostack)
            );
        }
        copy
    }
    #[cfg(not(target_arch = "bpf"))]
    number
}

/// Makes the compiler forget what it knows about memory, so that it does not combine two accesses to a packet.
#[inline(always)]
pub fn forget_memory() {
    #[cfg(target_arch = "bpf")]
    {
        let mut number = 0_u64;
        // SAFETY: copies a register to itself; without `nomem`, the compiler assumes that it changes
        // memory.
        unsafe {
            core::arch::asm!("{0} = {0}", inout(reg) number, options(nostack));
        }
        let _ = number;
    }
}

/// Marks what follows it in a branch as rare. The compiler places it apart; so the verifier follows it
/// last, and can skip what comes after the branch, because it has followed that with less knowledge
/// about the packet.
#[inline(always)]
pub fn rarely() {
    #[cfg(target_arch = "bpf")]
    core::intrinsics::cold_path();
}

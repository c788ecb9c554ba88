//! The agent's own memory.

/// Returns free memory to the kernel. Loading the programs and planning all
/// Services take tens of megabytes at the start, which glibc would keep while anything above them is in use.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it releases only unused memory, and may be called at any time.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

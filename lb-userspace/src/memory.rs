//! The agent's own memory.

/// Gives back to the kernel what is free. Reading the programs and all objects takes a hundred
/// megabytes and more, once; glibc would keep them for as long as anything above them is in use.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes only what nothing uses, and may be called at any time.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

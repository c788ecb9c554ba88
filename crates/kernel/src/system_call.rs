//! bpf(2), for commands that aya lacks.

use std::io;

use nix::libc::{SYS_bpf, c_long, syscall};

/// # Safety
/// The memory that the attributes point to must be valid for the command until the call returns.
pub unsafe fn bpf<T>(command: c_long, attributes: &T) -> io::Result<c_long> {
    // SAFETY: `attributes` has the given size; the caller guarantees what it points to.
    let result = unsafe { syscall(SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

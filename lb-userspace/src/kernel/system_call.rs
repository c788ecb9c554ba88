//! bpf(2), for what aya does not do.

use std::io;

use nix::libc::{SYS_bpf, c_long, syscall};

/// # Safety
/// Memory that the attributes name must be as the command expects it until the call has ended.
pub unsafe fn bpf<T>(command: c_long, attributes: &T) -> io::Result<c_long> {
    // SAFETY: the attributes are as long as is said; what they name is the caller's care.
    let result = unsafe { syscall(SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

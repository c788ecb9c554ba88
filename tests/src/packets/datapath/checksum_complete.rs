//! Runs a tc program on a packet with the network card's sum over its bytes (CHECKSUM_COMPLETE),
//! which must stay correct.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Result, bail};
use aya::programs::SchedClassifier;
use nix::libc;

const BPF_PROG_TEST_RUN: i64 = 10;
/// Linux 6.15.
const BPF_F_TEST_SKB_CHECKSUM_COMPLETE: u32 = 1 << 2;

/// The command's part of `union bpf_attr`.
#[repr(C)]
#[derive(Default)]
struct TestRunAttributes {
    program: u32,
    returned: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    reserved: u32,
}

/// Whether the sum is correct at the end; `None`: this kernel does not report it.
pub fn stays_right(
    program: &SchedClassifier,
    frame: &[u8],
    context: &[u8],
) -> Result<Option<bool>> {
    let attributes = TestRunAttributes {
        program: program.fd()?.as_fd().as_raw_fd() as u32,
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat: 1,
        context_size_in: context.len() as u32,
        context_in: context.as_ptr() as u64,
        flags: BPF_F_TEST_SKB_CHECKSUM_COMPLETE,
        ..TestRunAttributes::default()
    };
    let size = size_of::<TestRunAttributes>();
    // SAFETY: the kernel reads frame and context with the given lengths, and writes only to the
    // attributes.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw const attributes, size) };
    if result == 0 {
        return Ok(Some(true));
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EBADMSG) => Ok(Some(false)),
        Some(libc::EINVAL) => Ok(None),
        _ => bail!("the program can't be run: {error}"),
    }
}

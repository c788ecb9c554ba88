//! Access to the arrays of programs for tail calls to stages. aya can't read them.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use anyhow::{Context, Result};
use aya::maps::MapData;
use aya::programs::Program;
use nix::libc::c_long;

use super::system_call::bpf;

const BPF_MAP_LOOKUP_ELEM: c_long = 1;
const BPF_MAP_UPDATE_ELEM: c_long = 2;

/// A pinned array of programs.
pub struct Stages(MapData);

impl Stages {
    pub fn open(pin: &Path) -> Result<Self> {
        Ok(Self(MapData::from_pin(pin).with_context(|| pin.display().to_string())?))
    }

    /// Sets an entry to a program, unless it has it already.
    pub(crate) fn lead_to(&self, index: u32, program: &Program) -> Result<()> {
        if self.program(index)? != Some(program.info()?.id()) {
            let mut descriptor = program.fd()?.as_fd().as_raw_fd() as u32;
            self.call(BPF_MAP_UPDATE_ELEM, index, &mut descriptor)?;
        }
        Ok(())
    }

    /// The id of an entry's program.
    fn program(&self, index: u32) -> io::Result<Option<u32>> {
        let mut id = 0;
        match self.call(BPF_MAP_LOOKUP_ELEM, index, &mut id) {
            Ok(()) => Ok(Some(id)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn call(&self, command: c_long, index: u32, value: &mut u32) -> io::Result<()> {
        #[repr(C)]
        struct Attributes {
            map: u32,
            padding: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let attributes = Attributes {
            map: self.0.fd().as_fd().as_raw_fd() as u32,
            padding: 0,
            key: (&raw const index) as u64,
            value: (&raw mut *value) as u64,
            flags: 0,
        };
        // SAFETY: keys and values of program arrays have four bytes; the kernel reads the key and
        // reads or writes the value, and both live until after the call.
        unsafe { bpf(command, &attributes) }.map(drop)
    }
}

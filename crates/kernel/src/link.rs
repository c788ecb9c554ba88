//! Operations of bpf(2) on links that aya lacks: find out where a link is attached, detach it
//! although others hold it, and replace a control group's program atomically.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc::c_long;

use super::system_call::bpf;

const BPF_OBJ_GET: c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: c_long = 15;
const BPF_LINK_UPDATE: c_long = 29;
const BPF_LINK_DETACH: c_long = 34;

/// The part of `struct bpf_link_info` for control groups and network interfaces.
#[repr(C)]
#[derive(Default)]
struct Information {
    kind: u32,
    id: u32,
    program: u32,
    reserved: u32,
    /// Where it is attached; the layout depends on the kind.
    place: [u8; 8],
    attach_type: u32,
    reserved2: u32,
}

/// A pinned link.
pub struct PinnedLink {
    link: OwnedFd,
}

impl PinnedLink {
    /// `None` if nothing is pinned there.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        #[repr(C)]
        struct Attributes {
            path: u64,
            descriptor: u32,
            flags: u32,
        }
        let path = CString::new(path.as_os_str().as_bytes())?;
        let attributes = Attributes { path: path.as_ptr() as u64, descriptor: 0, flags: 0 };
        // SAFETY: the kernel reads the path, which lives until after the call.
        match unsafe { bpf(BPF_OBJ_GET, &attributes) } {
            // SAFETY: a new descriptor, with no other owner.
            Ok(link) => Ok(Some(Self { link: unsafe { OwnedFd::from_raw_fd(link as i32) } })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The id of the control group that it is attached to: the inode of its directory. 0 if the
    /// control group is gone.
    pub fn cgroup(&self) -> io::Result<u64> {
        Ok(u64::from_ne_bytes(self.information()?.place))
    }

    /// The index of the interface that an XDP or tcx link is attached to; 0 if that is gone.
    pub fn device(&self) -> io::Result<u32> {
        let [a, b, c, d, ..] = self.information()?.place;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// The id of the attached program.
    pub fn program(&self) -> io::Result<u32> {
        Ok(self.information()?.program)
    }

    fn information(&self) -> io::Result<Information> {
        #[repr(C)]
        struct Attributes {
            descriptor: u32,
            length: u32,
            information: u64,
        }
        let mut information = Information::default();
        let attributes = Attributes {
            descriptor: self.link.as_raw_fd() as u32,
            length: size_of::<Information>() as u32,
            information: (&raw mut information) as u64,
        };
        // SAFETY: the kernel writes at most `length` bytes to `information`, which lives until
        // after the call.
        unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &attributes) }?;
        Ok(information)
    }

    /// Afterwards the link is attached nowhere.
    pub(crate) fn detach(&self) -> io::Result<()> {
        #[repr(C)]
        struct Attributes {
            link: u32,
        }
        let attributes = Attributes { link: self.link.as_raw_fd() as u32 };
        // SAFETY: the attributes name no memory.
        unsafe { bpf(BPF_LINK_DETACH, &attributes) }.map(drop)
    }

    /// Replaces the attached program.
    pub fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        #[repr(C)]
        struct Attributes {
            link: u32,
            program: u32,
            flags: u32,
            old_program: u32,
        }
        let attributes = Attributes {
            link: self.link.as_raw_fd() as u32,
            program: program.as_fd().as_raw_fd() as u32,
            flags: 0,
            old_program: 0,
        };
        // SAFETY: the attributes name no memory.
        unsafe { bpf(BPF_LINK_UPDATE, &attributes) }.map(drop)
    }
}

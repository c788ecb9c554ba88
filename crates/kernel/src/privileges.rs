//! The capabilities of the agent and of the Ingress proxy: as few as they need, and fewer once the agent has attached
//! its programs.
//!
//! Capabilities belong to threads. Those dropped before the runtime starts are missing in all its
//! threads. Those needed only for the start are dropped by the main thread later; the other threads
//! never have them.

use std::io;

use anyhow::{Context, Result};
use caps::{CapSet, Capability, CapsHashSet};
use nix::libc;

/// Kept while the agent runs: for maps and links, interfaces and sockets.
const ALWAYS: [Capability; 4] = [
    Capability::CAP_BPF,
    Capability::CAP_NET_ADMIN,
    // For configured ports below 1,024.
    Capability::CAP_NET_BIND_SERVICE,
    // For manifests and a kubeconfig of the user who started it by sudo.
    Capability::CAP_DAC_READ_SEARCH,
];

/// Kept until the programs are attached: for their verification, and to mount the BPF file system.
const AT_THE_START: [Capability; 2] = [Capability::CAP_PERFMON, Capability::CAP_SYS_ADMIN];

/// The embedded API stores its objects in any configured directory.
const FOR_STORAGE: [Capability; 1] = [Capability::CAP_DAC_OVERRIDE];

/// Capabilities of the Ingress proxy: for the configured ports, and a kubeconfig of the user who started it by sudo. It
/// needs none of them if the ports are free for all, or passed to it.
const FOR_PROXY: [Capability; 2] =
    [Capability::CAP_NET_BIND_SERVICE, Capability::CAP_DAC_READ_SEARCH];

/// Capabilities of the thread that starts and ends the Ingress proxy, which runs as another user.
const FOR_SUPERVISOR: [Capability; 3] =
    [Capability::CAP_KILL, Capability::CAP_SETGID, Capability::CAP_SETUID];

/// What a process keeps, and what it keeps until its programs are attached.
#[derive(Clone, Copy, Debug)]
pub struct Privileges {
    always: &'static [&'static [Capability]],
    at_the_start: &'static [Capability],
}

impl Privileges {
    /// The agent alone.
    pub const AGENT: Self = Self { always: &[&ALWAYS], at_the_start: &AT_THE_START };

    /// The agent with the embedded API.
    pub const STANDALONE: Self =
        Self { always: &[&ALWAYS, &FOR_STORAGE], at_the_start: &AT_THE_START };

    /// The Ingress proxy.
    pub const PROXY: Self = Self { always: &[&FOR_PROXY], at_the_start: &[] };

    /// The thread that starts the Ingress proxy.
    pub const SUPERVISOR: Self = Self { always: &[&FOR_SUPERVISOR], at_the_start: &[] };

    /// Drops capabilities at the start, before other threads exist. Child processes get no others, and none at all with
    /// [`give_up_capabilities`]: without SETPCAP the bounding set stays, from which root gets them again.
    pub fn at_the_start(self) -> Result<()> {
        nix::sys::prctl::set_no_new_privs().context("privileges can't be fixed")?;
        if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
            for capability in caps::read(None, CapSet::Bounding)? {
                caps::drop(None, CapSet::Bounding, capability)?;
            }
        }
        keep(self.needed().chain(self.at_the_start.iter().copied()))
    }

    /// Drops this thread's capabilities once the programs are attached.
    pub fn once_attached(self) -> Result<()> {
        keep(self.needed())
    }

    fn needed(self) -> impl Iterator<Item = Capability> {
        self.always.iter().copied().flatten().copied()
    }
}

/// Keeps only these, as far as this thread has them.
fn keep(capabilities: impl Iterator<Item = Capability>) -> Result<()> {
    let wanted: CapsHashSet = capabilities.collect();
    let had = caps::read(None, CapSet::Permitted).context("capabilities can't be read")?;
    let kept = &had & &wanted;
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &kept).context("capabilities can't be given up")?;
    caps::set(None, CapSet::Permitted, &kept).context("capabilities can't be given up")
}

/// Gives up all capabilities of this thread, and what programs get when they are executed. Only makes system calls, so a
/// new process may do it before it executes a program.
pub fn give_up_capabilities() -> io::Result<()> {
    /// _LINUX_CAPABILITY_VERSION_3
    const VERSION: u32 = 0x2008_0522;
    // Two words of each set.
    let (mut header, none) = ([VERSION, 0], [0_u32; 6]);
    // SAFETY: the kernel reads a header and the sets, and writes at most the header's version.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into(),
            libc::syscall(libc::SYS_capset, header.as_mut_ptr(), none.as_ptr()),
        ]
    };
    if results == [0, 0] { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is given up here is given up by a thread of its own.
    fn in_a_thread(check: impl FnOnce() + Send + 'static) {
        std::thread::spawn(check).join().unwrap();
    }

    #[test]
    fn what_is_not_needed_is_gone_for_good() {
        in_a_thread(|| {
            let had = caps::read(None, CapSet::Permitted).unwrap();
            Privileges::AGENT.once_attached().unwrap();
            let allowed: CapsHashSet = ALWAYS.into_iter().collect();
            for set in [CapSet::Permitted, CapSet::Effective] {
                assert_eq!(caps::read(None, set).unwrap(), &had & &allowed, "{set:?}");
            }
            assert!(caps::raise(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).is_err());
        });
    }

    #[test]
    fn an_api_of_its_own_may_store_anywhere() {
        let needed = |privileges: Privileges| privileges.needed().collect::<CapsHashSet>();
        assert!(!needed(Privileges::AGENT).contains(&Capability::CAP_DAC_OVERRIDE));
        assert!(needed(Privileges::STANDALONE).contains(&Capability::CAP_DAC_OVERRIDE));
    }
}

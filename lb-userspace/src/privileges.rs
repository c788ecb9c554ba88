//! What the agent may do, of what root may: as little as it needs, and less once it is attached.
//!
//! Capabilities belong to threads. What is given up before the runtime starts, all its threads lack;
//! what is needed only for the start, the main thread gives up later, and the others never have.

use anyhow::{Context, Result};
use caps::{CapSet, Capability, CapsHashSet};

/// For as long as it runs: maps and links; devices and sockets.
const ALWAYS: [Capability; 4] = [
    Capability::CAP_BPF,
    Capability::CAP_NET_ADMIN,
    // Ports below 1,024, if it is told to serve there.
    Capability::CAP_NET_BIND_SERVICE,
    // Manifests, and a kubeconfig, of whoever started it by sudo.
    Capability::CAP_DAC_READ_SEARCH,
];

/// Until it is attached: programs are verified with what only this allows, and the BPF filesystem may
/// have to be mounted.
const AT_THE_START: [Capability; 2] = [Capability::CAP_PERFMON, Capability::CAP_SYS_ADMIN];

/// An API of its own keeps its objects where it is told, whoever's that is.
const FOR_STORAGE: [Capability; 1] = [Capability::CAP_DAC_OVERRIDE];

#[derive(Clone, Copy, Debug)]
pub struct Privileges {
    storage: bool,
}

impl Privileges {
    /// Of the agent alone.
    pub const AGENT: Self = Self { storage: false };

    /// Of the agent together with an API of its own.
    pub const STANDALONE: Self = Self { storage: true };

    /// Before any thread is started. Programs that it would start get none at all.
    pub fn at_the_start(self) -> Result<()> {
        nix::sys::prctl::set_no_new_privs().context("privileges can't be fixed")?;
        if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
            for capability in caps::read(None, CapSet::Bounding)? {
                caps::drop(None, CapSet::Bounding, capability)?;
            }
        }
        keep(self.needed().chain(AT_THE_START))
    }

    /// Of this thread, once everything is attached.
    pub fn once_attached(self) -> Result<()> {
        keep(self.needed())
    }

    fn needed(self) -> impl Iterator<Item = Capability> {
        ALWAYS.into_iter().chain(self.storage.then_some(FOR_STORAGE).into_iter().flatten())
    }
}

/// Those that this thread has, and no others.
fn keep(capabilities: impl Iterator<Item = Capability>) -> Result<()> {
    let wanted: CapsHashSet = capabilities.collect();
    let had = caps::read(None, CapSet::Permitted).context("capabilities can't be read")?;
    let kept = &had & &wanted;
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &kept).context("capabilities can't be given up")?;
    caps::set(None, CapSet::Permitted, &kept).context("capabilities can't be given up")
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

//! Entries for which a map has no room. Nothing depends on them, so nothing waits for them. They
//! are tried again whenever there may be room.

use std::collections::BTreeMap;

use anyhow::Result;
use lb_common::layout::map;
use lb_plan::{FrontendKey, SideEntry, Step};
use nix::errno::Errno;

/// The key of an entry that no other entry refers to, so that the rest can be written without it. Steps of all
/// others keep those after them waiting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OptionalEntry {
    Frontend(FrontendKey),
    /// The entry of an address itself, which refuses ports without entries: written after those of all ports.
    Address(FrontendKey),
    /// See [`SideEntry::key`].
    SideEntry(SideEntry),
}

impl OptionalEntry {
    /// The entry that a step writes or removes, if it is optional.
    pub fn of(step: &Step) -> Option<Self> {
        match step {
            Step::SetFrontend { key, .. } | Step::RemoveFrontend { key } => {
                Some(Self::of_frontend(*key))
            }
            Step::SetSideEntry(side_entry) | Step::RemoveSideEntry(side_entry) => {
                Some(Self::SideEntry(side_entry.key()))
            }
            _ => None,
        }
    }

    pub(crate) fn of_frontend(key: FrontendKey) -> Self {
        if key == FrontendKey::of_address(key.address) {
            Self::Address(key)
        } else {
            Self::Frontend(key)
        }
    }

    /// The map that contains it.
    pub fn map(&self) -> &'static str {
        match self {
            Self::Frontend(key) | Self::Address(key) if key.address.is_ipv4() => map::FRONTENDS4,
            Self::Frontend(_) | Self::Address(_) => map::FRONTENDS6,
            Self::SideEntry(key) => key.map(),
        }
    }
}

/// The steps that would write the entries, by map.
#[derive(Default)]
pub(crate) struct SetAside {
    steps: BTreeMap<&'static str, BTreeMap<OptionalEntry, Step>>,
    /// Entries not returned by `take_new` yet.
    new: Vec<OptionalEntry>,
}

impl SetAside {
    /// Keeps a step for which there is no room.
    pub fn add(&mut self, entry: OptionalEntry, step: Step, is_new: bool) {
        if is_new {
            self.new.push(entry.clone());
        }
        self.steps.entry(entry.map()).or_default().insert(entry, step);
    }

    /// Returns whether the entry was set aside.
    pub fn remove(&mut self, entry: &OptionalEntry) -> bool {
        let Some(steps) = self.steps.get_mut(entry.map()) else { return false };
        let removed = steps.remove(entry).is_some();
        if steps.is_empty() {
            self.steps.remove(entry.map());
        }
        removed
    }

    /// Executes as many steps as there is room for, map by map, in the order of their entries.
    pub fn retry(&mut self, mut apply: impl FnMut(&Step) -> Result<()>) -> Result<()> {
        for steps in self.steps.values_mut() {
            while let Some(first) = steps.first_entry() {
                match apply(first.get()) {
                    Ok(()) => drop(first.remove()),
                    Err(error) if is_full(&error) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        self.steps.retain(|_, steps| !steps.is_empty());
        Ok(())
    }

    pub fn entries(&self) -> impl Iterator<Item = &OptionalEntry> {
        self.steps.values().flat_map(BTreeMap::keys)
    }

    /// How many entries are set aside, by map.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.steps.iter().map(|(map, steps)| (*map, steps.len()))
    }

    /// Entries added since the last call that are still set aside.
    pub(crate) fn take_new(&mut self) -> Vec<OptionalEntry> {
        let mut new = std::mem::take(&mut self.new);
        new.retain(|entry| self.steps.get(entry.map()).is_some_and(|s| s.contains_key(entry)));
        new
    }
}

/// Whether a map refused a new entry because it is full: hash maps return E2BIG, tries ENOSPC.
/// Existing entries can be updated in a full map, except in tries before Linux 6.13.
pub fn is_full(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let cause = cause.downcast_ref::<std::io::Error>();
        let number = cause.and_then(std::io::Error::raw_os_error);
        number == Some(Errno::E2BIG as i32) || number == Some(Errno::ENOSPC as i32)
    })
}

#[cfg(test)]
mod tests {
    use lb_common::layout::TunnelTarget;

    use super::*;

    /// A target has one backend. The step for the one before would undo the change.
    #[test]
    fn of_two_values_of_an_entry_the_last_is_kept() {
        let target = TunnelTarget { service_port: 1, tag: 7 };
        let step = |backend| Step::SetSideEntry(SideEntry::Target { target, backend });
        let mut set_aside = SetAside::default();
        for backend in [1, 0] {
            let entry = OptionalEntry::of(&step(backend)).unwrap();
            set_aside.remove(&entry);
            set_aside.add(entry, step(backend), true);
        }
        let mut written = Vec::new();
        let write = |step: &Step| {
            written.push(format!("{step:?}"));
            Ok(())
        };
        set_aside.retry(write).unwrap();
        assert_eq!(written, [format!("{:?}", step(0))]);
    }
}

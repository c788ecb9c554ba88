//! Entries for which a map has no room. Nothing depends on them, so nothing waits for them. They
//! are tried again whenever there may be room.

use std::collections::BTreeMap;

use anyhow::Result;
use ipnet::IpNet;
use lb_common::layout::{EarlierOwners, map};
use lb_common::maglev::DEFAULT_WEIGHT;
use lb_plan::{FrontendKey, SideEntry, Step};
use nix::errno::Errno;

/// An entry that may be set aside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    Frontend(FrontendKey),
    SideEntry(SideEntry),
}

impl Entry {
    /// The entry that a step writes or removes.
    pub fn of(step: &Step) -> Option<Self> {
        match step {
            Step::SetFrontend { key, .. } | Step::RemoveFrontend { key } => {
                Some(Self::Frontend(*key))
            }
            // Its value is no part of the key.
            Step::SetSideEntry(SideEntry::Earlier { slot, .. })
            | Step::RemoveSideEntry(SideEntry::Earlier { slot, .. }) => {
                Some(Self::SideEntry(SideEntry::Earlier {
                    slot: *slot,
                    owners: EarlierOwners::default(),
                }))
            }
            Step::SetSideEntry(SideEntry::Weight { member, .. })
            | Step::RemoveSideEntry(SideEntry::Weight { member, .. }) => {
                let (member, weight) = (*member, DEFAULT_WEIGHT);
                Some(Self::SideEntry(SideEntry::Weight { member, weight }))
            }
            Step::SetSideEntry(side_entry) | Step::RemoveSideEntry(side_entry) => {
                Some(Self::SideEntry(side_entry.clone()))
            }
            _ => None,
        }
    }

    /// The map that contains it.
    pub fn map(&self) -> &'static str {
        match self {
            Self::Frontend(key) if key.address.is_ipv4() => map::FRONTENDS4,
            Self::Frontend(_) => map::FRONTENDS6,
            Self::SideEntry(SideEntry::Member(_)) => map::MEMBERS,
            Self::SideEntry(SideEntry::Weight { .. }) => map::WEIGHTS,
            Self::SideEntry(SideEntry::Target { .. }) => map::TARGETS,
            Self::SideEntry(SideEntry::Peer(_)) => map::PEERS,
            Self::SideEntry(SideEntry::Earlier { .. }) => map::EARLIER_OWNERS,
            Self::SideEntry(SideEntry::Name { .. }) => map::SERVICE_NAMES,
            Self::SideEntry(SideEntry::SourceRange { range: IpNet::V4(_), .. }) => {
                map::SOURCE_RANGES4
            }
            Self::SideEntry(SideEntry::SourceRange { range: IpNet::V6(_), .. }) => {
                map::SOURCE_RANGES6
            }
        }
    }
}

/// The steps that would write the entries, by map.
#[derive(Default)]
pub(crate) struct SetAside {
    steps: BTreeMap<&'static str, BTreeMap<Entry, Step>>,
    /// Entries not returned by `take_new` yet.
    new: Vec<Entry>,
}

impl SetAside {
    /// Keeps a step for which there is no room.
    pub fn add(&mut self, entry: Entry, step: Step, is_new: bool) {
        if is_new {
            self.new.push(entry.clone());
        }
        self.steps.entry(entry.map()).or_default().insert(entry, step);
    }

    /// Returns whether the entry was set aside.
    pub fn remove(&mut self, entry: &Entry) -> bool {
        let Some(steps) = self.steps.get_mut(entry.map()) else { return false };
        let removed = steps.remove(entry).is_some();
        if steps.is_empty() {
            self.steps.remove(entry.map());
        }
        removed
    }

    /// Executes as many steps as there is room for, map by map.
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

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.steps.values().flat_map(BTreeMap::keys)
    }

    /// How many entries are set aside, by map.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.steps.iter().map(|(map, steps)| (*map, steps.len()))
    }

    /// Entries added since the last call that are still set aside.
    pub(crate) fn take_new(&mut self) -> Vec<Entry> {
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

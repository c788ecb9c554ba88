//! Entries for which a map has no room. Nothing depends on them, so nothing waits for them. They
//! are tried again whenever there may be room.

use std::collections::BTreeMap;

use anyhow::Result;
use ipnet::IpNet;
use lb_common::layout::{EarlierOwners, map};
use lb_common::maglev::DEFAULT_WEIGHT;
use lb_plan::{Detail, FrontendKey, Step};
use nix::errno::Errno;

/// An entry that may be set aside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    Frontend(FrontendKey),
    Detail(Detail),
}

impl Entry {
    /// The entry that a step writes or removes.
    pub fn of(step: &Step) -> Option<Self> {
        match step {
            Step::SetFrontend { key, .. } | Step::RemoveFrontend { key } => {
                Some(Self::Frontend(*key))
            }
            // Its value is no part of the key.
            Step::SetDetail(Detail::Earlier { slot, .. })
            | Step::RemoveDetail(Detail::Earlier { slot, .. }) => {
                Some(Self::Detail(Detail::Earlier {
                    slot: *slot,
                    owners: EarlierOwners::default(),
                }))
            }
            Step::SetDetail(Detail::Weight { member, .. })
            | Step::RemoveDetail(Detail::Weight { member, .. }) => {
                let (member, weight) = (*member, DEFAULT_WEIGHT);
                Some(Self::Detail(Detail::Weight { member, weight }))
            }
            Step::SetDetail(detail) | Step::RemoveDetail(detail) => {
                Some(Self::Detail(detail.clone()))
            }
            _ => None,
        }
    }

    /// The map that contains it.
    pub fn map(&self) -> &'static str {
        match self {
            Self::Frontend(key) if key.address.is_ipv4() => map::FRONTENDS4,
            Self::Frontend(_) => map::FRONTENDS6,
            Self::Detail(Detail::Member(_)) => map::MEMBERS,
            Self::Detail(Detail::Weight { .. }) => map::WEIGHTS,
            Self::Detail(Detail::Target { .. }) => map::TARGETS,
            Self::Detail(Detail::Peer(_)) => map::PEERS,
            Self::Detail(Detail::Earlier { .. }) => map::EARLIER_OWNERS,
            Self::Detail(Detail::Name { .. }) => map::SERVICE_NAMES,
            Self::Detail(Detail::SourceRange { range: IpNet::V4(_), .. }) => map::SOURCE_RANGES4,
            Self::Detail(Detail::SourceRange { range: IpNet::V6(_), .. }) => map::SOURCE_RANGES6,
        }
    }
}

/// The steps that would write the entries, by map.
#[derive(Default)]
pub struct SetAside {
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
    pub fn take_new(&mut self) -> Vec<Entry> {
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

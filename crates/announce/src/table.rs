//! Tables of participants: for which addresses each is a candidate, and which it holds.
//!
//! A table has a version, which each changed row increments. A participant sends the rows that
//! changed since the version that the others have. So messages are short while nothing changes, and
//! the next message makes up for a lost one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::identity::CandidateRank;
use super::wire::{TableChanges, TableRow};

/// The most addresses of a link that are announced. Of more, all participants leave out the same
/// ones: the last in the order of addresses. The tables of so many IPv6 addresses arrive while a new
/// participant listens ([`super::timing::ElectionTiming::max_listening_time`]).
pub const MAX_ADDRESSES: usize = 16_384;

/// The most empty rows: those of addresses for which this participant is no longer a candidate, and
/// which it no longer holds.
const MAX_EMPTY_ROWS: usize = 1_024;

/// The most rows of another participant. It may send so many, so that none is missing: candidates
/// that a participant does not know of would be two holders of an address. Beside its addresses and
/// empty rows, it may still hold some addresses that it does not want any more.
pub(crate) const MAX_TABLE_ROWS: usize = MAX_ADDRESSES + 2 * MAX_EMPTY_ROWS;

/// The most messages that are accepted before the ones they follow.
const MAX_MESSAGES_AHEAD: usize = 32;

/// The upper half of a version is the generation. It changes when the table is rebuilt without its
/// empty rows.
const VERSIONS_PER_GENERATION: u64 = 1 << 32;

/// Content of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowContent {
    pub rank: CandidateRank,
    /// The epoch in which the participant holds the address.
    pub holds: Option<u32>,
}

/// The table of this participant.
#[derive(Clone, Debug)]
pub(crate) struct OwnTable {
    rows: BTreeMap<IpAddr, (RowContent, u64)>,
    /// Addresses in the order of their last change.
    order: BTreeMap<u64, IpAddr>,
    version: u64,
    empty: usize,
}

impl Default for OwnTable {
    fn default() -> Self {
        Self {
            rows: BTreeMap::new(),
            order: BTreeMap::new(),
            version: VERSIONS_PER_GENERATION,
            empty: 0,
        }
    }
}

impl OwnTable {
    pub(crate) fn current_version(&self) -> u64 {
        self.version
    }

    /// Whether all rows are empty.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == self.empty
    }

    /// The addresses of rows that are not empty.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let present = self.rows.iter().filter(|(_, (entry, _))| *entry != RowContent::default());
        present.map(|(address, _)| *address)
    }

    pub(crate) fn published_rank(&self, address: IpAddr) -> CandidateRank {
        self.rows.get(&address).map(|(entry, _)| entry.rank).unwrap_or_default()
    }

    /// Returns whether this is a change.
    pub(crate) fn set_row(&mut self, address: IpAddr, entry: RowContent) -> bool {
        let before = self.rows.get(&address).copied();
        let old = before.map(|(entry, _)| entry).unwrap_or_default();
        if old == entry {
            return false;
        }
        if let Some((old, changed)) = before {
            self.order.remove(&changed);
            self.empty -= usize::from(old == RowContent::default());
        }
        self.version += 1;
        self.order.insert(self.version, address);
        self.rows.insert(address, (entry, self.version));
        self.empty += usize::from(entry == RowContent::default());
        if self.empty > MAX_EMPTY_ROWS {
            self.start_generation();
        }
        true
    }

    /// Starts a new generation without the empty rows.
    fn start_generation(&mut self) {
        self.version = (self.version / VERSIONS_PER_GENERATION + 1) * VERSIONS_PER_GENERATION;
        self.rows.retain(|_, (entry, _)| *entry != RowContent::default());
        self.empty = 0;
        self.order.clear();
        for (address, (_, changed)) in &mut self.rows {
            self.version += 1;
            *changed = self.version;
            self.order.insert(self.version, *address);
        }
    }

    /// The first changes since a version, as many as fit.
    pub(crate) fn changes_since(&self, since: u64, room: usize) -> TableChanges {
        // A receiver that has a version of an older generation gets the whole table.
        let since = since.max(self.version / VERSIONS_PER_GENERATION * VERSIONS_PER_GENERATION);
        let mut changes = TableChanges { since, until: self.version, rows: Vec::new() };
        let mut used = 0;
        let mut last = since;
        for (&changed, &address) in self.order.range(since + 1..) {
            let (RowContent { rank, holds }, _) = self.rows[&address];
            let row = TableRow { address, rank, holds };
            used += row.length();
            if used > room {
                changes.until = last;
                break;
            }
            changes.rows.push(row);
            last = changed;
        }
        changes
    }
}

/// What a message may have changed in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AppliedChanges {
    pub rows: bool,
    /// For which addresses the participant is a candidate.
    pub ranks: bool,
}

/// The table of another participant, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerTable {
    rows: BTreeMap<IpAddr, (RowContent, u64)>,
    /// The addresses that the participant says it holds, with their epochs.
    held: BTreeMap<IpAddr, u32>,
    version: u64,
    /// The version of the whole table, according to the participant's messages.
    newest: u64,
    /// Changes that arrived before the ones they follow: `since` and `until` of each.
    ahead: Vec<(u64, u64)>,
    /// Addresses that were taken from the participant while it could not defend them.
    taken: BTreeSet<IpAddr>,
}

impl PeerTable {
    /// The version up to which the table is known.
    pub(crate) fn known_version(&self) -> u64 {
        self.version
    }

    pub fn is_complete(&self) -> bool {
        self.version == self.newest
    }

    /// The version of the whole table, according to the participant's latest message.
    pub(crate) fn set_newest(&mut self, newest: u64) {
        self.newest = newest;
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// For which addresses the participant is a candidate.
    pub(crate) fn candidacies(&self) -> impl Iterator<Item = (IpAddr, CandidateRank)> {
        let ranks = self.rows.iter().map(|(address, (entry, _))| (*address, entry.rank));
        ranks.filter(|(_, rank)| *rank != CandidateRank::None)
    }

    pub(crate) fn candidate_rank(&self, address: IpAddr) -> CandidateRank {
        self.rows.get(&address).map(|(entry, _)| entry.rank).unwrap_or_default()
    }

    /// Which addresses the participant holds, and in which epochs.
    pub(crate) fn held_epochs(&self) -> impl Iterator<Item = (IpAddr, u32)> {
        let held = self.held.iter().filter(|(address, _)| !self.taken.contains(address));
        held.map(|(address, epoch)| (*address, *epoch))
    }

    /// The addresses that the participant says it holds, including those that were taken from it.
    pub(crate) fn claimed_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.held.keys().copied()
    }

    pub(crate) fn claims_address(&self, address: IpAddr) -> bool {
        self.held.contains_key(&address)
    }

    /// Notes that an address was taken from the participant, which cannot defend it.
    pub(crate) fn mark_taken(&mut self, address: IpAddr) {
        self.taken.insert(address);
    }

    /// The participant is back, and all addresses that it says it holds count again. It does not
    /// repeat them, because it sends only changes.
    pub(crate) fn restore_taken(&mut self) {
        self.taken.clear();
    }

    /// The participant has a new process. The rows of the earlier one count until the new process
    /// has sent its whole table.
    pub(crate) fn expect_whole_table(&mut self) {
        self.version = 0;
        self.newest = 0;
        self.ahead.clear();
        self.rows.values_mut().for_each(|(_, version)| *version = 0);
        for address in std::mem::take(&mut self.taken) {
            self.held.remove(&address);
            if let Some((entry, _)) = self.rows.get_mut(&address) {
                entry.holds = None;
            }
        }
    }

    /// Returns what may have changed. Messages may arrive in any order: each row remembers
    /// the version of the message that it came with, and an older one does not replace it.
    pub fn apply_changes(&mut self, newest: u64, changes: &TableChanges) -> AppliedChanges {
        let mut applied = AppliedChanges::default();
        let generation = changes.since / VERSIONS_PER_GENERATION;
        if generation < self.version / VERSIONS_PER_GENERATION {
            return applied;
        }
        if generation > self.version / VERSIONS_PER_GENERATION {
            self.version = generation * VERSIONS_PER_GENERATION;
            self.ahead.clear();
        }
        self.newest = newest.max(self.newest);
        let (since, until) = (changes.since, changes.until);
        if until <= self.version && self.version != generation * VERSIONS_PER_GENERATION {
            return applied;
        }
        if since > self.version {
            if self.ahead.len() >= MAX_MESSAGES_AHEAD {
                return applied;
            }
            self.ahead.push((since, until));
        }
        applied.rows = true;
        let mut is_whole = true;
        for row in &changes.rows {
            match self.apply_row(row, until) {
                Some(changed) => applied.ranks |= changed,
                None => is_whole = false,
            }
        }
        if !is_whole {
            // There is no room for all of it: it counts as not received, and is sent again.
            self.ahead.retain(|ahead| *ahead != (since, until));
        } else if since <= self.version {
            self.version = until.max(self.version);
            self.apply_messages_ahead();
        }
        if self.is_complete() {
            // Drops rows of an earlier generation or process that this one has not confirmed.
            self.rows.retain(|address, (entry, version)| {
                let is_current = *version / VERSIONS_PER_GENERATION == generation;
                if !is_current {
                    applied.ranks |= entry.rank != CandidateRank::None;
                    self.held.remove(address);
                }
                is_current && *entry != RowContent::default()
            });
        }
        applied
    }

    /// Returns whether the rank has changed; `None`: there is no room.
    fn apply_row(&mut self, row: &TableRow, until: u64) -> Option<bool> {
        let before = self.rows.get(&row.address).copied();
        match before {
            None if self.rows.len() >= MAX_TABLE_ROWS => return None,
            Some((_, version)) if version > until => return Some(false),
            _ => {}
        }
        let entry = RowContent { rank: row.rank, holds: row.holds };
        self.rows.insert(row.address, (entry, until));
        match row.holds {
            Some(epoch) => drop(self.held.insert(row.address, epoch)),
            None => drop(self.held.remove(&row.address)),
        }
        Some(before.map(|(entry, _)| entry.rank).unwrap_or_default() != row.rank)
    }

    /// Advances the version over changes that arrived before the ones they follow.
    fn apply_messages_ahead(&mut self) {
        while let Some(next) = self.ahead.iter().position(|(since, _)| *since <= self.version) {
            let (_, until) = self.ahead.swap_remove(next);
            self.version = until.max(self.version);
        }
    }
}

#[cfg(test)]
mod tests;

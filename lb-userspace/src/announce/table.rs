//! Tables of participants: for which addresses each is a candidate, and which it holds.
//!
//! A table has a version, which each changed row increments. A participant sends the rows that
//! changed since the version that the others have; so a message says little in a quiet network,
//! and the loss of one is made good by the next.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::identity::Rank;
use super::wire::{Changes, Row};

/// Rows of one participant at most; further ones are ignored.
pub const MOST_ROWS: usize = 8_192;

/// Rows about addresses with which this participant has nothing to do anymore.
const MOST_EMPTY: usize = 1_024;

/// Messages that arrived before their turn.
const MOST_AHEAD: usize = 32;

/// The upper half of a version changes when the table is written anew, without old empty rows.
const GENERATION: u64 = 1 << 32;

/// Content of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub rank: Rank,
    /// The epoch in which the participant holds the address.
    pub holds: Option<u32>,
}

/// The table of this participant.
#[derive(Clone, Debug)]
pub struct OwnTable {
    rows: BTreeMap<IpAddr, (Entry, u64)>,
    /// Addresses in the order of their last change.
    order: BTreeMap<u64, IpAddr>,
    version: u64,
    empty: usize,
}

impl Default for OwnTable {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), order: BTreeMap::new(), version: GENERATION, empty: 0 }
    }
}

impl OwnTable {
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether it has only rows about addresses with which this participant has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == self.empty
    }

    /// Of rows that are not empty.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let present = self.rows.iter().filter(|(_, (entry, _))| *entry != Entry::default());
        present.map(|(address, _)| *address)
    }

    /// Returns whether this is a change.
    pub fn set(&mut self, address: IpAddr, entry: Entry) -> bool {
        let before = self.rows.get(&address).copied();
        let old = before.map(|(entry, _)| entry).unwrap_or_default();
        if old == entry {
            return false;
        }
        if let Some((old, changed)) = before {
            self.order.remove(&changed);
            self.empty -= usize::from(old == Entry::default());
        }
        self.version += 1;
        self.order.insert(self.version, address);
        self.rows.insert(address, (entry, self.version));
        self.empty += usize::from(entry == Entry::default());
        if self.empty > MOST_EMPTY {
            self.renew();
        }
        true
    }

    /// Starts a new generation without the empty rows.
    fn renew(&mut self) {
        self.version = (self.version / GENERATION + 1) * GENERATION;
        self.rows.retain(|_, (entry, _)| *entry != Entry::default());
        self.empty = 0;
        self.order.clear();
        for (address, (_, changed)) in &mut self.rows {
            self.version += 1;
            *changed = self.version;
            self.order.insert(self.version, *address);
        }
    }

    /// The first changes since a version, as many as fit.
    pub fn changes(&self, since: u64, room: usize) -> Changes {
        // What is older than this generation starts over.
        let since = since.max(self.version / GENERATION * GENERATION);
        let mut changes = Changes { since, until: self.version, rows: Vec::new() };
        let mut used = 0;
        let mut last = since;
        for (&changed, &address) in self.order.range(since + 1..) {
            let (Entry { rank, holds }, _) = self.rows[&address];
            let row = Row { address, rank, holds };
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

/// The table of another participant, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct PeerTable {
    rows: BTreeMap<IpAddr, (Entry, u64)>,
    version: u64,
    /// Of the participant's messages.
    newest: u64,
    /// Changes that arrived before their turn: from which version to which.
    ahead: Vec<(u64, u64)>,
    /// Addresses that were taken from the participant while it could not defend them.
    taken: BTreeSet<IpAddr>,
}

impl PeerTable {
    /// How much of it is known.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn is_complete(&self) -> bool {
        self.version == self.newest
    }

    /// The version that the participant's latest message says it has.
    pub fn set_newest(&mut self, newest: u64) {
        self.newest = newest;
    }

    pub fn rows(&self) -> impl Iterator<Item = (IpAddr, Entry)> {
        self.rows
            .iter()
            .map(|(address, (entry, _))| (*address, self.without_taken(*address, *entry)))
    }

    pub fn get(&self, address: IpAddr) -> Entry {
        let entry = self.rows.get(&address).map(|(entry, _)| *entry).unwrap_or_default();
        self.without_taken(address, entry)
    }

    /// What the participant says it holds, even if it was taken from it.
    pub fn claimed(&self) -> impl Iterator<Item = IpAddr> {
        let claimed = self.rows.iter().filter(|(_, (entry, _))| entry.holds.is_some());
        claimed.map(|(address, _)| *address)
    }

    pub fn claims(&self, address: IpAddr) -> bool {
        self.rows.get(&address).is_some_and(|(entry, _)| entry.holds.is_some())
    }

    fn without_taken(&self, address: IpAddr, entry: Entry) -> Entry {
        if self.taken.contains(&address) { Entry { holds: None, ..entry } } else { entry }
    }

    /// The participant has lost an address that it cannot defend.
    pub fn take_from(&mut self, address: IpAddr) {
        self.taken.insert(address);
    }

    /// The participant is back, and what it says it holds counts again: it sends only changes.
    pub fn give_back(&mut self) {
        self.taken.clear();
    }

    /// The participant has started again. What it had is believed until it says otherwise.
    pub fn start_over(&mut self) {
        self.version = 0;
        self.newest = 0;
        self.ahead.clear();
        let taken = std::mem::take(&mut self.taken);
        for (address, (entry, version)) in &mut self.rows {
            *version = 0;
            if taken.contains(address) {
                entry.holds = None;
            }
        }
    }

    /// Returns whether rows may have changed. Messages may arrive in any order: each row remembers
    /// the version of the message that it came with, and an older one does not replace it.
    pub fn apply(&mut self, newest: u64, changes: &Changes) -> bool {
        let generation = changes.since / GENERATION;
        if generation < self.version / GENERATION {
            return false;
        }
        if generation > self.version / GENERATION {
            self.version = generation * GENERATION;
            self.ahead.clear();
        }
        self.newest = newest.max(self.newest);
        let (since, until) = (changes.since, changes.until);
        if until <= self.version && self.version != generation * GENERATION {
            return false;
        }
        if since > self.version {
            if self.ahead.len() >= MOST_AHEAD {
                return false;
            }
            self.ahead.push((since, until));
        }
        for row in &changes.rows {
            let entry = Entry { rank: row.rank, holds: row.holds };
            let is_known = self.rows.get(&row.address).map(|(_, version)| *version);
            if is_known.map_or(self.rows.len() < MOST_ROWS, |version| version <= until) {
                self.rows.insert(row.address, (entry, until));
            }
        }
        if since <= self.version {
            self.version = until.max(self.version);
            self.catch_up();
        }
        if self.is_complete() {
            // Of an earlier generation or process, and not confirmed by this one.
            let is_current = |version: u64| version / GENERATION == generation;
            self.rows
                .retain(|_, (entry, version)| is_current(*version) && *entry != Entry::default());
        }
        true
    }

    /// Continues with what arrived before its turn.
    fn catch_up(&mut self) {
        while let Some(next) = self.ahead.iter().position(|(since, _)| *since <= self.version) {
            let (_, until) = self.ahead.swap_remove(next);
            self.version = until.max(self.version);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn address(number: u16) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + u32::from(number)).into()
    }

    fn held(epoch: u32) -> Entry {
        Entry { rank: Rank::Candidate, holds: Some(epoch) }
    }

    fn known(table: &PeerTable) -> Vec<(IpAddr, Entry)> {
        table.rows().collect()
    }

    fn own(table: &OwnTable) -> Vec<(IpAddr, Entry)> {
        let rows = table.rows.iter().map(|(address, (entry, _))| (*address, *entry));
        rows.filter(|(_, entry)| *entry != Entry::default()).collect()
    }

    #[test]
    fn a_thousand_addresses_arrive_in_parts_that_fit() {
        let mut table = OwnTable::default();
        for number in 0..1_000 {
            table.set(address(number), held(1));
        }
        let mut copy = PeerTable::default();
        let mut parts = 0;
        while copy.version() != table.version() {
            let changes = table.changes(copy.version(), 1_000);
            assert!(changes.rows.iter().map(Row::length).sum::<usize>() <= 1_000);
            assert!(copy.apply(table.version(), &changes));
            parts += 1;
        }
        assert_eq!(parts, 10);
        assert_eq!(known(&copy), own(&table));
    }

    #[test]
    fn a_sender_of_ever_new_addresses_takes_bounded_memory() {
        let mut copy = PeerTable::default();
        for number in 0..100_000_u32 {
            let row =
                Row { address: Ipv4Addr::from(number).into(), rank: Rank::Candidate, holds: None };
            let since = if number == 0 { GENERATION } else { GENERATION + u64::from(number) };
            let until = since + 1;
            copy.apply(until + 1, &Changes { since, until, rows: vec![row] });
        }
        assert_eq!(copy.rows().count(), MOST_ROWS);
    }

    #[test]
    fn empty_rows_of_a_sender_are_bounded() {
        let mut table = OwnTable::default();
        let mut copy = PeerTable::default();
        for number in 0..20_000_u16 {
            table.set(address(number), held(1));
            table.set(address(number), Entry::default());
            assert!(table.rows.len() <= MOST_EMPTY + 1);
            copy.apply(table.version(), &table.changes(copy.version(), 1_000));
        }
        assert!(known(&copy).is_empty());
    }

    #[test]
    fn what_was_taken_from_a_participant_counts_again_when_it_is_back() {
        let mut table = OwnTable::default();
        table.set(address(1), held(1));
        table.set(address(2), held(1));
        let mut copy = PeerTable::default();
        copy.apply(table.version(), &table.changes(0, 1_000));
        copy.take_from(address(1));
        let taken = Entry { rank: Rank::Candidate, holds: None };
        assert_eq!(known(&copy), [(address(1), taken), (address(2), held(1))]);
        assert_eq!(copy.get(address(1)), taken);
        copy.give_back();
        assert_eq!(known(&copy), own(&table));
        // Not of a process that has ended.
        copy.take_from(address(1));
        copy.start_over();
        copy.give_back();
        assert_eq!(copy.get(address(1)), taken);
    }

    #[derive(Clone, Debug)]
    enum Do {
        Set(u16, Entry),
        /// A message with the changes since an older version, which may be lost.
        Send(u64, bool),
        Restart,
    }

    #[test]
    fn messages_in_any_order_make_a_complete_copy() {
        let mut table = OwnTable::default();
        for number in 0..100 {
            table.set(address(number), held(1));
        }
        let mut parts = Vec::new();
        let mut since = 0;
        while since != table.version() {
            parts.push((table.version(), table.changes(since, 100)));
            since = parts[parts.len() - 1].1.until;
        }
        table.set(address(3), held(2));
        parts.push((table.version(), table.changes(since, 100)));
        let mut copy = PeerTable::default();
        parts.iter().rev().for_each(|(newest, changes)| assert!(copy.apply(*newest, changes)));
        assert!(copy.is_complete());
        assert_eq!(known(&copy), own(&table));
    }

    fn deeds() -> impl Strategy<Value = Vec<Do>> {
        let entry = prop_oneof![Just(Entry::default()), (0_u32..3).prop_map(held)];
        let deed = prop_oneof![
            6 => (0_u16..20, entry).prop_map(|(number, entry)| Do::Set(number, entry)),
            4 => (0_u64..5, any::<bool>()).prop_map(|(older, lost)| Do::Send(older, lost)),
            1 => Just(Do::Restart),
        ];
        prop::collection::vec(deed, 0..200)
    }

    proptest! {
        #[test]
        fn a_copy_that_is_complete_is_right(deeds in deeds(), room in 20_usize..200) {
            let mut table = OwnTable::default();
            let mut copy = PeerTable::default();
            for deed in deeds {
                match deed {
                    Do::Set(number, entry) => drop(table.set(address(number), entry)),
                    Do::Send(older, lost) => {
                        let changes = table.changes(copy.version().saturating_sub(older), room);
                        if !lost {
                            copy.apply(table.version(), &changes);
                        }
                    }
                    Do::Restart => {
                        table = OwnTable::default();
                        copy.start_over();
                    }
                }
                if copy.is_complete() && copy.version() == table.version() {
                    prop_assert_eq!(known(&copy), own(&table));
                }
            }
        }
    }
}

//! Services that wait for an address, by what they wait for: a freed address is offered to those that it may serve.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};

use super::ledger::SearchStart;
use super::pools::PoolIndex;
use crate::model::AddressFamily;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WaitCause {
    /// A pool has no free address of a family.
    Exhausted(PoolIndex, AddressFamily),
    /// Another Service has the address.
    Taken(IpAddr),
}

#[derive(Debug, Default)]
pub(crate) struct WaitingServices {
    by_cause: BTreeMap<WaitCause, BTreeSet<SearchStart>>,
    causes: BTreeMap<SearchStart, Vec<WaitCause>>,
}

impl WaitingServices {
    pub fn set(&mut self, turn: &SearchStart, causes: Vec<WaitCause>) {
        self.remove(turn);
        for cause in &causes {
            self.by_cause.entry(*cause).or_default().insert(turn.clone());
        }
        if !causes.is_empty() {
            self.causes.insert(turn.clone(), causes);
        }
    }

    pub fn remove(&mut self, turn: &SearchStart) {
        for cause in self.causes.remove(turn).into_iter().flatten() {
            if let Some(turns) = self.by_cause.get_mut(&cause) {
                turns.remove(turn);
                if turns.is_empty() {
                    self.by_cause.remove(&cause);
                }
            }
        }
    }

    pub fn contains(&self, turn: &SearchStart) -> bool {
        self.causes.contains_key(turn)
    }

    pub(crate) fn for_cause(&self, cause: WaitCause) -> impl Iterator<Item = &SearchStart> {
        self.by_cause.get(&cause).into_iter().flatten()
    }

    /// The next one in turn that waits for this.
    pub fn next(&self, cause: WaitCause, after: Option<&SearchStart>) -> Option<&SearchStart> {
        let turns = self.by_cause.get(&cause)?;
        match after {
            Some(after) => turns.range((Excluded(after), Unbounded)).next(),
            None => turns.first(),
        }
    }

    /// Indexes of pools are of no use any more: all are evaluated again.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

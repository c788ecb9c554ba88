//! Which object holds which address or port.
//!
//! Not stored: computed from the objects at every start.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, bail};

use super::super::kinds::{self, Allocations, Kind, Ranges, Resource};
use super::super::storage::{Key, Storage, Stored, Transaction};
use super::prefix;

#[derive(Debug)]
pub(super) struct Ledger {
    ranges: Ranges,
    holders: BTreeMap<Resource, String>,
    /// The failed flushes that it takes into account.
    failures: u64,
}

impl Ledger {
    /// The allocations of the stored objects. An object keeps an address or port that it should not
    /// have, for example after a change of the ranges, and this is logged.
    pub fn of_stored(storage: &Storage, ranges: Ranges) -> Result<Self> {
        if ranges.node_ports.is_empty() || ranges.cluster_ips.is_empty() {
            bail!("the ranges of node ports and of cluster addresses may not be empty");
        }
        let mut ledger = Self { ranges, holders: BTreeMap::new(), failures: 0 };
        ledger.take_all(|prefix| {
            storage
                .list(prefix, None, None, usize::MAX)
                .map_or_else(|_| Vec::new(), |page| page.objects)
        });
        Ok(ledger)
    }

    /// Derives the allocations again if writes that took some could not be flushed.
    pub fn follow(&mut self, transaction: &Transaction<'_>) {
        if self.failures != transaction.failures() {
            self.failures = transaction.failures();
            self.holders.clear();
            self.take_all(|prefix| transaction.list(prefix));
        }
    }

    fn take_all(&mut self, list: impl Fn(&str) -> Vec<(Key, Arc<Stored>)>) {
        for kind in kinds::all().iter().filter(|kind| kind.rules.stored_as().is_none()) {
            for (key, stored) in list(&prefix(kind, None)) {
                let object = stored.object();
                let mut hold = self.hold(owner(kind, &object));
                for violation in kind.rules.reclaim(&object, &mut hold) {
                    tracing::warn!(object = %key, reason = %violation, "invalid allocation kept");
                }
                hold.keep();
            }
        }
    }

    /// Starts to take and release for one object. Nothing is final before `keep`.
    pub fn hold(&mut self, owner: String) -> Hold<'_> {
        Hold { ledger: self, owner, changes: BTreeMap::new() }
    }
}

/// The holder's name as in `Allocations::holder`.
pub(super) fn owner(kind: &Kind, object: &serde_json::Value) -> String {
    let name = super::text(object, "name");
    if kind.namespaced {
        format!("{}/{name}", super::text(object, "namespace"))
    } else {
        name.to_owned()
    }
}

pub(super) struct Hold<'a> {
    ledger: &'a mut Ledger,
    owner: String,
    /// True: taken. False: released.
    changes: BTreeMap<Resource, bool>,
}

impl Hold<'_> {
    pub fn keep(self) {
        for (resource, taken) in self.changes {
            if taken {
                self.ledger.holders.insert(resource, self.owner.clone());
            } else {
                self.ledger.holders.remove(&resource);
            }
        }
    }
}

impl Allocations for Hold<'_> {
    fn ranges(&self) -> &Ranges {
        &self.ledger.ranges
    }

    fn holder(&self, resource: Resource) -> Option<String> {
        match self.changes.get(&resource) {
            Some(true) => Some(self.owner.clone()),
            Some(false) => None,
            None => self.ledger.holders.get(&resource).cloned(),
        }
    }

    fn take(&mut self, resource: Resource) -> bool {
        let free = self.holder(resource).is_none_or(|holder| holder == self.owner);
        if free {
            self.changes.insert(resource, true);
        }
        free
    }

    fn give_back(&mut self, resource: Resource) {
        if self.holder(resource).as_deref() == Some(&self.owner) {
            self.changes.insert(resource, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let ranges = Ranges {
            cluster_ips: vec!["10.96.0.0/24".parse().unwrap()],
            node_ports: 30000..=32767,
        };
        Ledger { ranges, holders: BTreeMap::new(), failures: 0 }
    }

    #[test]
    fn allocations_without_keep_are_released() {
        let mut ledger = ledger();
        let port = Resource::NodePort(30000);
        assert!(ledger.hold("default/a".to_owned()).take(port));
        let mut hold = ledger.hold("default/b".to_owned());
        assert!(hold.take(port));
        hold.keep();
        assert!(!ledger.hold("default/a".to_owned()).take(port));
        assert!(ledger.hold("default/b".to_owned()).take(port));
    }

    #[test]
    fn only_the_holder_releases() {
        let mut ledger = ledger();
        let port = Resource::NodePort(30000);
        let mut hold = ledger.hold("default/a".to_owned());
        hold.take(port);
        hold.keep();
        let mut other = ledger.hold("default/b".to_owned());
        other.give_back(port);
        other.keep();
        let mut hold = ledger.hold("default/a".to_owned());
        assert_eq!(hold.holder(port).as_deref(), Some("default/a"));
        hold.give_back(port);
        hold.keep();
        assert!(ledger.hold("default/b".to_owned()).take(port));
    }
}

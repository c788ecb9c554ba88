//! Which object holds which address or port.
//!
//! Not stored: computed from the objects at every start.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, bail};

use super::super::kinds::{self, AllocatedResource, AllocationRanges, Allocations, ApiKind};
use super::super::storage::{Storage, StorageKey, StoredObject, Transaction};
use super::storage_prefix;

#[derive(Debug)]
pub(super) struct AllocationLedger {
    ranges: AllocationRanges,
    holders: BTreeMap<AllocatedResource, String>,
    /// The failed flushes that it takes into account.
    failures: u64,
}

impl AllocationLedger {
    /// The allocations of the stored objects. An object keeps an address or port that it should not
    /// have, for example after a change of the ranges, and this is logged.
    pub(crate) fn of_stored(storage: &Storage, ranges: AllocationRanges) -> Result<Self> {
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
    pub(crate) fn reload_after_failures(&mut self, transaction: &Transaction<'_>) {
        if self.failures != transaction.failures() {
            self.failures = transaction.failures();
            self.holders.clear();
            self.take_all(|prefix| transaction.list(prefix));
        }
    }

    fn take_all(&mut self, list: impl Fn(&str) -> Vec<(StorageKey, Arc<StoredObject>)>) {
        for kind in kinds::built_in_kinds().iter().filter(|kind| kind.rules.stored_as().is_none()) {
            for (key, stored) in list(&storage_prefix(kind, None)) {
                let object = stored.object();
                let mut hold = self.begin_allocations(name_owner(kind, &object));
                for violation in kind.rules.reclaim(&object, &mut hold) {
                    tracing::warn!(object = %key, reason = %violation, "invalid allocation kept");
                }
                hold.commit_allocations();
            }
        }
    }

    /// Starts to take and release for one object. Nothing is final before `commit_allocations`.
    pub(crate) fn begin_allocations(&mut self, owner: String) -> PendingAllocations<'_> {
        PendingAllocations { ledger: self, owner, changes: BTreeMap::new() }
    }
}

/// The holder's name as in `Allocations::holder`.
pub(super) fn name_owner(kind: &ApiKind, object: &serde_json::Value) -> String {
    let name = super::metadata_text(object, "name");
    if kind.namespaced {
        format!("{}/{name}", super::metadata_text(object, "namespace"))
    } else {
        name.to_owned()
    }
}

pub(super) struct PendingAllocations<'a> {
    ledger: &'a mut AllocationLedger,
    owner: String,
    /// True: taken. False: released.
    changes: BTreeMap<AllocatedResource, bool>,
}

impl PendingAllocations<'_> {
    pub(crate) fn commit_allocations(self) {
        for (resource, taken) in self.changes {
            if taken {
                self.ledger.holders.insert(resource, self.owner.clone());
            } else {
                self.ledger.holders.remove(&resource);
            }
        }
    }
}

impl Allocations for PendingAllocations<'_> {
    fn ranges(&self) -> &AllocationRanges {
        &self.ledger.ranges
    }

    fn holder(&self, resource: AllocatedResource) -> Option<String> {
        match self.changes.get(&resource) {
            Some(true) => Some(self.owner.clone()),
            Some(false) => None,
            None => self.ledger.holders.get(&resource).cloned(),
        }
    }

    fn take(&mut self, resource: AllocatedResource) -> bool {
        let free = self.holder(resource).is_none_or(|holder| holder == self.owner);
        if free {
            self.changes.insert(resource, true);
        }
        free
    }

    fn give_back(&mut self, resource: AllocatedResource) {
        if self.holder(resource).as_deref() == Some(&self.owner) {
            self.changes.insert(resource, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> AllocationLedger {
        let ranges = AllocationRanges {
            cluster_ips: vec!["10.96.0.0/24".parse().unwrap()],
            node_ports: 30000..=32767,
        };
        AllocationLedger { ranges, holders: BTreeMap::new(), failures: 0 }
    }

    #[test]
    fn allocations_without_keep_are_released() {
        let mut ledger = ledger();
        let port = AllocatedResource::NodePort(30000);
        assert!(ledger.begin_allocations("default/a".to_owned()).take(port));
        let mut hold = ledger.begin_allocations("default/b".to_owned());
        assert!(hold.take(port));
        hold.commit_allocations();
        assert!(!ledger.begin_allocations("default/a".to_owned()).take(port));
        assert!(ledger.begin_allocations("default/b".to_owned()).take(port));
    }

    #[test]
    fn only_the_holder_releases() {
        let mut ledger = ledger();
        let port = AllocatedResource::NodePort(30000);
        let mut hold = ledger.begin_allocations("default/a".to_owned());
        hold.take(port);
        hold.commit_allocations();
        let mut other = ledger.begin_allocations("default/b".to_owned());
        other.give_back(port);
        other.commit_allocations();
        let mut hold = ledger.begin_allocations("default/a".to_owned());
        assert_eq!(hold.holder(port).as_deref(), Some("default/a"));
        hold.give_back(port);
        hold.commit_allocations();
        assert!(ledger.begin_allocations("default/b".to_owned()).take(port));
    }
}

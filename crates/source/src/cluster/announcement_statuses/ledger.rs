//! Which objects differ from what a node announces. Pure.
//!
//! # Invariants
//! - An object is written only if it differs, and that of one Service at most once in [`SERVICE_INTERVAL`].
//! - Deleted is only what was listed or created as an object of this node.
//! - Memory is bounded by the number of objects that a node may have.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lb_limits::Moment;
use lb_rules::model::ServiceName;

use super::object::{AnnouncedServices, AnnouncedThrough, ListedStatuses};

/// Between two changes of one Service: an address that moves all the time costs no more.
pub(super) const SERVICE_INTERVAL: Duration = Duration::from_secs(10);

/// A request that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StatusWrite {
    /// Creates this node's object of a Service, without a status.
    Create(ServiceName),
    /// Changes the status of that object.
    SetStatus(ServiceName, AnnouncedThrough),
    /// Deletes that object.
    Withdraw(ServiceName),
    /// Deletes an object of this node that it can't go on with, by name.
    DeleteStray(String),
}

#[derive(Debug)]
pub(super) struct StatusLedger<T> {
    /// The most Services that have objects.
    most: usize,
    wanted: AnnouncedServices,
    /// This node's objects that the API server has; without a status: through nothing.
    written: AnnouncedServices,
    /// Services of which the two differ, without those set aside.
    due: BTreeSet<ServiceName>,
    /// The API server refused a write of them: nothing is written until objects are listed again.
    set_aside: BTreeSet<ServiceName>,
    strays: BTreeSet<String>,
    /// When Services were written, of the last moments.
    written_at: BTreeMap<ServiceName, T>,
}

impl<T: Moment> StatusLedger<T> {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            wanted: AnnouncedServices::new(),
            written: AnnouncedServices::new(),
            due: BTreeSet::new(),
            set_aside: BTreeSet::new(),
            strays: BTreeSet::new(),
            written_at: BTreeMap::new(),
        }
    }

    /// Replaces what is announced. Returns the number of Services that get no object: the last ones by name.
    pub fn set_wanted(&mut self, wanted: &AnnouncedServices) -> usize {
        let within = wanted.iter().take(self.most);
        self.wanted = within.map(|(service, through)| (service.clone(), through.clone())).collect();
        self.compare_all();
        wanted.len() - self.wanted.len()
    }

    pub fn is_anything_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Replaces what the API server has of this node.
    pub fn set_listed(&mut self, listed: ListedStatuses) {
        self.written = listed.usable;
        self.strays = listed.strays;
        self.set_aside.clear();
        self.compare_all();
    }

    fn compare_all(&mut self) {
        let services = self.wanted.keys().chain(self.written.keys());
        let is_due = |service: &&ServiceName| self.is_due(service);
        self.due = services.filter(is_due).cloned().collect();
    }

    fn is_due(&self, service: &ServiceName) -> bool {
        self.wanted.get(service) != self.written.get(service) && !self.set_aside.contains(service)
    }

    /// Strays come first: they may have the names of objects to create.
    pub fn next_write(&mut self, now: T) -> Option<StatusWrite> {
        if let Some(name) = self.strays.first() {
            return Some(StatusWrite::DeleteStray(name.clone()));
        }
        self.written_at.retain(|_, at| now < *at + SERVICE_INTERVAL);
        let service = self.due.iter().find(|service| !self.written_at.contains_key(*service))?;
        let through = self.wanted.get(service).cloned();
        Some(match (through, self.written.contains_key(service)) {
            (Some(through), true) => StatusWrite::SetStatus(service.clone(), through),
            (Some(_), false) => StatusWrite::Create(service.clone()),
            (None, _) => StatusWrite::Withdraw(service.clone()),
        })
    }

    /// When [`Self::next_write`] may return more, if nothing changes.
    pub fn next_due(&self) -> Option<T> {
        let waiting = self.due.iter().filter_map(|service| self.written_at.get(service));
        waiting.min().map(|at| *at + SERVICE_INTERVAL)
    }

    /// The API server has done it.
    pub fn note_done(&mut self, write: StatusWrite, now: T) {
        match write {
            StatusWrite::DeleteStray(name) => drop(self.strays.remove(&name)),
            // Its status follows at once.
            StatusWrite::Create(service) => {
                self.written.insert(service.clone(), AnnouncedThrough::default());
                self.compare(service);
            }
            StatusWrite::SetStatus(service, through) => {
                self.written.insert(service.clone(), through);
                self.written_at.insert(service.clone(), now);
                self.compare(service);
            }
            StatusWrite::Withdraw(service) => self.note_missing(service, now),
        }
    }

    /// There is no object of the Service any more. It is created again later, if it is wanted.
    pub fn note_missing(&mut self, service: ServiceName, now: T) {
        self.written.remove(&service);
        self.written_at.insert(service.clone(), now);
        self.compare(service);
    }

    /// The API server refuses it.
    pub fn note_refused(&mut self, write: StatusWrite) {
        match write {
            StatusWrite::DeleteStray(name) => drop(self.strays.remove(&name)),
            StatusWrite::Create(service)
            | StatusWrite::SetStatus(service, _)
            | StatusWrite::Withdraw(service) => {
                self.due.remove(&service);
                self.set_aside.insert(service);
            }
        }
    }

    fn compare(&mut self, service: ServiceName) {
        if self.is_due(&service) {
            self.due.insert(service);
        } else {
            self.due.remove(&service);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn announced(services: &[(&str, &str)]) -> AnnouncedServices {
        let through = |names: &str| Arc::new(names.split_whitespace().map(str::to_owned).collect());
        let all = services.iter();
        all.map(|(name, names)| (ServiceName::new("shop", name), through(names))).collect()
    }

    fn listed(services: &[(&str, &str)], strays: &[&str]) -> ListedStatuses {
        let strays = strays.iter().map(|&name| name.to_owned()).collect();
        ListedStatuses { usable: announced(services), strays }
    }

    fn describe(write: &StatusWrite) -> String {
        match write {
            StatusWrite::Create(service) => format!("create {service}"),
            StatusWrite::SetStatus(service, through) => {
                let through: Vec<&str> = through.iter().map(String::as_str).collect();
                format!("{service}: {}", through.join(" "))
            }
            StatusWrite::Withdraw(service) => format!("delete {service}"),
            StatusWrite::DeleteStray(name) => format!("delete {name}"),
        }
    }

    /// Carries out all that is due; what is about these is refused.
    fn write_all_but(
        ledger: &mut StatusLedger<Duration>,
        now: Duration,
        refused: &str,
    ) -> Vec<String> {
        let mut writes = Vec::new();
        while let Some(write) = ledger.next_write(now) {
            writes.push(describe(&write));
            match describe(&write).contains(refused) {
                true => ledger.note_refused(write),
                false => ledger.note_done(write, now),
            }
        }
        writes
    }

    fn write_all(ledger: &mut StatusLedger<Duration>, now: Duration) -> Vec<String> {
        write_all_but(ledger, now, "nothing is refused")
    }

    #[test]
    fn only_what_differs_is_written() {
        let mut ledger = StatusLedger::new(100);
        ledger.set_listed(listed(
            &[("a", "eth0"), ("b", "eth0"), ("bare", ""), ("gone", "eth0")],
            &["l2-x7fq2"],
        ));
        let wanted = [("a", "eth0"), ("b", "eth0 eth1"), ("bare", "eth0"), ("new", "eth1")];
        ledger.set_wanted(&announced(&wanted));
        assert_eq!(
            write_all(&mut ledger, SECOND),
            [
                "delete l2-x7fq2",
                "shop/b: eth0 eth1",
                "shop/bare: eth0",
                "delete shop/gone",
                "create shop/new",
                "shop/new: eth1",
            ]
        );
        assert_eq!(write_all(&mut ledger, 60 * SECOND), [""; 0]);
        assert_eq!(ledger.next_due(), None);
        // Somebody has deleted one.
        ledger.set_listed(listed(&[("a", "eth0"), ("bare", "eth0"), ("new", "eth1")], &[]));
        assert_eq!(write_all(&mut ledger, 60 * SECOND), ["create shop/b", "shop/b: eth0 eth1"]);
    }

    /// An object of another writer has the name: it is never deleted, however much later.
    #[test]
    fn an_object_that_is_refused_is_left_alone_and_delays_no_other() {
        let mut ledger = StatusLedger::new(100);
        ledger.set_wanted(&announced(&[("a", "eth0"), ("b", "eth0")]));
        let written = write_all_but(&mut ledger, SECOND, "shop/a");
        assert_eq!(written, ["create shop/a", "create shop/b", "shop/b: eth0"]);
        ledger.set_wanted(&announced(&[("a", "eth1"), ("b", "eth0")]));
        assert_eq!(write_all(&mut ledger, 60 * SECOND), [""; 0]);
        ledger.set_wanted(&announced(&[]));
        assert_eq!(write_all(&mut ledger, 120 * SECOND), ["delete shop/b"]);
        assert_eq!(ledger.next_due(), None);
        // After the next list, it is tried again.
        ledger.set_wanted(&announced(&[("a", "eth0")]));
        assert_eq!(write_all(&mut ledger, 180 * SECOND), [""; 0]);
        ledger.set_listed(listed(&[], &[]));
        let written = write_all(&mut ledger, 240 * SECOND);
        assert_eq!(written, ["create shop/a", "shop/a: eth0"]);
    }

    #[test]
    fn deletions_that_are_refused_end() {
        let mut ledger = StatusLedger::new(100);
        ledger.set_listed(listed(&[("gone", "eth0")], &["l2-x7fq2"]));
        let written = write_all_but(&mut ledger, SECOND, "delete");
        assert_eq!(written, ["delete l2-x7fq2", "delete shop/gone"]);
        assert_eq!(write_all(&mut ledger, 60 * SECOND), [""; 0]);
    }

    #[test]
    fn an_address_that_moves_all_the_time_costs_few_writes() {
        let mut ledger = StatusLedger::new(100);
        let steady = announced(&[("steady", "eth0")]);
        let all = announced(&[("moving", "eth0"), ("steady", "eth0")]);
        let mut changes = 0;
        for tenth in 0..600 {
            let now = tenth * SECOND / 10;
            ledger.set_wanted(if tenth % 2 == 0 { &all } else { &steady });
            let written = write_all(&mut ledger, now);
            changes += usize::from(written.iter().any(|write| write.contains("moving")));
        }
        assert_eq!(changes, 6, "one in ten seconds");
        // What it ends with is written, but not at once.
        ledger.set_wanted(&all);
        let due = ledger.next_due();
        assert_eq!(write_all(&mut ledger, 60 * SECOND), [""; 0]);
        let written = write_all(&mut ledger, due.unwrap());
        assert_eq!(written, ["create shop/moving", "shop/moving: eth0"]);
    }

    /// A node that announces ten times as much as it may write.
    #[test]
    fn the_number_of_objects_is_bounded() {
        let names: Vec<String> = (0..1_000).map(|number| format!("web-{number:04}")).collect();
        let wanted: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "eth0")).collect();
        let mut ledger = StatusLedger::<Duration>::new(100);
        assert_eq!(ledger.set_wanted(&announced(&wanted)), 900);
        let writes = write_all(&mut ledger, SECOND);
        assert_eq!(writes.len(), 200);
        assert_eq!(writes[199], "shop/web-0099: eth0");
    }

    #[test]
    fn an_object_that_is_gone_is_written_again_but_not_at_once() {
        let mut ledger = StatusLedger::new(100);
        ledger.set_listed(listed(&[("a", "eth0")], &[]));
        ledger.set_wanted(&announced(&[("a", "eth1")]));
        ledger.note_missing(ServiceName::new("shop", "a"), SECOND);
        assert_eq!(ledger.next_write(2 * SECOND), None);
        assert_eq!(ledger.next_due(), Some(SECOND + SERVICE_INTERVAL));
        let written = write_all(&mut ledger, SECOND + SERVICE_INTERVAL);
        assert_eq!(written, ["create shop/a", "shop/a: eth1"]);
    }
}

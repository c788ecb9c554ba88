//! Which objects differ from what a node announces. Pure.
//!
//! # Invariants
//! - An object is written only if it differs, and that of one Service at most once in [`SERVICE_INTERVAL`].
//! - Memory is bounded by the number of objects that a node may have.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lb_limits::Moment;
use lb_rules::model::ServiceName;

use super::object::AnnouncedThrough;

/// Between two writes of one Service: an address that moves all the time costs no more.
pub(super) const SERVICE_INTERVAL: Duration = Duration::from_secs(10);

/// A write that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StatusWrite {
    /// Creates or changes this node's object of a Service.
    Apply(ServiceName, AnnouncedThrough),
    /// Deletes this node's object of a Service.
    Withdraw(ServiceName),
    /// Deletes an object by its name.
    Delete(String),
}

#[derive(Debug)]
pub(super) struct StatusLedger<T> {
    /// The most Services that have objects.
    most: usize,
    wanted: BTreeMap<ServiceName, AnnouncedThrough>,
    /// What the API server has, or has refused.
    written: BTreeMap<ServiceName, AnnouncedThrough>,
    /// Services of which the two differ.
    due: BTreeSet<ServiceName>,
    /// Names of objects of others, and of earlier agents.
    deletions: BTreeSet<String>,
    /// When Services were written, of the last moments.
    written_at: BTreeMap<ServiceName, T>,
}

impl<T: Moment> StatusLedger<T> {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            wanted: BTreeMap::new(),
            written: BTreeMap::new(),
            due: BTreeSet::new(),
            deletions: BTreeSet::new(),
            written_at: BTreeMap::new(),
        }
    }

    /// Replaces what is announced. Returns the number of Services that get no object: the last ones by name.
    pub fn set_wanted(&mut self, wanted: &BTreeMap<ServiceName, AnnouncedThrough>) -> usize {
        let within = wanted.iter().take(self.most);
        self.wanted = within.map(|(service, through)| (service.clone(), through.clone())).collect();
        self.compare_all();
        wanted.len() - self.wanted.len()
    }

    pub fn is_anything_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Replaces what the API server has.
    pub fn set_written(&mut self, written: BTreeMap<ServiceName, AnnouncedThrough>) {
        self.written = written;
        self.compare_all();
    }

    /// Adds objects to delete. Those beyond the most objects of a node are left out.
    pub fn add_deletions(&mut self, names: impl IntoIterator<Item = String>) {
        let room = self.most.saturating_sub(self.deletions.len());
        self.deletions.extend(names.into_iter().take(room));
    }

    fn compare_all(&mut self) {
        let known = self.wanted.keys().chain(self.written.keys());
        let differs = |service: &&ServiceName| self.differs(service);
        self.due = known.filter(differs).cloned().collect();
    }

    fn differs(&self, service: &ServiceName) -> bool {
        self.wanted.get(service) != self.written.get(service)
    }

    /// Deletions come last: other machines of a link can cause many that delete nothing.
    pub fn next_write(&mut self, now: T) -> Option<StatusWrite> {
        self.written_at.retain(|_, at| now < *at + SERVICE_INTERVAL);
        let service = self.due.iter().find(|service| !self.written_at.contains_key(*service));
        let Some(service) = service else {
            return self.deletions.first().cloned().map(StatusWrite::Delete);
        };
        Some(match self.wanted.get(service) {
            Some(through) => StatusWrite::Apply(service.clone(), through.clone()),
            None => StatusWrite::Withdraw(service.clone()),
        })
    }

    /// When [`Self::next_write`] may return more, if nothing changes.
    pub fn next_due(&self) -> Option<T> {
        let waiting = self.due.iter().filter_map(|service| self.written_at.get(service));
        waiting.min().map(|at| *at + SERVICE_INTERVAL)
    }

    /// The API server has done it, or will not.
    pub fn note_done(&mut self, write: StatusWrite, now: T) {
        match write {
            StatusWrite::Delete(name) => drop(self.deletions.remove(&name)),
            StatusWrite::Apply(service, through) => {
                self.written.insert(service.clone(), through);
                self.note_attempt(service, now);
            }
            StatusWrite::Withdraw(service) => {
                self.written.remove(&service);
                self.note_attempt(service, now);
            }
        }
    }

    /// The object is gone: it is written again later.
    pub fn note_missing(&mut self, service: ServiceName, now: T) {
        self.written.remove(&service);
        self.note_attempt(service, now);
    }

    fn note_attempt(&mut self, service: ServiceName, now: T) {
        if self.differs(&service) {
            self.due.insert(service.clone());
        } else {
            self.due.remove(&service);
        }
        self.written_at.insert(service, now);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn announced(services: &[(&str, &str)]) -> BTreeMap<ServiceName, AnnouncedThrough> {
        let through = |names: &str| Arc::new(names.split(' ').map(str::to_owned).collect());
        let all = services.iter();
        all.map(|(name, names)| (ServiceName::new("shop", name), through(names))).collect()
    }

    /// Carries out all that is due.
    fn write_all(ledger: &mut StatusLedger<Duration>, now: Duration) -> Vec<String> {
        let mut writes = Vec::new();
        while let Some(write) = ledger.next_write(now) {
            writes.push(match &write {
                StatusWrite::Apply(service, through) => format!("{service}: {through:?}"),
                StatusWrite::Withdraw(service) => format!("{service}: -"),
                StatusWrite::Delete(name) => format!("delete {name}"),
            });
            ledger.note_done(write, now);
        }
        writes
    }

    #[test]
    fn only_what_differs_is_written() {
        let mut ledger = StatusLedger::new(100);
        ledger.set_written(announced(&[("a", "eth0"), ("b", "eth0"), ("gone", "eth0")]));
        ledger.set_wanted(&announced(&[("a", "eth0"), ("b", "eth0 eth1"), ("new", "eth1")]));
        ledger.add_deletions(["l2-dead.shop.a".to_owned()]);
        assert_eq!(
            write_all(&mut ledger, SECOND),
            [
                "shop/b: {\"eth0\", \"eth1\"}",
                "shop/gone: -",
                "shop/new: {\"eth1\"}",
                "delete l2-dead.shop.a"
            ]
        );
        assert_eq!(write_all(&mut ledger, 60 * SECOND), [""; 0]);
        assert_eq!(ledger.next_due(), None);
        // Somebody has deleted one.
        ledger.set_written(announced(&[("a", "eth0"), ("new", "eth1")]));
        assert_eq!(write_all(&mut ledger, 60 * SECOND), ["shop/b: {\"eth0\", \"eth1\"}"]);
    }

    #[test]
    fn an_address_that_moves_all_the_time_costs_few_writes() {
        let mut ledger = StatusLedger::new(100);
        let steady = announced(&[("steady", "eth0")]);
        let all = announced(&[("moving", "eth0"), ("steady", "eth0")]);
        let mut writes = 0;
        for tenth in 0..600 {
            let now = tenth * SECOND / 10;
            ledger.set_wanted(if tenth % 2 == 0 { &all } else { &steady });
            let written = write_all(&mut ledger, now);
            writes += written.iter().filter(|write| write.contains("moving")).count();
        }
        assert_eq!(writes, 6, "one in ten seconds");
        // What it ends with is written, but not at once.
        ledger.set_wanted(&all);
        let due = ledger.next_due();
        assert_eq!(write_all(&mut ledger, 60 * SECOND), [""; 0]);
        assert_eq!(write_all(&mut ledger, due.unwrap()), ["shop/moving: {\"eth0\"}"]);
    }

    /// A node that announces ten times as much as it may write, while another says that it has died.
    #[test]
    fn the_number_of_objects_and_deletions_is_bounded() {
        let names: Vec<String> = (0..1_000).map(|number| format!("web-{number:04}")).collect();
        let wanted: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "eth0")).collect();
        let mut ledger = StatusLedger::<Duration>::new(100);
        assert_eq!(ledger.set_wanted(&announced(&wanted)), 900);
        ledger.add_deletions(names.iter().map(|name| format!("l2-b.shop.{name}")));
        ledger.add_deletions(["l2-c.shop.a".to_owned()]);
        let writes = write_all(&mut ledger, SECOND);
        assert_eq!(writes.len(), 200);
        assert!(writes[99].starts_with("shop/web-0099"), "{}", writes[99]);
    }

    #[test]
    fn an_object_that_is_gone_is_written_again_but_not_at_once() {
        let mut ledger = StatusLedger::new(100);
        ledger.set_wanted(&announced(&[("a", "eth0")]));
        ledger.note_missing(ServiceName::new("shop", "a"), SECOND);
        assert_eq!(ledger.next_write(2 * SECOND), None);
        assert_eq!(ledger.next_due(), Some(SECOND + SERVICE_INTERVAL));
        assert_eq!(write_all(&mut ledger, SECOND + SERVICE_INTERVAL).len(), 1);
    }
}

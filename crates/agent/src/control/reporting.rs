//! What became of a change: problems of Services, failed writes, and what others learn once all is
//! programmed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};

use lb_kernel::BacklogTables;
use lb_plan::Plan;
use lb_process::notices::NoticeReason;
use lb_rules::ipam;
use lb_rules::model::{Problem, ServiceName, has_lent_ports};
use lb_source::Extent;

use super::Agent;
use super::planning::announced_ports;

impl<T: BacklogTables> Agent<T> {
    /// Reports and stores what does not fit.
    pub(super) fn report_lacking(&mut self, concerned: &BTreeSet<ServiceName>, plan: &Plan) {
        let mut problems: BTreeMap<String, Vec<Problem>> = BTreeMap::new();
        for problem in &plan.problems {
            problems.entry(problem.object.clone()).or_default().push(problem.clone());
        }
        let lacking: BTreeSet<&ServiceName> = plan.lacking.iter().map(|key| &key.service).collect();
        for service in concerned {
            let problems = problems.remove(&format!("Service {service}")).unwrap_or_default();
            let lacks = lacking.contains(service);
            let reason = if lacks { NoticeReason::NoRoom } else { NoticeReason::NotServed };
            let (new, is_fixed) = self.withheld.replace_problems(service, problems);
            for problem in new {
                self.outlets.post(&problem, reason, &self.store);
            }
            self.post_problems(service);
            let lacked = self.lacking.remove(service);
            if is_fixed {
                let reason = if lacked { NoticeReason::RoomFound } else { NoticeReason::Served };
                self.fixed.insert(service.clone(), reason);
            }
        }
        self.lacking.extend(lacking.into_iter().cloned());
    }

    pub(super) fn post_problems(&self, service: &ServiceName) {
        let all = self.invalid.problems_of(service).chain(self.withheld.problems_of(service));
        self.outlets.condition.set_problems(service, all.map(ToString::to_string).collect());
    }

    /// Reports Services without problems that had some before, now that they are programmed.
    pub(super) fn post_fixed(&mut self) {
        for (service, reason) in std::mem::take(&mut self.fixed) {
            let is_wrong = self
                .invalid
                .problems_of(&service)
                .chain(self.withheld.problems_of(&service))
                .count()
                > 0;
            if !is_wrong && self.programmed.contains_key(&service) {
                self.outlets.post_fixed(&service, reason, &self.store);
            }
        }
    }

    /// Reports entries for which the maps have no room.
    pub(super) fn report_set_aside(&mut self) {
        let new = self.tables.newly_set_aside();
        for problem in self.tally.problems_of_set_aside(&new, &self.planner) {
            self.outlets.post(&problem, NoticeReason::NoRoom, &self.store);
        }
    }

    pub(super) fn fail(&mut self, error: &anyhow::Error) {
        self.outlets.metrics.set_steps(self.carried_out());
        self.outlets.metrics.write_failed();
        self.outlets.condition.waits(format!("{error:#}"));
        let error = format!("{error:#}");
        if self.steps_retry.fail(Instant::now()) {
            tracing::error!(error, "map write failed; later changes wait until a retry succeeds");
        } else {
            tracing::debug!(error, "map write still failing");
        }
    }

    /// Sets the Services of all advertisements anew if other addresses of them are advertised than before.
    fn renew_service_advertisements(&mut self) {
        let (name, objects) = (&self.node.name, &self.announcement_objects);
        if !self.advertiser.renew_service_advertisements(name, &self.store, objects) {
            return;
        }
        for name in self.programmed.keys() {
            let settled = self.claims.settled(name, &self.node);
            let service = self.store.service(name);
            let is_assigned = service.is_some_and(ipam::is_marked);
            let labels = service.and_then(|service| service.metadata.labels.as_ref());
            self.advertiser.set(
                name,
                labels,
                is_assigned,
                announced_ports(service.is_some_and(has_lent_ports), &settled).iter(),
            );
        }
    }

    pub(super) fn succeed(&mut self, began: Instant) {
        if self.steps_retry.succeed() {
            tracing::info!("map writes restored; all changes are programmed");
        }
        let now = SystemTime::now();
        if std::mem::take(&mut self.health_checks_changed) {
            self.outlets.check_health(&self.health_checks, &self.store);
        }
        if self.announcement_objects.take_changed() {
            self.note_announcing_changed();
        }
        // What is not programmed yet must attract no packets. What an earlier agent announced must not be withdrawn
        // because the pool or peer is not known yet.
        let node = self.store.node(&self.node.name);
        if self.synced >= Some(Extent::Pools)
            && let Some(wanted) = self.announcing.take(self.announcement_objects.pools(), node)
        {
            self.outlets.announce(wanted);
        }
        if self.synced == Some(Extent::All) {
            self.renew_service_advertisements();
            let objects = &self.announcement_objects;
            self.advertiser.tell(&self.node.name, &self.store, objects, &self.outlets);
        }
        self.outlets.publish_taints(self.store.node(&self.node.name));
        self.outlets.health.record_programmed(now);
        self.post_fixed();
        let metrics = &self.outlets.metrics;
        metrics.set_steps(self.tables.carried_out());
        metrics.record_programmed(began.elapsed(), now);
        for (family, latency) in self.latency.record_programmed(now) {
            metrics.programmed(family, latency);
        }
        metrics.set_problems(self.invalid.services_with_problems());
        self.outlets
            .condition
            .record_programmed(self.programmed_counts(), self.tables.without_room());
        let without_room = self.tables.without_room();
        self.tally.export(&self.planner, self.lacking.len(), without_room, metrics);
    }
}

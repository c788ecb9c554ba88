//! Addresses of Services of type LoadBalancer: pools, requests, assignment.
//!
//! Pure: no I/O, no clock; the same objects in the same order always give the same result.
//!
//! Invariants:
//! - No address is assigned twice, unless its Services share it: same key, different ports, same nodes.
//! - A Service gets no address that it did not request, if it requests any; and it keeps its addresses until its own
//!   request changes, whatever becomes of pools and other Services. Exception: of two that have one address without
//!   sharing it, the younger one loses it.
//! - A port of a node is lent to one Service at most, and stays with the one that has it.
//! - The addresses in all statuses are taken in before any is assigned (`apply` before the first `settle`).
//! - A change of one Service costs nothing for the other ones, except those that wait for what it releases.
//!
//! Tests: `tests/ipam/`, one file for each rule, and random histories compared with a simple implementation.

mod advertisement;
mod announcement;
mod decide;
mod ledger;
mod lending;
mod lending_nodes;
mod lending_state;
mod metallb_advertisement;
mod namespaces;
mod outcome;
mod pool;
mod pools;
mod problems;
mod range;
mod request;
mod runs;
mod selector;
mod services;
mod sharing;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{AddressFamily, Kind, Object, ObjectRef, PortGrant, ServiceName};

use decide::AddressDecision;
use ledger::{AddressLedger, SearchStart};
use lending_state::Lending;
use namespaces::Namespaces;
use pools::PoolIndex;
use request::AddressRequest;
use waiting::{WaitCause, WaitingServices};

pub use crate::kinds::service::is_marked;
pub use advertisement::Advertised;
pub use announcement::{Announcement, AnnouncementScope};
pub use lending_nodes::{EndpointNodes, LendingNodes, api_server_service};
pub use outcome::{AssignmentOutcome, AssignmentReason, PortOutcome};
pub use pool::{IpamPool, PoolName, SETTING};
pub use pools::Pools;
pub use problems::is_unset;
pub use range::Range;
pub use selector::{Labels, Selector, any_selects};

/// The class of Services that are for Millrace only.
pub const CLASS: &str = "millrace.io/load-balancer";

#[derive(Clone, Debug)]
pub struct IpamSettings {
    /// Values of `spec.loadBalancerClass` to serve.
    pub classes: Vec<String>,
    /// Whether Services without a class are left to others.
    pub needs_class: bool,
    /// Whether no other controller can assign addresses, so that a Service without one has this one's reasons.
    pub is_alone: bool,
}

impl Default for IpamSettings {
    fn default() -> Self {
        Self { classes: vec![CLASS.to_owned()], needs_class: false, is_alone: false }
    }
}

/// Assigns addresses.
#[derive(Debug, Default)]
pub struct Ipam {
    settings: IpamSettings,
    pools: Pools,
    namespaces: Namespaces,
    services: BTreeMap<ServiceName, IpamService>,
    ledger: AddressLedger,
    waiting: WaitingServices,
    lending: Lending,
    /// Services by the key by which they share addresses.
    keys: BTreeMap<String, BTreeSet<SearchStart>>,
    /// Services to be evaluated.
    due: BTreeSet<SearchStart>,
    /// Pools in which addresses were freed, and the Service to which they were offered last.
    offers: BTreeMap<(PoolIndex, AddressFamily), Option<SearchStart>>,
    has_other_pools: bool,
    changed: BTreeSet<ServiceName>,
    reasons: BTreeMap<AssignmentReason, usize>,
    outside: usize,
}

/// A Service of type LoadBalancer.
#[derive(Debug)]
struct IpamService {
    turn: SearchStart,
    request: Arc<AddressRequest>,
    class: Option<String>,
    /// Whether its condition says that this controller has assigned its addresses.
    is_marked: bool,
    has_others: bool,
    /// The Service's addresses: of others' Services those in the status, of own ones those that are assigned.
    addresses: Vec<IpAddr>,
    /// Its ports on addresses of nodes.
    grant: Option<PortGrant>,
    is_own: bool,
    outcome: Option<AssignmentOutcome>,
}

/// How many addresses of a pool are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage<'a> {
    pub pool: &'a PoolName,
    pub family: AddressFamily,
    pub used: u64,
    pub free: u128,
}

impl Ipam {
    pub fn new(settings: IpamSettings, pools: Pools) -> Self {
        Self { settings, pools, has_other_pools: true, ..Self::default() }
    }

    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Takes in a pool, a namespace or a Service.
    pub fn apply(&mut self, object: &Object) {
        match object {
            Object::Service(service) => self.apply_service(service),
            Object::Namespace(namespace) => {
                let labels = namespace.metadata.labels.clone().unwrap_or_default();
                self.set_namespace(namespace.metadata.name.as_deref().unwrap_or_default(), labels);
            }
            Object::Node(node) => self.set_node(node),
            Object::EndpointSlice(slice) => self.set_slice(slice),
            other => self.has_other_pools |= self.pools.apply(other),
        }
    }

    pub fn delete(&mut self, reference: &ObjectRef) {
        match reference.kind {
            Kind::Service => self.forget(&ServiceName::new(&reference.namespace, &reference.name)),
            Kind::Namespace => self.set_namespace(&reference.name, Labels::new()),
            Kind::Node => self.remove_node(&reference.name),
            Kind::EndpointSlice => {
                self.remove_slice(&ServiceName::new(&reference.namespace, &reference.name));
            }
            _ => self.has_other_pools |= self.pools.delete(reference),
        }
    }

    fn set_namespace(&mut self, name: &str, labels: Labels) {
        let before = self.namespaces.labels(name).clone();
        self.namespaces.set(name, labels);
        if *self.namespaces.labels(name) != before {
            let first = ServiceName::new(name, "");
            let within =
                self.services.range(first..).take_while(|(service, _)| service.namespace == name);
            self.due.extend(within.map(|(_, entry)| entry.turn.clone()));
        }
    }

    /// Evaluates everything that may have changed. Returns the Services with another outcome than before.
    pub fn settle(&mut self) -> BTreeSet<ServiceName> {
        if std::mem::take(&mut self.has_other_pools) {
            self.ledger.recount(&self.pools);
            self.waiting.clear();
            self.offers.clear();
            self.due.extend(self.services.values().map(|entry| entry.turn.clone()));
        }
        while let Some(turn) = self.next() {
            self.evaluate(&turn);
        }
        std::mem::take(&mut self.changed)
    }

    /// The next Service in turn that is due, or that a freed address is offered to.
    fn next(&mut self) -> Option<SearchStart> {
        let offers: Vec<(PoolIndex, AddressFamily)> = self.offers.keys().copied().collect();
        for offer in offers {
            let (pool, family) = offer;
            let after = self.offers.get(&offer).cloned().flatten();
            let is_free = self.ledger.first_free(&self.pools, pool, family).is_some();
            let cause = WaitCause::Exhausted(pool, family);
            match self.waiting.next(cause, after.as_ref()).filter(|_| is_free).cloned() {
                Some(turn) => {
                    self.due.insert(turn.clone());
                    // When its turn comes, another one may be offered the rest.
                    if self.due.first() == Some(&turn) {
                        self.offers.insert(offer, Some(turn));
                    }
                }
                None => {
                    self.offers.remove(&offer);
                }
            }
        }
        self.due.pop_first()
    }

    fn evaluate(&mut self, turn: &SearchStart) {
        let name = &turn.1;
        let Some(entry) = self.services.get(name).filter(|entry| entry.turn == *turn) else {
            return;
        };
        let is_own = self.is_own(entry);
        let request = Arc::clone(&entry.request);
        self.waiting.remove(turn);
        let pool = if is_own { self.pool_of_nodes(turn, &request, entry) } else { None };
        let (addresses, causes, outcome) = match pool {
            Some(pool) => {
                let mut borrowed = self.decide_ports(turn, &request, pool, entry);
                let mut causes = Vec::new();
                if !request.addresses.is_empty() {
                    // It has ports of nodes until it can have the addresses.
                    let decision = self.decide(turn, &request, &entry.addresses);
                    borrowed.outcome.wait_for(decision.refusal, &self.pools.get(pool).name);
                    causes = decision.causes;
                }
                (Some(borrowed.kept_addresses), causes, Some(borrowed.outcome))
            }
            None if is_own => {
                let decision = self.decide(turn, &request, &entry.addresses);
                let outcome = self.outcome_of(&decision);
                (Some(decision.addresses), decision.causes, Some(outcome))
            }
            None => (None, Vec::new(), None),
        };
        self.waiting.set(turn, causes);
        if pool.is_some() {
            self.lending.borrowers.insert(turn.clone());
        } else {
            self.lending.borrowers.remove(turn);
        }
        if is_own {
            let grant = outcome.as_ref().and_then(|outcome| outcome.grant.clone());
            let is_lost = grant.is_none() && entry.grant.is_some();
            self.set_ports(name, grant);
            if is_lost {
                // The pool of its ports decided. Another one may have what it wants now.
                self.due.insert(turn.clone());
            }
        }
        if let Some(addresses) = addresses {
            self.set_addresses(name, addresses);
        }
        let Some(entry) = self.services.get_mut(name) else { return };
        entry.is_own = is_own;
        if entry.outcome != outcome {
            let before = std::mem::replace(&mut entry.outcome, outcome.clone());
            self.changed.insert(name.clone());
            self.count_outcome(before.as_ref(), outcome.as_ref());
        }
    }

    fn count_outcome(
        &mut self,
        before: Option<&AssignmentOutcome>,
        now: Option<&AssignmentOutcome>,
    ) {
        if let Some(before) = before {
            *self.reasons.entry(before.reason).or_default() -= 1;
            self.outside -= before.outside;
        }
        if let Some(now) = now {
            *self.reasons.entry(now.reason).or_default() += 1;
            self.outside += now.outside;
        }
    }

    /// Whether this controller assigns the addresses of a Service, rather than another one or none.
    fn is_own(&self, entry: &IpamService) -> bool {
        if let Some(class) = &entry.class {
            return self.settings.classes.contains(class);
        }
        if self.settings.needs_class {
            return false;
        }
        if entry.is_own || entry.is_marked || self.settings.is_alone {
            return true;
        }
        if entry.has_others {
            return false;
        }
        match entry.addresses.as_slice() {
            // Without pools, another controller may be meant to assign one.
            [] => !self.pools.is_empty(),
            addresses => addresses.iter().any(|address| self.pools.pool_of(*address).is_some()),
        }
    }

    fn outcome_of(&self, decision: &AddressDecision) -> AssignmentOutcome {
        let addresses = decision.addresses.clone();
        let is_outside = |address: &&IpAddr| self.pools.pool_of(**address).is_none();
        let outside = addresses.iter().filter(is_outside).count();
        if let Some(refusal) = &decision.refusal {
            let mut message = refusal.message.clone();
            if decision.is_provisional && !addresses.is_empty() {
                message.push_str(&format!(". Until then it keeps {}", list(&addresses)));
            }
            let reason = refusal.reason;
            return AssignmentOutcome {
                addresses,
                ports: Vec::new(),
                grant: None,
                reason,
                message,
                outside,
            };
        }
        let mut parts: Vec<String> = Vec::new();
        for address in &addresses {
            parts.push(match self.pools.pool_of(*address) {
                Some(pool) => format!("{address} of {}", pool.name),
                None => format!("{address}, which no address pool contains any more"),
            });
        }
        parts.extend(decision.note.clone());
        let (reason, message) = (AssignmentReason::Assigned, parts.join("; "));
        AssignmentOutcome { addresses, ports: Vec::new(), grant: None, reason, message, outside }
    }

    /// What became of a Service; `None` if its addresses are not this controller's to assign.
    pub fn outcome(&self, service: &ServiceName) -> Option<&AssignmentOutcome> {
        self.services.get(service)?.outcome.as_ref()
    }

    /// The number of Services by outcome.
    pub fn count(&self, reason: AssignmentReason) -> usize {
        self.reasons.get(&reason).copied().unwrap_or_default()
    }

    /// Addresses of own Services that no pool contains any more.
    pub fn outside(&self) -> usize {
        self.outside
    }

    /// How much of each pool is used, by the families that it has.
    pub fn usage(&self) -> impl Iterator<Item = Usage<'_>> {
        let families = |(index, pool)| AddressFamily::ALL.map(move |family| (index, pool, family));
        let all = self.pools.iter().flat_map(families);
        let of_ranges = all.filter(|(_, pool, family)| pool.has_family(*family));
        let of_ranges = of_ranges.map(|(index, pool, family)| {
            let used = self.ledger.used(index, family);
            Usage { pool: &pool.name, family, used, free: pool.size(family) - u128::from(used) }
        });
        of_ranges.chain(self.usage_of_nodes())
    }

    fn request_of(&self, service: &ServiceName) -> Option<&AddressRequest> {
        self.services.get(service).map(|entry| &*entry.request)
    }

    fn addresses_of(&self, service: &ServiceName) -> &[IpAddr] {
        self.services.get(service).map_or(&[], |entry| &entry.addresses)
    }
}

/// Where an address of a Service is announced, if it is. One that was assigned and has left its pool is announced by
/// all nodes, so that it serves as before.
pub fn find_announcement(
    pools: &Pools,
    is_assigned: bool,
    address: IpAddr,
) -> Option<&Announcement> {
    match pools.pool_of(address) {
        Some(pool) => pool.announcement.as_ref(),
        None => is_assigned.then(Announcement::everywhere),
    }
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

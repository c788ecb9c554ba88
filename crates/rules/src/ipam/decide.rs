//! What one Service gets, from the state of all. Changes nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Ipam;
use super::ledger::SearchStart;
use super::outcome::{AssignmentReason, Refusal};
use super::pools::PoolIndex;
use super::range::address_to_number;
use super::request::{AddressRequest, FamilyPolicy};
use super::selector::Labels;
use super::sharing::{Sharing, compare_requests};
use super::waiting::WaitCause;
use crate::model::{AddressFamily, ServiceName};

/// Pools that a message names.
const MAX_LISTED_NAMES: usize = 5;

/// What a Service has from now on.
#[derive(Debug, Default)]
pub struct AddressDecision {
    pub addresses: Vec<IpAddr>,
    /// Why the request is not met, or not in full.
    pub refusal: Option<Refusal>,
    /// Whether the addresses are to be replaced or completed as soon as that is possible.
    pub is_provisional: bool,
    /// A family that the Service would take, but does not need.
    pub note: Option<String>,
    /// What it waits for.
    pub causes: Vec<WaitCause>,
}

/// Addresses that the Service lacks in one family.
enum FamilyNeed {
    Any,
    These(Vec<IpAddr>),
}

pub(crate) struct AssignmentFailure {
    refusal: Refusal,
    causes: Vec<WaitCause>,
}

impl AssignmentFailure {
    fn of(reason: AssignmentReason, message: impl Into<String>) -> Self {
        Self { refusal: Refusal::new(reason, message), causes: Vec::new() }
    }

    /// Whether it ends when another Service changes.
    fn is_temporary(&self) -> bool {
        !self.causes.is_empty()
    }
}

/// Whether a Service may keep an address that it has.
enum AddressEligibility {
    Kept,
    Lost,
    Conflict(Refusal),
}

impl Ipam {
    pub(super) fn decide(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        held: &[IpAddr],
    ) -> AddressDecision {
        let families = request.wanted_families();
        let mut decision = AddressDecision::default();
        // Addresses that are not what is requested any more: they are kept until the others can be had.
        let mut stale = Vec::new();
        let mut conflicts = Vec::new();
        for &address in held.iter().filter(|at| families.contains(&AddressFamily::of(at))) {
            match self.standing(turn, request, address) {
                AddressEligibility::Lost => continue,
                AddressEligibility::Kept => {}
                AddressEligibility::Conflict(refusal) => conflicts.push((address, refusal)),
            }
            let fits = request.fault.is_some() || self.fits(request, address);
            if fits { decision.addresses.push(address) } else { stale.push(address) }
        }
        match self.complete(turn, request, &families, &mut decision, &mut stale) {
            Ok(()) => {}
            Err(AssignmentFailure { refusal, causes }) => {
                decision.is_provisional = true;
                decision.addresses.extend(&stale);
                decision.refusal = Some(refusal);
                decision.causes = causes;
            }
        }
        // Of an address that is given up it does not matter.
        conflicts.retain(|(address, _)| decision.addresses.contains(address));
        decision.refusal = decision.refusal.or(conflicts.pop().map(|(_, refusal)| refusal));
        let place = |address: &IpAddr| {
            let family = AddressFamily::of(address);
            (families.iter().position(|known| *known == family), *address)
        };
        decision.addresses.sort_by_key(place);
        decision
    }

    /// Adds what is missing. On failure nothing is added.
    fn complete(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        families: &[AddressFamily],
        decision: &mut AddressDecision,
        stale: &mut Vec<IpAddr>,
    ) -> Result<(), AssignmentFailure> {
        if let Some(fault) = &request.fault {
            return Err(AssignmentFailure::of(AssignmentReason::InvalidRequest, fault));
        }
        let mut taken = Vec::new();
        let mut failures: Vec<(AddressFamily, AssignmentFailure)> = Vec::new();
        for (family, need) in needs(request, families, &decision.addresses)? {
            let found = match need {
                FamilyNeed::Any => self.find(turn, request, family).map(|address| vec![address]),
                FamilyNeed::These(addresses) => {
                    let failures =
                        addresses.iter().filter_map(|at| self.check(turn, request, *at).err());
                    failures.min_by_key(AssignmentFailure::is_temporary).map_or(Ok(addresses), Err)
                }
            };
            match found {
                Ok(addresses) => taken.extend(addresses),
                Err(failure) => failures.push((family, failure)),
            }
        }
        // What no other Service can solve is reported first.
        failures.sort_by_key(|(_, failure)| failure.is_temporary());
        // Each family has its own addresses: what replaces others in one family does not wait for the other one.
        let has_failed = |address: &IpAddr| {
            failures.iter().any(|(family, _)| *family == AddressFamily::of(address))
        };
        let kept: Vec<IpAddr> = stale.iter().copied().filter(has_failed).collect();
        let has_any = !(taken.is_empty() && decision.addresses.is_empty() && kept.is_empty());
        let is_all_or_nothing = request.policy != FamilyPolicy::Prefer || !has_any;
        // A request, or a replacement, is more than a preference.
        let is_requested = !request.addresses.is_empty() || !kept.is_empty();
        let mut failures = failures.into_iter();
        if let Some((family, mut failure)) = failures.next() {
            if request.policy == FamilyPolicy::Prefer {
                // Either family would do.
                failure.causes.extend(failures.flat_map(|(_, failure)| failure.causes));
            }
            if is_all_or_nothing {
                return Err(failure);
            }
            let message = failure.refusal.message.clone();
            if is_requested {
                decision.is_provisional = true;
                decision.refusal = Some(failure.refusal);
            } else {
                decision.note = Some(format!("no {} address: {message}", family.name()));
            }
            decision.causes = failure.causes;
        }
        *stale = kept;
        decision.addresses.append(stale);
        decision.addresses.extend(taken);
        Ok(())
    }

    /// Whether an address is one of those that are requested.
    fn fits(&self, request: &AddressRequest, address: IpAddr) -> bool {
        if !request.addresses.is_empty() {
            return request.addresses.contains(&address);
        }
        let Some(wanted) = &request.pool else { return true };
        // An address that has left its pool is kept.
        self.pools.pool_of(address).is_none_or(|pool| pool.name.name() == wanted)
    }

    fn standing(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        address: IpAddr,
    ) -> AddressEligibility {
        for other in self.ledger.users(address).take_while(|other| *other < turn) {
            let Some(others) = self.request_of(&other.1) else { continue };
            match compare_requests(request, others) {
                Sharing::Allowed => {}
                Sharing::NotShared => return AddressEligibility::Lost,
                Sharing::Conflict(why) => {
                    return AddressEligibility::Conflict(conflict(address, &other.1, &why));
                }
            }
        }
        AddressEligibility::Kept
    }

    /// Whether the Service can have an address that it requests.
    fn check(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        address: IpAddr,
    ) -> Result<(), AssignmentFailure> {
        let Some(pool) = self.pools.pool_of(address) else {
            let message = match self.pools.excluding(address) {
                Some(pool) => format!(
                    "{pool} has avoidBuggyIPs, and does not assign {address}: request another address"
                ),
                None => {
                    format!(
                        "no address pool contains {address}: add it to one, or request another address"
                    )
                }
            };
            return Err(AssignmentFailure::of(AssignmentReason::NotInPool, message));
        };
        if let Some(wanted) = request.pool.as_ref().filter(|wanted| pool.name.name() != *wanted) {
            let message =
                format!("{address} is of {}, not of the requested pool {wanted}", pool.name);
            return Err(AssignmentFailure::of(AssignmentReason::NotInPool, message));
        }
        let service = &turn.1;
        if !pool.admits(&service.namespace, self.labels_of(service), &request.labels) {
            let message = format!(
                "{address} is of {}, whose selectors don't match this Service and its namespace",
                pool.name
            );
            return Err(AssignmentFailure::of(AssignmentReason::NotInPool, message));
        }
        let users = self.ledger.users(address).filter(|user| *user != turn);
        match users.filter_map(|user| self.obstacle(request, address, user)).next() {
            None => Ok(()),
            Some(refusal) => {
                Err(AssignmentFailure { refusal, causes: vec![WaitCause::Taken(address)] })
            }
        }
    }

    /// Why an address can't be shared with a Service that has it.
    fn obstacle(
        &self,
        request: &AddressRequest,
        address: IpAddr,
        user: &SearchStart,
    ) -> Option<Refusal> {
        let user = &user.1;
        match compare_requests(request, self.request_of(user)?) {
            Sharing::Allowed => None,
            Sharing::Conflict(why) => Some(conflict(address, user, &why)),
            Sharing::NotShared => Some(Refusal::new(
                AssignmentReason::InUse,
                format!(
                    "Service {user} has {address}: request another address, or share it by giving both the same \
                     annotation millrace.io/sharing-key"
                ),
            )),
        }
    }

    /// An address of a family that the Service can have.
    fn find(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        family: AddressFamily,
    ) -> Result<IpAddr, AssignmentFailure> {
        let service = &turn.1;
        let admitting = self.admitting(service, request)?;
        let candidates: Vec<PoolIndex> = admitting
            .iter()
            .copied()
            .filter(|index| self.pools.get(*index).has_family(family))
            .collect();
        if candidates.is_empty() {
            let message = format!(
                "no {} addresses in {}: add a range of that family, or change ipFamilyPolicy",
                family.name(),
                self.names(&admitting)
            );
            return Err(AssignmentFailure::of(AssignmentReason::FamilyUnavailable, message));
        }
        let free = |index: &PoolIndex| self.ledger.first_free(&self.pools, *index, family);
        let shared = self.find_shared(turn, request, family, &candidates);
        shared.or_else(|| candidates.iter().find_map(free)).ok_or_else(|| {
            let message = format!(
                "all {} addresses of {} are in use: add a range, or delete a Service",
                family.name(),
                self.names(&candidates)
            );
            let causes =
                candidates.iter().map(|index| WaitCause::Exhausted(*index, family)).collect();
            AssignmentFailure {
                refusal: Refusal::new(AssignmentReason::PoolExhausted, message),
                causes,
            }
        })
    }

    /// For messages: some of many pools.
    fn names(&self, indexes: &[PoolIndex]) -> String {
        let some = indexes.iter().take(MAX_LISTED_NAMES);
        let mut names: Vec<String> =
            some.map(|index| self.pools.get(*index).name.to_string()).collect();
        if let Some(more) = indexes.len().checked_sub(MAX_LISTED_NAMES).filter(|more| *more > 0) {
            names.push(format!("and {more} more"));
        }
        names.join(", ")
    }

    /// The pools that a Service may have addresses of; at least one.
    pub(super) fn admitting(
        &self,
        service: &ServiceName,
        request: &AddressRequest,
    ) -> Result<Vec<PoolIndex>, AssignmentFailure> {
        let (namespace, labels) = (&service.namespace, self.labels_of(service));
        if let Some(name) = &request.pool {
            let named: Vec<PoolIndex> = self.pools.named(name).collect();
            if named.is_empty() {
                let message =
                    format!("there is no address pool {name:?}: create it, or request another one");
                return Err(AssignmentFailure::of(AssignmentReason::NoPool, message));
            }
            let admits = |index: &PoolIndex| {
                self.pools.get(*index).admits(namespace, labels, &request.labels)
            };
            let admitting: Vec<PoolIndex> = named.into_iter().filter(admits).collect();
            if admitting.is_empty() {
                let message = format!(
                    "the selectors of the requested pool {name} don't match this Service and its namespace"
                );
                return Err(AssignmentFailure::of(AssignmentReason::NoPool, message));
            }
            return Ok(admitting);
        }
        let admitting: Vec<PoolIndex> =
            self.pools.automatic(namespace, labels, &request.labels).collect();
        if admitting.is_empty() {
            let message = if self.pools.is_empty() {
                "there is no address pool: create an AddressPool, or set load-balancer-addresses"
            } else {
                "no address pool with autoAssign matches this Service and its namespace: create one, or name a pool by \
                 the annotation millrace.io/address-pool"
            };
            return Err(AssignmentFailure::of(AssignmentReason::NoPool, message));
        }
        Ok(admitting)
    }

    /// An address that other Services with the same key have.
    fn find_shared(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        family: AddressFamily,
        candidates: &[PoolIndex],
    ) -> Option<IpAddr> {
        let peers = self.keys.get(request.sharing_key.as_ref()?)?;
        let addresses = peers.iter().filter(|peer| *peer != turn);
        let addresses = addresses.flat_map(|peer| self.addresses_of(&peer.1)).copied();
        let suitable: BTreeSet<(usize, u128, IpAddr)> = addresses
            .filter(|address| AddressFamily::of(address) == family)
            .filter_map(|address| {
                let index = self.pools.index_of(address_to_number(address))?;
                let place = candidates.iter().position(|candidate| *candidate == index)?;
                let mut users = self.ledger.users(address).filter(|user| *user != turn);
                let is_shared = users.all(|user| self.obstacle(request, address, user).is_none());
                is_shared.then(|| (place, address_to_number(address), address))
            })
            .collect();
        suitable.first().map(|(_, _, address)| *address)
    }

    pub(super) fn labels_of(&self, service: &ServiceName) -> &Labels {
        self.namespaces.labels(&service.namespace)
    }
}

fn conflict(address: IpAddr, other: &ServiceName, why: &str) -> Refusal {
    Refusal::new(
        AssignmentReason::SharingConflict,
        format!("Service {other} shares {address}, but {why}"),
    )
}

/// What is missing beside the addresses that the Service has.
fn needs(
    request: &AddressRequest,
    families: &[AddressFamily],
    addresses: &[IpAddr],
) -> Result<Vec<(AddressFamily, FamilyNeed)>, AssignmentFailure> {
    let of = |family: AddressFamily| move |address: &&IpAddr| AddressFamily::of(address) == family;
    if request.addresses.is_empty() {
        let lacking =
            families.iter().filter(|family| !addresses.iter().any(|at| of(**family)(&at)));
        return Ok(lacking.map(|family| (*family, FamilyNeed::Any)).collect());
    }
    let alien = request.addresses.iter().find(|at| !families.contains(&AddressFamily::of(at)));
    if let Some(address) = alien {
        let names: Vec<&str> = families.iter().map(|family| family.name()).collect();
        let message = format!(
            "{address} is requested, but the Service has only {}: change its ipFamilies and ipFamilyPolicy, or the \
             request",
            names.join(" and ")
        );
        return Err(AssignmentFailure::of(AssignmentReason::FamilyUnavailable, message));
    }
    let mut needs = Vec::new();
    for &family in families {
        let requested: Vec<IpAddr> = request.addresses.iter().filter(of(family)).copied().collect();
        if requested.is_empty() && request.policy == FamilyPolicy::Require {
            let message = format!(
                "ipFamilyPolicy is RequireDualStack, but no {} address is requested: request one of each family",
                family.name()
            );
            return Err(AssignmentFailure::of(AssignmentReason::FamilyUnavailable, message));
        }
        let lacking: Vec<IpAddr> =
            requested.into_iter().filter(|address| !addresses.contains(address)).collect();
        if !lacking.is_empty() {
            needs.push((family, FamilyNeed::These(lacking)));
        }
    }
    Ok(needs)
}

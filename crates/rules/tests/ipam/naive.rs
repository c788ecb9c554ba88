//! The rules of assignment without indexes: every change evaluates every Service, the oldest first, until none changes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use lb_rules::ipam::AssignmentReason;
use serde_json::{Value, json};

/// Addresses of a pool in one family: numbers within its network.
pub type Numbers = Option<(u8, u8)>;

#[derive(Clone, Debug)]
pub struct Pool {
    pub v4: Numbers,
    pub v6: Numbers,
    pub is_automatic: bool,
    pub priority: i32,
    /// The value of the label `tier` of Services that may use it.
    pub tier: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Single,
    Prefer,
    Require,
}

#[derive(Clone, Debug)]
pub struct Service {
    pub policy: Policy,
    pub is_v6_first: bool,
    /// Pools and numbers: addresses that are requested, of the families by the flag.
    pub requested: Vec<(u8, bool, u8)>,
    pub pool: Option<u8>,
    pub key: Option<u8>,
    pub ports: BTreeSet<u16>,
    pub local: Option<u8>,
    pub tier: u8,
}

pub fn address(pool: u8, is_v6: bool, number: u8) -> IpAddr {
    match is_v6 {
        false => IpAddr::from([10, 0, pool, number]),
        true => IpAddr::from([0xfd00, 0, 0, pool.into(), 0, 0, 0, number.into()]),
    }
}

impl Pool {
    fn addresses(&self, name: u8) -> Vec<IpAddr> {
        let of = |is_v6, numbers: Numbers| {
            let (first, last) = numbers.unwrap_or((1, 0));
            (first..=last).map(move |number| address(name, is_v6, number))
        };
        of(false, self.v4).chain(of(true, self.v6)).collect()
    }

    pub fn manifest(&self, name: u8) -> Value {
        let range = |is_v6, numbers: Numbers| {
            let (first, last) = numbers?;
            Some(format!("{}-{}", address(name, is_v6, first), address(name, is_v6, last)))
        };
        let ranges: Vec<String> =
            range(false, self.v4).into_iter().chain(range(true, self.v6)).collect();
        let selector = self.tier.map(|tier| json!({"matchLabels": {"tier": tier.to_string()}}));
        json!({
            "metadata": {"name": format!("pool-{name}")},
            "spec": {
                "addresses": ranges, "autoAssign": self.is_automatic, "priority": self.priority,
                "serviceSelector": selector
            }
        })
    }

    fn admits(&self, service: &Service) -> bool {
        self.tier.is_none_or(|tier| tier == service.tier)
    }
}

impl Service {
    fn families(&self) -> Vec<bool> {
        let both = [self.is_v6_first, !self.is_v6_first];
        if self.policy == Policy::Single { both[..1].to_vec() } else { both.to_vec() }
    }

    fn requests(&self) -> BTreeSet<IpAddr> {
        self.requested.iter().map(|&(pool, is_v6, number)| address(pool, is_v6, number)).collect()
    }

    pub fn manifest(&self, name: u8) -> Value {
        let names: Vec<&str> =
            self.families().iter().map(|is_v6| if *is_v6 { "IPv6" } else { "IPv4" }).collect();
        let policy = match self.policy {
            Policy::Single => "SingleStack",
            Policy::Prefer => "PreferDualStack",
            Policy::Require => "RequireDualStack",
        };
        let mut annotations = BTreeMap::new();
        let requests: Vec<String> = self.requests().iter().map(ToString::to_string).collect();
        if !requests.is_empty() {
            annotations.insert("millrace.io/load-balancer-addresses", requests.join(","));
        }
        if let Some(pool) = self.pool {
            annotations.insert("metallb.io/address-pool", format!("pool-{pool}"));
        }
        if let Some(key) = self.key {
            annotations.insert("lbipam.cilium.io/sharing-key", key.to_string());
        }
        let ports: Vec<Value> = self.ports.iter().map(|port| json!({"port": port})).collect();
        json!({
            "metadata": {
                "name": format!("service-{name}"),
                "labels": {"tier": self.tier.to_string()},
                "annotations": annotations,
                "creationTimestamp": format!("2026-01-01T00:00:{name:02}Z")
            },
            "spec": {
                "type": "LoadBalancer", "ports": ports, "ipFamilyPolicy": policy, "ipFamilies": names,
                "selector": {"app": self.local.unwrap_or_default().to_string()},
                "externalTrafficPolicy": if self.local.is_some() { "Local" } else { "Cluster" }
            }
        })
    }
}

/// Why two Services can't have one address.
pub fn obstacle(one: &Service, other: &Service) -> Option<AssignmentReason> {
    if one.key.is_none() || one.key != other.key {
        return Some(AssignmentReason::InUse);
    }
    let fits = one.ports.is_disjoint(&other.ports) && one.local == other.local;
    (!fits).then_some(AssignmentReason::SharingConflict)
}

/// Whether it ends when another Service changes.
pub fn is_temporary(reason: AssignmentReason) -> bool {
    [AssignmentReason::PoolExhausted, AssignmentReason::InUse, AssignmentReason::SharingConflict]
        .contains(&reason)
}

#[derive(Clone, Debug, Default)]
pub struct World {
    pub pools: BTreeMap<u8, Pool>,
    pub services: BTreeMap<u8, Service>,
    pub held: BTreeMap<u8, Vec<IpAddr>>,
    pub reasons: BTreeMap<u8, AssignmentReason>,
}

impl World {
    pub fn settle(&mut self) {
        self.held.retain(|name, _| self.services.contains_key(name));
        self.reasons.retain(|name, _| self.services.contains_key(name));
        loop {
            let mut is_changed = false;
            for name in self.services.keys().copied().collect::<Vec<_>>() {
                let (addresses, reason) = self.evaluate(name);
                self.reasons.insert(name, reason);
                if self.held.insert(name, addresses.clone()) != Some(addresses) {
                    is_changed = true;
                    break;
                }
            }
            if !is_changed {
                return;
            }
        }
    }

    pub fn pool_of(&self, address: IpAddr) -> Option<u8> {
        self.pools
            .iter()
            .find(|(name, pool)| pool.addresses(**name).contains(&address))
            .map(|(name, _)| *name)
    }

    fn users(&self, address: IpAddr, but: u8) -> Vec<u8> {
        let users =
            self.held.iter().filter(|(name, held)| **name != but && held.contains(&address));
        users.map(|(name, _)| *name).collect()
    }

    fn evaluate(&self, name: u8) -> (Vec<IpAddr>, AssignmentReason) {
        let service = &self.services[&name];
        let families = service.families();
        let requests = service.requests();
        let (mut have, mut stale, mut conflicts) = (Vec::new(), Vec::new(), Vec::new());
        for &address in self.held.get(&name).into_iter().flatten() {
            if !families.contains(&address.is_ipv6()) {
                continue;
            }
            let older = self.users(address, name).into_iter().filter(|other| *other < name);
            let first = older.filter_map(|other| obstacle(service, &self.services[&other])).next();
            if first == Some(AssignmentReason::InUse) {
                continue;
            }
            conflicts.extend(first.map(|reason| (address, reason)));
            let is_wanted = match (requests.is_empty(), service.pool, self.pool_of(address)) {
                (false, _, _) => requests.contains(&address),
                (true, Some(wanted), Some(pool)) => wanted == pool,
                (true, _, _) => true,
            };
            if is_wanted { have.push(address) } else { stale.push(address) }
        }
        let sorted = |mut addresses: Vec<IpAddr>| {
            addresses
                .sort_by_key(|at| (families.iter().position(|is_v6| *is_v6 == at.is_ipv6()), *at));
            addresses
        };
        let or_conflict = |addresses: &[IpAddr]| {
            let kept = conflicts.iter().find(|(address, _)| addresses.contains(address));
            kept.map_or(AssignmentReason::Assigned, |(_, reason)| *reason)
        };
        let fail = |reason| (sorted([have.clone(), stale.clone()].concat()), reason);
        if requests.iter().any(|at| !families.contains(&at.is_ipv6())) {
            return fail(AssignmentReason::FamilyUnavailable);
        }
        let of = |is_v6: bool| requests.iter().copied().filter(move |at| at.is_ipv6() == is_v6);
        if service.policy == Policy::Require
            && !requests.is_empty()
            && families.iter().any(|is_v6| of(*is_v6).next().is_none())
        {
            return fail(AssignmentReason::FamilyUnavailable);
        }
        let (mut taken, mut failures) = (Vec::new(), Vec::new());
        for &is_v6 in &families {
            let found = if requests.is_empty() {
                match have.iter().any(|at| at.is_ipv6() == is_v6) {
                    true => Ok(Vec::new()),
                    false => self.find(name, is_v6).map(|at| vec![at]),
                }
            } else {
                let lacking: Vec<IpAddr> = of(is_v6).filter(|at| !have.contains(at)).collect();
                let failures = lacking.iter().filter_map(|at| self.check(name, *at).err());
                failures.min_by_key(|reason| is_temporary(*reason)).map_or(Ok(lacking), Err)
            };
            match found {
                Ok(addresses) => taken.extend(addresses),
                Err(reason) => failures.push((is_v6, reason)),
            }
        }
        failures.sort_by_key(|(_, reason)| is_temporary(*reason));
        let Some(&(_, reason)) = failures.first() else {
            let addresses = sorted([have, taken].concat());
            let reason = or_conflict(&addresses);
            return (addresses, reason);
        };
        let kept: Vec<IpAddr> = stale
            .iter()
            .copied()
            .filter(|at| failures.iter().any(|(is_v6, _)| *is_v6 == at.is_ipv6()))
            .collect();
        if service.policy != Policy::Prefer
            || (taken.is_empty() && have.is_empty() && kept.is_empty())
        {
            return fail(reason);
        }
        let reason = match requests.is_empty() && kept.is_empty() {
            true => or_conflict(&have),
            false => reason,
        };
        (sorted([have, kept, taken].concat()), reason)
    }

    fn check(&self, name: u8, address: IpAddr) -> Result<(), AssignmentReason> {
        let service = &self.services[&name];
        let pool = self.pool_of(address).ok_or(AssignmentReason::NotInPool)?;
        if service.pool.is_some_and(|wanted| wanted != pool) || !self.pools[&pool].admits(service) {
            return Err(AssignmentReason::NotInPool);
        }
        let users = self.users(address, name);
        let obstacle =
            users.iter().filter_map(|user| obstacle(service, &self.services[user])).next();
        obstacle.map_or(Ok(()), Err)
    }

    fn find(&self, name: u8, is_v6: bool) -> Result<IpAddr, AssignmentReason> {
        let service = &self.services[&name];
        let mut pools: Vec<(&u8, &Pool)> = self
            .pools
            .iter()
            .filter(|(pool, spec)| match service.pool {
                Some(wanted) => **pool == wanted,
                None => spec.is_automatic,
            })
            .filter(|(_, spec)| spec.admits(service))
            .collect();
        if pools.is_empty() {
            return Err(AssignmentReason::NoPool);
        }
        pools.sort_by_key(|(name, pool)| (Reverse(pool.priority), pool.tier.is_none(), **name));
        let all: Vec<IpAddr> = pools
            .iter()
            .flat_map(|(name, pool)| pool.addresses(**name))
            .filter(|at| at.is_ipv6() == is_v6)
            .collect();
        if all.is_empty() {
            return Err(AssignmentReason::FamilyUnavailable);
        }
        let is_shared = |at: &&IpAddr| {
            let users = self.users(**at, name);
            !users.is_empty()
                && users.iter().all(|user| obstacle(service, &self.services[user]).is_none())
        };
        let is_free = |at: &&IpAddr| self.users(**at, name).is_empty();
        all.iter()
            .find(is_shared)
            .or_else(|| all.iter().find(is_free))
            .copied()
            .ok_or(AssignmentReason::PoolExhausted)
    }
}

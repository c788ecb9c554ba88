//! What a change of one Service affects.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;

use super::ledger::SearchStart;
use super::range::address_to_number;
use super::request::{AddressRequest, HeldAddresses};
use super::waiting::WaitCause;
use super::{Ipam, IpamService, is_marked};
use crate::model::{AddressFamily, ServiceName};

impl Ipam {
    pub(super) fn apply_service(&mut self, service: &Service) {
        let name = ServiceName::of(&service.metadata);
        let Some(request) = AddressRequest::of(service) else {
            self.forget(&name);
            return;
        };
        self.namespaces.note(&name.namespace);
        let created = service.metadata.creation_timestamp.as_ref();
        let turn: SearchStart = (created.map(|time| time.0.to_string().into()), name.clone());
        let held = HeldAddresses::of(service);
        let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.clone());
        let is_marked = is_marked(service);
        if self.services.get(&name).is_some_and(|known| known.turn != turn) {
            // Another one of the same name.
            self.forget(&name);
        }
        match self.services.get_mut(&name) {
            None => {
                self.note_key(&turn, None, request.sharing_key.as_ref());
                let entry = IpamService {
                    turn: turn.clone(),
                    request: Arc::new(request),
                    class,
                    is_marked,
                    has_others: held.has_others,
                    addresses: Vec::new(),
                    grant: None,
                    is_own: false,
                    outcome: None,
                };
                self.services.insert(name.clone(), entry);
                self.set_addresses(&name, held.addresses);
                self.set_ports(&name, held.grant);
                self.wake_peers(&turn);
            }
            Some(entry) => {
                let is_same = *entry.request == request && entry.class == class;
                entry.class = class;
                entry.is_marked |= is_marked;
                entry.has_others = held.has_others;
                let before = std::mem::replace(&mut entry.request, Arc::new(request.clone()));
                let is_own = entry.is_own;
                if !is_same {
                    let key = request.sharing_key.as_ref();
                    self.note_key(&turn, before.sharing_key.as_ref(), key);
                    self.wake_peers(&turn);
                }
                if !is_own {
                    self.set_addresses(&name, held.addresses);
                    self.set_ports(&name, held.grant);
                }
                if is_same && is_own {
                    return;
                }
            }
        }
        self.due.insert(turn);
    }

    pub(super) fn forget(&mut self, name: &ServiceName) {
        if !self.services.contains_key(name) {
            return;
        }
        self.set_addresses(name, Vec::new());
        self.set_ports(name, None);
        let Some(entry) = self.services.remove(name) else { return };
        self.note_key(&entry.turn, entry.request.sharing_key.as_ref(), None);
        self.waiting.remove(&entry.turn);
        self.due.remove(&entry.turn);
        self.lending.borrowers.remove(&entry.turn);
        self.count_outcome(entry.outcome.as_ref(), None);
        if entry.outcome.is_some() {
            self.changed.insert(name.clone());
        }
    }

    fn note_key(&mut self, turn: &SearchStart, before: Option<&String>, now: Option<&String>) {
        if before == now {
            return;
        }
        if let Some(before) = before
            && let Some(turns) = self.keys.get_mut(before)
        {
            turns.remove(turn);
            if turns.is_empty() {
                self.keys.remove(before);
            }
        }
        if let Some(now) = now {
            self.keys.entry(now.clone()).or_default().insert(turn.clone());
        }
    }

    /// Evaluates those again whose standing may depend on this one: Services that have one of its addresses, and those
    /// that wait and share its key.
    fn wake_peers(&mut self, turn: &SearchStart) {
        let Some(entry) = self.services.get(&turn.1) else { return };
        let (addresses, key) = (entry.addresses.clone(), entry.request.sharing_key.clone());
        addresses.into_iter().for_each(|address| self.wake_users(address, turn));
        self.wake_key(key.as_ref());
    }

    /// Evaluates those again that have an address, wait for it, or could share it.
    fn wake_users(&mut self, address: IpAddr, but: &SearchStart) {
        self.due.extend(self.waiting.for_cause(WaitCause::Taken(address)).cloned());
        let users: Vec<SearchStart> =
            self.ledger.users(address).filter(|user| *user != but).cloned().collect();
        for user in users {
            let key = self.request_of(&user.1).and_then(|request| request.sharing_key.clone());
            self.wake_key(key.as_ref());
            self.due.insert(user);
        }
    }

    fn wake_key(&mut self, key: Option<&String>) {
        let peers = key.and_then(|key| self.keys.get(key)).into_iter().flatten();
        self.due.extend(peers.filter(|peer| self.waiting.contains(peer)).cloned());
    }

    /// Notes the addresses of a Service, and offers those that it had to others.
    pub(super) fn set_addresses(&mut self, name: &ServiceName, addresses: Vec<IpAddr>) {
        let Some(entry) = self.services.get_mut(name) else { return };
        if entry.addresses == addresses {
            return;
        }
        let turn = entry.turn.clone();
        let before = std::mem::replace(&mut entry.addresses, addresses.clone());
        for &address in before.iter().filter(|address| !addresses.contains(address)) {
            if self.ledger.remove(&self.pools, address, &turn)
                && let Some(index) = self.pools.index_of(address_to_number(address))
            {
                self.offers.insert((index, AddressFamily::of(&address)), None);
            }
            self.wake_users(address, &turn);
        }
        for &address in addresses.iter().filter(|address| !before.contains(address)) {
            self.ledger.insert(&self.pools, address, &turn);
        }
        self.wake_peers(&turn);
    }
}

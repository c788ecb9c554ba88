//! What follows when another machine uses an address that this node probes or announces, and when this node's kernel
//! cannot answer for one.

use std::net::IpAddr;

use super::address_state::{AddressState, HeldAddress, ProbeTarget};
use super::event::{ElectionEvent, LinkEffect};
use super::identity::LinkAddress;
use super::link::LinkElection;
use super::pacing::FramePacing;
use super::timing::{
    ANSWERED_RETRY_DELAY, BLOCKED_RETRY_DELAY, CORRECTION_INTERVAL, DEFENCE_INTERVAL, Time,
};

impl LinkElection {
    /// A frame claims an address for a machine: it replies to a probe, or uses the address on its own account.
    pub(super) fn note_address_use(&mut self, address: IpAddr, by: LinkAddress, now: Time) {
        if by == self.link_address {
            return;
        }
        self.note_probe_reply(address, by);
        let known = self.peers.is_peer_address(by);
        let Some(state) = self.addresses.get(&address).copied() else { return };
        match state {
            AddressState::Probing(probing) => {
                // A node that takes part: alive, and its heartbeats list what it holds; or silent, and its kernel answers
                // without its agent. A machine that has left the list is known by the address that is probed.
                let takes_part = known
                    || matches!(probing.of, ProbeTarget::Silent { link_address, .. } if link_address == by);
                let next = if takes_part {
                    AddressState::Answered { again: now + ANSWERED_RETRY_DELAY }
                } else {
                    self.counts.conflicts += 1;
                    self.report(ElectionEvent::InUse { address, by });
                    AddressState::Blocked { by: Some(by), until: now + BLOCKED_RETRY_DELAY }
                };
                self.effects.push(LinkEffect::Unwatch(address));
                self.addresses.insert(address, next);
                self.dirty = true;
            }
            AddressState::Here(holding) if !known => {
                self.defend_or_yield(address, holding, by, now);
            }
            AddressState::Here(holding) if self.peers.is_isolated_address(by) => {
                self.correct_announcement(address, holding, now);
            }
            _ => {}
        }
    }

    /// Another machine uses an address that is held here.
    fn defend_or_yield(
        &mut self,
        address: IpAddr,
        mut holding: HeldAddress,
        by: LinkAddress,
        now: Time,
    ) {
        if now < holding.yields_until {
            self.counts.conflicts += 1;
            self.release_address(address, None);
            let blocked = AddressState::Blocked { by: Some(by), until: now + BLOCKED_RETRY_DELAY };
            self.addresses.insert(address, blocked);
            self.report(ElectionEvent::InUse { address, by });
            self.dirty = true;
        } else if holding.defended.is_none_or(|last| now.saturating_sub(last) > DEFENCE_INTERVAL) {
            self.counts.conflicts += 1;
            holding.defended = Some(now);
            holding.pacing = FramePacing::start(now);
            self.addresses.insert(address, AddressState::Here(holding));
            self.report(ElectionEvent::Disputed { address, by });
            self.dirty = true;
        }
    }

    /// A participant that hears no other participant misleads clients about an address that is
    /// held here.
    fn correct_announcement(&mut self, address: IpAddr, mut holding: HeldAddress, now: Time) {
        if holding.defended.is_none_or(|last| now.saturating_sub(last) >= CORRECTION_INTERVAL) {
            holding.defended = Some(now);
            holding.pacing = FramePacing::start(now);
            self.addresses.insert(address, AddressState::Here(holding));
            self.dirty = true;
        }
    }

    /// The kernel cannot be made to answer for an address that is held here: another node may have it.
    pub(super) fn note_kernel_refusal(&mut self, address: IpAddr, now: Time) {
        if self.addresses.get(&address).and_then(AddressState::holding).is_some() {
            self.release_address(address, None);
            let blocked = AddressState::Blocked { by: None, until: now + BLOCKED_RETRY_DELAY };
            self.addresses.insert(address, blocked);
        }
    }
}

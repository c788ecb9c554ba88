//! Whether the machine of a participant that hears no other participant receives anything at all.
//!
//! Such a participant's heartbeats arrive here, but acknowledge no participant, or only old
//! messages. There are two possible causes:
//!
//! - Only heartbeats to it are lost, for example in a firewall. Its kernel still answers for the
//!   addresses that it holds, and it keeps them.
//! - Its machine receives nothing. It takes all other participants for silent, gets no answer from
//!   their kernels, and claims their addresses, though no client can reach it.
//!
//! To tell the two apart, this node probes an address that the participant claims, at the
//! participant's link-layer address, as soon as the participant may have missed a heartbeat. The
//! participant's gratuitous frames look like answers, but are rare. So several probes are sent,
//! and two must be answered.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::address_state::AddressState;
use super::event::{LinkEffect, LinkFrame};
use super::identity::{LinkAddress, ParticipantId};
use super::link::LinkElection;
use super::timing::{ANSWERED_RETRY_DELAY, Time};

const PROBES_PER_ROUND: u32 = 5;
const REQUIRED_REPLIES: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReachabilityProbe {
    /// The probed address: one that the participant claims to hold.
    address: IpAddr,
    sent: u32,
    answers: u32,
    /// The last probe that was answered.
    answered: u32,
    next: Time,
    /// Whether its kernel answered, once that is known.
    pub passed: Option<bool>,
}

impl ReachabilityProbe {
    /// `passed`: the result of the probes before, if any.
    fn start(address: IpAddr, passed: Option<bool>, at: Time) -> Self {
        Self { address, sent: 0, answers: 0, answered: 0, next: at, passed }
    }
}

pub(crate) type ReachabilityProbes = BTreeMap<ParticipantId, ReachabilityProbe>;

impl LinkElection {
    /// Probes the kernels of participants that may hear no other participant. Returns whether a
    /// participant became mute, or is mute no longer, which changes the candidates.
    pub(super) fn probe_isolated_peers(&mut self, now: Time) -> bool {
        let mut changed = false;
        let mut due: BTreeMap<ParticipantId, (IpAddr, LinkAddress)> = BTreeMap::new();
        let doubted = self.peers.iter().filter(|(_, peer)| !peer.silent && peer.is_doubted);
        for (id, peer) in doubted {
            let probed = self.reachability_probes.get(&id).map(|probe| probe.address);
            let probed = probed.filter(|address| peer.table.claims_address(*address));
            if let Some(address) = probed.or_else(|| peer.table.claimed_addresses().next()) {
                due.insert(id, (address, peer.link_address));
            }
        }
        let over: Vec<ParticipantId> =
            self.reachability_probes.keys().filter(|id| !due.contains_key(id)).copied().collect();
        for id in over {
            if let Some(probe) = self.reachability_probes.remove(&id) {
                self.unwatch_probed(probe.address);
            }
            changed |= self.peers.set_mute(id, false, now);
        }
        for (id, (address, link_address)) in due {
            let last = self.reachability_probes.get(&id).copied();
            let mut probe = match last {
                Some(probe) if probe.address == address => probe,
                // The participant no longer claims the probed address, so another one is probed.
                _ => ReachabilityProbe::start(address, last.and_then(|probe| probe.passed), now),
            };
            if let Some(last) = last.filter(|last| last.address != address) {
                self.unwatch_probed(last.address);
            }
            if now >= probe.next && probe.sent < PROBES_PER_ROUND {
                if probe.sent == 0 {
                    self.effects.push(LinkEffect::Watch(address));
                }
                self.effects.push(LinkEffect::Transmit(LinkFrame::ProbeOf(address, link_address)));
                probe.sent += 1;
                probe.next = now + self.timing.silent_probe_gap();
            } else if now >= probe.next {
                let passed = match (probe.passed, probe.answers >= REQUIRED_REPLIES) {
                    // The machine receives again. The participant's next messages show whether
                    // it hears others.
                    (Some(false), true) => None,
                    (_, passed) => Some(passed),
                };
                probe = ReachabilityProbe::start(address, passed, now + ANSWERED_RETRY_DELAY);
                self.unwatch_probed(address);
            }
            let hears_nobody = self.peers.get(id).is_some_and(|peer| peer.hears_nobody);
            let is_mute = hears_nobody && probe.passed == Some(false);
            changed |= self.peers.set_mute(id, is_mute, now);
            self.schedule_decision(probe.next);
            self.reachability_probes.insert(id, probe);
        }
        changed
    }

    /// Notes a frame in which a machine claims the address: perhaps the answer to a probe.
    pub(super) fn note_probe_reply(&mut self, address: IpAddr, by: LinkAddress) {
        for (id, probe) in &mut self.reachability_probes {
            let is_its = self.peers.get(*id).is_some_and(|peer| peer.link_address == by);
            if is_its && probe.address == address && probe.sent > probe.answered {
                probe.answered = probe.sent;
                probe.answers += 1;
            }
        }
    }

    fn unwatch_probed(&mut self, address: IpAddr) {
        if !self.addresses.get(&address).is_some_and(AddressState::is_watched) {
            self.effects.push(LinkEffect::Unwatch(address));
        }
    }
}

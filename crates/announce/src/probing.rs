//! Probes, which ask whether a machine uses an address before this node takes it.
//!
//! Invariant: a probe counts as unanswered only when all that arrived has been read.

use std::net::IpAddr;

use super::address_state::{AddressProbe, AddressState, ProbeTarget};
use super::event::{LinkEffect, LinkFrame};
use super::link::LinkElection;
use super::peers::Peer;
use super::timing::{FRESH_PROBE_GAP, PROBES_BEFORE_TAKING, Time};

impl LinkElection {
    pub(super) fn send_due_probes(&mut self, now: Time) {
        let probing = self.addresses.iter().filter_map(|(address, state)| match state {
            AddressState::Probing(probing) => Some((*address, *probing)),
            _ => None,
        });
        let probing: Vec<(IpAddr, AddressProbe)> = probing.collect();
        if probing.is_empty() {
            return;
        }
        // Whether it is known which addresses all participants hold. A deaf one may never complete
        // its table, so it is not waited for.
        let deaf_after = self.peers.deaf_after(&self.timing);
        let is_known = |peer: &Peer| peer.table.is_complete() || peer.is_deaf(now, deaf_after);
        let all_known = self.peers.alive_peers().all(|(_, peer)| is_known(peer));
        for (address, probing) in probing {
            self.probe_or_take(address, probing, all_known, now);
        }
    }

    fn probe_or_take(
        &mut self,
        address: IpAddr,
        mut probing: AddressProbe,
        all_known: bool,
        now: Time,
    ) {
        if now >= probing.next && probing.sent >= PROBES_BEFORE_TAKING {
            // A participant whose table is incomplete may hold the address: wait for its rows.
            if !all_known && now < probing.next + self.timing.silence {
                return self.schedule_decision(now + self.timing.interval / 10);
            }
            let from = match probing.of {
                ProbeTarget::Everyone => None,
                ProbeTarget::Silent { id, .. } => Some(id),
            };
            if let Some(peer) = from.and_then(|from| self.peers.get_mut(from)) {
                peer.table.mark_taken(address);
            }
            return self.take_address(address, from, false, now);
        }
        if now >= probing.next {
            let (frame, gap) = match probing.of {
                ProbeTarget::Everyone => (LinkFrame::Probe(address), FRESH_PROBE_GAP),
                ProbeTarget::Silent { link_address, .. } => {
                    (LinkFrame::ProbeOf(address, link_address), self.timing.silent_probe_gap())
                }
            };
            self.effects.push(LinkEffect::Transmit(frame));
            probing.sent += 1;
            probing.next = now + gap;
            self.addresses.insert(address, AddressState::Probing(probing));
        }
        self.schedule_decision(probing.next);
    }
}

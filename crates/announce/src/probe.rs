//! Probes, which ask whether a machine uses an address before this node takes it.
//!
//! Invariant: a probe counts as unanswered only when all that arrived has been read.

use std::net::IpAddr;

use super::event::{Effect, Frame};
use super::hold::{Probed, Probing, Whereabouts};
use super::link::Link;
use super::peers::Peer;
use super::timing::{FRESH_GAP, PROBES, Time};

impl Link {
    pub(super) fn continue_probes(&mut self, now: Time) {
        let probing = self.addresses.iter().filter_map(|(address, state)| match state {
            Whereabouts::Probing(probing) => Some((*address, *probing)),
            _ => None,
        });
        let probing: Vec<(IpAddr, Probing)> = probing.collect();
        if probing.is_empty() {
            return;
        }
        // Whether it is known which addresses all participants hold. A deaf one may never complete
        // its table, so it is not waited for.
        let deaf_after = self.peers.deaf_after(&self.timing);
        let is_known = |peer: &Peer| peer.table.is_complete() || peer.is_deaf(now, deaf_after);
        let all_known = self.peers.alive().all(|(_, peer)| is_known(peer));
        for (address, probing) in probing {
            self.continue_probing(address, probing, all_known, now);
        }
    }

    fn continue_probing(
        &mut self,
        address: IpAddr,
        mut probing: Probing,
        all_known: bool,
        now: Time,
    ) {
        if now >= probing.next && probing.sent >= PROBES {
            // A participant whose table is incomplete may hold the address: wait for its rows.
            if !all_known && now < probing.next + self.timing.silence {
                return self.due(now + self.timing.interval / 10);
            }
            let from = match probing.of {
                Probed::Everyone => None,
                Probed::Silent { id, .. } => Some(id),
            };
            if let Some(peer) = from.and_then(|from| self.peers.get_mut(from)) {
                peer.table.take_from(address);
            }
            return self.take(address, from, false, now);
        }
        if now >= probing.next {
            let (frame, gap) = match probing.of {
                Probed::Everyone => (Frame::Probe(address), FRESH_GAP),
                Probed::Silent { link_address, .. } => {
                    (Frame::ProbeOf(address, link_address), self.timing.silent_gap())
                }
            };
            self.effects.push(Effect::Transmit(frame));
            probing.sent += 1;
            probing.next = now + gap;
            self.addresses.insert(address, Whereabouts::Probing(probing));
        }
        self.due(probing.next);
    }
}

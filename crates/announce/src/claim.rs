//! Reactions to other machines that use an address: they answer a probe, or use an address that
//! this node announces. Also to a kernel that fails to answer for an address.

use std::net::IpAddr;

use super::event::{Effect, News};
use super::hold::{Holding, Probed, Whereabouts};
use super::identity::LinkAddress;
use super::link::Link;
use super::pacing::Pacing;
use super::timing::{ANSWERED, BLOCKED, DEFENCE, REDRESS, Time};

impl Link {
    pub(super) fn note_claim(&mut self, address: IpAddr, by: LinkAddress, now: Time) {
        if by == self.link_address {
            return;
        }
        self.note_answer(address, by);
        let known = self.peers.is_known(by);
        let Some(state) = self.addresses.get(&address).copied() else { return };
        match state {
            Whereabouts::Probing(probing) => {
                let is_silent =
                    self.peers.iter().any(|(_, peer)| peer.link_address == by && peer.silent);
                let next = match probing.of {
                    // A silent participant: its agent does not run, but its kernel still answers.
                    _ if known && is_silent => Whereabouts::Answered { again: now + ANSWERED },
                    Probed::Silent { link_address, .. } if link_address == by => {
                        Whereabouts::Answered { again: now + ANSWERED }
                    }
                    // Another node that is alive. Its heartbeats list the addresses that it holds.
                    // If its kernel answers for another one, that may be the node's own address.
                    _ if known => Whereabouts::Answered { again: now + ANSWERED },
                    _ => {
                        self.counts.conflicts += 1;
                        self.report(News::InUse { address, by });
                        Whereabouts::Blocked { by: Some(by), until: now + BLOCKED }
                    }
                };
                self.effects.push(Effect::Unwatch(address));
                self.addresses.insert(address, next);
                self.dirty = true;
            }
            Whereabouts::Here(holding) if !known => {
                self.dispute(address, holding, by, now);
            }
            Whereabouts::Here(holding) if self.peers.hears_nobody(by) => {
                self.redress(address, holding, now);
            }
            _ => {}
        }
    }

    /// Another machine uses an address that is held here.
    fn dispute(&mut self, address: IpAddr, mut holding: Holding, by: LinkAddress, now: Time) {
        if now < holding.yields_until {
            self.counts.conflicts += 1;
            self.release(address, None);
            let blocked = Whereabouts::Blocked { by: Some(by), until: now + BLOCKED };
            self.addresses.insert(address, blocked);
            self.report(News::InUse { address, by });
            self.dirty = true;
        } else if holding.defended.is_none_or(|last| now.saturating_sub(last) > DEFENCE) {
            self.counts.conflicts += 1;
            holding.defended = Some(now);
            holding.pacing = Pacing::start(now);
            self.addresses.insert(address, Whereabouts::Here(holding));
            self.report(News::Disputed { address, by });
            self.dirty = true;
        }
    }

    /// A participant that hears no other participant misleads clients about an address that is
    /// held here.
    fn redress(&mut self, address: IpAddr, mut holding: Holding, now: Time) {
        if holding.defended.is_none_or(|last| now.saturating_sub(last) >= REDRESS) {
            holding.defended = Some(now);
            holding.pacing = Pacing::start(now);
            self.addresses.insert(address, Whereabouts::Here(holding));
            self.dirty = true;
        }
    }

    pub(super) fn note_failure(&mut self, address: IpAddr, now: Time) {
        if self.addresses.get(&address).and_then(Whereabouts::holding).is_some() {
            self.release(address, None);
            let blocked = Whereabouts::Blocked { by: None, until: now + BLOCKED };
            self.addresses.insert(address, blocked);
        }
    }
}

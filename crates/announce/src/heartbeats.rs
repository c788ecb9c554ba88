//! The heartbeats of this participant, with changes of its table.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::event::LinkEffect;
use super::link::LinkElection;
use super::timing::{DEPARTURE_PERIOD, Time};
use super::wire::{self, ACKNOWLEDGEMENT_OCTETS, Heartbeat, MAX_HEARTBEAT_OCTETS};

/// Messages at once at most, so that a large table does not fill the receivers' buffers.
const MAX_MESSAGES_AT_ONCE: usize = 16;

impl LinkElection {
    /// Sends changes of this participant's table at once, and a heartbeat when it is due.
    pub(super) fn send_due_heartbeats(&mut self, now: Time) {
        if !self.usable {
            self.heartbeat_at = now + self.timing.interval;
            return;
        }
        if !self.own.is_empty() || self.listening.is_some() {
            self.quiet_after = now + DEPARTURE_PERIOD;
        }
        let is_due = now >= self.heartbeat_at;
        let has_news = self.own.current_version() != self.published;
        if now > self.quiet_after && !has_news {
            if is_due {
                self.heartbeat_at = now + self.timing.interval;
            }
            return;
        }
        if is_due {
            // The changes that participants which hear this one have not acknowledged yet.
            let deaf_after = self.peers.deaf_after(&self.timing);
            let acknowledging =
                self.peers.alive_peers().filter(|(_, peer)| !peer.is_deaf(now, deaf_after));
            let oldest = acknowledging.map(|(_, peer)| peer.acknowledged).min();
            // And those that have not been sent yet, even if no participant hears this one.
            self.send_changes(oldest.unwrap_or(u64::MAX).min(self.published), now);
            // On a fixed schedule, so that a late timer does not delay all later heartbeats.
            self.heartbeat_at += self.timing.interval;
            if self.heartbeat_at <= now {
                self.heartbeat_at = now + self.timing.interval;
            }
        } else if has_news {
            self.send_changes(self.published, now);
        }
        self.published = self.own.current_version();
    }

    /// Brings this participant's table up to date with what was decided.
    pub(super) fn update_table(&mut self) {
        let wanted = self.wanted.iter().flatten().map(|(address, _)| *address);
        let mut addresses: BTreeSet<IpAddr> = wanted.collect();
        addresses.extend(self.addresses.keys());
        addresses.extend(self.own.addresses());
        for address in addresses {
            let entry = self.own_row(address);
            self.outdated |= self.own.published_rank(address) != entry.rank;
            self.dirty |= self.own.set_row(address, entry);
        }
    }

    /// At least one message, and as many as are needed for the changes since a version.
    fn send_changes(&mut self, since: u64, now: Time) {
        let heard = self.peers.next_acknowledgements();
        let head = wire::count_head_octets(&self.identity.node, &self.identity.interface);
        let room = MAX_HEARTBEAT_OCTETS - head - heard.len() * ACKNOWLEDGEMENT_OCTETS;
        let mut since = since.min(self.own.current_version());
        for _ in 0..MAX_MESSAGES_AT_ONCE {
            let changes = self.own.changes_since(since, room);
            since = changes.until;
            self.sequence += 1;
            self.times.note_message(self.sequence, now, &self.timing);
            let mut message = wire::encode_heartbeat(&Heartbeat {
                node: self.identity.node.clone(),
                interface: self.identity.interface.clone(),
                incarnation: self.identity.incarnation,
                sequence: self.sequence,
                link_address: self.link_address,
                version: self.own.current_version(),
                heard: heard.clone(),
                changes,
            });
            self.keys.append_seal(&mut message);
            self.counts.sent += 1;
            self.effects.push(LinkEffect::Send(message));
            if since == self.own.current_version() {
                break;
            }
        }
    }
}

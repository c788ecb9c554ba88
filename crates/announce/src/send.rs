//! The heartbeats of this participant, with changes of its table.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::event::Effect;
use super::link::Link;
use super::timing::{FAREWELL, Time};
use super::wire::{self, LENGTH_OF_HEARD, LONGEST, Message};

/// Messages at once at most, so that a large table does not fill the receivers' buffers.
const MOST_AT_ONCE: usize = 16;

impl Link {
    /// Sends changes of this participant's table at once, and a heartbeat when it is due.
    pub(super) fn send_what_is_due(&mut self, now: Time) {
        if !self.usable {
            self.heartbeat_at = now + self.timing.interval;
            return;
        }
        if !self.own.is_empty() || self.listening.is_some() {
            self.farewell = now + FAREWELL;
        }
        let is_due = now >= self.heartbeat_at;
        let has_news = self.own.version() != self.published;
        if now > self.farewell && !has_news {
            if is_due {
                self.heartbeat_at = now + self.timing.interval;
            }
            return;
        }
        if is_due {
            // The changes that participants which hear this one have not acknowledged yet.
            let deaf_after = self.peers.deaf_after(&self.timing);
            let hearing = self.peers.alive().filter(|(_, peer)| !peer.is_deaf(now, deaf_after));
            let oldest = hearing.map(|(_, peer)| peer.acknowledged).min();
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
        self.published = self.own.version();
    }

    /// Brings this participant's table up to date with what was decided.
    pub(super) fn update_table(&mut self) {
        let wanted = self.wanted.iter().flatten().map(|(address, _)| *address);
        let mut addresses: BTreeSet<IpAddr> = wanted.collect();
        addresses.extend(self.addresses.keys());
        addresses.extend(self.own.addresses());
        for address in addresses {
            let entry = self.entry(address);
            self.outdated |= self.own.rank(address) != entry.rank;
            self.dirty |= self.own.set(address, entry);
        }
    }

    /// At least one message, and as many as are needed for the changes since a version.
    fn send_changes(&mut self, since: u64, now: Time) {
        let heard = self.peers.acknowledgements();
        let head = wire::length_of_head(&self.identity.node, &self.identity.interface);
        let room = LONGEST - head - heard.len() * LENGTH_OF_HEARD;
        let mut since = since.min(self.own.version());
        for _ in 0..MOST_AT_ONCE {
            let changes = self.own.changes(since, room);
            since = changes.until;
            self.sequence += 1;
            self.times.note(self.sequence, now, &self.timing);
            let mut message = wire::write(&Message {
                node: self.identity.node.clone(),
                interface: self.identity.interface.clone(),
                incarnation: self.identity.incarnation,
                sequence: self.sequence,
                link_address: self.link_address,
                version: self.own.version(),
                heard: heard.clone(),
                changes,
            });
            self.keys.seal(&mut message);
            self.counts.sent += 1;
            self.effects.push(Effect::Send(message));
            if since == self.own.version() {
                break;
            }
        }
    }
}

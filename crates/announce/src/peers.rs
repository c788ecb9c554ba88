//! The other participants on a link.
//!
//! [`super::strangers`] decides when a process that sends messages becomes a participant. After
//! that, each of its sequence numbers is accepted once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::hearing::{Own, Times};
use super::identity::{Id, LinkAddress};
use super::sequences::Sequences;
use super::strangers::{REMEMBERED as STRANGER, Strangers};
use super::table::PeerTable;
use super::timing::{REMEMBERED, Time, Timing};
use super::wire::{Heard, MOST_HEARD, Message};

/// The most participants on one link, and the most others that each of them tracks. If there are
/// more, those with the lowest ids take part.
pub const MOST_PEERS: usize = 128;

#[derive(Clone, Debug)]
pub struct Peer {
    pub node: String,
    pub interface: String,
    pub link_address: LinkAddress,
    pub incarnation: u64,
    sequences: Sequences,
    /// When its last messages came.
    times: Times,
    heard_at: Time,
    /// When this participant last learnt that the other one hears it.
    acknowledged_at: Time,
    /// It was given time to hear this participant when it came back, and has not acknowledged it
    /// since.
    was_given_time: bool,
    /// How much of this participant's table the other one has.
    pub acknowledged: u64,
    pub table: PeerTable,
    pub silent: bool,
    /// When it last received a message, judging by its acknowledgements.
    received_at: Time,
    /// Its latest message acknowledges no message of the last one and a half intervals: it may
    /// hear no other participant.
    pub is_doubted: bool,
    /// Its latest message acknowledges no participant, or no message of the last two and a half
    /// intervals.
    pub hears_nobody: bool,
    /// It hears no other participant, and its kernel does not answer probes, either.
    pub mute: bool,
}

impl Peer {
    /// Whether it does not hear this participant.
    pub fn is_deaf(&self, now: Time, limit: Duration) -> bool {
        now.saturating_sub(self.acknowledged_at) > limit
    }

    /// The participant is no longer silent or mute, so clients can reach it again. It gets time to
    /// hear this participant before it counts as deaf. If it comes back again without having
    /// acknowledged this one, it gets no more time.
    fn come_back(&mut self, now: Time) {
        self.table.give_back();
        if !std::mem::replace(&mut self.was_given_time, true) {
            self.acknowledged_at = now;
        }
    }

    pub fn silent_for(&self, now: Time) -> Duration {
        now.saturating_sub(self.heard_at)
    }
}

/// What a message has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The set of participants.
    pub members: bool,
    /// A table.
    pub table: bool,
    /// The candidates for an address.
    pub ranks: bool,
    /// Whether the sender hears other participants.
    pub hearing: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Peers {
    peers: BTreeMap<Id, Peer>,
    strangers: Strangers,
    /// The last process that was acknowledged; the next message continues after it.
    turn: Option<(Id, u64)>,
    /// When a process could not become a participant because there are too many.
    turned_away_at: Option<Time>,
}

impl Peers {
    pub fn iter(&self) -> impl Iterator<Item = (Id, &Peer)> {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    pub fn get(&self, id: Id) -> Option<&Peer> {
        self.peers.get(&id)
    }

    pub fn get_mut(&mut self, id: Id) -> Option<&mut Peer> {
        self.peers.get_mut(&id)
    }

    /// How many messages it takes to acknowledge every process that is heard. The others need as
    /// many, because they hear the same processes.
    pub fn turns(&self) -> u32 {
        let heard = self.iter().filter(|(_, peer)| !peer.silent).count() + self.strangers.count();
        // The cast cannot truncate: the numbers of peers and of strangers are bounded.
        heard.div_ceil(MOST_HEARD).max(1) as u32
    }

    /// See [`Peer::is_deaf`].
    pub fn deaf_after(&self, timing: &Timing) -> Duration {
        timing.deaf(self.turns())
    }

    /// Participants that can serve, as far as is known.
    pub fn alive(&self) -> impl Iterator<Item = (Id, &Peer)> {
        self.iter().filter(|(_, peer)| !peer.silent && !peer.mute)
    }

    /// Returns whether this is a change.
    pub fn set_mute(&mut self, id: Id, mute: bool, now: Time) -> bool {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.mute != mute) else {
            return false;
        };
        peer.mute = mute;
        if !peer.silent && !mute {
            peer.come_back(now);
        }
        true
    }

    /// Whether a link-layer address is that of a participant that hears no other participant.
    pub fn hears_nobody(&self, link_address: LinkAddress) -> bool {
        let mut peers = self.peers.values().filter(|peer| peer.link_address == link_address);
        peers.any(|peer| peer.hears_nobody)
    }

    /// Whether a link-layer address is that of a node which takes part.
    pub fn is_known(&self, link_address: LinkAddress) -> bool {
        self.peers.values().any(|peer| peer.link_address == link_address)
            || self.strangers.is_known(link_address)
    }

    /// Handles an authenticated message of another process.
    pub fn hear(&mut self, message: &Message, own: Own<'_>, now: Time, timing: &Timing) -> Change {
        let received = self.received(message, own, now);
        let id = Id::of(&message.node, &message.interface);
        let known = self.peers.get(&id).filter(|peer| peer.incarnation == message.incarnation);
        let mut change = Change::default();
        match known.map(|peer| peer.sequences.is_new(message.sequence)) {
            Some(false) => return change,
            Some(true) => {}
            None if !self.strangers.hear(id, message, own, now) => return change,
            None if !self.accept(id, message, now) => return change,
            None => change.members = true,
        }
        let Some(peer) = self.peers.get_mut(&id) else { return change };
        let is_latest = message.sequence > peer.sequences.last;
        peer.sequences.note(message.sequence);
        peer.link_address = message.link_address;
        peer.heard_at = now;
        if std::mem::take(&mut peer.silent) {
            change.members = true;
            if !peer.mute {
                peer.come_back(now);
            }
        }
        if let Some(own) = own.acknowledged_by(message)
            && is_latest
        {
            peer.acknowledged_at = now;
            peer.was_given_time = false;
            peer.acknowledged = own.version;
        }
        if is_latest {
            peer.times.note(message.sequence, now, timing);
            peer.table.set_newest(message.version);
            peer.received_at = received.unwrap_or_default().max(peer.received_at);
            let without = now.saturating_sub(peer.received_at);
            let before = (peer.is_doubted, peer.hears_nobody);
            peer.hears_nobody = message.heard.is_empty() || without > timing.hears_nobody();
            peer.is_doubted = peer.hears_nobody || without > timing.is_doubted();
            change.hearing = before != (peer.is_doubted, peer.hears_nobody);
        }
        let applied = peer.table.apply(message.version, &message.changes);
        Change { table: applied.rows, ranks: applied.ranks, ..change }
    }

    /// When the sender last received a message, judging by its acknowledgements.
    fn received(&self, message: &Message, own: Own<'_>, now: Time) -> Option<Time> {
        let times = message.heard.iter().map(|heard| {
            if heard.id == own.id {
                return own.times.of(heard.sequence, now);
            }
            // The acknowledged process is no participant here, so its message may have been a
            // replay of an old one.
            let peer = self.peers.get(&heard.id)?;
            let is_same = peer.incarnation == heard.incarnation;
            is_same.then(|| peer.times.of(heard.sequence, now)).flatten()
        });
        times.flatten().max()
    }

    fn accept(&mut self, id: Id, message: &Message, now: Time) -> bool {
        if !self.peers.contains_key(&id) && self.peers.len() >= MOST_PEERS {
            self.turned_away_at = Some(now);
            let Some(other) = self.dispensable_for(id) else { return false };
            self.peers.remove(&other);
        }
        self.strangers.forget(id);
        let mut table = self.peers.remove(&id).map(|peer| peer.table).unwrap_or_default();
        table.start_over();
        let peer = Peer {
            node: message.node.clone(),
            interface: message.interface.clone(),
            link_address: message.link_address,
            incarnation: message.incarnation,
            sequences: Sequences::from(message.sequence),
            times: Times::default(),
            heard_at: now,
            acknowledged_at: now,
            was_given_time: false,
            acknowledged: 0,
            table,
            silent: false,
            received_at: now,
            is_doubted: false,
            hears_nobody: false,
            mute: false,
        };
        self.peers.insert(id, peer);
        true
    }

    /// Which participant to forget to make room for another one: the one that has been silent for
    /// longest. If none is silent, the one with the highest id, if that is higher than the other's:
    /// so all nodes track the same participants.
    fn dispensable_for(&self, other: Id) -> Option<Id> {
        let silent = self.peers.iter().filter(|(_, peer)| peer.silent);
        let oldest = silent.min_by_key(|(_, peer)| peer.heard_at).map(|(id, _)| *id);
        let last = self.peers.keys().next_back().copied();
        oldest.or(last.filter(|last| other < *last))
    }

    /// Whether so many participants have lower ids than this one that it takes no part.
    pub fn are_enough_before(&self, id: Id) -> bool {
        self.alive().take_while(|(other, _)| *other < id).count() >= MOST_PEERS
    }

    /// Marks participants as silent. Forgets those that have been silent for long, and those that
    /// stopped sending after they reported an empty table. Returns whether one became silent.
    pub fn age(&mut self, now: Time, timing: &Timing) -> bool {
        let mut changed = false;
        self.peers.retain(|_, peer| {
            let has_rows = !peer.table.is_complete() || !peer.table.is_empty();
            has_rows || peer.silent_for(now) <= timing.silence
        });
        for peer in self.peers.values_mut() {
            if !peer.silent && peer.silent_for(now) > timing.silence {
                peer.silent = true;
                changed = true;
            }
        }
        self.peers.retain(|_, peer| {
            let holds = peer.table.held().next();
            let limit = if holds.is_some() { REMEMBERED } else { timing.settle };
            !peer.silent || peer.silent_for(now) < limit
        });
        changed
    }

    /// Whether there are more participants on the link than this one follows.
    pub fn is_crowded(&self, now: Time) -> bool {
        self.turned_away_at.is_some_and(|at| now.saturating_sub(at) < STRANGER)
    }

    /// When [`Self::age`] marks the next participant as silent, if no message arrives before.
    pub fn next_silence(&self, timing: &Timing) -> Option<Time> {
        let heard = self.alive().map(|(_, peer)| peer.heard_at).min();
        heard.map(|heard| heard + timing.silence + Duration::from_nanos(1))
    }

    /// Restarts the timeouts of all participants, because this process could not hear them since
    /// `since`. Those that were deaf by then stay deaf.
    pub fn excuse(&mut self, since: Time, now: Time, timing: &Timing) {
        let deaf_after = self.deaf_after(timing);
        for peer in self.peers.values_mut().filter(|peer| !peer.silent) {
            peer.heard_at = now;
            peer.received_at = now;
            if !peer.is_deaf(since, deaf_after) {
                peer.acknowledged_at = now;
            }
        }
    }

    pub fn forget_all(&mut self) {
        *self = Self::default();
    }

    /// The participants and processes to acknowledge in the next message, in turn if they are
    /// too many for one.
    pub fn acknowledgements(&mut self) -> Vec<Heard> {
        let peers = self.peers.iter().filter(|(_, peer)| !peer.silent).map(|(id, peer)| Heard {
            id: *id,
            incarnation: peer.incarnation,
            sequence: peer.sequences.last,
            version: peer.table.version(),
        });
        let mut heard: Vec<Heard> = peers.chain(self.strangers.heard()).collect();
        let process = |heard: &Heard| (heard.id, heard.incarnation);
        heard.sort_by_key(|heard| {
            (self.turn.is_some_and(|turn| process(heard) <= turn), process(heard))
        });
        heard.truncate(MOST_HEARD);
        self.turn = heard.last().map(process);
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strangers;

    #[test]
    fn a_participant_of_many_is_not_taken_for_deaf_when_two_acknowledgements_are_lost() {
        let timing = Timing::default();
        for heard in 1..=MOST_PEERS + strangers::MOST {
            let turns = heard.div_ceil(MOST_HEARD) as u32;
            assert!(timing.interval * turns * 3 <= timing.deaf(turns), "{heard}");
        }
        // With few participants, twice the limit of silence is enough.
        assert_eq!(timing.deaf(1), timing.silence * 2);
    }
}

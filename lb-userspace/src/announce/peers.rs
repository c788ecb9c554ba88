//! The other participants on a link.
//!
//! A process becomes a participant when it acknowledges a message that this one sent after it
//! first heard of it: recorded messages, even of a process that has ended, cannot. After that, its
//! sequence must rise.

use std::collections::BTreeMap;
use std::time::Duration;

use super::hearing::Times;
use super::identity::{Id, LinkAddress};
use super::table::PeerTable;
use super::timing::{REMEMBERED, Time, Timing};
use super::wire::{Heard, MOST_HEARD, Message};

/// Participants on one link at most. One message acknowledges [`MOST_HEARD`] of them, so each is
/// acknowledged often enough not to take the others for deaf.
pub const MOST_PEERS: usize = 128;
/// Processes at most that are not yet participants.
const MOST_STRANGERS: usize = 64;

/// How long a process that does not acknowledge is remembered.
const STRANGER: Duration = Duration::from_secs(5);

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
    /// It was given time to hear this participant, and has not acknowledged it since.
    was_given_time: bool,
    /// How much of this participant's table the other one has.
    pub acknowledged: u64,
    pub table: PeerTable,
    pub silent: bool,
    /// When it last received something, by what it acknowledges.
    received_at: Time,
    /// Its latest message acknowledges little that is new: perhaps it hears nobody.
    pub is_doubted: bool,
    /// Its latest message acknowledges nobody, or nothing new.
    pub hears_nobody: bool,
    /// It hears nobody, and its kernel does not answer, either.
    pub mute: bool,
}

impl Peer {
    /// Whether it does not hear this participant.
    pub fn is_deaf(&self, now: Time, timing: &Timing) -> bool {
        now.saturating_sub(self.acknowledged_at) > timing.deaf()
    }

    /// Clients can reach it again. It may need a moment to hear this participant, too. One that
    /// comes back again and again gets no more time.
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

/// The sequences of one incarnation that were seen. A message may arrive a little later than those
/// that were sent after it, but only once.
#[derive(Clone, Copy, Debug, Default)]
struct Sequences {
    last: u64,
    /// A bit for each of the 64 up to the last.
    seen: u64,
}

impl Sequences {
    /// Only that one and later ones are accepted.
    fn from(sequence: u64) -> Self {
        Self { last: sequence.saturating_sub(1), seen: u64::MAX }
    }

    fn is_new(&self, sequence: u64) -> bool {
        match self.last.checked_sub(sequence) {
            None => true,
            Some(before) => before < 64 && self.seen & (1 << before) == 0,
        }
    }

    fn note(&mut self, sequence: u64) {
        match self.last.checked_sub(sequence) {
            None => {
                let by = u32::try_from(sequence - self.last).unwrap_or(u32::MAX);
                self.seen = self.seen.checked_shl(by).unwrap_or(0) | 1;
                self.last = sequence;
            }
            Some(before) if before < 64 => self.seen |= 1 << before,
            Some(_) => {}
        }
    }
}

/// A process that may be another incarnation of a participant, or replayed.
#[derive(Clone, Debug)]
struct Stranger {
    incarnation: u64,
    sequence: u64,
    link_address: LinkAddress,
    /// This participant's sequence when the process was first heard.
    since: u64,
    heard_at: Time,
}

/// This participant as the others name it in their acknowledgements.
#[derive(Clone, Copy, Debug)]
pub struct Own<'a> {
    pub id: Id,
    pub incarnation: u64,
    /// Of the last message that was sent.
    pub sequence: u64,
    /// When the last messages were sent.
    pub times: &'a Times,
}

/// What a message has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Who takes part.
    pub members: bool,
    /// A table.
    pub table: bool,
    /// Whether the sender hears anybody.
    pub hearing: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Peers {
    peers: BTreeMap<Id, Peer>,
    strangers: BTreeMap<Id, Stranger>,
    /// The last participant that was acknowledged; the next message continues after it.
    turn: Option<Id>,
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

    /// Whether a link-layer address is that of a participant that hears nobody.
    pub fn hears_nobody(&self, link_address: LinkAddress) -> bool {
        let mut peers = self.peers.values().filter(|peer| peer.link_address == link_address);
        peers.any(|peer| peer.hears_nobody)
    }

    /// Whether a link-layer address is that of a node which takes part.
    pub fn is_known(&self, link_address: LinkAddress) -> bool {
        self.peers.values().any(|peer| peer.link_address == link_address)
            || self.strangers.values().any(|stranger| stranger.link_address == link_address)
    }

    /// An authenticated message of another participant.
    pub fn hear(&mut self, message: &Message, own: Own<'_>, now: Time, timing: &Timing) -> Change {
        let received = self.received(message, own, now);
        let id = Id::of(&message.node, &message.interface);
        let known = self.peers.get(&id).filter(|peer| peer.incarnation == message.incarnation);
        let mut change = Change::default();
        match known.map(|peer| peer.sequences.is_new(message.sequence)) {
            Some(false) => return change,
            Some(true) => {}
            None if !self.admit(id, message, own, now) => return change,
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
        if let Some(own) = acknowledgement(message, own)
            && is_latest
        {
            peer.acknowledged_at = now;
            peer.was_given_time = false;
            peer.acknowledged = own.version;
        }
        if is_latest {
            peer.times.note(message.sequence, now);
            peer.table.set_newest(message.version);
            peer.received_at = received.unwrap_or_default().max(peer.received_at);
            let without = now.saturating_sub(peer.received_at);
            let before = (peer.is_doubted, peer.hears_nobody);
            peer.hears_nobody = message.heard.is_empty() || without > timing.hears_nobody();
            peer.is_doubted = peer.hears_nobody || without > timing.is_doubted();
            change.hearing = before != (peer.is_doubted, peer.hears_nobody);
        }
        change.table = peer.table.apply(message.version, &message.changes);
        change
    }

    /// When the sender last received a message, by what it acknowledges.
    fn received(&self, message: &Message, own: Own<'_>, now: Time) -> Option<Time> {
        let times = message.heard.iter().map(|heard| {
            if heard.id == own.id {
                return own.times.of(heard.sequence, now);
            }
            // Of a process that is no participant here, anybody may have sent an old message.
            let peer = self.peers.get(&heard.id)?;
            let is_same = peer.incarnation == heard.incarnation;
            is_same.then(|| peer.times.of(heard.sequence, now)).flatten()
        });
        times.flatten().max()
    }

    /// Whether an unknown process becomes a participant.
    fn admit(&mut self, id: Id, message: &Message, own: Own<'_>, now: Time) -> bool {
        let acknowledged = acknowledgement(message, own).map(|heard| heard.sequence);
        let strangers = &mut self.strangers;
        let same = strangers.get_mut(&id).filter(|known| known.incarnation == message.incarnation);
        let Some(stranger) = same else {
            strangers.retain(|_, stranger| now.saturating_sub(stranger.heard_at) < STRANGER);
            if !strangers.contains_key(&id) && strangers.len() >= MOST_STRANGERS {
                return false;
            }
            let stranger = Stranger {
                incarnation: message.incarnation,
                sequence: message.sequence,
                link_address: message.link_address,
                since: own.sequence,
                heard_at: now,
            };
            strangers.insert(id, stranger);
            return acknowledged.is_some_and(|sequence| sequence >= own.sequence)
                && own.sequence > 0
                && self.accept(id, message, now);
        };
        if message.sequence <= stranger.sequence {
            return false;
        }
        stranger.sequence = message.sequence;
        stranger.heard_at = now;
        let since = stranger.since;
        acknowledged.is_some_and(|sequence| sequence >= since.max(1))
            && self.accept(id, message, now)
    }

    fn accept(&mut self, id: Id, message: &Message, now: Time) -> bool {
        if !self.peers.contains_key(&id) && self.peers.len() >= MOST_PEERS {
            // The one that has been silent for longest, if any.
            let silent = self.peers.iter().filter(|(_, peer)| peer.silent);
            let oldest = silent.min_by_key(|(_, peer)| peer.heard_at).map(|(id, _)| *id);
            let Some(oldest) = oldest else {
                self.turned_away_at = Some(now);
                return false;
            };
            self.peers.remove(&oldest);
        }
        self.strangers.remove(&id);
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

    /// Notes who is silent, and forgets who has been for long, or has said farewell. Returns
    /// whether that is news.
    pub fn age(&mut self, now: Time, timing: &Timing) -> bool {
        let mut changed = false;
        self.peers.retain(|_, peer| {
            let has_rows = !peer.table.is_complete() || peer.table.rows().next().is_some();
            has_rows || peer.silent_for(now) <= timing.silence
        });
        for peer in self.peers.values_mut() {
            if !peer.silent && peer.silent_for(now) > timing.silence {
                peer.silent = true;
                changed = true;
            }
        }
        self.peers.retain(|_, peer| {
            let holds = peer.table.rows().any(|(_, entry)| entry.holds.is_some());
            let limit = if holds { REMEMBERED } else { timing.settle };
            !peer.silent || peer.silent_for(now) < limit
        });
        changed
    }

    /// Whether there are more participants on the link than this one follows.
    pub fn is_crowded(&self, now: Time) -> bool {
        self.turned_away_at.is_some_and(|at| now.saturating_sub(at) < STRANGER)
    }

    /// When [`Self::age`] has news, if nobody is heard until then.
    pub fn next_silence(&self, timing: &Timing) -> Option<Time> {
        let heard = self.alive().map(|(_, peer)| peer.heard_at).min();
        heard.map(|heard| heard + timing.silence + Duration::from_nanos(1))
    }

    /// That this process heard nobody since then says nothing about others. Those that did not
    /// hear it before that still do not.
    pub fn excuse(&mut self, since: Time, now: Time, timing: &Timing) {
        for peer in self.peers.values_mut().filter(|peer| !peer.silent) {
            peer.heard_at = now;
            peer.received_at = now;
            if !peer.is_deaf(since, timing) {
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
        let strangers = self.strangers.iter().map(|(id, stranger)| Heard {
            id: *id,
            incarnation: stranger.incarnation,
            sequence: stranger.sequence,
            version: 0,
        });
        let mut heard: Vec<Heard> = peers.chain(strangers).collect();
        heard.sort_by_key(|heard| (self.turn.is_some_and(|turn| heard.id <= turn), heard.id));
        heard.truncate(MOST_HEARD);
        self.turn = heard.last().map(|heard| heard.id);
        heard
    }
}

fn acknowledgement<'a>(message: &'a Message, own: Own<'_>) -> Option<&'a Heard> {
    message.heard.iter().find(|heard| heard.id == own.id && heard.incarnation == own.incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_participants_are_acknowledged_before_they_take_the_others_for_deaf() {
        let timing = Timing::default();
        let messages = MOST_PEERS.div_ceil(MOST_HEARD) as u32;
        assert!(timing.interval * messages <= timing.deaf());
    }

    #[test]
    fn a_sequence_is_accepted_once_and_not_late() {
        let mut sequences = Sequences::default();
        let mut accept = |sequence| {
            let new = sequences.is_new(sequence);
            sequences.note(sequence);
            new
        };
        assert!(accept(10));
        assert!(!accept(10));
        assert!(accept(12));
        assert!(accept(11));
        assert!(!accept(11));
        assert!(!accept(12));
        assert!(accept(1_000));
        assert!(!accept(12));
        assert!(accept(937));
        assert!(!accept(936));
        assert!(accept(u64::MAX));
        assert!(!accept(1_000));
    }
}

//! The other participants on a link.
//!
//! [`super::admission`] decides when a process that sends messages becomes a participant. After
//! that, each of its sequence numbers is accepted once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::acknowledgement::{MessageTimes, OwnProcess};
use super::admission::{PENDING_PROCESS_LIFETIME, PendingProcesses};
use super::identity::{LinkAddress, ParticipantId};
use super::sequences::SeenSequences;
use super::table::PeerTable;
use super::timing::{ElectionTiming, SILENT_PEER_LIFETIME, Time};
use super::wire::{Acknowledgement, Heartbeat, MAX_ACKNOWLEDGEMENTS};

/// The most participants on one link, and the most others that each of them tracks. If there are
/// more, those with the lowest ids take part.
pub const MAX_PEERS: usize = 128;

#[derive(Clone, Debug)]
pub struct Peer {
    pub node: String,
    pub interface: String,
    pub link_address: LinkAddress,
    pub incarnation: u64,
    sequences: SeenSequences,
    /// When its last messages came.
    times: MessageTimes,
    heard_at: Time,
    /// When this participant last learnt that the other one hears it.
    acknowledged_at: Time,
    /// The peer was given time to hear this participant when it came back, and has not acknowledged it
    /// since.
    was_given_time: bool,
    /// How much of this participant's table the other one has.
    pub acknowledged: u64,
    pub table: PeerTable,
    pub silent: bool,
    /// When it last received a message, judging by its acknowledgements.
    received_at: Time,
    /// When the newest message that it has acknowledged came here, or was sent.
    newest_acknowledged: Time,
    /// When it last acknowledged a newer message than before.
    advanced_at: Time,
    /// The peer's latest message acknowledges no message of the last one and a half intervals, nor a newer one than
    /// before: it may hear no other participant.
    pub is_doubted: bool,
    /// The peer's latest message acknowledges no participant, or no message of the last two and a half
    /// intervals, and its acknowledgements have not advanced lately.
    pub hears_nobody: bool,
    /// The peer hears no other participant, and its kernel does not answer probes, either.
    pub mute: bool,
    /// The newest of its messages that another participant has acknowledged, and when such an acknowledgement last
    /// named a newer one than before.
    confirmed: u64,
    confirmed_at: Time,
}

impl Peer {
    /// Whether it does not hear this participant.
    pub(crate) fn is_deaf(&self, now: Time, limit: Duration) -> bool {
        now.saturating_sub(self.acknowledged_at) > limit
    }

    /// The participant is no longer silent or mute, so clients can reach it again. It gets time to
    /// hear this participant before it counts as deaf. If it comes back again without having
    /// acknowledged this one, it gets no more time.
    fn end_silence(&mut self, now: Time) {
        self.table.restore_taken();
        if !std::mem::replace(&mut self.was_given_time, true) {
            self.acknowledged_at = now;
        }
    }

    /// Concludes from its latest message whether it hears others. `acknowledged`: when the newest message came that it
    /// acknowledges. Where frames take long, that is long ago, but later with each message.
    fn note_acknowledged(&mut self, acknowledged: Time, now: Time, timing: &ElectionTiming) {
        let advances = acknowledged > self.newest_acknowledged;
        if advances {
            self.newest_acknowledged = acknowledged;
            self.advanced_at = now;
        }
        self.received_at = acknowledged.max(self.received_at);
        let without = now.saturating_sub(self.received_at);
        let stopped = now.saturating_sub(self.advanced_at) > timing.doubt_limit();
        self.hears_nobody = without > timing.isolation_limit() && stopped;
        self.is_doubted = self.hears_nobody || (without > timing.doubt_limit() && !advances);
    }

    pub(crate) fn silent_for(&self, now: Time) -> Duration {
        now.saturating_sub(self.heard_at)
    }

    /// Until when the participant counts as heard by another one.
    pub(crate) fn confirmed_until(&self, limit: Duration) -> Time {
        self.confirmed_at + limit
    }
}

/// What a message has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerChange {
    /// The set of participants.
    pub members: bool,
    /// A table.
    pub table: bool,
    /// The candidates for an address.
    pub ranks: bool,
    /// Whether the sender hears other participants.
    pub connectivity: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Peers {
    peers: BTreeMap<ParticipantId, Peer>,
    pending: PendingProcesses,
    /// The last process that was acknowledged; the next message continues after it.
    turn: Option<(ParticipantId, u64)>,
    /// When a process could not become a participant because there are too many.
    turned_away_at: Option<Time>,
    /// When the timeouts were restarted last.
    restarted_at: Time,
}

impl Peers {
    pub fn iter(&self) -> impl Iterator<Item = (ParticipantId, &Peer)> {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    pub fn get(&self, id: ParticipantId) -> Option<&Peer> {
        self.peers.get(&id)
    }

    pub fn get_mut(&mut self, id: ParticipantId) -> Option<&mut Peer> {
        self.peers.get_mut(&id)
    }

    /// How many messages it takes to acknowledge every process that is heard. The others need as
    /// many, because they hear the same processes.
    pub(crate) fn acknowledgement_rounds(&self) -> u32 {
        let heard = self.iter().filter(|(_, peer)| !peer.silent).count() + self.pending.count();
        // The cast cannot truncate: the numbers of peers and of pending processes are bounded.
        heard.div_ceil(MAX_ACKNOWLEDGEMENTS).max(1) as u32
    }

    /// A participant that is heard is acknowledged by each of the others within this time, and two such messages may be
    /// lost. The others may still count those that are silent here.
    pub(crate) fn confirmation_limit(&self, timing: &ElectionTiming) -> Duration {
        let known = self.peers.len() + self.pending.count();
        let turns = known.div_ceil(MAX_ACKNOWLEDGEMENTS).max(1) as u32;
        timing.silence + timing.interval * (turns - 1)
    }

    /// From when on the absence of acknowledgements says that no participant hears a silent one.
    pub(crate) fn unheard_from(&self, peer: &Peer, limit: Duration) -> Time {
        peer.confirmed_until(limit).max(self.restarted_at + limit) + Duration::from_nanos(1)
    }

    /// See [`Peer::is_deaf`].
    pub(crate) fn deaf_after(&self, timing: &ElectionTiming) -> Duration {
        timing.deaf_limit(self.acknowledgement_rounds())
    }

    /// Participants that can serve, as far as is known.
    pub(crate) fn alive_peers(&self) -> impl Iterator<Item = (ParticipantId, &Peer)> {
        self.iter().filter(|(_, peer)| !peer.silent && !peer.mute)
    }

    /// Returns whether this is a change.
    pub(crate) fn set_mute(&mut self, id: ParticipantId, mute: bool, now: Time) -> bool {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.mute != mute) else {
            return false;
        };
        peer.mute = mute;
        if !peer.silent && !mute {
            peer.end_silence(now);
        }
        true
    }

    /// Whether a link-layer address is that of a participant that hears no other participant.
    pub(crate) fn is_isolated_address(&self, link_address: LinkAddress) -> bool {
        let mut peers = self.peers.values().filter(|peer| peer.link_address == link_address);
        peers.any(|peer| peer.hears_nobody)
    }

    /// Whether a link-layer address is that of a node which takes part.
    pub(crate) fn is_peer_address(&self, link_address: LinkAddress) -> bool {
        self.peers.values().any(|peer| peer.link_address == link_address)
            || self.pending.is_pending_address(link_address)
    }

    /// Handles an authenticated message of another process.
    pub(crate) fn handle_heartbeat(
        &mut self,
        message: &Heartbeat,
        own: OwnProcess<'_>,
        now: Time,
        timing: &ElectionTiming,
    ) -> PeerChange {
        let received = self.last_receipt_of(message, own, now);
        let id = ParticipantId::of_interface(&message.node, &message.interface);
        let known = self.peers.get(&id).filter(|peer| peer.incarnation == message.incarnation);
        let mut change = PeerChange::default();
        match known.map(|peer| peer.sequences.is_new(message.sequence)) {
            Some(false) => return change,
            Some(true) => {}
            None if !self.pending.note_unknown_process(id, message, own, now) => return change,
            None if !self.accept_process(id, message, now) => return change,
            None => change.members = true,
        }
        let Some(peer) = self.peers.get_mut(&id) else { return change };
        let is_latest = message.sequence > peer.sequences.last;
        peer.sequences.note_sequence(message.sequence);
        peer.link_address = message.link_address;
        peer.heard_at = now;
        if std::mem::take(&mut peer.silent) {
            change.members = true;
            if !peer.mute {
                peer.end_silence(now);
            }
        }
        if let Some(own) = own.find_acknowledgement(message)
            && is_latest
        {
            peer.acknowledged_at = now;
            peer.was_given_time = false;
            peer.acknowledged = own.version;
        }
        if is_latest {
            peer.times.note_message(message.sequence, now, timing);
            peer.table.set_newest(message.version);
            let before = (peer.is_doubted, peer.hears_nobody);
            peer.note_acknowledged(received.unwrap_or_default(), now, timing);
            if message.heard.is_empty() {
                (peer.is_doubted, peer.hears_nobody) = (true, true);
            }
            change.connectivity = before != (peer.is_doubted, peer.hears_nobody);
        }
        let applied = peer.table.apply_changes(message.version, &message.changes);
        self.note_confirmed_peers(message, now);
        PeerChange { table: applied.rows, ranks: applied.ranks, ..change }
    }

    /// When the sender last received a message, judging by its acknowledgements.
    fn last_receipt_of(&self, message: &Heartbeat, own: OwnProcess<'_>, now: Time) -> Option<Time> {
        let times = message.heard.iter().map(|heard| {
            if heard.id == own.id {
                return own.times.time_of_message(heard.sequence, now);
            }
            // The acknowledged process is no participant here, so its message may have been a
            // replay of an old one.
            let peer = self.peers.get(&heard.id)?;
            let is_same = peer.incarnation == heard.incarnation;
            is_same.then(|| peer.times.time_of_message(heard.sequence, now)).flatten()
        });
        times.flatten().max()
    }

    /// Notes which participants the sender has heard lately.
    fn note_confirmed_peers(&mut self, message: &Heartbeat, now: Time) {
        for heard in &message.heard {
            if let Some(peer) = self.peers.get_mut(&heard.id)
                && peer.incarnation == heard.incarnation
                && heard.sequence > peer.confirmed
            {
                (peer.confirmed, peer.confirmed_at) = (heard.sequence, now);
            }
        }
    }

    fn accept_process(&mut self, id: ParticipantId, message: &Heartbeat, now: Time) -> bool {
        if !self.peers.contains_key(&id) && self.peers.len() >= MAX_PEERS {
            self.turned_away_at = Some(now);
            let Some(other) = self.choose_replaced_peer(id) else { return false };
            self.peers.remove(&other);
        }
        self.pending.forget_processes(id);
        let mut table = self.peers.remove(&id).map(|peer| peer.table).unwrap_or_default();
        table.expect_whole_table();
        let peer = Peer {
            node: message.node.clone(),
            interface: message.interface.clone(),
            link_address: message.link_address,
            incarnation: message.incarnation,
            sequences: SeenSequences::from(message.sequence),
            times: MessageTimes::default(),
            heard_at: now,
            acknowledged_at: now,
            was_given_time: false,
            acknowledged: 0,
            table,
            silent: false,
            received_at: now,
            newest_acknowledged: Time::ZERO,
            advanced_at: now,
            is_doubted: false,
            hears_nobody: false,
            mute: false,
            confirmed: message.sequence,
            confirmed_at: now,
        };
        self.peers.insert(id, peer);
        true
    }

    /// Which participant to forget to make room for another one: the one that has been silent for
    /// longest. If none is silent, the one with the highest id, if that is higher than the other's:
    /// so all nodes track the same participants.
    fn choose_replaced_peer(&self, other: ParticipantId) -> Option<ParticipantId> {
        let silent = self.peers.iter().filter(|(_, peer)| peer.silent);
        let oldest = silent.min_by_key(|(_, peer)| peer.heard_at).map(|(id, _)| *id);
        let last = self.peers.keys().next_back().copied();
        oldest.or(last.filter(|last| other < *last))
    }

    /// Whether so many participants have lower ids than this one that it takes no part.
    pub(crate) fn is_full_before(&self, id: ParticipantId) -> bool {
        self.alive_peers().take_while(|(other, _)| *other < id).count() >= MAX_PEERS
    }

    /// Marks participants as silent. Forgets those that have been silent for long, and those that
    /// stopped sending after they reported an empty table. Returns whether one became silent.
    pub(crate) fn mark_silent_peers(&mut self, now: Time, timing: &ElectionTiming) -> bool {
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
            let holds = peer.table.held_epochs().next();
            let limit = if holds.is_some() { SILENT_PEER_LIFETIME } else { timing.settle };
            !peer.silent || peer.silent_for(now) < limit
        });
        changed
    }

    /// Whether there are more participants on the link than this one follows.
    pub fn is_crowded(&self, now: Time) -> bool {
        self.turned_away_at.is_some_and(|at| now.saturating_sub(at) < PENDING_PROCESS_LIFETIME)
    }

    /// When [`Self::mark_silent_peers`] marks the next participant as silent, if no message arrives before.
    pub(crate) fn next_silence(&self, timing: &ElectionTiming) -> Option<Time> {
        let heard = self.alive_peers().map(|(_, peer)| peer.heard_at).min();
        heard.map(|heard| heard + timing.silence + Duration::from_nanos(1))
    }

    /// Restarts the timeouts of all participants, because this process could not hear them since
    /// `since`. Those that were deaf by then stay deaf.
    pub(crate) fn restart_peer_timeouts(
        &mut self,
        since: Time,
        now: Time,
        timing: &ElectionTiming,
    ) {
        let deaf_after = self.deaf_after(timing);
        self.restarted_at = now;
        for peer in self.peers.values_mut().filter(|peer| !peer.silent) {
            peer.heard_at = now;
            peer.received_at = now;
            peer.advanced_at = now;
            if !peer.is_deaf(since, deaf_after) {
                peer.acknowledged_at = now;
            }
        }
    }

    pub(crate) fn forget_peers(&mut self) {
        *self = Self::default();
    }

    /// The participants and processes to acknowledge in the next message, in turn if they are
    /// too many for one.
    pub(crate) fn next_acknowledgements(&mut self) -> Vec<Acknowledgement> {
        let peers =
            self.peers.iter().filter(|(_, peer)| !peer.silent).map(|(id, peer)| Acknowledgement {
                id: *id,
                incarnation: peer.incarnation,
                sequence: peer.sequences.last,
                version: peer.table.known_version(),
            });
        let mut heard: Vec<Acknowledgement> =
            peers.chain(self.pending.list_acknowledgements()).collect();
        let process = |heard: &Acknowledgement| (heard.id, heard.incarnation);
        heard.sort_by_key(|heard| {
            (self.turn.is_some_and(|turn| process(heard) <= turn), process(heard))
        });
        heard.truncate(MAX_ACKNOWLEDGEMENTS);
        self.turn = heard.last().map(process);
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission;

    #[test]
    fn a_participant_of_many_is_not_taken_for_deaf_when_two_acknowledgements_are_lost() {
        let timing = ElectionTiming::default();
        for heard in 1..=MAX_PEERS + admission::MAX_PENDING_PROCESSES {
            let turns = heard.div_ceil(MAX_ACKNOWLEDGEMENTS) as u32;
            assert!(timing.interval * turns * 3 <= timing.deaf_limit(turns), "{heard}");
        }
        // With few participants, twice the limit of silence is enough.
        assert_eq!(timing.deaf_limit(1), timing.silence * 2);
    }
}

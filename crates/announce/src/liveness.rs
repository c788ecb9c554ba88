//! Decisions that rest on the absence of messages: which participants are silent, which of them
//! receive nothing, and when listening ends.
//!
//! Invariant: such a decision is taken only when all that arrived has been read. Otherwise a node
//! that is overloaded or flooded would take living nodes for dead.

use super::event::ElectionEvent;
use super::identity::ParticipantId;
use super::link::LinkElection;
use super::timing::Time;

impl LinkElection {
    pub(super) fn check_liveness(&mut self, now: Time) {
        self.mark_silence(now);
        self.schedule_node_signs(now);
        if self.probe_isolated_peers(now) {
            self.stable_since = now;
            self.outdated = true;
        }
        self.count_participants(now);
        self.stop_listening(now);
    }

    /// Checks whether enough others take part that come before this participant in the order of
    /// ids, so that it takes no part itself.
    fn count_participants(&mut self, now: Time) {
        let surplus = self.peers.is_full_before(self.id);
        if surplus != self.surplus {
            self.surplus = surplus;
            self.outdated = true;
            // The others have not heard this participant for a while.
            if !surplus {
                self.introduced = false;
                self.start_listening(now);
            }
        }
    }

    /// Not all that arrived could be read or kept. So a participant that was not heard since the
    /// last timer may still have sent messages, and does not count as silent.
    pub(super) fn note_backlog(&mut self, now: Time) {
        self.restart_timeouts(self.liveness_checked_at, now);
        self.decide_until_stable(false, now);
        let soon = now + self.timing.interval / 10;
        self.decide_at = if self.decide_at > now { self.decide_at.min(soon) } else { soon };
    }

    /// Restarts the timeouts of the other participants: this one heard none of them since `since`
    /// for a reason of its own, for example because its process was paused.
    pub(super) fn restart_timeouts(&mut self, since: Time, now: Time) {
        self.peers.restart_peer_timeouts(since, now, &self.timing);
        self.liveness_checked_at = now;
    }

    fn mark_silence(&mut self, now: Time) {
        let before: Vec<ParticipantId> = self.peers.alive_peers().map(|(id, _)| id).collect();
        if self.peers.mark_silent_peers(now, &self.timing) {
            self.stable_since = now;
            self.outdated = true;
            for id in before {
                if self.peers.get(id).is_none_or(|peer| peer.silent) {
                    self.report(ElectionEvent::Silent(id));
                }
            }
        }
    }

    fn stop_listening(&mut self, now: Time) {
        let Some(listening) = &mut self.listening else { return };
        let turns = self.peers.acknowledgement_rounds();
        let until = listening.since + self.timing.listening_time(turns);
        listening.has_lasted = now >= until;
        let complete = self.peers.alive_peers().all(|(_, peer)| peer.table.is_complete());
        let at_most = listening.since + self.timing.max_listening_time(turns);
        let over = listening.has_lasted && (complete || now >= at_most);
        if over && self.wanted.is_some() {
            self.listening = None;
            self.introduced = true;
            self.outdated = true;
            self.dirty = true;
        } else if over {
            // Until the list of wanted addresses arrives, this participant keeps the addresses
            // that no other one takes.
            self.schedule_decision(now + self.timing.interval);
        } else {
            self.schedule_decision(until.max(now + self.timing.interval / 2));
        }
    }
}

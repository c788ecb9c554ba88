//! Decisions that rest on the absence of messages: which participants are silent, which of them
//! receive nothing, and when listening ends.
//!
//! Invariant: such a decision is taken only when all that arrived has been read. Otherwise a node
//! that is overloaded or flooded would take living nodes for dead.

use super::event::News;
use super::identity::Id;
use super::link::Link;
use super::timing::Time;

impl Link {
    pub(super) fn judge(&mut self, now: Time) {
        self.note_silence(now);
        if self.examine(now) {
            self.stable_since = now;
            self.outdated = true;
        }
        self.count_participants(now);
        self.stop_listening(now);
    }

    /// Checks whether enough others take part that come before this participant in the order of
    /// ids, so that it takes no part itself.
    fn count_participants(&mut self, now: Time) {
        let surplus = self.peers.are_enough_before(self.id);
        if surplus != self.surplus {
            self.surplus = surplus;
            self.outdated = true;
            // The others have not heard this participant for a while.
            if !surplus {
                self.introduced = false;
                self.listen(now);
            }
        }
    }

    /// Not all that arrived could be read or kept. So a participant that was not heard since the
    /// last timer may still have sent messages, and does not count as silent.
    pub(super) fn note_backlog(&mut self, now: Time) {
        self.excuse(self.judged_at, now);
        self.settle(false, now);
        let soon = now + self.timing.interval / 10;
        self.decide_at = if self.decide_at > now { self.decide_at.min(soon) } else { soon };
    }

    /// Restarts the timeouts of the other participants: this one heard none of them since `since`
    /// for a reason of its own, for example because its process was paused.
    pub(super) fn excuse(&mut self, since: Time, now: Time) {
        self.peers.excuse(since, now, &self.timing);
        self.judged_at = now;
    }

    fn note_silence(&mut self, now: Time) {
        let before: Vec<Id> = self.peers.alive().map(|(id, _)| id).collect();
        if self.peers.age(now, &self.timing) {
            self.stable_since = now;
            self.outdated = true;
            for id in before {
                if self.peers.get(id).is_none_or(|peer| peer.silent) {
                    self.report(News::Silent(id));
                }
            }
        }
    }

    fn stop_listening(&mut self, now: Time) {
        let Some(listening) = &mut self.listening else { return };
        let turns = self.peers.turns();
        let until = listening.since + self.timing.listen(turns);
        listening.has_lasted = now >= until;
        let complete = self.peers.alive().all(|(_, peer)| peer.table.is_complete());
        let at_most = listening.since + self.timing.listen_longest(turns);
        let over = listening.has_lasted && (complete || now >= at_most);
        if over && self.wanted.is_some() {
            self.listening = None;
            self.introduced = true;
            self.outdated = true;
            self.dirty = true;
        } else if over {
            // Until the list of wanted addresses arrives, this participant keeps the addresses
            // that no other one takes.
            self.due(now + self.timing.interval);
        } else {
            self.due(until.max(now + self.timing.interval / 2));
        }
    }
}

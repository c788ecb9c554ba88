//! Processes that are not participants yet, or whose messages are replayed.
//!
//! A process becomes a participant when it acknowledges a message that this process sent after it
//! first heard the other one. Replayed messages cannot do that, not even those of a process that
//! has ended. Each process has an entry of its own, so that replayed messages of one process do
//! not keep another one from becoming a participant.

use std::collections::BTreeMap;
use std::time::Duration;

use super::hearing::Own;
use super::identity::{Id, LinkAddress};
use super::timing::Time;
use super::wire::{Heard, Message};

/// The most processes that are remembered.
pub const MOST: usize = 64;

/// How long a process that does not acknowledge is remembered.
pub const REMEMBERED: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
struct Stranger {
    sequence: u64,
    link_address: LinkAddress,
    /// This participant's sequence when the process was first heard.
    since: u64,
    heard_at: Time,
}

/// By participant and incarnation.
#[derive(Clone, Debug, Default)]
pub struct Strangers(BTreeMap<(Id, u64), Stranger>);

impl Strangers {
    /// Notes a message. Returns whether its sender can become a participant.
    pub fn hear(&mut self, id: Id, message: &Message, own: Own<'_>, now: Time) -> bool {
        let acknowledged = own.acknowledged_by(message).map(|heard| heard.sequence);
        let process = (id, message.incarnation);
        if let Some(known) = self.0.get_mut(&process) {
            let is_later = message.sequence > known.sequence;
            if is_later {
                known.sequence = message.sequence;
                known.heard_at = now;
            }
            return is_later && acknowledged.is_some_and(|sequence| sequence >= known.since.max(1));
        }
        self.0.retain(|_, stranger| now.saturating_sub(stranger.heard_at) < REMEMBERED);
        if self.0.len() >= MOST {
            // As among participants, those with the lowest ids have priority.
            match self.0.keys().next_back().copied().filter(|last| process < *last) {
                Some(last) => drop(self.0.remove(&last)),
                None => return false,
            }
        }
        let stranger = Stranger {
            sequence: message.sequence,
            link_address: message.link_address,
            since: own.sequence,
            heard_at: now,
        };
        self.0.insert(process, stranger);
        acknowledged.is_some_and(|sequence| sequence >= own.sequence.max(1))
    }

    /// Forgets all processes of a participant, whose current process is now in
    /// [`super::peers::Peers`].
    pub fn forget(&mut self, id: Id) {
        self.0.retain(|(other, _), _| *other != id);
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn is_known(&self, link_address: LinkAddress) -> bool {
        self.0.values().any(|stranger| stranger.link_address == link_address)
    }

    /// The acknowledgements for these processes.
    pub fn heard(&self) -> impl Iterator<Item = Heard> {
        self.0.iter().map(|((id, incarnation), stranger)| Heard {
            id: *id,
            incarnation: *incarnation,
            sequence: stranger.sequence,
            version: 0,
        })
    }
}

//! Processes that are not participants yet, or whose messages are replayed.
//!
//! A process becomes a participant when it acknowledges a message that this process sent after it
//! first heard the other one. Replayed messages cannot do that, not even those of a process that
//! has ended. Each process has an entry of its own, so that replayed messages of one process do
//! not keep another one from becoming a participant.

use std::collections::BTreeMap;
use std::time::Duration;

use super::acknowledgement::OwnProcess;
use super::identity::{LinkAddress, ParticipantId};
use super::timing::Time;
use super::wire::{Acknowledgement, Heartbeat};

/// The most processes that are remembered.
pub(crate) const MAX_PENDING_PROCESSES: usize = 64;

/// How long a process that does not acknowledge is remembered.
pub(crate) const PENDING_PROCESS_LIFETIME: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
struct PendingProcess {
    sequence: u64,
    link_address: LinkAddress,
    /// This participant's sequence when the process was first heard.
    since: u64,
    heard_at: Time,
}

/// By participant and incarnation.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingProcesses(BTreeMap<(ParticipantId, u64), PendingProcess>);

impl PendingProcesses {
    /// Notes a message. Returns whether its sender can become a participant.
    pub(crate) fn note_unknown_process(
        &mut self,
        id: ParticipantId,
        message: &Heartbeat,
        own: OwnProcess<'_>,
        now: Time,
    ) -> bool {
        let acknowledged = own.find_acknowledgement(message).map(|heard| heard.sequence);
        let process = (id, message.incarnation);
        if let Some(known) = self.0.get_mut(&process) {
            let is_later = message.sequence > known.sequence;
            if is_later {
                known.sequence = message.sequence;
                known.heard_at = now;
            }
            return is_later && acknowledged.is_some_and(|sequence| sequence >= known.since.max(1));
        }
        self.0.retain(|_, pending| now.saturating_sub(pending.heard_at) < PENDING_PROCESS_LIFETIME);
        if self.0.len() >= MAX_PENDING_PROCESSES {
            // As among participants, those with the lowest ids have priority.
            match self.0.keys().next_back().copied().filter(|last| process < *last) {
                Some(last) => drop(self.0.remove(&last)),
                None => return false,
            }
        }
        let pending = PendingProcess {
            sequence: message.sequence,
            link_address: message.link_address,
            since: own.sequence,
            heard_at: now,
        };
        self.0.insert(process, pending);
        acknowledged.is_some_and(|sequence| sequence >= own.sequence.max(1))
    }

    /// Forgets all processes of a participant, whose current process is now in
    /// [`super::peers::Peers`].
    pub(crate) fn forget_processes(&mut self, id: ParticipantId) {
        self.0.retain(|(other, _), _| *other != id);
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_pending_address(&self, link_address: LinkAddress) -> bool {
        self.0.values().any(|process| process.link_address == link_address)
    }

    /// The acknowledgements for these processes.
    pub(crate) fn list_acknowledgements(&self) -> impl Iterator<Item = Acknowledgement> {
        self.0.iter().map(|((id, incarnation), process)| Acknowledgement {
            id: *id,
            incarnation: *incarnation,
            sequence: process.sequence,
            version: 0,
        })
    }
}

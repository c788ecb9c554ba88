//! Whether a participant receives what others send, judging by what its messages acknowledge.
//!
//! Each acknowledgement names a message, which was sent to all nodes of the link. So it reached
//! this node and the participant that acknowledges it within milliseconds of each other. The newest
//! of all acknowledged messages therefore shows until when the participant received anything.

use std::collections::VecDeque;

use super::identity::ParticipantId;
use super::timing::{ElectionTiming, Time};
use super::wire::{Acknowledgement, Heartbeat};

/// This participant as the others name it in their acknowledgements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnProcess<'a> {
    pub id: ParticipantId,
    pub incarnation: u64,
    /// The sequence number of the last message that was sent.
    pub sequence: u64,
    /// When the last messages were sent.
    pub times: &'a MessageTimes,
}

impl OwnProcess<'_> {
    /// The message of this process that the sender acknowledges.
    pub(crate) fn find_acknowledgement<'a>(
        &self,
        message: &'a Heartbeat,
    ) -> Option<&'a Acknowledgement> {
        let mut heard = message.heard.iter();
        heard.find(|heard| (heard.id, heard.incarnation) == (self.id, self.incarnation))
    }
}

/// How many heartbeats are remembered at least. They cover more time than
/// [`ElectionTiming::isolation_limit`], and than a frame takes to another node and back where each way takes 700 ms.
const REMEMBERED_HEARTBEATS: usize = 16;

/// Messages within an interval divided by this number count as one.
const PARTS_PER_INTERVAL: u32 = 4;

const MAX_MESSAGE_TIMES: usize = REMEMBERED_HEARTBEATS * PARTS_PER_INTERVAL as usize;

/// When the last messages of one participant arrived, or were sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct MessageTimes(VecDeque<MessageBurst>);

/// Messages that arrived at almost the same time.
#[derive(Clone, Copy, Debug)]
struct MessageBurst {
    /// The greatest sequence number among them.
    sequence: u64,
    /// When the first one arrived.
    at: Time,
}

impl MessageTimes {
    /// Notes a message, if its sequence number is greater than those before.
    pub(crate) fn note_message(&mut self, sequence: u64, at: Time, timing: &ElectionTiming) {
        if let Some(last) = self.0.back_mut() {
            if sequence <= last.sequence {
                return;
            }
            if at < last.at + timing.interval / PARTS_PER_INTERVAL {
                last.sequence = sequence;
                return;
            }
        }
        if self.0.len() >= MAX_MESSAGE_TIMES {
            self.0.pop_front();
        }
        self.0.push_back(MessageBurst { sequence, at });
    }

    /// When the message with a sequence number arrived; `None` if that is too long ago. For a
    /// message that did not arrive, the time of the next one; `now` if there is none.
    pub(crate) fn time_of_message(&self, sequence: u64, now: Time) -> Option<Time> {
        let first = self.0.front()?;
        if sequence < first.sequence {
            return None;
        }
        let burst = self.0.iter().find(|burst| burst.sequence >= sequence);
        Some(burst.map_or(now, |burst| burst.at))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Time = Duration::from_secs(9);

    fn noted(messages: impl IntoIterator<Item = (u64, u64)>) -> MessageTimes {
        let mut times = MessageTimes::default();
        for (sequence, milliseconds) in messages {
            times.note_message(
                sequence,
                Duration::from_millis(milliseconds),
                &ElectionTiming::default(),
            );
        }
        times
    }

    #[test]
    fn messages_have_the_time_at_which_they_came() {
        assert_eq!(MessageTimes::default().time_of_message(1, NOW), None);
        let times = noted([2, 3, 3, 1, 5].map(|number| (number, number * 1_000)));
        let of = |sequence| times.time_of_message(sequence, NOW).map(|at| at.as_secs());
        assert_eq!([1, 2, 3, 4, 5, 6].map(of), [None, Some(2), Some(3), Some(5), Some(5), Some(9)]);
    }

    /// A large table is sent in many messages at once.
    #[test]
    fn messages_that_are_sent_at_once_hide_none_that_were_sent_before() {
        let heartbeats = (0..=3).flat_map(|heartbeat| {
            (0..16).map(move |part| (1 + heartbeat * 16 + part, 1_000 + heartbeat * 100))
        });
        let times = noted(heartbeats);
        for (sequence, milliseconds) in [(16, 1_000), (17, 1_100), (20, 1_100), (64, 1_300)] {
            assert_eq!(
                times.time_of_message(sequence, NOW),
                Some(Duration::from_millis(milliseconds))
            );
        }
    }

    #[test]
    fn messages_without_a_pause_take_bounded_memory_and_are_remembered_for_long_enough() {
        let timing = ElectionTiming::default();
        let times = noted((0..10_000).map(|number| (number, number)));
        assert_eq!(times.0.len(), MAX_MESSAGE_TIMES);
        assert_eq!(times.time_of_message(8_000, NOW), None);
        let at = times.time_of_message(8_450, NOW).expect("it is remembered");
        assert!((8_450 - at.as_millis()) < 25, "{at:?}");
        let remembered = timing.interval * REMEMBERED_HEARTBEATS as u32;
        assert!(timing.isolation_limit() + timing.interval <= remembered);
        // There and back, and the intervals of both nodes.
        assert!(Duration::from_millis(700) * 2 + timing.interval * 2 <= remembered);
    }
}

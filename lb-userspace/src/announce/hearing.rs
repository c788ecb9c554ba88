//! Whether a participant receives what others send, by what its messages acknowledge.
//!
//! Each acknowledgement names a message. When that message came here, it also came to the one that
//! acknowledges it, within milliseconds. So the newest of all that are acknowledged says until when
//! the participant received anything.

use std::collections::VecDeque;

use super::identity::Id;
use super::timing::Time;
use super::wire::{Heard, Message};

/// More than the messages of the time in which losses count; in bursts they reach less far back.
const MOST: usize = 8;

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

impl Own<'_> {
    /// The message of this process that the sender acknowledges.
    pub fn acknowledged_by<'a>(&self, message: &'a Message) -> Option<&'a Heard> {
        let mut heard = message.heard.iter();
        heard.find(|heard| (heard.id, heard.incarnation) == (self.id, self.incarnation))
    }
}

/// When the last messages of one participant came, or were sent.
#[derive(Clone, Debug, Default)]
pub struct Times(VecDeque<(u64, Time)>);

impl Times {
    /// Notes a message, if its sequence is greater than those before.
    pub fn note(&mut self, sequence: u64, at: Time) {
        if self.0.back().is_some_and(|(last, _)| sequence <= *last) {
            return;
        }
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back((sequence, at));
    }

    /// When the message of a sequence came; none if that is too long ago. Of one that did not come
    /// here, the time of the next.
    pub fn of(&self, sequence: u64, now: Time) -> Option<Time> {
        let (first, _) = self.0.front()?;
        if sequence < *first {
            return None;
        }
        let next = self.0.iter().find(|(other, _)| *other >= sequence);
        Some(next.map_or(now, |(_, at)| *at))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Time = Duration::from_secs(9);

    #[test]
    fn messages_have_the_time_at_which_they_came() {
        let mut times = Times::default();
        assert_eq!(times.of(1, NOW), None);
        for number in [2, 3, 3, 1, 5] {
            times.note(number, Duration::from_secs(number));
        }
        let of = |sequence| times.of(sequence, NOW).map(|at| at.as_secs());
        assert_eq!([1, 2, 3, 4, 5, 6].map(of), [None, Some(2), Some(3), Some(5), Some(5), Some(9)]);
    }

    #[test]
    fn old_messages_are_forgotten() {
        let mut times = Times::default();
        for number in 0..1_000 {
            times.note(number, Duration::from_millis(number));
        }
        assert_eq!(times.0.len(), MOST);
        assert_eq!(times.of(991, NOW), None);
        assert_eq!(times.of(992, NOW), Some(Duration::from_millis(992)));
    }
}

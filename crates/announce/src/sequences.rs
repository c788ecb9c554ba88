//! Which messages of a process were seen, so that each is accepted once.

/// The sequences of one incarnation that were seen. A message may arrive a little later than those
/// that were sent after it, but only once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SeenSequences {
    pub last: u64,
    /// Bit n: whether the sequence number `last` - n was seen.
    seen: u64,
}

impl SeenSequences {
    /// Accepts only this sequence number and later ones.
    pub fn from(sequence: u64) -> Self {
        Self { last: sequence.saturating_sub(1), seen: u64::MAX }
    }

    pub fn is_new(&self, sequence: u64) -> bool {
        match self.last.checked_sub(sequence) {
            None => true,
            Some(before) => before < 64 && self.seen & (1 << before) == 0,
        }
    }

    pub(crate) fn note_sequence(&mut self, sequence: u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_is_accepted_once_and_not_late() {
        let mut sequences = SeenSequences::default();
        let mut accept = |sequence| {
            let new = sequences.is_new(sequence);
            sequences.note_sequence(sequence);
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

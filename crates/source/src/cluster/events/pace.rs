//! The rate limit of Events.

use std::time::Duration;

use tokio::time::Instant;

/// Events that can be sent at once.
const BURST: u32 = 25;
/// Time until one more can be sent.
const PACE: Duration = Duration::from_secs(10);

/// A token bucket.
pub struct Pace {
    /// Events that can be sent now.
    burst: u32,
    /// When one more is added.
    refill: Instant,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Self { burst: BURST, refill: now + PACE }
    }

    pub fn next(&mut self, now: Instant) -> Instant {
        while self.burst < BURST && self.refill <= now {
            self.burst += 1;
            self.refill += PACE;
        }
        if self.burst == BURST {
            self.refill = now + PACE;
        }
        if self.burst > 0 {
            self.burst -= 1;
            return now;
        }
        let next = self.refill;
        self.refill += PACE;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_out_at_once_and_the_rest_slowly() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let sent: Vec<Instant> = (0..BURST + 2).map(|_| pace.next(start)).collect();
        assert!(sent[..BURST as usize].iter().all(|at| *at == start));
        assert_eq!(sent[BURST as usize..], [start + PACE, start + 2 * PACE]);
        // After a rest of three times the pace, three more.
        let later = start + 5 * PACE;
        let sent: Vec<Instant> = (0..4).map(|_| pace.next(later)).collect();
        assert_eq!(sent, [later, later, later, later + PACE]);
    }
}

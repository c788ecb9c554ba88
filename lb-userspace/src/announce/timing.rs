//! How long things take. All other times follow from the four settings.

use std::time::Duration;

/// Time since an arbitrary start, on a clock that also advances while the machine is suspended.
pub type Time = Duration;

/// Settings, the same on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between two heartbeats.
    pub interval: Duration,
    /// A participant that was not heard for this long is silent.
    pub silence: Duration,
    /// How long the kernel answers for an address without the agent.
    pub hold: Duration,
    /// The participants must have been the same for this long before an address moves to a better
    /// one.
    pub settle: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(100),
            silence: Duration::from_millis(300),
            hold: Duration::from_secs(30),
            settle: Duration::from_secs(10),
        }
    }
}

/// How often an address is probed before it is announced.
pub const PROBES: u32 = 3;

/// Between two probes for an address that nobody holds. RFC 5227 asks for seconds, for hosts that
/// cannot do without the address; machines on a link answer within a millisecond, and one that
/// answers later is still noticed ([`YIELD`]).
pub const FRESH_GAP: Duration = Duration::from_millis(10);

/// For this long after it took an address that nobody held, a node gives it up to a machine that
/// uses it, too: it was there first.
pub const YIELD: Duration = Duration::from_secs(10);

/// Between two announcements that defend an address against another machine (RFC 5227, 2.4).
pub const DEFENCE: Duration = Duration::from_secs(10);

/// The same against a participant that hears nobody, and does not know better.
pub const REDRESS: Duration = Duration::from_secs(1);

/// When an address that another machine uses is probed again.
pub const BLOCKED: Duration = Duration::from_secs(2);

/// When an address whose holder is silent, but whose kernel answers, is probed again.
pub const ANSWERED: Duration = Duration::from_secs(1);

/// How long a holder that is no longer a candidate waits for another one.
pub const HANDOVER: Duration = Duration::from_secs(2);

/// How long a participant without candidacies still reports that it has none.
pub const FAREWELL: Duration = Duration::from_secs(5);

/// How long a silent participant is remembered at most.
pub const REMEMBERED: Duration = Duration::from_secs(600);

/// How many addresses one node takes from better or overloaded ones during an interval.
pub const MOVES_PER_INTERVAL: u32 = 20;

impl Timing {
    /// How long a participant listens before it takes an address: long enough to be heard by all
    /// others, and to get their tables. They are acknowledged in turns of so many messages.
    pub fn listen(&self, turns: u32) -> Duration {
        self.silence + self.interval * 3 * turns
    }

    /// How much longer it listens while tables are incomplete.
    pub fn listen_longest(&self, turns: u32) -> Duration {
        self.listen(turns) * 4
    }

    /// Between two probes for an address whose holder is silent.
    pub fn silent_gap(&self) -> Duration {
        self.interval / 4
    }

    /// A participant that has not acknowledged this one for so long does not hear it. It
    /// acknowledges this one in one of so many messages, two of which may be lost.
    pub fn deaf(&self, turns: u32) -> Duration {
        self.silence * (turns + 1)
    }

    /// A participant that acknowledges nothing newer may hear nobody, or one heartbeat was lost.
    pub fn is_doubted(&self) -> Duration {
        self.interval * 3 / 2
    }

    /// A participant that acknowledges nothing newer hears nobody, or two heartbeats of all others
    /// were lost.
    pub fn hears_nobody(&self) -> Duration {
        self.interval * 5 / 2
    }

    /// Between two writes of a deadline.
    pub fn extend(&self) -> Duration {
        self.hold / 6
    }
}

//! How long things take. All other times follow from the four settings.

use std::time::Duration;

/// Time since an arbitrary start, on a clock that also advances while the machine is suspended.
pub type Time = Duration;

/// Settings, the same on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTiming {
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

impl Default for ElectionTiming {
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
pub(crate) const PROBES_BEFORE_TAKING: u32 = 3;

/// Between two probes for an address that no participant holds. RFC 5227 asks for seconds, for
/// hosts that cannot do without the address. Machines on a link answer within a millisecond, and
/// one that answers later is still noticed ([`YIELD_PERIOD`]).
pub(crate) const FRESH_PROBE_GAP: Duration = Duration::from_millis(10);

/// For this long after it took an address that no participant held, a node gives the address up to
/// another machine that uses it: that machine was there first.
pub(crate) const YIELD_PERIOD: Duration = Duration::from_secs(10);

/// Between two announcements that defend an address against another machine (RFC 5227, 2.4).
pub(crate) const DEFENCE_INTERVAL: Duration = Duration::from_secs(10);

/// Between two announcements that correct those of a participant that hears no other participant.
pub(crate) const CORRECTION_INTERVAL: Duration = Duration::from_secs(1);

/// When an address that another machine uses is probed again.
pub(crate) const BLOCKED_RETRY_DELAY: Duration = Duration::from_secs(2);

/// When an address whose holder is silent, but whose kernel answers, is probed again.
pub(crate) const ANSWERED_RETRY_DELAY: Duration = Duration::from_secs(1);

/// How long a holder that is no longer a candidate waits for another node to take over.
pub(crate) const HANDOVER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a participant without candidacies still reports that it has none.
pub(crate) const DEPARTURE_PERIOD: Duration = Duration::from_secs(5);

/// How long a silent participant is remembered at most.
pub(crate) const SILENT_PEER_LIFETIME: Duration = Duration::from_secs(600);

/// The most addresses that a node takes during an interval from holders that are overloaded, or
/// that come after it in the order.
pub(crate) const MAX_MOVES_PER_INTERVAL: u32 = 20;

impl ElectionTiming {
    /// How long a participant listens before it takes an address: long enough to be heard by all
    /// others, and to get their tables. Each is acknowledged once in `turns` messages.
    pub(crate) fn listening_time(&self, turns: u32) -> Duration {
        self.silence + self.interval * 3 * turns
    }

    /// How long it listens at most, while tables are incomplete.
    pub(crate) fn max_listening_time(&self, turns: u32) -> Duration {
        self.listening_time(turns) * 4
    }

    /// Between two probes for an address whose holder is silent.
    pub(crate) fn silent_probe_gap(&self) -> Duration {
        self.interval / 4
    }

    /// A participant that has not acknowledged this one for this long counts as deaf. It
    /// acknowledges this one once in `turns` messages, and two such messages may be lost.
    pub(crate) fn deaf_limit(&self, turns: u32) -> Duration {
        self.silence * (turns + 1)
    }

    /// A participant that acknowledges no message newer than this may hear no other participant,
    /// or has missed one heartbeat.
    pub(crate) fn doubt_limit(&self) -> Duration {
        self.interval * 3 / 2
    }

    /// A participant that acknowledges no message newer than this hears no other participant, or
    /// has missed two heartbeats of each.
    pub(crate) fn isolation_limit(&self) -> Duration {
        self.interval * 5 / 2
    }

    /// Between two writes of the kernel's deadline for an address.
    pub(crate) fn extension_interval(&self) -> Duration {
        self.hold / 6
    }
}

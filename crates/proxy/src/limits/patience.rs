//! How long a client may take. A pure decision about a connection, made when its timer fires: one timer per
//! connection, which is set again only when it fires, costs a request nothing.

use std::time::{Duration, Instant};

use crate::metrics::CutOff;
use crate::settings::ProxyLimits;

/// What a connection waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionWait {
    /// There are requests that were received and whose responses have not been written.
    pub is_active: bool,
    /// When the last request ended, or the connection began.
    pub idle_since: Instant,
    /// Whether there was a request.
    pub was_used: bool,
    /// In HTTP/1, when the first octets of an incomplete head came.
    pub head_since: Option<Instant>,
    /// Since when the client takes no octets of the connection, or of a response.
    pub blocked_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Look again after this time.
    Patient(Duration),
    /// Nothing is lost if the connection ends.
    Idle,
    CutOff(CutOff),
}

/// Shortest time until a connection is looked at again.
const SHORTEST: Duration = Duration::from_millis(50);

impl ConnectionWait {
    pub fn judge(&self, limits: &ProxyLimits, now: Instant) -> Verdict {
        // Most that may pass until the next look: what begins right after this one must be noticed in time.
        let mut next = limits.head.min(limits.reader_stall).min(limits.idle);
        let mut is_over = |since: Instant, limit: Duration| {
            let passed = now.saturating_duration_since(since);
            next = next.min(limit.saturating_sub(passed));
            passed >= limit
        };
        if let Some(since) = self.blocked_since
            && is_over(since, limits.reader_stall)
        {
            return Verdict::CutOff(CutOff::SlowReader);
        }
        if !self.is_active {
            if let Some(since) = self.head_since
                && is_over(since, limits.head)
            {
                return Verdict::CutOff(CutOff::SlowHead);
            }
            let limit = if self.was_used { limits.idle } else { limits.handshake };
            if self.head_since.is_none() && is_over(self.idle_since, limit) {
                return Verdict::Idle;
            }
        }
        Verdict::Patient(next.max(SHORTEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn waiting(start: Instant) -> ConnectionWait {
        ConnectionWait {
            is_active: false,
            idle_since: start,
            was_used: true,
            head_since: None,
            blocked_since: None,
        }
    }

    #[test]
    fn a_connection_ends_when_its_client_waits_too_long() {
        let limits = ProxyLimits::default();
        let start = Instant::now();
        let at =
            |waiting: ConnectionWait, seconds| waiting.judge(&limits, start + SECOND * seconds);

        let idle = waiting(start);
        assert_eq!(at(idle, 74), Verdict::Patient(SECOND));
        assert_eq!(at(idle, 75), Verdict::Idle);
        let unused = ConnectionWait { was_used: false, ..idle };
        assert_eq!(at(unused, 10), Verdict::Idle);
        let active = ConnectionWait { is_active: true, ..idle };
        assert_eq!(at(active, 1_000), Verdict::Patient(SECOND * 10));

        let head = ConnectionWait { head_since: Some(start + SECOND * 70), ..idle };
        assert_eq!(at(head, 79), Verdict::Patient(SECOND));
        assert_eq!(at(head, 80), Verdict::CutOff(CutOff::SlowHead));

        let blocked = ConnectionWait { blocked_since: Some(start), ..active };
        assert_eq!(at(blocked, 59), Verdict::Patient(SECOND));
        assert_eq!(at(blocked, 60), Verdict::CutOff(CutOff::SlowReader));
    }
}

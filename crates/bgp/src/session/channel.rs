//! One TCP connection with the peer: its octets and its timers.

use std::time::Duration;

use super::config::{MIN_SEND_HOLD_TIME, NextHops, OPEN_TIMEOUT};
use super::effect::ConnectionId;
use crate::wire::OpenMessage;

#[derive(Debug)]
pub(crate) struct PeerConnection {
    pub connection: ConnectionId,
    pub outgoing: bool,
    /// A session stood when it was opened: if the peer is sane, it has lost that session.
    pub during_session: bool,
    pub next_hops: NextHops,
    pub phase: ConnectionPhase,
    /// The beginning of a message: at most one.
    pub buffer: Vec<u8>,
    /// Of both sides; zero: no KEEPALIVE messages.
    pub hold_time: Duration,
    pub hold_until: Option<Duration>,
    pub keepalive_at: Option<Duration>,
    /// Octets that the kernel has not accepted yet.
    pub queued: usize,
    /// When it last accepted some, or had nothing to accept.
    progress: Duration,
}

#[derive(Debug)]
pub(crate) enum ConnectionPhase {
    OpenSent,
    /// The session stands on another connection, and the peer has to decide which of both remains: it closes the other.
    Parked {
        open: OpenMessage,
        /// The peer has confirmed this one, which it also does before it decides.
        confirmed: bool,
    },
    OpenConfirm(OpenMessage),
    Established(OpenMessage),
}

impl PeerConnection {
    pub fn new(
        now: Duration,
        connection: ConnectionId,
        outgoing: bool,
        during_session: bool,
        next_hops: NextHops,
    ) -> Self {
        Self {
            connection,
            outgoing,
            during_session,
            next_hops,
            phase: ConnectionPhase::OpenSent,
            buffer: Vec::new(),
            hold_time: Duration::ZERO,
            hold_until: Some(now + OPEN_TIMEOUT),
            keepalive_at: None,
            queued: 0,
            progress: now,
        }
    }

    pub fn is_established(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Established(_))
    }

    /// Neither established nor parked, and the peer is known.
    pub(crate) fn is_confirming(&self) -> bool {
        matches!(self.phase, ConnectionPhase::OpenConfirm(_))
    }

    pub fn queue(&mut self, now: Duration, octets: usize) {
        if self.queued == 0 {
            self.progress = now;
        }
        self.queued += octets;
    }

    pub fn note_written(&mut self, now: Duration, octets: usize) {
        self.queued = self.queued.saturating_sub(octets);
        self.progress = now;
    }

    /// When the peer has not read for too long.
    pub(crate) fn send_hold_until(&self) -> Option<Duration> {
        let limit = MIN_SEND_HOLD_TIME.max(self.hold_time * 2);
        (self.queued > 0).then(|| self.progress + limit)
    }

    /// The peer has sent something.
    pub(crate) fn restart_hold_timer(&mut self, now: Duration) {
        self.hold_until = (!self.hold_time.is_zero()).then(|| now + self.hold_time);
    }

    pub fn next_timeout(&self) -> Option<Duration> {
        [self.hold_until, self.keepalive_at, self.send_hold_until()].into_iter().flatten().min()
    }
}

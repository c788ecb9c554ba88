//! One TCP connection with the peer: its octets and its timers.

use std::time::Duration;

use super::config::{LEAST_SEND_HOLD, NextHops, OPEN_TIMEOUT};
use super::effect::Connection;
use crate::wire::Open;

#[derive(Debug)]
pub struct Channel {
    pub connection: Connection,
    pub outgoing: bool,
    /// A session stood when it was opened: if the peer is sane, it has lost that session.
    pub during_session: bool,
    pub next_hops: NextHops,
    pub phase: Phase,
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
pub enum Phase {
    OpenSent,
    /// The session stands on another connection, and the peer has to decide which of both remains: it closes the other.
    Parked {
        open: Open,
        /// The peer has confirmed this one, which it also does before it decides.
        confirmed: bool,
    },
    OpenConfirm(Open),
    Established(Open),
}

impl Channel {
    pub fn new(
        now: Duration,
        connection: Connection,
        outgoing: bool,
        during_session: bool,
        next_hops: NextHops,
    ) -> Self {
        Self {
            connection,
            outgoing,
            during_session,
            next_hops,
            phase: Phase::OpenSent,
            buffer: Vec::new(),
            hold_time: Duration::ZERO,
            hold_until: Some(now + OPEN_TIMEOUT),
            keepalive_at: None,
            queued: 0,
            progress: now,
        }
    }

    pub fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Established(_))
    }

    /// Neither established nor parked, and the peer is known.
    pub fn is_confirming(&self) -> bool {
        matches!(self.phase, Phase::OpenConfirm(_))
    }

    pub fn queue(&mut self, now: Duration, octets: usize) {
        if self.queued == 0 {
            self.progress = now;
        }
        self.queued += octets;
    }

    pub fn written(&mut self, now: Duration, octets: usize) {
        self.queued = self.queued.saturating_sub(octets);
        self.progress = now;
    }

    /// When the peer has not read for too long.
    pub fn send_hold_until(&self) -> Option<Duration> {
        let limit = LEAST_SEND_HOLD.max(self.hold_time * 2);
        (self.queued > 0).then(|| self.progress + limit)
    }

    /// The peer has sent something.
    pub fn restart_hold_timer(&mut self, now: Duration) {
        self.hold_until = (!self.hold_time.is_zero()).then(|| now + self.hold_time);
    }

    pub fn deadline(&self) -> Option<Duration> {
        [self.hold_until, self.keepalive_at, self.send_hold_until()].into_iter().flatten().min()
    }
}

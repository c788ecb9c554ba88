//! What happens at which time.

use std::time::Duration;

use super::config::{CONNECT_TIMEOUT, REFRESH_INTERVAL};
use super::{Connection, Dial, Effect, Phase, Session, Why};
use crate::wire::{Notification, Reason, keepalive};

impl Session {
    /// When [`Input::Tick`](super::Input::Tick) is due.
    pub fn deadline(&self) -> Option<Duration> {
        let dial = match self.dial {
            Dial::At(at) => self.may_dial().then_some(at),
            Dial::Until(until) => Some(until),
            Dial::No => None,
        };
        let refresh = (!self.refresh.is_empty()).then_some(self.refresh_at);
        let channels = self.channels.iter().filter_map(|channel| channel.deadline());
        channels.chain(dial).chain(refresh).min()
    }

    /// Whether a connection would be of use: there is none of its direction, and none on which the peer is known.
    fn may_dial(&self) -> bool {
        let mut channels = self.channels.iter();
        let in_the_way =
            channels.any(|each| each.outgoing || each.is_established() || each.is_confirming());
        self.running && !self.config.passive && !in_the_way
    }

    /// Ends what the peer has had enough time for.
    pub(super) fn expire(&mut self, now: Duration) {
        let connections: Vec<_> = self.channels.iter().map(|each| each.connection).collect();
        for connection in connections {
            self.expire_channel(now, connection);
        }
        if let Dial::Until(until) = self.dial
            && until <= now
        {
            self.effects.push(Effect::AbandonConnect);
            self.connect_failed(now);
        }
    }

    /// Begins what is due.
    pub(super) fn begin_due(&mut self, now: Duration) {
        if let Dial::At(at) = self.dial
            && at <= now
            && self.may_dial()
        {
            self.dial = Dial::Until(now + CONNECT_TIMEOUT);
            self.effects.push(Effect::Connect);
        }
        if self.refresh_at <= now && !self.refresh.is_empty() {
            self.refresh_at = now + REFRESH_INTERVAL;
            for family in std::mem::take(&mut self.refresh) {
                self.outbox.refresh(family);
            }
        }
    }

    fn expire_channel(&mut self, now: Duration, connection: Connection) {
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        let Some(channel) = self.channel(connection) else { return };
        if is_due(channel.send_hold_until()) {
            // The peer would not read a NOTIFICATION either.
            self.end(now, connection, Why::SendHoldTimer);
        } else if is_due(channel.hold_until) {
            match channel.phase {
                Phase::Parked { .. } => self.refuse_second(now, connection),
                _ => self.fail(now, connection, Notification::new(Reason::HoldTimerExpired)),
            }
        } else if is_due(channel.keepalive_at) {
            self.send_keepalive(now, connection);
        }
    }

    /// And plans the next one.
    pub(super) fn send_keepalive(&mut self, now: Duration, connection: Connection) {
        let mut octets = Vec::new();
        keepalive(&mut octets);
        self.send(now, connection, octets);
        let Some(hold_time) = self.channel(connection).map(|channel| channel.hold_time) else {
            return;
        };
        let interval = self.backoff.jittered(hold_time / 3);
        if let Some(channel) = self.channel(connection) {
            channel.keepalive_at = (!hold_time.is_zero()).then(|| now + interval);
        }
    }
}

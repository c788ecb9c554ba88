//! What happens at which time.

use std::time::Duration;

use super::config::{CONNECT_TIMEOUT, REFRESH_INTERVAL};
use super::{BgpEffect, BgpSession, ConnectionId, ConnectionPhase, DialState, SessionEndReason};
use crate::wire::{Notification, Reason, append_keepalive};

impl BgpSession {
    /// When [`BgpInput::Tick`](super::Input::Tick) is due.
    pub fn deadline(&self) -> Option<Duration> {
        let dial = match self.dial {
            DialState::At(at) => self.may_dial().then_some(at),
            DialState::Until(until) => Some(until),
            DialState::No => None,
        };
        let refresh = (!self.refresh.is_empty()).then_some(self.refresh_at);
        let channels = self.channels.iter().filter_map(|channel| channel.next_timeout());
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
    pub(super) fn expire_timers(&mut self, now: Duration) {
        let connections: Vec<_> = self.channels.iter().map(|each| each.connection).collect();
        for connection in connections {
            self.expire_connection(now, connection);
        }
        if let DialState::Until(until) = self.dial
            && until <= now
        {
            self.effects.push(BgpEffect::AbandonConnect);
            self.connect_failed(now);
        }
    }

    /// Begins what is due.
    pub(super) fn dial_if_due(&mut self, now: Duration) {
        if let DialState::At(at) = self.dial
            && at <= now
            && self.may_dial()
        {
            self.dial = DialState::Until(now + CONNECT_TIMEOUT);
            self.effects.push(BgpEffect::Connect);
        }
        if self.refresh_at <= now && !self.refresh.is_empty() {
            self.refresh_at = now + REFRESH_INTERVAL;
            for family in std::mem::take(&mut self.refresh) {
                self.outbox.resend_family(family);
            }
        }
    }

    fn expire_connection(&mut self, now: Duration, connection: ConnectionId) {
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        let Some(channel) = self.find_connection(connection) else { return };
        if is_due(channel.send_hold_until()) {
            // The peer would not read a NOTIFICATION either.
            self.end_connection(now, connection, SessionEndReason::SendHoldTimer);
        } else if is_due(channel.hold_until) {
            match channel.phase {
                ConnectionPhase::Parked { .. } => self.refuse_second(now, connection),
                _ => self.close_with_notification(
                    now,
                    connection,
                    Notification::new(Reason::HoldTimerExpired),
                ),
            }
        } else if is_due(channel.keepalive_at) {
            self.send_keepalive(now, connection);
        }
    }

    /// Sends a KEEPALIVE, and plans the next one.
    pub(super) fn send_keepalive(&mut self, now: Duration, connection: ConnectionId) {
        let mut octets = Vec::new();
        append_keepalive(&mut octets);
        self.send(now, connection, octets);
        let Some(hold_time) = self.find_connection(connection).map(|channel| channel.hold_time)
        else {
            return;
        };
        let interval = self.backoff.jittered(hold_time / 3);
        if let Some(channel) = self.find_connection(connection) {
            channel.keepalive_at = (!hold_time.is_zero()).then(|| now + interval);
        }
    }
}

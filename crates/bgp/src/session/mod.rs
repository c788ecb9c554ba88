//! The state machine of a session with one peer (RFC 4271, section 8).
//!
//! Invariants:
//! - Pure: [`BgpSession::handle`] takes the time and an input, and returns what to do.
//! - At most one connection is established, and at most one of each direction is on the way to it.
//! - Buffers of a peer are bounded: one message that it sends, and for it to read, [`MAX_QUEUED_OCTETS`] octets and one round of
//!   UPDATEs.
//! - Whatever a peer sends, the session either continues or ends with a NOTIFICATION and restarts.
//!
//! Tests: `session/tests`, among them random events on two sessions that are connected with each other.

mod backoff;
mod channel;
pub mod config;
pub mod effect;
mod messages;
mod open;
mod outbox;
pub mod status;
#[cfg(test)]
mod tests;
mod timers;

use std::collections::BTreeSet;
use std::time::Duration;

use backoff::ConnectBackoff;
use channel::{ConnectionPhase, PeerConnection};
use config::COLLISION_TIMEOUT;
pub use config::{BgpSessionConfig, NextHops, PeerAs};
pub use effect::{
    BgpEffect, BgpInput, BgpReport, ConnectionId, EstablishedSession, RouteChange,
    SessionEndReason, SessionStop,
};
use outbox::{RouteOutbox, SessionAgreement};
pub use status::{BgpCounters, BgpSessionState, BgpSessionStatus};

use crate::family::Family;
use crate::wire::{Notification, Reason};

/// Octets for one connection above which no more UPDATEs are written.
const MAX_QUEUED_OCTETS: usize = 64 << 10;

#[derive(Debug)]
pub struct BgpSession {
    config: BgpSessionConfig,
    running: bool,
    dial: DialState,
    backoff: ConnectBackoff,
    channels: Vec<PeerConnection>,
    outbox: RouteOutbox,
    /// While the session is established.
    agreement: Option<SessionAgreement>,
    /// When the state of the session last changed between established and not.
    since: Duration,
    /// All routes have been sent once since the process began.
    complete: bool,
    /// Families that the peer wants again, and when it may get them.
    refresh: BTreeSet<Family>,
    refresh_at: Duration,
    counters: BgpCounters,
    last_failure: Option<SessionEndReason>,
    effects: Vec<BgpEffect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialState {
    No,
    /// Connect at this time.
    At(Duration),
    /// An attempt that ends at this time.
    Until(Duration),
}

impl BgpSession {
    /// The seed spreads timers of different nodes.
    pub fn new(config: BgpSessionConfig, seed: u64, now: Duration) -> Self {
        Self {
            config,
            running: false,
            dial: DialState::No,
            backoff: ConnectBackoff::new(seed),
            channels: Vec::new(),
            outbox: RouteOutbox::default(),
            agreement: None,
            since: now,
            complete: false,
            refresh: BTreeSet::new(),
            refresh_at: now,
            counters: BgpCounters::default(),
            last_failure: None,
            effects: Vec::new(),
        }
    }

    /// `now` never decreases. Only [`BgpInput::Tick`] lets timers expire, so what has arrived is to be handed over before.
    pub fn handle(&mut self, now: Duration, input: BgpInput) -> Vec<BgpEffect> {
        match input {
            BgpInput::Start => self.start(now),
            BgpInput::Stop(stop) => self.stop(now, &stop),
            BgpInput::Connected { connection, outgoing, next_hops } => {
                self.connected(now, connection, outgoing, next_hops);
            }
            BgpInput::ConnectFailed => self.connect_failed(now),
            BgpInput::Received { connection, octets } => {
                self.receive_octets(now, connection, octets)
            }
            BgpInput::Written { connection, octets } => {
                if let Some(channel) = self.find_connection(connection) {
                    channel.note_written(now, octets);
                }
            }
            BgpInput::NextHops { connection, next_hops } => {
                self.set_next_hops(connection, next_hops);
            }
            BgpInput::Closed { connection } => {
                self.end_connection(now, connection, SessionEndReason::Closed)
            }
            BgpInput::BfdDown => {
                if let Some(channel) = self.channels.iter().find(|each| each.is_established()) {
                    let connection = channel.connection;
                    self.close_with_notification(
                        now,
                        connection,
                        Notification::new(Reason::BfdDown),
                    );
                }
            }
            BgpInput::Routes(changes) => {
                for (prefix, attributes) in changes {
                    self.outbox.set_route(*prefix, attributes.clone());
                }
            }
            BgpInput::Synced => self.outbox.set_synced(),
            BgpInput::Drain(drained) => self.outbox.set_drained(drained),
            BgpInput::Tick => self.expire_timers(now),
        }
        self.dial_if_due(now);
        self.write_updates(now);
        std::mem::take(&mut self.effects)
    }

    fn find_connection(&mut self, connection: ConnectionId) -> Option<&mut PeerConnection> {
        self.channels.iter_mut().find(|channel| channel.connection == connection)
    }

    fn start(&mut self, now: Duration) {
        if !std::mem::replace(&mut self.running, true) {
            self.dial = DialState::At(now);
        }
    }

    fn stop(&mut self, now: Duration, stop: &SessionStop) {
        self.running = false;
        self.abandon_dial();
        let connections: Vec<_> = self.channels.iter().map(|each| each.connection).collect();
        for connection in connections {
            let notification = match stop {
                SessionStop::Restart => {
                    self.end_connection(now, connection, SessionEndReason::Restart);
                    continue;
                }
                SessionStop::Shutdown(text) => {
                    Notification::new(Reason::AdministrativeShutdown).saying(text)
                }
                SessionStop::Removed => Notification::new(Reason::PeerDeconfigured),
                SessionStop::Changed => Notification::new(Reason::ConfigurationChange),
            };
            self.close_with_notification(now, connection, notification);
        }
    }

    fn connected(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        outgoing: bool,
        next_hops: NextHops,
    ) {
        if outgoing {
            self.dial = DialState::No;
        }
        if !self.running {
            self.effects.push(BgpEffect::Close { connection, is_notified: false });
            return;
        }
        // A peer that opens another connection has given up the one before.
        let before = self
            .channels
            .iter()
            .find(|channel| channel.outgoing == outgoing && !channel.is_established());
        if let Some(before) = before.map(|channel| channel.connection) {
            self.refuse_second(now, before);
        }
        // Soon after the session began, the peer may have opened it before.
        let during_session = self.agreement.is_some() && now >= self.since + COLLISION_TIMEOUT;
        let channel = PeerConnection::new(now, connection, outgoing, during_session, next_hops);
        self.channels.push(channel);
        let mut octets = Vec::new();
        self.own_open(now).encode(&mut octets);
        self.send(now, connection, octets);
    }

    /// The routes of a family whose next hop has changed are sent again, or withdrawn if there is none
    /// any more: they would lead to an address that this node no longer has.
    fn set_next_hops(&mut self, connection: ConnectionId, next_hops: NextHops) {
        let Some(channel) = self.find_connection(connection) else { return };
        let before = std::mem::replace(&mut channel.next_hops, next_hops);
        let is_established = channel.is_established();
        let Some(agreement) = self.agreement.as_mut().filter(|_| is_established) else { return };
        let extended = agreement.extended_next_hop;
        agreement.next_hops = next_hops;
        let changed: Vec<Family> = agreement
            .families
            .iter()
            .copied()
            .filter(|family| {
                before.next_hop_for(*family, extended) != next_hops.next_hop_for(*family, extended)
            })
            .collect();
        for family in &changed {
            self.outbox.resend_with_next_hop(*family);
        }
        if !changed.is_empty() {
            let families = agreement.announceable();
            self.effects.push(BgpEffect::Report(BgpReport::Families(families)));
        }
    }

    fn connect_failed(&mut self, now: Duration) {
        if let DialState::Until(_) = self.dial {
            self.schedule_dial(now);
            self.last_failure = Some(SessionEndReason::ConnectFailed);
            self.effects
                .push(BgpEffect::Report(BgpReport::Failed(SessionEndReason::ConnectFailed)));
        }
    }

    fn schedule_dial(&mut self, now: Duration) {
        let wait = self.backoff.after_failure();
        self.dial = DialState::At(now + wait);
    }

    fn abandon_dial(&mut self) {
        if let DialState::Until(_) = std::mem::replace(&mut self.dial, DialState::No) {
            self.effects.push(BgpEffect::AbandonConnect);
        }
    }

    fn send(&mut self, now: Duration, connection: ConnectionId, octets: Vec<u8>) {
        if let Some(channel) = self.find_connection(connection) {
            channel.queue(now, octets.len());
            self.effects.push(BgpEffect::Send { connection, octets });
        }
    }

    fn write_updates(&mut self, now: Duration) {
        let Some(agreement) = &self.agreement else { return };
        let mut channels = self.channels.iter_mut();
        let Some(channel) = channels.find(|channel| channel.is_established()) else { return };
        while channel.queued < MAX_QUEUED_OCTETS {
            let octets = self.outbox.encode_due_updates(agreement);
            if octets.is_empty() {
                self.complete |= self.outbox.is_finished();
                return;
            }
            channel.queue(now, octets.len());
            self.effects.push(BgpEffect::Send { connection: channel.connection, octets });
        }
    }

    /// Ends a connection, with a NOTIFICATION that states the reason.
    fn close_with_notification(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        notification: Notification,
    ) {
        let mut octets = Vec::new();
        notification.encode(&mut octets);
        self.send(now, connection, octets);
        self.end_connection(now, connection, SessionEndReason::Sent(notification));
    }

    /// Ends a connection that is one too many. This is no failure.
    fn refuse_second(&mut self, now: Duration, connection: ConnectionId) {
        let mut octets = Vec::new();
        Notification::new(Reason::ConnectionCollision).encode(&mut octets);
        self.send(now, connection, octets);
        self.channels.retain(|channel| channel.connection != connection);
        self.effects.push(BgpEffect::Close { connection, is_notified: true });
    }

    /// Ends a connection, and tries again later.
    fn end_connection(&mut self, now: Duration, connection: ConnectionId, why: SessionEndReason) {
        let mut channels = self.channels.iter();
        let Some(at) = channels.position(|channel| channel.connection == connection) else {
            return;
        };
        let channel = self.channels.remove(at);
        if why != SessionEndReason::Closed {
            let is_notified = matches!(why, SessionEndReason::Sent(_));
            self.effects.push(BgpEffect::Close { connection, is_notified });
        }
        if !why.is_collision() {
            self.last_failure = Some(why.clone());
        }
        let wait = if channel.is_established() {
            self.agreement = None;
            self.refresh.clear();
            let lasted = now.saturating_sub(std::mem::replace(&mut self.since, now));
            self.effects.push(BgpEffect::Report(BgpReport::Down(why)));
            self.backoff.after_session(lasted)
        } else {
            if !why.is_collision() {
                self.effects.push(BgpEffect::Report(BgpReport::Failed(why)));
            }
            self.backoff.after_failure()
        };
        if self.running && !matches!(self.dial, DialState::Until(_)) {
            self.dial = DialState::At(now + wait);
        }
        if channel.is_established() {
            self.confirm_parked(now);
        }
    }

    /// The peer has decided for the other of two connections.
    fn confirm_parked(&mut self, now: Duration) {
        let parked = self.channels.iter().find_map(|channel| match &channel.phase {
            ConnectionPhase::Parked { open, confirmed } => {
                Some((channel.connection, open.clone(), *confirmed))
            }
            _ => None,
        });
        let Some((connection, open, confirmed)) = parked else { return };
        self.confirm_open(now, connection, open);
        if confirmed {
            self.establish_session(now, connection);
        }
    }
}

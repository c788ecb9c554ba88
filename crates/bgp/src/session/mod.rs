//! The state machine of a session with one peer (RFC 4271, section 8).
//!
//! Invariants:
//! - Pure: [`Session::handle`] takes the time and an input, and returns what to do.
//! - At most one connection is established, and at most one of each direction is on the way to it.
//! - Buffers of a peer are bounded: one message that it sends, and for it to read, [`QUEUE`] octets and one round of
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

use backoff::Backoff;
use channel::{Channel, Phase};
use config::DECISION;
pub use config::{Config, NextHops, PeerAs};
pub use effect::{Change, Connection, Effect, Established, Input, Report, Stop, Why};
use outbox::{Agreement, Outbox};
pub use status::{Counters, State, Status};

use crate::family::Family;
use crate::wire::{Notification, Reason};

/// Octets for one connection above which no more UPDATEs are written.
const QUEUE: usize = 64 << 10;

#[derive(Debug)]
pub struct Session {
    config: Config,
    running: bool,
    dial: Dial,
    backoff: Backoff,
    channels: Vec<Channel>,
    outbox: Outbox,
    /// While the session is established.
    agreement: Option<Agreement>,
    /// When the state of the session last changed between established and not.
    since: Duration,
    /// All routes have been sent once since the process began.
    complete: bool,
    /// Families that the peer wants again, and when it may get them.
    refresh: BTreeSet<Family>,
    refresh_at: Duration,
    counters: Counters,
    last_failure: Option<Why>,
    effects: Vec<Effect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dial {
    No,
    /// Connect at this time.
    At(Duration),
    /// An attempt that ends at this time.
    Until(Duration),
}

impl Session {
    /// The seed spreads timers of different nodes.
    pub fn new(config: Config, seed: u64, now: Duration) -> Self {
        Self {
            config,
            running: false,
            dial: Dial::No,
            backoff: Backoff::new(seed),
            channels: Vec::new(),
            outbox: Outbox::default(),
            agreement: None,
            since: now,
            complete: false,
            refresh: BTreeSet::new(),
            refresh_at: now,
            counters: Counters::default(),
            last_failure: None,
            effects: Vec::new(),
        }
    }

    /// `now` never decreases. Only [`Input::Tick`] lets timers expire, so what has arrived is to be handed over before.
    pub fn handle(&mut self, now: Duration, input: Input) -> Vec<Effect> {
        match input {
            Input::Start => self.start(now),
            Input::Stop(stop) => self.stop(now, &stop),
            Input::Connected { connection, outgoing, next_hops } => {
                self.connected(now, connection, outgoing, next_hops);
            }
            Input::ConnectFailed => self.connect_failed(now),
            Input::Received { connection, octets } => self.received(now, connection, octets),
            Input::Written { connection, octets } => {
                if let Some(channel) = self.channel(connection) {
                    channel.written(now, octets);
                }
            }
            Input::NextHops { connection, next_hops } => {
                self.set_next_hops(connection, next_hops);
            }
            Input::Closed { connection } => self.end(now, connection, Why::Closed),
            Input::BfdDown => {
                if let Some(channel) = self.channels.iter().find(|each| each.is_established()) {
                    let connection = channel.connection;
                    self.fail(now, connection, Notification::new(Reason::BfdDown));
                }
            }
            Input::Routes(changes) => {
                for (prefix, attributes) in changes {
                    self.outbox.set(*prefix, attributes.clone());
                }
            }
            Input::Synced => self.outbox.set_synced(),
            Input::Drain(drained) => self.outbox.set_drained(drained),
            Input::Tick => self.expire(now),
        }
        self.begin_due(now);
        self.write_updates(now);
        std::mem::take(&mut self.effects)
    }

    fn channel(&mut self, connection: Connection) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|channel| channel.connection == connection)
    }

    fn start(&mut self, now: Duration) {
        if !std::mem::replace(&mut self.running, true) {
            self.dial = Dial::At(now);
        }
    }

    fn stop(&mut self, now: Duration, stop: &Stop) {
        self.running = false;
        self.abandon_dial();
        let connections: Vec<_> = self.channels.iter().map(|each| each.connection).collect();
        for connection in connections {
            let notification = match stop {
                Stop::Restart => {
                    self.end(now, connection, Why::Restart);
                    continue;
                }
                Stop::Shutdown(text) => {
                    Notification::new(Reason::AdministrativeShutdown).saying(text)
                }
                Stop::Removed => Notification::new(Reason::PeerDeconfigured),
                Stop::Changed => Notification::new(Reason::ConfigurationChange),
            };
            self.fail(now, connection, notification);
        }
    }

    fn connected(
        &mut self,
        now: Duration,
        connection: Connection,
        outgoing: bool,
        next_hops: NextHops,
    ) {
        if outgoing {
            self.dial = Dial::No;
        }
        if !self.running {
            self.effects.push(Effect::Close { connection });
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
        let during_session = self.agreement.is_some() && now >= self.since + DECISION;
        let channel = Channel::new(now, connection, outgoing, during_session, next_hops);
        self.channels.push(channel);
        let mut octets = Vec::new();
        self.own_open(now).encode(&mut octets);
        self.send(now, connection, octets);
    }

    /// The routes of a family whose next hop has changed are sent again, or withdrawn if there is none
    /// any more: they would lead to an address that this node no longer has.
    fn set_next_hops(&mut self, connection: Connection, next_hops: NextHops) {
        let Some(channel) = self.channel(connection) else { return };
        let before = std::mem::replace(&mut channel.next_hops, next_hops);
        let is_established = channel.is_established();
        let Some(agreement) = self.agreement.as_mut().filter(|_| is_established) else { return };
        let extended = agreement.extended_next_hop;
        agreement.next_hops = next_hops;
        let changed: Vec<Family> = agreement
            .families
            .iter()
            .copied()
            .filter(|family| before.of(*family, extended) != next_hops.of(*family, extended))
            .collect();
        for family in &changed {
            self.outbox.send_all(*family);
        }
        if !changed.is_empty() {
            let families = agreement.announceable();
            self.effects.push(Effect::Report(Report::Families(families)));
        }
    }

    fn connect_failed(&mut self, now: Duration) {
        if let Dial::Until(_) = self.dial {
            self.dial_later(now);
            self.last_failure = Some(Why::ConnectFailed);
            self.effects.push(Effect::Report(Report::Failed(Why::ConnectFailed)));
        }
    }

    fn dial_later(&mut self, now: Duration) {
        let wait = self.backoff.after_failure();
        self.dial = Dial::At(now + wait);
    }

    fn abandon_dial(&mut self) {
        if let Dial::Until(_) = std::mem::replace(&mut self.dial, Dial::No) {
            self.effects.push(Effect::AbandonConnect);
        }
    }

    fn send(&mut self, now: Duration, connection: Connection, octets: Vec<u8>) {
        if let Some(channel) = self.channel(connection) {
            channel.queue(now, octets.len());
            self.effects.push(Effect::Send { connection, octets });
        }
    }

    fn write_updates(&mut self, now: Duration) {
        let Some(agreement) = &self.agreement else { return };
        let mut channels = self.channels.iter_mut();
        let Some(channel) = channels.find(|channel| channel.is_established()) else { return };
        while channel.queued < QUEUE {
            let octets = self.outbox.write(agreement);
            if octets.is_empty() {
                self.complete |= self.outbox.is_finished();
                return;
            }
            channel.queue(now, octets.len());
            self.effects.push(Effect::Send { connection: channel.connection, octets });
        }
    }

    /// Ends a connection, with a NOTIFICATION that states the reason.
    fn fail(&mut self, now: Duration, connection: Connection, notification: Notification) {
        let mut octets = Vec::new();
        notification.encode(&mut octets);
        self.send(now, connection, octets);
        self.end(now, connection, Why::Sent(notification));
    }

    /// Ends a connection that is one too many. This is no failure.
    fn refuse_second(&mut self, now: Duration, connection: Connection) {
        let mut octets = Vec::new();
        Notification::new(Reason::ConnectionCollision).encode(&mut octets);
        self.send(now, connection, octets);
        self.channels.retain(|channel| channel.connection != connection);
        self.effects.push(Effect::Close { connection });
    }

    /// Ends a connection, and tries again later.
    fn end(&mut self, now: Duration, connection: Connection, why: Why) {
        let mut channels = self.channels.iter();
        let Some(at) = channels.position(|channel| channel.connection == connection) else {
            return;
        };
        let channel = self.channels.remove(at);
        if why != Why::Closed {
            self.effects.push(Effect::Close { connection });
        }
        if !why.is_collision() {
            self.last_failure = Some(why.clone());
        }
        let wait = if channel.is_established() {
            self.agreement = None;
            self.refresh.clear();
            let lasted = now.saturating_sub(std::mem::replace(&mut self.since, now));
            self.effects.push(Effect::Report(Report::Down(why)));
            self.backoff.after_session(lasted)
        } else {
            if !why.is_collision() {
                self.effects.push(Effect::Report(Report::Failed(why)));
            }
            self.backoff.after_failure()
        };
        if self.running && !matches!(self.dial, Dial::Until(_)) {
            self.dial = Dial::At(now + wait);
        }
        if channel.is_established() {
            self.confirm_parked(now);
        }
    }

    /// The peer has decided for the other of two connections.
    fn confirm_parked(&mut self, now: Duration) {
        let parked = self.channels.iter().find_map(|channel| match &channel.phase {
            Phase::Parked { open, confirmed } => {
                Some((channel.connection, open.clone(), *confirmed))
            }
            _ => None,
        });
        let Some((connection, open, confirmed)) = parked else { return };
        self.confirm(now, connection, open);
        if confirmed {
            self.establish(now, connection);
        }
    }
}

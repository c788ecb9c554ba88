//! What becomes of each message.

use std::time::Duration;

use super::{Connection, Phase, Session, Why};
use crate::wire::received::Peer;
use crate::wire::{Kind, Notification, Reason, Received, message, refresh};

impl Session {
    pub(super) fn received(&mut self, now: Duration, connection: Connection, octets: &[u8]) {
        let Some(channel) = self.channel(connection) else { return };
        channel.buffer.extend(octets);
        let buffer = std::mem::take(&mut channel.buffer);
        let mut rest = &buffer[..];
        // A message may end the connection.
        while self.channel(connection).is_some() {
            match message::first(rest) {
                Err(notification) => self.fail(now, connection, notification),
                Ok(Some(first)) => {
                    self.message(now, connection, first.kind, first.body);
                    rest = &rest[first.length()..];
                }
                Ok(None) => break,
            }
        }
        if let Some(channel) = self.channel(connection) {
            channel.buffer = rest.to_vec();
        }
    }

    fn message(&mut self, now: Duration, connection: Connection, kind: Kind, body: &[u8]) {
        self.counters.messages_received += 1;
        if kind == Kind::Notification {
            let notification = Notification::parse(body);
            return self.end(now, connection, Why::Received(notification));
        }
        let Some(channel) = self.channel(connection) else { return };
        let unexpected = match (&mut channel.phase, kind) {
            (Phase::OpenSent, Kind::Open) => {
                return self.open_received(now, connection, body);
            }
            (Phase::Parked { confirmed, .. }, Kind::Keepalive) => {
                *confirmed = true;
                return;
            }
            (Phase::OpenConfirm(_), Kind::Keepalive) => {
                channel.restart_hold_timer(now);
                return self.establish(now, connection);
            }
            (Phase::Established(_), Kind::Keepalive) => {
                return channel.restart_hold_timer(now);
            }
            (Phase::Established(_), Kind::Update) => {
                channel.restart_hold_timer(now);
                return self.count_update(body);
            }
            (Phase::Established(_), Kind::RouteRefresh) => {
                if let Some(family) = refresh::parse(body) {
                    self.counters.refreshes += 1;
                    self.refresh.insert(family);
                }
                return;
            }
            (Phase::OpenSent, _) => Reason::UnexpectedInOpenSent,
            (Phase::Parked { .. } | Phase::OpenConfirm(_), _) => Reason::UnexpectedInOpenConfirm,
            (Phase::Established(_), _) => Reason::UnexpectedInEstablished,
        };
        self.fail(now, connection, Notification::new(unexpected).with(&[kind.octet()]));
    }

    /// Discards it otherwise.
    fn count_update(&mut self, body: &[u8]) {
        let Some(agreement) = &self.agreement else { return };
        let form = &agreement.form;
        let peer = Peer { external: form.external, four_octet_as: form.four_octet_as };
        let received = Received::parse(body, peer);
        self.counters.updates_received += 1;
        self.counters.prefixes_discarded += received.announced.len() as u64;
        if let Some(fault) = received.fault {
            self.counters.malformed_updates += 1;
            self.counters.last_fault = Some(fault);
        }
    }
}

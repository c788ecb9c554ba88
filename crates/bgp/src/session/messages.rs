//! What becomes of each message.

use std::time::Duration;

use super::{BgpSession, ConnectionId, ConnectionPhase, SessionEndReason};
use crate::wire::received::UpdateContext;
use crate::wire::{MessageKind, Notification, Reason, ReceivedUpdate, message, refresh};

impl BgpSession {
    pub(super) fn receive_octets(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        octets: &[u8],
    ) {
        let Some(channel) = self.find_connection(connection) else { return };
        channel.buffer.extend(octets);
        let buffer = std::mem::take(&mut channel.buffer);
        let mut rest = &buffer[..];
        // A message may end the connection.
        while self.find_connection(connection).is_some() {
            match message::parse_first_message(rest) {
                Err(notification) => self.close_with_notification(now, connection, notification),
                Ok(Some(first)) => {
                    self.handle_message(now, connection, first.kind, first.body);
                    rest = &rest[first.length()..];
                }
                Ok(None) => break,
            }
        }
        if let Some(channel) = self.find_connection(connection) {
            channel.buffer = rest.to_vec();
        }
    }

    fn handle_message(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        kind: MessageKind,
        body: &[u8],
    ) {
        self.counters.messages_received += 1;
        if kind == MessageKind::Notification {
            let notification = Notification::parse(body);
            return self.end_connection(now, connection, SessionEndReason::Received(notification));
        }
        let Some(channel) = self.find_connection(connection) else { return };
        let unexpected = match (&mut channel.phase, kind) {
            (ConnectionPhase::OpenSent, MessageKind::Open) => {
                return self.handle_open(now, connection, body);
            }
            (ConnectionPhase::Parked { confirmed, .. }, MessageKind::Keepalive) => {
                *confirmed = true;
                return;
            }
            (ConnectionPhase::OpenConfirm(_), MessageKind::Keepalive) => {
                channel.restart_hold_timer(now);
                return self.establish_session(now, connection);
            }
            (ConnectionPhase::Established(_), MessageKind::Keepalive) => {
                return channel.restart_hold_timer(now);
            }
            (ConnectionPhase::Established(_), MessageKind::Update) => {
                channel.restart_hold_timer(now);
                return self.count_update(body);
            }
            (ConnectionPhase::Established(_), MessageKind::RouteRefresh) => {
                if let Some(family) = refresh::parse_route_refresh(body) {
                    self.counters.refreshes += 1;
                    self.refresh.insert(family);
                }
                return;
            }
            (ConnectionPhase::OpenSent, _) => Reason::UnexpectedInOpenSent,
            (ConnectionPhase::Parked { .. } | ConnectionPhase::OpenConfirm(_), _) => {
                Reason::UnexpectedInOpenConfirm
            }
            (ConnectionPhase::Established(_), _) => Reason::UnexpectedInEstablished,
        };
        self.close_with_notification(
            now,
            connection,
            Notification::new(unexpected).with(&[kind.octet()]),
        );
    }

    /// Discards it otherwise.
    fn count_update(&mut self, body: &[u8]) {
        let Some(agreement) = &self.agreement else { return };
        let form = &agreement.form;
        let peer = UpdateContext { external: form.external, four_octet_as: form.four_octet_as };
        let received = ReceivedUpdate::parse(body, peer);
        self.counters.updates_received += 1;
        self.counters.prefixes_discarded += received.announced.len() as u64;
        if let Some(fault) = received.fault {
            self.counters.malformed_updates += 1;
            self.counters.last_fault = Some(fault);
        }
    }
}

//! From a connection to a session: OPEN messages, and which of two connections remains (RFC 4271, section 6.8).

use std::time::Duration;

use super::config::COLLISION_TIMEOUT;
use super::{
    BgpEffect, BgpReport, BgpSession, ConnectionId, ConnectionPhase, DialState, EstablishedSession,
    SessionAgreement, SessionEndReason,
};
use crate::wire::{
    AttributeForm, Capabilities, GracefulRestart, Notification, OpenMessage, Reason,
    refuse_missing_families,
};

impl BgpSession {
    /// Whether the peer waits for what it had before this process began.
    pub fn is_restarting(&self, now: Duration) -> bool {
        !self.complete && self.config.restarted.is_some_and(|until| now < until)
    }

    pub(super) fn own_open(&self, now: Duration) -> OpenMessage {
        let config = &self.config;
        let preserved = config.restarted.is_some() || self.counters.established > 0;
        let graceful_restart = config.restart_time.map(|time| GracefulRestart {
            restarting: self.is_restarting(now),
            time,
            preserved: config.families.iter().map(|family| (*family, preserved)).collect(),
        });
        OpenMessage {
            autonomous_system: config.local_as,
            hold_time: config.hold_time,
            identifier: config.identifier,
            capabilities: Capabilities {
                families: config.families.clone(),
                route_refresh: true,
                four_octet_as: true,
                extended_next_hop: true,
                graceful_restart,
            },
        }
    }

    pub(super) fn handle_open(&mut self, now: Duration, connection: ConnectionId, body: &[u8]) {
        let open = match OpenMessage::parse(body).and_then(|open| self.check_open(open)) {
            Ok(open) => open,
            Err(notification) => {
                return self.close_with_notification(now, connection, notification);
            }
        };
        let mut others = self.channels.iter().filter(|each| each.connection != connection);
        let other = others.find(|each| each.is_established() || each.is_confirming());
        let Some(other) = other else { return self.confirm_open(now, connection, open) };
        let (other_connection, other_is_outgoing) = (other.connection, other.outgoing);
        let other_is_established = other.is_established();
        if !other_is_established {
            // Both sides keep the connection that the one with the higher identifier has opened.
            let own = (self.config.identifier, self.config.local_as);
            let keeps_outgoing = own > (open.identifier, open.autonomous_system);
            if other_is_outgoing == keeps_outgoing {
                return self.refuse_second(now, connection);
            }
            self.refuse_second(now, other_connection);
            return self.confirm_open(now, connection, open);
        }
        let Some(channel) = self.find_connection(connection) else { return };
        if !channel.during_session {
            // Both were opened at the same time, and the peer decides. It may not know that the session stands.
            channel.phase = ConnectionPhase::Parked { open, confirmed: false };
            channel.hold_until = Some(now + COLLISION_TIMEOUT);
        } else if self.agreement.as_ref().is_some_and(|agreement| agreement.end_of_rib) {
            // RFC 4724: a new connection means that the peer has lost the session.
            self.end_connection(now, other_connection, SessionEndReason::PeerRestarted);
            self.confirm_open(now, connection, open);
        } else {
            self.refuse_second(now, connection);
        }
    }

    /// Whether the peer is the configured one, and can be announced to.
    fn check_open(&self, open: OpenMessage) -> Result<OpenMessage, Notification> {
        let config = &self.config;
        let internal = open.autonomous_system == config.local_as;
        if !config.peer_as.accepts_as(open.autonomous_system, config.local_as) {
            return Err(Notification::new(Reason::BadPeerAs));
        }
        // RFC 6286: unique within an autonomous system.
        if internal && open.identifier == config.identifier {
            return Err(Notification::new(Reason::BadIdentifier));
        }
        if config.families.is_disjoint(&open.capabilities.families) {
            return Err(refuse_missing_families(config.families.clone()));
        }
        Ok(open)
    }

    pub(super) fn confirm_open(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        open: OpenMessage,
    ) {
        let hold_time = Duration::from_secs(self.config.hold_time.min(open.hold_time).into());
        let Some(channel) = self.find_connection(connection) else { return };
        channel.hold_time = hold_time;
        channel.phase = ConnectionPhase::OpenConfirm(open);
        channel.restart_hold_timer(now);
        self.send_keepalive(now, connection);
    }

    /// The peer has confirmed.
    pub(super) fn establish_session(&mut self, now: Duration, connection: ConnectionId) {
        let own = self.own_open(now);
        let Some(channel) = self.find_connection(connection) else { return };
        let ConnectionPhase::OpenConfirm(open) = &channel.phase else { return };
        let open = open.clone();
        channel.phase = ConnectionPhase::Established(open.clone());
        let (next_hops, hold_time) = (channel.next_hops, channel.hold_time);
        let peer = &open.capabilities;
        let agreement = SessionAgreement {
            form: AttributeForm {
                local_as: own.autonomous_system,
                external: open.autonomous_system != own.autonomous_system,
                four_octet_as: peer.four_octet_as,
            },
            families: own.capabilities.families.intersection(&peer.families).copied().collect(),
            next_hops,
            extended_next_hop: peer.extended_next_hop,
            end_of_rib: own.capabilities.graceful_restart.is_some()
                && peer.graceful_restart.is_some(),
        };
        self.abandon_dial();
        debug_assert_eq!(self.dial, DialState::No);
        self.outbox.restart_for_session(&agreement);
        self.counters.established += 1;
        self.since = now;
        self.effects.push(BgpEffect::Report(BgpReport::Established(EstablishedSession {
            peer_as: open.autonomous_system,
            identifier: open.identifier,
            hold_time,
            families: agreement.announceable(),
            graceful_restart: agreement.end_of_rib,
        })));
        self.agreement = Some(agreement);
    }
}

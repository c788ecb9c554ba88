//! A session, and the peer that a test plays.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use crate::session::{
    BgpEffect, BgpInput, BgpReport, BgpSession, BgpSessionConfig, ConnectionId, NextHops, PeerAs,
    RouteChange,
};
use crate::wire::received::{ReceivedUpdate, UpdateContext};
use crate::wire::{
    Capabilities, GracefulRestart, MessageKind, Notification, OpenMessage, append_keepalive,
    message,
};
use crate::{Family, RouteAttributes};

pub const LOCAL_AS: u32 = 65_001;
pub(crate) const PEER_AS: u32 = 65_002;
pub const NEXT_HOPS: NextHops = NextHops {
    ipv4: Some(Ipv4Addr::new(192, 0, 2, 1)),
    ipv6: Some(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    link_local: None,
};

pub fn config() -> BgpSessionConfig {
    BgpSessionConfig {
        local_as: LOCAL_AS,
        peer_as: PeerAs::Number(PEER_AS),
        identifier: Ipv4Addr::new(192, 0, 2, 1),
        hold_time: BgpSessionConfig::DEFAULT_HOLD_TIME,
        families: Family::ALL.into(),
        passive: false,
        restart_time: Some(120),
        restarted: None,
    }
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn routes(prefixes: &[&str]) -> Vec<RouteChange> {
    let attributes = Arc::new(RouteAttributes::default());
    prefixes.iter().map(|prefix| (prefix.parse().unwrap(), Some(attributes.clone()))).collect()
}

/// What the session did, in short.
#[derive(Clone, Debug, PartialEq)]
pub enum Observed {
    Connect,
    AbandonConnect,
    Open(u64, OpenMessage),
    Keepalive(u64),
    Update(u64, ReceivedUpdate),
    Notification(u64, String),
    Close(u64),
    Report(BgpReport),
}

pub struct Script {
    pub session: BgpSession,
    pub now: Duration,
}

impl Script {
    pub fn new(config: BgpSessionConfig) -> Self {
        let now = seconds(1000);
        Self { session: BgpSession::new(config, 7, now), now }
    }

    pub fn input(&mut self, input: BgpInput) -> Vec<Observed> {
        let effects = self.session.handle(self.now, input);
        effects.into_iter().flat_map(|effect| self.read(effect)).collect()
    }

    fn read(&mut self, effect: BgpEffect) -> Vec<Observed> {
        match effect {
            BgpEffect::Connect => vec![Observed::Connect],
            BgpEffect::AbandonConnect => vec![Observed::AbandonConnect],
            BgpEffect::Close { connection, .. } => vec![Observed::Close(connection.0)],
            BgpEffect::Report(report) => vec![Observed::Report(report)],
            BgpEffect::Send { connection, octets } => {
                let id = connection.0;
                let mut rest = &octets[..];
                let mut sent = Vec::new();
                while let Some(first) = message::parse_first_message(rest).unwrap() {
                    rest = &rest[first.length()..];
                    sent.push(match first.kind {
                        MessageKind::Open => {
                            Observed::Open(id, OpenMessage::parse(first.body).unwrap())
                        }
                        MessageKind::Keepalive => Observed::Keepalive(id),
                        MessageKind::Notification => {
                            Observed::Notification(id, Notification::parse(first.body).to_string())
                        }
                        MessageKind::Update => {
                            let peer = UpdateContext { external: true, four_octet_as: true };
                            Observed::Update(id, ReceivedUpdate::parse(first.body, peer))
                        }
                        MessageKind::RouteRefresh => unreachable!("it imports nothing"),
                    });
                }
                assert!(rest.is_empty());
                sent
            }
        }
    }

    /// Advances to each deadline up to the end.
    pub fn wait(&mut self, time: Duration) -> Vec<Observed> {
        let end = self.now + time;
        let mut did = Vec::new();
        while let Some(deadline) = self.session.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            did.extend(self.input(BgpInput::Tick));
        }
        self.now = end;
        did
    }

    /// The kernel has accepted everything.
    pub fn written(&mut self, id: u64) -> Vec<Observed> {
        self.input(BgpInput::Written { connection: ConnectionId(id), octets: usize::MAX })
    }

    pub fn connected(&mut self, id: u64, outgoing: bool) -> Vec<Observed> {
        let connection = ConnectionId(id);
        self.input(BgpInput::Connected { connection, outgoing, next_hops: NEXT_HOPS })
    }

    pub fn receive(&mut self, id: u64, octets: &[u8]) -> Vec<Observed> {
        self.input(BgpInput::Received { connection: ConnectionId(id), octets })
    }

    pub(crate) fn receive_open(&mut self, id: u64, open: &OpenMessage) -> Vec<Observed> {
        let mut octets = Vec::new();
        open.encode(&mut octets);
        self.receive(id, &octets)
    }

    pub(crate) fn receive_keepalive(&mut self, id: u64) -> Vec<Observed> {
        let mut octets = Vec::new();
        append_keepalive(&mut octets);
        self.receive(id, &octets)
    }

    /// Started, with an outgoing connection 1 on which the session is established.
    pub fn established(config: BgpSessionConfig) -> (Self, Vec<Observed>) {
        let mut script = Self::new(config);
        assert_eq!(script.input(BgpInput::Start), [Observed::Connect]);
        script.connected(1, true);
        script.receive_open(1, &peer_open());
        let did = script.receive_keepalive(1);
        script.written(1);
        (script, did)
    }
}

/// The peer's identifier is higher than the session's own.
pub(crate) fn peer_open() -> OpenMessage {
    OpenMessage {
        autonomous_system: PEER_AS,
        hold_time: 90,
        identifier: Ipv4Addr::new(192, 0, 2, 254),
        capabilities: Capabilities {
            families: Family::ALL.into(),
            route_refresh: true,
            four_octet_as: true,
            extended_next_hop: false,
            graceful_restart: Some(GracefulRestart::default()),
        },
    }
}

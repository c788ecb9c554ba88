//! A session, and the peer that a test plays.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use crate::session::{
    Change, Config, Connection, Effect, Input, NextHops, PeerAs, Report, Session,
};
use crate::wire::received::{Peer, Received};
use crate::wire::{Capabilities, GracefulRestart, Kind, Notification, Open, keepalive, message};
use crate::{Attributes, Family};

pub const LOCAL_AS: u32 = 65_001;
pub const PEER_AS: u32 = 65_002;
pub const NEXT_HOPS: NextHops = NextHops {
    ipv4: Some(Ipv4Addr::new(192, 0, 2, 1)),
    ipv6: Some(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    link_local: None,
};

pub fn config() -> Config {
    Config {
        local_as: LOCAL_AS,
        peer_as: PeerAs::Number(PEER_AS),
        identifier: Ipv4Addr::new(192, 0, 2, 1),
        hold_time: Config::DEFAULT_HOLD_TIME,
        families: Family::ALL.into(),
        passive: false,
        restart_time: Some(120),
        restarted: None,
    }
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn routes(prefixes: &[&str]) -> Vec<Change> {
    let attributes = Arc::new(Attributes::default());
    prefixes.iter().map(|prefix| (prefix.parse().unwrap(), Some(attributes.clone()))).collect()
}

/// What the session did, in short.
#[derive(Clone, Debug, PartialEq)]
pub enum Did {
    Connect,
    AbandonConnect,
    Open(u64, Open),
    Keepalive(u64),
    Update(u64, Received),
    Notification(u64, String),
    Close(u64),
    Report(Report),
}

pub struct Script {
    pub session: Session,
    pub now: Duration,
}

impl Script {
    pub fn new(config: Config) -> Self {
        let now = seconds(1000);
        Self { session: Session::new(config, 7, now), now }
    }

    pub fn input(&mut self, input: Input) -> Vec<Did> {
        let effects = self.session.handle(self.now, input);
        effects.into_iter().flat_map(|effect| self.read(effect)).collect()
    }

    fn read(&mut self, effect: Effect) -> Vec<Did> {
        match effect {
            Effect::Connect => vec![Did::Connect],
            Effect::AbandonConnect => vec![Did::AbandonConnect],
            Effect::Close { connection } => vec![Did::Close(connection.0)],
            Effect::Report(report) => vec![Did::Report(report)],
            Effect::Send { connection, octets } => {
                let id = connection.0;
                let mut rest = &octets[..];
                let mut sent = Vec::new();
                while let Some(first) = message::first(rest).unwrap() {
                    rest = &rest[first.length()..];
                    sent.push(match first.kind {
                        Kind::Open => Did::Open(id, Open::parse(first.body).unwrap()),
                        Kind::Keepalive => Did::Keepalive(id),
                        Kind::Notification => {
                            Did::Notification(id, Notification::parse(first.body).to_string())
                        }
                        Kind::Update => {
                            let peer = Peer { external: true, four_octet_as: true };
                            Did::Update(id, Received::parse(first.body, peer))
                        }
                        Kind::RouteRefresh => unreachable!("it imports nothing"),
                    });
                }
                assert!(rest.is_empty());
                sent
            }
        }
    }

    /// Advances to each deadline up to the end.
    pub fn wait(&mut self, time: Duration) -> Vec<Did> {
        let end = self.now + time;
        let mut did = Vec::new();
        while let Some(deadline) = self.session.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            did.extend(self.input(Input::Tick));
        }
        self.now = end;
        did
    }

    /// The kernel has accepted everything.
    pub fn written(&mut self, id: u64) -> Vec<Did> {
        self.input(Input::Written { connection: Connection(id), octets: usize::MAX })
    }

    pub fn connected(&mut self, id: u64, outgoing: bool) -> Vec<Did> {
        let connection = Connection(id);
        self.input(Input::Connected { connection, outgoing, next_hops: NEXT_HOPS })
    }

    pub fn receive(&mut self, id: u64, octets: &[u8]) -> Vec<Did> {
        self.input(Input::Received { connection: Connection(id), octets })
    }

    pub fn receive_open(&mut self, id: u64, open: &Open) -> Vec<Did> {
        let mut octets = Vec::new();
        open.encode(&mut octets);
        self.receive(id, &octets)
    }

    pub fn receive_keepalive(&mut self, id: u64) -> Vec<Did> {
        let mut octets = Vec::new();
        keepalive(&mut octets);
        self.receive(id, &octets)
    }

    /// Started, with an outgoing connection 1 on which the session is established.
    pub fn established(config: Config) -> (Self, Vec<Did>) {
        let mut script = Self::new(config);
        assert_eq!(script.input(Input::Start), [Did::Connect]);
        script.connected(1, true);
        script.receive_open(1, &peer_open());
        let did = script.receive_keepalive(1);
        script.written(1);
        (script, did)
    }
}

/// The peer's identifier is higher than the session's own.
pub fn peer_open() -> Open {
    Open {
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

//! A session whose peer sends anything, at any time, on any number of connections.

use std::collections::BTreeSet;
use std::time::Duration;

use lb_bgp::session::{
    BgpEffect, BgpInput as Event, BgpReport, BgpSession, BgpSessionConfig, BgpSessionState,
    ConnectionId, NextHops, PeerAs, RouteChange, SessionStop,
};
use lb_bgp::wire::{OpenMessage, append_keepalive, message as framing};
use lb_bgp::{Family, RouteAttributes};

use super::message::generate_stream;
use crate::Input;

/// The session, and what has become of its effects.
struct World {
    session: BgpSession,
    now: Duration,
    open: BTreeSet<u64>,
    connecting: bool,
    connections: u64,
    met: &'static str,
}

/// The furthest that the session came.
pub fn fuzz_bgp_session(bytes: &[u8]) -> &'static str {
    let mut input = Input::new(bytes);
    let now = Duration::from_secs(1);
    let config = BgpSessionConfig {
        local_as: 65_002,
        peer_as: PeerAs::External,
        identifier: [192, 0, 2, 9].into(),
        hold_time: input.choose(&[9, 0, 3, 90]),
        families: Family::ALL.into(),
        passive: input.chance(64),
        restart_time: (!input.chance(64)).then_some(120),
        restarted: input.chance(128).then_some(Duration::from_secs(120)),
    };
    let session = BgpSession::new(config, input.word().into(), now);
    let mut world = World {
        session,
        now,
        open: BTreeSet::new(),
        connecting: false,
        connections: 0,
        met: "nothing",
    };
    world.handle(Event::Start);
    while !input.is_empty() {
        world.step(&mut input);
    }
    world.met
}

impl World {
    fn step(&mut self, input: &mut Input) {
        match input.below(16) {
            0..=1 => self.connect(false),
            2 if self.connecting => self.connect(true),
            3 if self.connecting => {
                self.connecting = false;
                self.handle(Event::ConnectFailed);
            }
            4..=6 => self.receive(input, &valid_open()),
            7..=9 => {
                let mut octets = Vec::new();
                append_keepalive(&mut octets);
                self.receive(input, &octets);
            }
            10..=11 => {
                let length = input.below(64);
                let bytes = input.take(length);
                let octets = generate_stream(&mut Input::new(&bytes));
                self.receive(input, &octets);
            }
            12 => {
                let prefix = format!("203.0.113.{}/32", input.byte()).parse().expect("a prefix");
                let attributes = input.chance(128).then(|| RouteAttributes::default().into());
                let change: RouteChange = (prefix, attributes);
                self.handle(Event::Routes(&[change]));
            }
            13 => {
                self.now += Duration::from_millis(input.short().into());
                self.tick();
            }
            14 => self.rare(input),
            _ => {
                let octets = input.short().into();
                if let Some(connection) = self.any(input) {
                    self.handle(Event::Written { connection: ConnectionId(connection), octets });
                }
            }
        }
    }

    fn rare(&mut self, input: &mut Input) {
        match input.below(8) {
            0 => self.handle(Event::Synced),
            1 => self.handle(Event::Drain(input.chance(128))),
            2 => self.handle(Event::BfdDown),
            3 => self.handle(Event::Stop(SessionStop::Changed)),
            4 => self.handle(Event::Stop(SessionStop::Restart)),
            5 => self.handle(Event::Start),
            _ => {
                if let Some(connection) = self.any(input) {
                    self.open.remove(&connection);
                    self.handle(Event::Closed { connection: ConnectionId(connection) });
                }
            }
        }
    }

    fn any(&self, input: &mut Input) -> Option<u64> {
        let at = input.below(self.open.len().max(1));
        self.open.iter().nth(at).copied()
    }

    fn connect(&mut self, outgoing: bool) {
        self.connecting &= !outgoing;
        self.connections += 1;
        self.open.insert(self.connections);
        let next_hops = NextHops { ipv4: Some([192, 0, 2, 9].into()), ..NextHops::default() };
        let connection = ConnectionId(self.connections);
        self.handle(Event::Connected { connection, outgoing, next_hops });
    }

    fn receive(&mut self, input: &mut Input, octets: &[u8]) {
        if let Some(connection) = self.any(input) {
            self.handle(Event::Received { connection: ConnectionId(connection), octets });
        }
    }

    /// No deadline is due for ever: the caller would not sleep.
    fn tick(&mut self) {
        for _ in 0..16 {
            if self.session.deadline().is_none_or(|at| at > self.now) {
                return;
            }
            self.handle(Event::Tick);
        }
        panic!("a deadline stays due");
    }

    fn handle(&mut self, event: Event) {
        for effect in self.session.handle(self.now, event) {
            match effect {
                BgpEffect::Connect => {
                    assert!(!self.connecting, "two attempts at once");
                    self.connecting = true;
                }
                BgpEffect::AbandonConnect => {
                    assert!(self.connecting, "no attempt");
                    self.connecting = false;
                }
                BgpEffect::Send { connection, octets } => {
                    assert!(self.open.contains(&connection.0), "sends on a closed connection");
                    let mut rest = &octets[..];
                    while let Some(first) =
                        framing::parse_first_message(rest).expect("valid messages")
                    {
                        rest = &rest[first.length()..];
                    }
                    assert!(rest.is_empty() && !octets.is_empty());
                }
                BgpEffect::Close { connection, .. } => {
                    assert!(self.open.remove(&connection.0), "closed twice");
                }
                BgpEffect::Report(BgpReport::Established(_)) => self.met = "established",
                BgpEffect::Report(BgpReport::Down(_)) => self.met = "down",
                BgpEffect::Report(BgpReport::Failed(_)) if self.met == "nothing" => {
                    self.met = "failed"
                }
                BgpEffect::Report(BgpReport::Failed(_) | BgpReport::Families(_)) => (),
            }
        }
        assert!(self.open.len() <= 3, "connections pile up");
        let status = self.session.status();
        assert_eq!(status.state == BgpSessionState::Established, status.peer.is_some());
    }
}

fn valid_open() -> Vec<u8> {
    let mut octets = Vec::new();
    let open = OpenMessage {
        autonomous_system: 65_001,
        hold_time: 9,
        identifier: [192, 0, 2, 1].into(),
        capabilities: lb_bgp::wire::Capabilities {
            families: Family::ALL.into(),
            graceful_restart: Some(lb_bgp::wire::GracefulRestart::default()),
            ..<_>::default()
        },
    };
    open.encode(&mut octets);
    octets
}

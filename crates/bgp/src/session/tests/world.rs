//! Two sessions and the network between them, with the routes that the second one's router would have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::script::{LOCAL_AS, NEXT_HOPS, PEER_AS, config, seconds};
use crate::session::channel::ConnectionPhase;
use crate::session::{
    BgpEffect, BgpInput, BgpReport, BgpSession, BgpSessionConfig, ConnectionId, MAX_QUEUED_OCTETS,
    PeerAs, SessionEndReason, SessionStop,
};
use crate::wire::received::{ReceivedUpdate, UpdateContext};
use crate::wire::{MessageKind, message};
use crate::{Communities, Family, RouteAttributes};

/// This side announces.
pub(crate) const SPEAKER: usize = 0;
/// This side stores received routes, like a router.
pub const ROUTER: usize = 1;

#[derive(Debug)]
enum SessionWorldEvent {
    Dialed { side: usize, attempt: u64 },
    Connected { side: usize, connection: u64, outgoing: bool },
    Octets { side: usize, connection: u64, octets: Vec<u8> },
    Closed { side: usize, connection: u64 },
    Written { side: usize, connection: u64, octets: usize },
}

/// One TCP connection.
struct Pipe {
    open: [bool; 2],
    /// When the last octets to each side arrive: those after them do not arrive earlier.
    last: [Duration; 2],
    /// To the router, not yet parsed.
    unparsed: Vec<u8>,
}

pub struct World {
    pub now: Duration,
    pub sessions: [BgpSession; 2],
    /// What the speaker wants to announce.
    pub wanted: BTreeMap<IpNet, Arc<RouteAttributes>>,
    /// What the router has, and whether it is from an earlier session.
    pub routes: BTreeMap<IpNet, bool>,
    pub established: u64,
    /// Nothing arrives, and no connection is opened.
    pub partitioned: bool,
    /// The router's process does not read.
    pub stalled: bool,
    attempts: [u64; 2],
    pipes: BTreeMap<u64, Pipe>,
    events: BTreeMap<(Duration, u64), SessionWorldEvent>,
    count: u64,
    random: u64,
}

fn configuration(side: usize, restarted: Option<Duration>) -> BgpSessionConfig {
    let [local_as, peer_as] =
        if side == SPEAKER { [LOCAL_AS, PEER_AS] } else { [PEER_AS, LOCAL_AS] };
    let identifier = if side == SPEAKER { "192.0.2.1" } else { "192.0.2.2" };
    BgpSessionConfig {
        local_as,
        peer_as: PeerAs::Number(peer_as),
        identifier: identifier.parse().unwrap(),
        restarted,
        ..config()
    }
}

impl World {
    pub fn new(seed: u64) -> Self {
        let now = seconds(1);
        let session =
            |side: usize| BgpSession::new(configuration(side, None), seed + side as u64, now);
        let mut world = Self {
            now,
            sessions: [session(SPEAKER), session(ROUTER)],
            wanted: BTreeMap::new(),
            routes: BTreeMap::new(),
            established: 0,
            partitioned: false,
            stalled: false,
            attempts: [0; 2],
            pipes: BTreeMap::new(),
            events: BTreeMap::new(),
            count: 0,
            random: seed,
        };
        for side in [SPEAKER, ROUTER] {
            world.input(side, BgpInput::Start);
            world.input(side, BgpInput::Synced);
        }
        world
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % end
    }

    fn schedule(&mut self, at: Duration, event: SessionWorldEvent) {
        self.count += 1;
        self.events.insert((at, self.count), event);
    }

    pub fn input(&mut self, side: usize, input: BgpInput) {
        let effects = self.sessions[side].handle(self.now, input);
        for effect in effects {
            self.effect(side, effect);
        }
        let channels = &self.sessions[side].channels;
        assert!(channels.len() <= 3, "{channels:?}");
        assert!(channels.iter().filter(|channel| channel.is_established()).count() <= 1);
        for channel in channels {
            // One round of UPDATEs may exceed the limit.
            assert!(channel.queued <= MAX_QUEUED_OCTETS * 2 && channel.buffer.len() < 4096);
        }
    }

    fn effect(&mut self, side: usize, effect: BgpEffect) {
        let delay = Duration::from_millis(1 + self.below(40));
        match effect {
            BgpEffect::Connect => {
                self.attempts[side] += 1;
                let attempt = self.attempts[side];
                self.schedule(self.now + delay, SessionWorldEvent::Dialed { side, attempt });
            }
            BgpEffect::AbandonConnect => self.attempts[side] += 1,
            BgpEffect::Send { connection, octets } => {
                if !(side == SPEAKER && self.stalled) {
                    let (connection, octets) = (connection.0, octets.len());
                    self.schedule(
                        self.now,
                        SessionWorldEvent::Written { side, connection, octets },
                    );
                }
                self.deliver(1 - side, connection.0, delay, Some(octets));
            }
            BgpEffect::Close { connection, .. } => {
                if let Some(pipe) = self.pipes.get_mut(&connection.0) {
                    pipe.open[side] = false;
                }
                self.deliver(1 - side, connection.0, delay, None);
            }
            BgpEffect::Report(report) => self.report(side, &report),
        }
    }

    /// In order. Octets arrive in two pieces.
    fn deliver(&mut self, side: usize, connection: u64, delay: Duration, octets: Option<Vec<u8>>) {
        let now = self.now;
        let Some(pipe) = self.pipes.get_mut(&connection) else { return };
        let at = (now + delay).max(pipe.last[side]);
        pipe.last[side] = at;
        let Some(mut octets) = octets else {
            return self.schedule(at, SessionWorldEvent::Closed { side, connection });
        };
        let second = octets.split_off(self.below(octets.len() as u64) as usize);
        for octets in [octets, second] {
            self.schedule(at, SessionWorldEvent::Octets { side, connection, octets });
        }
    }

    /// RFC 4724: a router keeps routes unless the session has ended with a NOTIFICATION.
    fn report(&mut self, side: usize, report: &BgpReport) {
        match report {
            BgpReport::Established(_) => self.established += u64::from(side == ROUTER),
            BgpReport::Down(SessionEndReason::Sent(_) | SessionEndReason::Received(_))
                if side == ROUTER =>
            {
                self.routes.clear()
            }
            BgpReport::Down(_) if side == ROUTER => {
                self.routes.values_mut().for_each(|stale| *stale = true);
            }
            _ => (),
        }
    }

    /// Lets the time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let event = self.events.keys().next().map(|(at, _)| *at);
            let ticks = [SPEAKER, ROUTER].map(|side| self.sessions[side].deadline());
            let next = event.into_iter().chain(ticks.into_iter().flatten()).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            // What has arrived comes before timers.
            if event.is_some_and(|at| at <= self.now) {
                let (_, event) = self.events.pop_first().unwrap();
                self.happen(event);
                continue;
            }
            for side in [SPEAKER, ROUTER] {
                if self.sessions[side].deadline().is_some_and(|at| at <= self.now) {
                    self.input(side, BgpInput::Tick);
                }
            }
        }
        self.now = end;
    }

    fn happen(&mut self, event: SessionWorldEvent) {
        let is_open = |world: &Self, side: usize, connection: u64| {
            world.pipes.get(&connection).is_some_and(|pipe| pipe.open[side])
        };
        match event {
            SessionWorldEvent::Dialed { side, attempt } if attempt == self.attempts[side] => {
                if self.partitioned {
                    return self.input(side, BgpInput::ConnectFailed);
                }
                self.count += 1;
                let connection = self.count;
                let pipe = Pipe { open: [true; 2], last: [self.now; 2], unparsed: Vec::new() };
                self.pipes.insert(connection, pipe);
                let at = self.now + Duration::from_millis(self.below(20));
                self.pipes.get_mut(&connection).unwrap().last[1 - side] = at;
                let accepted =
                    SessionWorldEvent::Connected { side: 1 - side, connection, outgoing: false };
                self.schedule(at, accepted);
                self.happen(SessionWorldEvent::Connected { side, connection, outgoing: true });
            }
            SessionWorldEvent::Dialed { .. } => (),
            SessionWorldEvent::Connected { side, connection, outgoing } => {
                if is_open(self, side, connection) {
                    let connection = ConnectionId(connection);
                    let next_hops = NEXT_HOPS;
                    self.input(side, BgpInput::Connected { connection, outgoing, next_hops });
                }
            }
            SessionWorldEvent::Octets { side, connection, octets } => {
                if is_open(self, side, connection) && !self.partitioned {
                    let received = BgpInput::Received {
                        connection: ConnectionId(connection),
                        octets: &octets,
                    };
                    self.input(side, received);
                    self.learn(side, connection, &octets);
                } else if self.partitioned {
                    self.lose(connection);
                }
            }
            SessionWorldEvent::Closed { side, connection } => {
                if is_open(self, side, connection) && !self.partitioned {
                    self.pipes.get_mut(&connection).unwrap().open[side] = false;
                    self.input(side, BgpInput::Closed { connection: ConnectionId(connection) });
                }
            }
            SessionWorldEvent::Written { side, connection, octets } => {
                let connection = ConnectionId(connection);
                self.input(side, BgpInput::Written { connection, octets });
            }
        }
    }

    /// Loses all octets of a connection that are on their way. The sender does not notice.
    fn lose(&mut self, connection: u64) {
        self.events.retain(|_, event| {
            !matches!(event, SessionWorldEvent::Octets { connection: other, .. } if *other == connection)
        });
        // Both sides believe in the connection until their hold timers expire; nothing more arrives.
        self.pipes.remove(&connection);
    }

    fn learn(&mut self, side: usize, connection: u64, octets: &[u8]) {
        if side != ROUTER {
            return;
        }
        let established = self.sessions[ROUTER]
            .channels
            .iter()
            .find(|each| matches!(each.phase, ConnectionPhase::Established(_)));
        let is_established = established.is_some_and(|each| each.connection.0 == connection);
        let Some(pipe) = self.pipes.get_mut(&connection) else { return };
        pipe.unparsed.extend(octets);
        let unparsed = std::mem::take(&mut pipe.unparsed);
        let mut rest = &unparsed[..];
        while let Some(first) = message::parse_first_message(rest).unwrap() {
            rest = &rest[first.length()..];
            if first.kind == MessageKind::Update && is_established {
                let peer = UpdateContext { external: true, four_octet_as: true };
                let received = ReceivedUpdate::parse(first.body, peer);
                assert_eq!(received.fault, None);
                received.withdrawn.iter().for_each(|prefix| _ = self.routes.remove(prefix));
                self.routes.extend(received.announced.iter().map(|prefix| (*prefix, false)));
                if let Some(ended) = received.end_of_rib {
                    self.routes
                        .retain(|prefix, stale| !*stale || Family::of_prefix(prefix) != ended);
                }
            }
        }
        self.pipes.get_mut(&connection).unwrap().unparsed = rest.to_vec();
    }

    pub fn want(&mut self, prefix: IpNet, community: Option<u32>) {
        let attributes = community.map(|community| {
            let mut communities = Communities::default();
            communities.insert(crate::Community(community)).unwrap();
            Arc::new(RouteAttributes { communities, ..RouteAttributes::default() })
        });
        match &attributes {
            Some(attributes) => self.wanted.insert(prefix, attributes.clone()),
            None => self.wanted.remove(&prefix),
        };
        self.input(SPEAKER, BgpInput::Routes(&[(prefix, attributes)]));
    }

    /// Resets all connections.
    pub(crate) fn disconnect(&mut self) {
        for connection in self.pipes.keys().copied().collect::<Vec<_>>() {
            for side in [SPEAKER, ROUTER] {
                self.schedule(self.now, SessionWorldEvent::Closed { side, connection });
            }
        }
    }

    /// Replaces the process of a side, which was killed or stopped.
    pub fn restart(&mut self, side: usize, killed: bool) {
        if !killed {
            self.input(side, BgpInput::Stop(SessionStop::Restart));
        }
        self.attempts[side] += 1;
        for connection in self.pipes.keys().copied().collect::<Vec<_>>() {
            self.pipes.get_mut(&connection).unwrap().open[side] = false;
            self.schedule(self.now, SessionWorldEvent::Closed { side: 1 - side, connection });
        }
        if side == ROUTER {
            self.routes.clear();
        }
        let restarted = (side == SPEAKER).then(|| self.now + seconds(120));
        let seed = self.below(1 << 30);
        self.sessions[side] = BgpSession::new(configuration(side, restarted), seed, self.now);
        self.input(side, BgpInput::Start);
        if side == SPEAKER {
            let wanted: Vec<_> = self.wanted.clone().into_iter().collect();
            for (prefix, attributes) in wanted {
                self.input(side, BgpInput::Routes(&[(prefix, Some(attributes))]));
            }
        }
        self.input(side, BgpInput::Synced);
    }

    /// A router that reads again.
    pub fn resume(&mut self) {
        self.stalled = false;
        for connection in self.pipes.keys().copied().collect::<Vec<_>>() {
            let written =
                SessionWorldEvent::Written { side: SPEAKER, connection, octets: usize::MAX };
            self.schedule(self.now, written);
        }
    }

    /// Everything that is wanted has arrived, and nothing else.
    pub(crate) fn check_converged(&self) {
        let wanted: BTreeSet<_> = self.wanted.keys().collect();
        let routes: BTreeSet<_> = self.routes.keys().collect();
        assert_eq!(routes, wanted, "{:?}", self.sessions[SPEAKER].status());
        assert!(self.routes.values().all(|stale| !stale), "{:?}", self.routes);
        assert!(self.sessions[SPEAKER].status().complete);
    }
}

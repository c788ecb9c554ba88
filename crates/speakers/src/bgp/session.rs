//! One peer: its session, and the sockets that the session asks for.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use lb_bgp::Family;
use lb_bgp::session::{
    BgpEffect, BgpInput, BgpReport, BgpSession, BgpSessionConfig, ConnectionId, EstablishedSession,
    PeerAs, SessionEndReason,
};
use lb_waits::{Resource, Wait, Waits};
use tokio::net::TcpStream;

use super::config::PeerLocation;
use super::connection::{BgpConnection, LingeringConnections};
use super::detection::DetectionConfig;
use super::io::{
    ConnectionLink, HopSecurity, begin_connect, find_link, is_link_local, scoped_socket_address,
};
use super::peer_objects::ConfiguredPeer;
use super::router::{find_interface_index, find_router};
use super::view::{PeerView, name_state};
use crate::bfd::{MonitoredEnds, WantedSession};

pub(crate) struct PeerSession {
    name: String,
    configured: ConfiguredPeer,
    session: BgpSession,
    /// An attempt to connect.
    dial: Option<TcpStream>,
    wires: BTreeMap<ConnectionId, BgpConnection>,
    last_connection: u64,
    /// What the session agreed on.
    established: Option<EstablishedSession>,
    /// What the path to the peer is between, as of the last session.
    ends: Option<PathEnds>,
    since: Timestamp,
    messages_sent: u64,
    ended: u64,
    draining: bool,
    /// Why there is no session; the same reason is logged once.
    failure: Option<String>,
    /// Of the last attempt to connect.
    dial_failure: Option<String>,
    /// While there is no session.
    wait: Option<Wait>,
}

/// What a path is between.
struct PathEnds {
    peer: IpAddr,
    local: IpAddr,
    device: u32,
    is_on_link: bool,
}

impl PeerSession {
    pub fn new(
        name: &str,
        configured: ConfiguredPeer,
        restarted: Option<Duration>,
        seed: u64,
        now: Duration,
    ) -> Self {
        let peer = &configured.peer;
        let config = BgpSessionConfig {
            local_as: peer.local_as,
            peer_as: peer.peer_as,
            identifier: configured.identifier,
            hold_time: peer.hold_time,
            families: peer.families.clone(),
            passive: peer.passive,
            restart_time: peer.restart_time,
            restarted,
        };
        Self {
            name: name.to_owned(),
            session: BgpSession::new(config, seed, now),
            configured,
            dial: None,
            wires: BTreeMap::new(),
            last_connection: 0,
            established: None,
            ends: None,
            since: Timestamp::now(),
            messages_sent: 0,
            ended: 0,
            draining: false,
            failure: None,
            dial_failure: None,
            wait: Some(wait_for_session(name)),
        }
    }

    /// Leaves the session alone.
    pub(crate) fn set_detection(&mut self, detection: Option<DetectionConfig>) {
        self.configured.detection = detection;
    }

    /// The path that BFD watches. Also without a session: a path that works again is found, too.
    pub(crate) fn wanted_bfd_session(&self) -> Option<WantedSession> {
        let (detection, ends) = (self.configured.detection?, self.ends.as_ref()?);
        let PathEnds { peer, local, device, is_on_link } = *ends;
        let hops = detection.hops(is_on_link);
        let path = MonitoredEnds { peer, local, device, hops };
        Some(WantedSession { path, config: detection.config })
    }

    pub fn is_restarting(&self, now: Duration) -> bool {
        self.session.is_restarting(now)
    }

    pub fn configured(&self) -> &ConfiguredPeer {
        &self.configured
    }

    pub(crate) fn next_session_timeout(&self) -> Option<Duration> {
        self.session.deadline()
    }

    pub fn dial(&self) -> Option<&TcpStream> {
        self.dial.as_ref()
    }

    pub fn connections(&self) -> impl Iterator<Item = &BgpConnection> {
        self.wires.values()
    }

    pub(crate) fn set_draining(
        &mut self,
        now: Duration,
        draining: bool,
        lingering: &mut LingeringConnections,
    ) {
        self.draining = draining;
        self.handle_input(now, BgpInput::Drain(draining), lingering);
    }

    /// Gives an input to the session, and does what it decides.
    pub(crate) fn handle_input(
        &mut self,
        now: Duration,
        input: BgpInput,
        lingering: &mut LingeringConnections,
    ) {
        if matches!(input, BgpInput::Stop(_)) {
            self.ends = None;
        }
        let mut effects = VecDeque::from(self.session.handle(now, input));
        while let Some(effect) = effects.pop_front() {
            match effect {
                BgpEffect::Connect => {
                    if let Err(error) = self.begin_dial() {
                        self.dial_failure = Some(format!("{error:#}"));
                        effects.extend(self.session.handle(now, BgpInput::ConnectFailed));
                    }
                }
                BgpEffect::AbandonConnect => self.dial = None,
                BgpEffect::Send { connection, octets } => {
                    self.messages_sent += count_messages(&octets);
                    let Some(wire) = self.wires.get_mut(&connection) else { continue };
                    wire.queue(&octets);
                    effects.extend(self.write(now, connection));
                }
                BgpEffect::Close { connection, is_notified } => {
                    if let Some(wire) = self.wires.remove(&connection) {
                        lingering.add(wire.finish(is_notified), now);
                    }
                }
                BgpEffect::Report(report) => self.report(report),
            }
        }
    }

    fn write(&mut self, now: Duration, connection: ConnectionId) -> Vec<BgpEffect> {
        let octets = self.wires.get_mut(&connection).map_or(0, BgpConnection::write);
        match octets {
            0 => Vec::new(),
            octets => self.session.handle(now, BgpInput::Written { connection, octets }),
        }
    }

    /// Reads and writes what is possible, and lets the session handle what is due: in this order, because what has
    /// arrived proves that the peer lives. Returns whether anything has happened.
    pub(crate) fn handle_due_io(
        &mut self,
        now: Duration,
        lingering: &mut LingeringConnections,
    ) -> bool {
        let mut is_active = self.finish_dial(now, lingering);
        let connections: Vec<ConnectionId> = self.wires.keys().copied().collect();
        for connection in connections {
            let Some(wire) = self.wires.get_mut(&connection) else { continue };
            let octets = wire.write();
            if octets > 0 {
                self.handle_input(now, BgpInput::Written { connection, octets }, lingering);
            }
            let Some(wire) = self.wires.get(&connection) else { continue };
            let arrived = wire.read();
            if !arrived.octets.is_empty() {
                is_active = true;
                let octets = &arrived.octets;
                self.handle_input(now, BgpInput::Received { connection, octets }, lingering);
            }
            if arrived.is_closed && self.wires.remove(&connection).is_some() {
                is_active = true;
                self.handle_input(now, BgpInput::Closed { connection }, lingering);
            }
        }
        if self.session.deadline().is_some_and(|deadline| deadline <= now) {
            is_active = true;
            self.handle_input(now, BgpInput::Tick, lingering);
        }
        is_active
    }

    fn begin_dial(&mut self) -> Result<()> {
        let peer = &self.configured.peer;
        let to = self.address()?;
        let secret = self.configured.password.as_ref();
        let stream = begin_connect(to, peer.source, self.reach(), secret)?;
        self.dial = Some(TcpStream::from_std(stream)?);
        Ok(())
    }

    fn reach(&self) -> HopSecurity {
        let peer = &self.configured.peer;
        let is_internal = match peer.peer_as {
            PeerAs::Number(number) => number == peer.local_as,
            PeerAs::Internal => true,
            PeerAs::External => false,
        };
        HopSecurity::new(is_internal, peer.multihop, peer.ttl_security)
    }

    fn address(&self) -> Result<SocketAddr> {
        let peer = &self.configured.peer;
        match &peer.location {
            PeerLocation::Address(address, interface) => {
                let index = match interface.as_ref().filter(|_| is_link_local(*address)) {
                    Some(name) => find_interface_index(name)?,
                    None => 0,
                };
                Ok(scoped_socket_address(*address, peer.port, index))
            }
            PeerLocation::Interface(name) => {
                let router = find_router(name)?;
                Ok(scoped_socket_address(router.into(), peer.port, find_interface_index(name)?))
            }
        }
    }

    /// An attempt to connect has succeeded or failed, or is still under way.
    fn finish_dial(&mut self, now: Duration, lingering: &mut LingeringConnections) -> bool {
        let Some(stream) = &self.dial else { return false };
        let failure = match stream.take_error() {
            Ok(None) if stream.peer_addr().is_err() => return false,
            Ok(None) => None,
            Ok(Some(error)) | Err(error) => Some(error),
        };
        let connected = match (failure, self.dial.take()) {
            (None, Some(stream)) => self.connected(now, stream, true, lingering),
            (Some(error), _) => Err(error.into()),
            (None, None) => return false,
        };
        if let Err(error) = connected {
            self.dial_failure = Some(format!("{error:#}"));
            self.handle_input(now, BgpInput::ConnectFailed, lingering);
        }
        true
    }

    /// Hands a connection to the session.
    pub fn connected(
        &mut self,
        now: Duration,
        stream: TcpStream,
        outgoing: bool,
        lingering: &mut LingeringConnections,
    ) -> Result<()> {
        let wire = BgpConnection::new(stream).context("no connection")?;
        let ConnectionLink { next_hops, .. } =
            find_link(wire.local, wire.peer.ip()).context("this node's addresses can't be read")?;
        self.last_connection += 1;
        let connection = ConnectionId(self.last_connection);
        self.wires.insert(connection, wire);
        self.handle_input(now, BgpInput::Connected { connection, outgoing, next_hops }, lingering);
        Ok(())
    }

    /// Looks whether this node's addresses towards the peer have changed.
    pub(crate) fn follow_addresses(&mut self, now: Duration, lingering: &mut LingeringConnections) {
        let wires = self.wires.iter();
        let links: Vec<(ConnectionId, io::Result<ConnectionLink>)> = wires
            .map(|(connection, wire)| (*connection, find_link(wire.local, wire.peer.ip())))
            .collect();
        for (connection, link) in links {
            match link {
                Ok(ConnectionLink { next_hops, .. }) => {
                    self.handle_input(now, BgpInput::NextHops { connection, next_hops }, lingering);
                }
                Err(error) => {
                    tracing::debug!(peer = self.name, %error, "this node's addresses not read");
                }
            }
        }
    }

    /// Whether a connection from this address may be the peer's.
    pub fn is_at(&self, from: SocketAddr) -> bool {
        self.address().is_ok_and(|address| match (address, from) {
            (SocketAddr::V6(own), SocketAddr::V6(other)) => {
                own.ip() == other.ip() && own.scope_id() == other.scope_id()
            }
            _ => address.ip() == from.ip(),
        })
    }

    /// A connection of the peer.
    pub fn accept(
        &mut self,
        now: Duration,
        stream: TcpStream,
        lingering: &mut LingeringConnections,
    ) {
        let reach = self.reach();
        let prepared = |stream: &TcpStream| -> io::Result<()> {
            if !reach.admits_syn(stream) {
                return Err(io::Error::other("it comes from too far away (ttlSecurityHops)"));
            }
            reach.apply_to_socket(stream, stream.peer_addr()?.is_ipv4())
        };
        let accepted = prepared(&stream)
            .map_err(anyhow::Error::from)
            .and_then(|()| self.connected(now, stream, false, lingering));
        if let Err(error) = accepted {
            tracing::debug!(peer = self.name, error = format!("{error:#}"), "connection not used");
        }
    }

    /// Of the connection of the session. If there is a second one, it is between the same addresses.
    fn ends(&self, peer_as: u32) -> Option<PathEnds> {
        let wire = self.wires.values().next()?;
        let (peer, local) = (wire.peer.ip().to_canonical(), wire.local.ip().to_canonical());
        let link = find_link(wire.local, peer).ok()?;
        let config = &self.configured.peer;
        let is_internal = peer_as == config.local_as;
        // Routers decide in the same way, and use another port for the other kind.
        let is_on_link = !config.multihop && (link.is_on_link || !is_internal);
        let device = link.interface.filter(|_| link.is_on_link).unwrap_or(0);
        Some(PathEnds { peer, local, device, is_on_link })
    }

    fn report(&mut self, report: BgpReport) {
        let peer = self.name.clone();
        match report {
            BgpReport::Established(established) => {
                let EstablishedSession { peer_as, identifier, hold_time, .. } = &established;
                let families = name_families(&established).join(",");
                tracing::info!(
                    peer,
                    peer_as,
                    %identifier,
                    families,
                    hold_time_s = hold_time.as_secs(),
                    graceful_restart = established.graceful_restart,
                    "bgp session established"
                );
                self.ends = self.ends(established.peer_as);
                self.established = Some(established);
                self.since = Timestamp::now();
                self.failure = None;
                self.dial_failure = None;
                self.wait = None;
            }
            BgpReport::Families(found) => {
                tracing::info!(peer, families = ?found, "addresses towards the bgp peer changed");
                if let Some(established) = &mut self.established {
                    established.families = found;
                }
            }
            BgpReport::Down(why) => {
                tracing::warn!(peer, reason = %why, "bgp session ended");
                self.established = None;
                self.since = Timestamp::now();
                self.ended += 1;
                self.failure = Some(why.to_string());
                self.explain_wait(&why.to_string());
            }
            BgpReport::Failed(why) => {
                let reason = match (&why, self.dial_failure.take()) {
                    (SessionEndReason::ConnectFailed, Some(error)) => format!("{why}: {error}"),
                    (why, _) => why.to_string(),
                };
                self.explain_wait(&reason);
                if self.failure.as_ref() == Some(&reason) {
                    tracing::debug!(peer, reason, "bgp session still not established");
                } else {
                    tracing::warn!(peer, reason, "bgp session not established; retrying");
                    self.failure = Some(reason);
                }
            }
        }
    }

    fn explain_wait(&mut self, reason: &str) {
        self.wait.get_or_insert_with(|| wait_for_session(&self.name)).explain(reason);
    }

    /// `bfd`: the state of the path.
    pub(crate) fn view_peer(&self, bfd: Option<lb_bfd::BfdState>) -> PeerView {
        let (status, peer) = (self.session.status(), &self.configured.peer);
        let configured_as = match peer.peer_as {
            PeerAs::Number(number) => Some(number),
            PeerAs::Internal => Some(peer.local_as),
            PeerAs::External => None,
        };
        let wire = self.wires.values().next_back();
        let plain = |address: IpAddr| address.to_string();
        let established = self.established.as_ref();
        PeerView {
            name: self.name.clone(),
            peer: match &peer.location {
                PeerLocation::Address(address, _) => plain(*address),
                PeerLocation::Interface(name) => name.clone(),
            },
            peer_address: wire.map(|wire| plain(wire.peer.ip())),
            local_address: wire.map(|wire| plain(wire.local.ip())),
            peer_asn: established.map(|found| found.peer_as).or(configured_as),
            local_asn: peer.local_as,
            identifier: established.map(|found| found.identifier),
            local_identifier: Some(self.configured.identifier),
            state: name_state(status.state).to_owned(),
            since: self.since,
            families: established.map(name_families).unwrap_or_default(),
            hold_time_seconds: established.map(|found| found.hold_time.as_secs()),
            graceful_restart: established.is_some_and(|found| found.graceful_restart),
            authenticated: self.configured.password.is_some(),
            prefixes_advertised: status.announced,
            complete: status.complete,
            draining: self.draining,
            bfd: self.configured.detection.map(|_| match bfd {
                Some(state) => state.to_string(),
                None => "after the first session".to_owned(),
            }),
            messages_sent: self.messages_sent,
            messages_received: status.counters.messages_received,
            established: status.counters.established,
            ended: self.ended,
            prefixes_discarded: status.counters.prefixes_discarded,
            malformed_updates: status.counters.malformed_updates,
            last_failure: self.failure.clone(),
        }
    }
}

fn wait_for_session(peer: &str) -> Wait {
    Waits::of_process().begin(Resource::Neighbour, format!("a BGP session with {peer}"))
}

fn name_families(established: &EstablishedSession) -> Vec<String> {
    let name = |family: &Family| match family {
        Family::Ipv4 => "IPv4".to_owned(),
        Family::Ipv6 => "IPv6".to_owned(),
    };
    established.families.iter().map(name).collect()
}

/// Whole messages, as sessions send them.
fn count_messages(mut octets: &[u8]) -> u64 {
    let mut count = 0;
    while let Ok(Some(first)) = lb_bgp::wire::message::parse_first_message(octets) {
        count += 1;
        octets = &octets[first.length()..];
    }
    count
}

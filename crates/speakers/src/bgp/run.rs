//! The thread that talks to all peers of this node.
//!
//! Invariant: nothing that it does waits: not for a peer, nor for the agent's loop or the API server. So a session ends
//! because of its peer or the network only.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::{FutureExt, LocalBoxFuture, select_all};
use ipnet::IpNet;
use lb_bgp::session::{BgpInput, SessionStop};
use lb_bgp::table::AdvertisementTable;
use lb_kernel::privileges::Privileges;
use lb_kernel::{BfdSessions, Transmitter};
use lb_rules::model::ServiceName;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::config::{BGP_PORT, PeerLocation};
use super::connection::LingeringConnections;
use super::io::{listen_for_peers, reset_connection};
use super::paths::PeerPaths;
use super::peer_objects::ConfiguredPeer;
use super::router_advertisement::RouterAdvertiser;
use super::routes::ServiceRoutes;
use super::session::PeerSession;
use super::view::{BgpView, RouteView, list_service_peers};

/// Changes are shown after this time, together with those that follow.
const REPORT_DELAY: Duration = Duration::from_millis(100);
/// Counters are shown this often.
const COUNTERS_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// A port that can't be listened on is tried again.
const LISTEN_RETRY_DELAY: Duration = Duration::from_secs(5);
/// How often this node's addresses towards peers are looked at: they are the next hops of routes.
const ADDRESS_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a shutdown waits for its last messages to be sent.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

pub enum SpeakerCommand {
    /// The peers of this node; sessions with others end.
    Peers(BTreeMap<String, ConfiguredPeer>),
    Routes(ServiceRoutes),
    /// All Services, pools and peers have been read once.
    Synced,
    /// Whether peers should prefer other nodes.
    Drain(bool),
    /// Ends all sessions for good, and says when that is done.
    ShutDown(oneshot::Sender<()>),
}

pub struct SpeakerStart {
    /// Programs have been forwarding since before this process began.
    pub restarted: bool,
    pub privileges: Privileges,
    /// Answers BFD packets of peers.
    pub bfd: Option<BfdSessions>,
    /// Sends router advertisements.
    pub transmitter: Option<Arc<Transmitter>>,
    /// Receives the state that commands and metrics show.
    pub publish: Box<dyn Fn(BgpView) + Send>,
}

/// The agent's side of the thread. Without it, sessions end like those of a process that restarts.
pub struct Speaker(mpsc::UnboundedSender<SpeakerCommand>);

/// The thread's side. Commands wait until it starts.
pub struct SpeakerCommands(mpsc::UnboundedReceiver<SpeakerCommand>);

impl SpeakerCommands {
    pub fn start_speaker(self, start: SpeakerStart) -> Result<()> {
        let run = move || {
            if let Err(error) = start.privileges.once_attached() {
                tracing::warn!(error = format!("{error:#}"), "capabilities not dropped");
            }
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(run_speaker(SpeakerState::new(start), self.0)),
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "bgp speaker not started");
                }
            }
        };
        thread::Builder::new()
            .name("bgp".to_owned())
            .spawn(run)
            .context("the thread of the BGP speaker can't be started")?;
        Ok(())
    }
}

impl Speaker {
    pub fn new() -> (Self, SpeakerCommands) {
        let (sender, commands) = mpsc::unbounded_channel();
        (Self(sender), SpeakerCommands(commands))
    }

    pub fn commands(&self) -> mpsc::UnboundedSender<SpeakerCommand> {
        self.0.clone()
    }

    /// Tells all peers that this node no longer serves: they remove its routes at once.
    pub async fn shut_down(&self) {
        let (done, is_done) = oneshot::channel();
        if self.0.send(SpeakerCommand::ShutDown(done)).is_ok() {
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, is_done).await;
        }
    }
}

async fn run_speaker(
    mut state: SpeakerState,
    mut commands: mpsc::UnboundedReceiver<SpeakerCommand>,
) {
    loop {
        let (pause, now) = (state.pause(), Instant::now());
        let woken = tokio::select! {
            biased;
            command = commands.recv() => match command {
                Some(command) => WakeReason::By(command),
                // The agent has ended, and the process does.
                None => return,
            },
            (stream, from) = accept(&state.listeners) => WakeReason::Accepted(stream, from),
            () = state.ready() => WakeReason::Ready,
            () = sleep(pause) => WakeReason::Ready,
        };
        tracing::trace!(idle_us = now.elapsed().as_micros() as u64, "bgp speaker woken");
        match woken {
            WakeReason::By(command) => state.take_command(command),
            WakeReason::Accepted(stream, from) => state.accept(stream, from),
            WakeReason::Ready => {}
        }
        // Sockets are readable once the runtime has asked the kernel, which a command does not wait for. Without this,
        // timers expired after a pause while the messages of peers had arrived.
        let now = state.now();
        yield_now().await;
        state.handle_due(now);
    }
}

enum WakeReason {
    By(SpeakerCommand),
    Accepted(TcpStream, SocketAddr),
    Ready,
}

async fn accept(listeners: &[TcpListener]) -> (TcpStream, SocketAddr) {
    let accepting: Vec<_> = listeners.iter().map(|listener| Box::pin(listener.accept())).collect();
    if accepting.is_empty() {
        return pending().await;
    }
    match select_all(accepting).await.0 {
        Ok(accepted) => accepted,
        Err(error) => {
            // Out of file descriptors, for example.
            tracing::debug!(error = format!("{error:#}"), "bgp connection not accepted");
            sleep(REPORT_DELAY).await;
            pending().await
        }
    }
}

struct SpeakerState {
    restarted: bool,
    publish: Box<dyn Fn(BgpView) + Send>,
    began: Instant,
    peers: BTreeMap<String, PeerSession>,
    paths: PeerPaths,
    unnumbered: RouterAdvertiser,
    table: AdvertisementTable<ServiceName>,
    is_synced: bool,
    is_draining: bool,
    listeners: Vec<TcpListener>,
    listen_at: Option<Duration>,
    /// `None`: there are no peers.
    addresses_at: Option<Duration>,
    lingering: LingeringConnections,
    leaving: Option<oneshot::Sender<()>>,
    report_at: Option<Duration>,
    reported: BgpView,
    routes_changed: bool,
}

impl SpeakerState {
    fn new(start: SpeakerStart) -> Self {
        let began = Instant::now();
        Self {
            restarted: start.restarted,
            publish: start.publish,
            began,
            peers: BTreeMap::new(),
            paths: PeerPaths::new(start.bfd, began),
            unnumbered: RouterAdvertiser::new(start.transmitter),
            table: AdvertisementTable::default(),
            is_synced: false,
            is_draining: false,
            listeners: Vec::new(),
            listen_at: None,
            addresses_at: None,
            lingering: LingeringConnections::default(),
            leaving: None,
            report_at: None,
            reported: BgpView::default(),
            routes_changed: false,
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// How long nothing is due.
    fn pause(&self) -> Duration {
        let deadlines = self.peers.values().filter_map(PeerSession::next_session_timeout);
        let others = [
            self.report_at,
            self.listen_at,
            self.addresses_at,
            self.lingering.next_linger_timeout(),
            self.paths.next_path_timeout(),
            self.unnumbered.next_advertisement(),
        ];
        let due = deadlines.chain(others.into_iter().flatten()).min();
        let longest = Duration::from_secs(3_600);
        due.map_or(longest, |due| due.saturating_sub(self.now()).min(longest))
    }

    /// Returns when a connection can be read from or written to.
    async fn ready(&self) {
        let dials = self.peers.values().filter_map(PeerSession::dial);
        let dials = dials.map(|stream| async { drop(stream.writable().await) }.boxed_local());
        let wires = self
            .peers
            .values()
            .flat_map(PeerSession::connections)
            .chain(self.lingering.lingering_connections());
        let wires = wires.map(|wire| wire.ready().boxed_local());
        let waiting: Vec<LocalBoxFuture<()>> =
            dials.chain(wires).chain(self.paths.wait_for_packets()).collect();
        match waiting.is_empty() {
            true => pending().await,
            false => drop(select_all(waiting).await),
        }
    }

    /// `now`: before the kernel was asked what has arrived.
    fn handle_due(&mut self, now: Duration) {
        let mut is_active = false;
        for peer in self.peers.values_mut() {
            is_active |= peer.handle_due_io(now, &mut self.lingering);
        }
        is_active |= self.handle_path_changes(now);
        self.unnumbered.send_due_advertisements(now);
        self.lingering.drop_finished(now);
        if self.lingering.is_empty()
            && let Some(left) = self.leaving.take()
        {
            let _ = left.send(());
        }
        if self.listen_at.is_some_and(|at| at <= now) {
            self.listen();
        }
        if self.addresses_at.is_none_or(|at| at <= now) {
            for peer in self.peers.values_mut() {
                peer.follow_addresses(now, &mut self.lingering);
            }
            self.addresses_at = (!self.peers.is_empty()).then(|| now + ADDRESS_CHECK_INTERVAL);
        }
        if is_active {
            self.paths.watch_peers(&self.peers);
            self.report_soon();
        }
        if self.report_at.is_some_and(|at| at <= now) {
            self.report(now);
        }
    }

    /// Ends sessions whose path has broken. Returns whether anything has happened.
    fn handle_path_changes(&mut self, now: Duration) -> bool {
        let turned = self.paths.take_path_changes();
        for name in turned.broken {
            if let Some(peer) = self.peers.get_mut(&name) {
                peer.handle_input(now, BgpInput::BfdDown, &mut self.lingering);
            }
        }
        turned.has_changes
    }

    fn take_command(&mut self, command: SpeakerCommand) {
        self.carry_out(command);
        self.paths.watch_peers(&self.peers);
        self.report_soon();
    }

    fn carry_out(&mut self, command: SpeakerCommand) {
        match command {
            SpeakerCommand::Peers(peers) => self.set_peers(peers),
            SpeakerCommand::Routes(routes) => self.set_routes(routes),
            SpeakerCommand::Synced => {
                self.is_synced = true;
                self.routes_changed = true;
                self.on_all(|| BgpInput::Synced);
            }
            SpeakerCommand::Drain(is_draining) => {
                self.is_draining = is_draining;
                let now = self.now();
                for peer in self.peers.values_mut() {
                    peer.set_draining(now, is_draining, &mut self.lingering);
                }
            }
            SpeakerCommand::ShutDown(left) => {
                self.on_all(|| {
                    BgpInput::Stop(SessionStop::Shutdown("Millrace is shut down".to_owned()))
                });
                self.leaving = Some(left);
            }
        }
    }

    fn on_all<'a>(&mut self, input: impl Fn() -> BgpInput<'a>) {
        let now = self.now();
        for peer in self.peers.values_mut() {
            peer.handle_input(now, input(), &mut self.lingering);
        }
    }

    fn set_peers(&mut self, mut peers: BTreeMap<String, ConfiguredPeer>) {
        let now = self.now();
        let lingering = &mut self.lingering;
        // Peers that know all about a restart of this process.
        let mut informed = BTreeSet::new();
        self.peers.retain(|name, running| {
            let stop = match peers.get(name) {
                Some(configured) if configured.has_session_of(running.configured()) => {
                    running.set_detection(configured.detection);
                    return true;
                }
                Some(_) => SessionStop::Changed,
                None => SessionStop::Removed,
            };
            if !running.is_restarting(now) {
                informed.insert(name.clone());
            }
            running.handle_input(now, BgpInput::Stop(stop), lingering);
            false
        });
        peers.retain(|name, _| !self.peers.contains_key(name));
        self.routes_changed = true;
        // Before the first connection, because a listener has the passwords.
        let new: Vec<String> = peers.keys().cloned().collect();
        for (name, configured) in peers {
            let wait = configured.peer.restart_time.filter(|_| !informed.contains(&name));
            let wait = wait.unwrap_or_default();
            let restarted = self.restarted.then_some(Duration::from_secs(wait.into()));
            let mut running = PeerSession::new(&name, configured, restarted, random(), now);
            let lingering = &mut self.lingering;
            running.handle_input(
                now,
                BgpInput::Routes(&self.table.list_all_routes(&name)),
                lingering,
            );
            running.set_draining(now, self.is_draining, lingering);
            if self.is_synced {
                running.handle_input(now, BgpInput::Synced, lingering);
            }
            self.peers.insert(name, running);
        }
        let locations = self.peers.values().map(|peer| &peer.configured().peer.location);
        self.unnumbered
            .set_interfaces(locations.filter_map(PeerLocation::unnumbered).collect(), now);
        self.listen();
        for name in new {
            if let Some(running) = self.peers.get_mut(&name) {
                running.handle_input(now, BgpInput::Start, &mut self.lingering);
            }
        }
    }

    fn set_routes(&mut self, routes: ServiceRoutes) {
        let mut prefixes: BTreeSet<IpNet> = BTreeSet::new();
        for (service, announcements) in routes {
            prefixes.extend(self.table.set_announcements(service, announcements));
        }
        if prefixes.is_empty() {
            return;
        }
        self.routes_changed = true;
        let now = self.now();
        for (name, peer) in &mut self.peers {
            let changes = self.table.list_changes(name, &prefixes);
            peer.handle_input(now, BgpInput::Routes(&changes), &mut self.lingering);
        }
    }

    /// Listens if a peer waits for connections. Sockets are opened again, because they have the passwords of all peers.
    fn listen(&mut self) {
        self.listen_at = None;
        self.listeners.clear();
        let peers: Vec<&ConfiguredPeer> =
            self.peers.values().map(PeerSession::configured).collect();
        if !peers.iter().any(|configured| configured.peer.passive) {
            return;
        }
        for is_ipv4 in [true, false] {
            let secrets = peers.iter().filter_map(|configured| {
                match (&configured.peer.location, &configured.password) {
                    (PeerLocation::Address(address, _), Some(secret)) => Some((*address, secret)),
                    _ => None,
                }
            });
            let listener = listen_for_peers(is_ipv4, BGP_PORT, secrets)
                .and_then(|listener| Ok(TcpListener::from_std(listener)?));
            match listener {
                Ok(listener) => self.listeners.push(listener),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, port = BGP_PORT, "bgp port not open; retrying");
                    self.listen_at = Some(self.now() + LISTEN_RETRY_DELAY);
                }
            }
        }
    }

    /// Only configured peers are accepted.
    fn accept(&mut self, stream: TcpStream, from: SocketAddr) {
        let now = self.now();
        match self.peers.values_mut().find(|peer| peer.is_at(from)) {
            Some(peer) => peer.accept(now, stream, &mut self.lingering),
            None => {
                reset_connection(&stream);
                tracing::debug!(%from, "bgp connection of an unknown address refused");
            }
        }
        self.report_soon();
    }

    fn report_soon(&mut self) {
        let soon = self.now() + REPORT_DELAY;
        self.report_at = Some(self.report_at.map_or(soon, |at| at.min(soon)));
    }

    fn report(&mut self, now: Duration) {
        self.report_at = (!self.peers.is_empty()).then_some(now + COUNTERS_REPORT_INTERVAL);
        let view =
            |(name, peer): (&String, &PeerSession)| peer.view_peer(self.paths.path_state(name));
        self.reported.peers = self.peers.iter().map(view).collect();
        self.paths.add_to_view(&mut self.reported);
        if std::mem::take(&mut self.routes_changed) {
            self.reported.routes = RouteView::all(&self.table, self.peers.keys());
            // Before that, Services of an earlier process may be missing.
            self.reported.services = self
                .is_synced
                .then(|| Arc::new(list_service_peers(&self.table, self.peers.keys())));
        }
        (self.publish)(self.reported.clone());
    }
}

fn random() -> u64 {
    // Only spreads timers.
    getrandom::u64().unwrap_or_default()
}

//! Sessions of BFD with real routers, BIRD and FRR, which the kernel answers while no agent runs.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lb_bfd::session::{BfdConfig, StateChange};
use lb_bfd::{BfdState, ControlPacket, Diagnostic};
use lb_kernel::{BfdSessions, Pins};
use lb_speakers::bfd::{BfdView, HopLimit, MonitoredEnds, PathMonitor, WantedSession};
use serde_json::Value;
use tests::manifests::manifests;
use tests::programs::bird::Bird;
use tests::programs::frr::Frr;
use tests::worlds::one_node::{CLIENT, DEVICE, NODE, NODE6, OneNode};
use tests::worlds::topology::{Capture, SOON, make_thread_urgent, wait_until};
use tokio::runtime::{Builder, Runtime};

const CLIENT6: &str = "2001:db8::2";

const SLOWER: BfdConfig = BfdConfig {
    multiplier: 3,
    transmit: Duration::from_millis(150),
    receive: Duration::from_millis(150),
    passive: false,
};

/// A path through whatever interface has a route.
const ANY_DEVICE: u32 = 0;

/// Another implementation, on the client.
trait Router: Sized {
    fn start(network: &OneNode) -> Result<Self>;
    /// The state of each session as the router sees it, and something that changes with the state.
    fn sessions(&self) -> Result<BTreeMap<IpAddr, (bool, String)>>;
}

impl Router for Bird {
    fn start(network: &OneNode) -> Result<Self> {
        let text = format!(
            "router id {CLIENT};\n\
             protocol device {{}}\n\
             protocol bfd {{\n\
             interface \"eth0\" {{ interval 100 ms; multiplier 3; idle tx interval 1 s; }};\n\
             neighbor {NODE} dev \"eth0\" local {CLIENT};\n\
             neighbor {NODE6} dev \"eth0\" local {CLIENT6};\n\
             }}\n"
        );
        Self::start(&network.topology, &network.client, &text)
    }

    fn sessions(&self) -> Result<BTreeMap<IpAddr, (bool, String)>> {
        let output = self.show("show bfd sessions")?;
        let sessions = output.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [address, _, state, since, ..] = fields.as_slice() else { return None };
            Some((address.parse().ok()?, (*state == "Up", (*since).to_owned())))
        });
        Ok(sessions.collect())
    }
}

impl Router for Frr {
    fn start(network: &OneNode) -> Result<Self> {
        let intervals = "receive-interval 100\n transmit-interval 100\n detect-multiplier 3\n";
        let text = format!(
            "bfd\n peer {NODE} local-address {CLIENT} interface eth0\n {intervals} !\n \
             peer {NODE6} local-address {CLIENT6} interface eth0\n {intervals} !\n"
        );
        Self::start(&network.topology, &network.client, &[("bfdd", &text)])
    }

    fn sessions(&self) -> Result<BTreeMap<IpAddr, (bool, String)>> {
        let counters = self.json("bfdd", "show bfd peers counters json")?;
        let peers = self.json("bfdd", "show bfd peers json")?;
        let (counters, peers) = (counters.as_array(), peers.as_array());
        let sessions = peers.into_iter().flatten().filter_map(|peer| {
            let of_peer = address(peer)?;
            let counted = counters?.iter().find(|counted| address(counted) == Some(of_peer))?;
            let downs = counted["session-down"].to_string();
            Some((of_peer, (peer["status"] == "up", downs)))
        });
        Ok(sessions.collect())
    }
}

fn address(found: &Value) -> Option<IpAddr> {
    found["peer"].as_str()?.parse().ok()
}

/// What an agent does about BFD, as long as it is given time.
struct BfdAgent {
    monitor: PathMonitor,
    runtime: Runtime,
    changes: Vec<(Instant, String, StateChange)>,
}

impl BfdAgent {
    fn start(network: &OneNode, device: u32) -> Result<Self> {
        Self::start_with(network, device, BfdConfig::default())
    }

    fn start_with(network: &OneNode, device: u32, config: BfdConfig) -> Result<Self> {
        let pins = Pins::open(&network.pin_path())?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let monitor = PathMonitor::new(Some(BfdSessions::open(&pins)?), Instant::now());
        let mut agent = Self { monitor, runtime, changes: Vec::new() };
        agent.watch(device, config)?;
        Ok(agent)
    }

    fn watch(&mut self, device: u32, config: BfdConfig) -> Result<()> {
        let _entered = self.runtime.enter();
        for (peer, local) in [(CLIENT, NODE), (CLIENT6, NODE6)] {
            let path = MonitoredEnds {
                peer: peer.parse()?,
                local: local.parse()?,
                device,
                hops: HopLimit::One,
            };
            self.monitor.start_session(peer, &WantedSession { path, config });
        }
        Ok(())
    }

    fn turn(&mut self) {
        let Self { monitor, runtime, changes } = self;
        runtime.block_on(async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let changed = monitor.handle_due().into_iter();
            changes.extend(changed.map(|(name, change)| (Instant::now(), name, change)));
        });
    }

    fn run_until(&mut self, what: &str, so: impl Fn(&[BfdView]) -> bool) -> Result<()> {
        let mut views = Vec::new();
        let waited = wait_until(what, SOON, || {
            self.turn();
            views = self.monitor.views();
            so(&views)
        });
        waited.with_context(|| format!("{views:#?}"))
    }

    fn is_up(&self) -> bool {
        self.monitor.views().iter().all(|view| view.state == "up")
    }
}

/// A packet of a peer whose session is not up.
fn down(your_discriminator: u32) -> ControlPacket {
    ControlPacket {
        diagnostic: Diagnostic::NONE,
        state: BfdState::Down,
        poll: false,
        is_final: false,
        control_plane_independent: false,
        demand: false,
        multiplier: 3,
        my_discriminator: 7,
        your_discriminator,
        desired_min_tx: 100_000,
        required_min_rx: 100_000,
        required_min_echo_rx: 0,
    }
}

/// Captures packets of a host, by some bits of an octet of BFD's. tcpdump takes some source ports for another protocol's.
fn capture_bfd(
    network: &OneNode,
    [from4, from6]: [&str; 2],
    (octet, mask): (usize, u8),
    value: u8,
) -> Result<Capture> {
    // Behind the headers of UDP and IPv6.
    let (octet4, octet6) = (8 + octet, 48 + octet);
    let filter = format!(
        "udp dst port 3784 and ((src host {from4} and udp[{octet4}] & {mask} = {value}) or \
         (src host {from6} and ip6[{octet6}] & {mask} = {value}))"
    );
    network.client.capture("eth0", &filter)
}

/// Where a packet has its diagnostic, and its state.
const DIAGNOSTIC: (usize, u8) = (0, 0x1f);
const STATE: (usize, u8) = (1, 0xc0);

fn answers(views: &[BfdView]) -> u64 {
    views.iter().map(|view| view.answers).min().unwrap_or(0)
}

fn follow<R: Router + Send + Sync>() -> Result<()> {
    let network = OneNode::warm(1)?;
    network.write_manifests(&manifests(&[]))?;
    network.start_agent(&[])?.kill();
    let shown: Value =
        serde_json::from_str(&network.node.ip(&format!("-json link show dev {DEVICE}"))?)?;
    let device = shown[0]["ifindex"].as_u64().context("an index")? as u32;
    let mut router = R::start(&network)?;
    network.node.enter(|| {
        // As the router is: each finds a fault after 300 ms.
        make_thread_urgent()?;
        let mut agent = BfdAgent::start(&network, device)?;
        agent.run_until("both sessions are answered in the kernel", |views| {
            views.iter().all(|view| view.state == "up" && view.in_kernel && view.answers > 5)
        })?;
        let seen = router.sessions()?;
        ensure!(seen.len() == 2 && seen.values().all(|(up, _)| *up), "{seen:?}");
        let by_agent: Vec<u64> =
            agent.monitor.views().iter().map(|view| view.packets_sent).collect();

        // A host with the router's address that does not know the number of the session.
        let (blind, refused) = (down(0).encode(), agent.monitor.refused());
        network.client.enter(|| {
            let socket = UdpSocket::bind((CLIENT, 0))?;
            socket.set_ttl(255)?;
            for _ in 0..100 {
                socket.send_to(&blind, (NODE, 3784))?;
            }
            Ok(())
        })?;
        let waited = wait_until("they are refused", SOON, || {
            agent.turn();
            agent.monitor.refused() >= refused + 100
        });
        waited.with_context(|| format!("{:#?}", agent.monitor.views()))?;
        ensure!(agent.is_up() && router.sessions()? == seen, "{:#?}", agent.monitor.views());

        // Busy for ten detection times.
        let enough = answers(&agent.monitor.views()) + 30;
        wait_until("the kernel goes on", SOON, || answers(&agent.monitor.views()) >= enough)?;
        agent.turn();
        ensure!(agent.is_up(), "{:#?}", agent.monitor.views());
        ensure!(router.sessions()? == seen, "the router has seen a fault");
        let since: Vec<u64> = agent.monitor.views().iter().map(|view| view.packets_sent).collect();
        ensure!(by_agent == since, "the agent sends nothing by itself");

        // Killed, and started again.
        drop(agent);
        thread::sleep(Duration::from_secs(1));
        let mut agent = BfdAgent::start(&network, device)?;
        ensure!(agent.is_up(), "adopted: {:#?}", agent.monitor.views());
        let before = answers(&agent.monitor.views());
        agent.run_until("the kernel goes on", |views| answers(views) > before + 10)?;
        ensure!(agent.is_up() && router.sessions()? == seen, "the router has seen a fault");

        // Other settings, of a new agent and of one that runs: the session goes on with them.
        drop(agent);
        let mut agent = BfdAgent::start_with(&network, device, SLOWER)?;
        for (config, detection) in [(SLOWER, 450), (BfdConfig::default(), 300)] {
            agent.watch(device, config)?;
            agent.run_until("the kernel answers with the new settings", |views| {
                views.iter().all(|it| it.in_kernel && it.detection_time_ms == detection)
            })?;
            for (_, entry) in BfdSessions::open(&Pins::open(&network.pin_path())?)?.all()? {
                let said = u32::from_be_bytes(entry.answer.fields[3]);
                ensure!(u128::from(said) == config.receive.as_micros(), "{entry:?}");
            }
            let before = answers(&agent.monitor.views());
            agent.run_until("the kernel goes on", |views| answers(views) > before + 10)?;
            ensure!(agent.changes.is_empty(), "{:#?}", agent.changes);
            ensure!(router.sessions()? == seen, "the router has seen a fault");
        }

        // Another path: a new session, and the kernel no longer answers for the old one. The agent has said so before it
        // does anything else: the router has not found a fault.
        drop(agent);
        let (routers, nodes) = ([CLIENT, CLIENT6], [NODE, NODE6]);
        let mut signalled = capture_bfd(&network, routers, DIAGNOSTIC, 3)?;
        let expired = capture_bfd(&network, routers, DIAGNOSTIC, 1)?;
        let mut admin_down = capture_bfd(&network, nodes, STATE, 0)?;
        let mut agent = BfdAgent::start(&network, ANY_DEVICE)?;
        wait_until("the router knows", SOON, || {
            router.sessions().is_ok_and(|seen| seen.values().all(|(up, _)| !up))
        })?;
        for (node, router) in nodes.into_iter().zip(routers) {
            admin_down.wait_until_line("has what the agent says", |line| line.contains(node))?;
            signalled.wait_until_line("has what the router says", |line| line.contains(router))?;
        }
        let lines = admin_down.lines();
        ensure!(lines.iter().filter(|line| line.contains(".3784: ")).count() == 2, "{lines:#?}");
        ensure!(expired.lines().is_empty(), "{:#?}", expired.lines());
        ensure!(!agent.is_up(), "not adopted: {:#?}", agent.monitor.views());
        let left = BfdSessions::open(&Pins::open(&network.pin_path())?)?.all()?;
        ensure!(left.is_empty(), "{left:?}");
        agent.run_until("new sessions are answered in the kernel", |views| {
            views.iter().all(|view| view.state == "up" && view.in_kernel)
        })?;
        agent.changes.clear();

        // The path breaks, and works again.
        network.client.ip("link set eth0 down")?;
        let broken = Instant::now();
        agent.run_until("the fault is found", |views| views.iter().all(|it| it.state == "down"))?;
        for (at, name, _) in &agent.changes {
            println!("{name} down after {:?}", at.duration_since(broken));
        }
        for view in agent.monitor.views() {
            ensure!(view.diagnostic == "detection time expired", "{view:#?}");
            ensure!(!view.in_kernel, "{view:#?}");
        }
        network.client.ip("link set eth0 up")?;
        network.client.ip(&format!("address replace {CLIENT6}/64 dev eth0 nodad"))?;
        agent.run_until("both sessions are up again", |views| {
            views.iter().all(|view| view.state == "up" && view.in_kernel)
        })?;

        // The router restarts while no agent runs. The session that the kernel has kept is no longer the router's: it
        // must not be adopted, and then be found to be broken.
        drop((agent, router));
        thread::sleep(Duration::from_secs(1));
        router = R::start(&network)?;
        let mut agent = BfdAgent::start_with(&network, device, SLOWER)?;
        agent.run_until("sessions with the new router", |views| {
            views.iter().all(|view| view.state == "up" && view.in_kernel)
        })?;
        let mut changes = agent.changes.iter().map(|(_, _, change)| change);
        ensure!(changes.all(|change| !change.is_fault()), "{:?}", agent.changes);

        // No longer wanted: no fault.
        agent.monitor.end_session(CLIENT);
        agent.monitor.end_session(CLIENT6);
        ensure!(agent.monitor.session_state(CLIENT).is_none());
        wait_until("the router knows", SOON, || {
            router.sessions().is_ok_and(|seen| seen.values().all(|(up, _)| !up))
        })?;
        let left = BfdSessions::open(&Pins::open(&network.pin_path())?)?.all()?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

/// Both sides find a failure after 300 ms without packets, which are sent every 100 ms. A machine that stands still for
/// the difference can cause it, too: then the test is run again, at most twice.
fn repeat_if_stalled(test: fn() -> Result<()>) -> Result<()> {
    const LONG: Duration = Duration::from_millis(200);
    for _ in 0..2 {
        let ended = AtomicBool::new(false);
        let (result, longest) = thread::scope(|scope| {
            let watching = scope.spawn(|| longest_stall(&ended));
            let result = test();
            ended.store(true, Ordering::Relaxed);
            (result, watching.join().expect("it does not panic"))
        });
        match result {
            Err(error) if longest >= LONG => {
                println!("run again, since the machine stood still for {longest:?}: {error:#}");
            }
            result => return result,
        }
    }
    test()
}

/// The longest time by which a thread was woken late.
fn longest_stall(ended: &AtomicBool) -> Duration {
    const TICK: Duration = Duration::from_millis(5);
    let mut longest = Duration::ZERO;
    while !ended.load(Ordering::Relaxed) {
        let asleep = Instant::now();
        thread::sleep(TICK);
        longest = longest.max(asleep.elapsed().saturating_sub(TICK));
    }
    longest
}

#[test]
fn sessions_with_bird_outlive_the_agent() -> Result<()> {
    repeat_if_stalled(follow::<Bird>)
}

#[test]
fn sessions_with_frr_outlive_the_agent() -> Result<()> {
    repeat_if_stalled(follow::<Frr>)
}

/// Packets of others change nothing, and are read without end.
#[test]
fn packets_of_others_are_discarded() -> Result<()> {
    let network = OneNode::warm(1)?;
    network.write_manifests(&manifests(&[]))?;
    network.start_agent(&[])?.kill();
    network.node.enter(|| {
        let mut agent = BfdAgent::start(&network, 0)?;
        network.client.enter(|| {
            // The right address and port, but as from behind a router, and garbage.
            let socket = UdpSocket::bind((CLIENT, 0))?;
            socket.set_ttl(254)?;
            for _ in 0..2_000 {
                socket.send_to(&down(0).encode(), (NODE, 3784))?;
            }
            socket.set_ttl(255)?;
            for length in 0..100 {
                socket.send_to(&vec![0xff; length], (NODE, 3784))?;
            }
            Ok(())
        })?;
        let refused = |agent: &BfdAgent| agent.monitor.refused();
        wait_until("they are read", SOON, || {
            agent.turn();
            refused(&agent) > 100
        })?;
        ensure!(agent.monitor.session_state(CLIENT) == Some(BfdState::Down));
        Ok(())
    })
}

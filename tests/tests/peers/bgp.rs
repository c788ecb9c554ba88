//! The agent as a BGP speaker, with real routers: FRR and BIRD with the configurations of docs/bgp.md.
//!
//! ```text
//!            ┌─ frr  192.0.2.1 ──── switch ── ext0 ┐
//! client ────┤                                     ├── node ── pod
//!            └─ bird 198.51.100.1 ─ switch ── ext1 ┘
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::programs::bgp::{Speaker, is_answered, is_established};
use tests::programs::bird::{Bird, BirdBfdSession};
use tests::programs::frr::Frr;
use tests::worlds::topology::{Host, Process, SOON, Topology, wait_until};

const DOCUMENT: &str = include_str!("../../../docs/bgp.md");
/// Addresses of the pool in the document.
const ADDRESSES: [&str; 2] = ["203.0.113.10", "2001:db8:f::10"];
/// Cluster IPs that the routers of the document accept.
const CLUSTER_IPS: [&str; 2] = ["203.0.113.12", "2001:db8:f::12"];
const POD: [&str; 2] = ["10.244.1.10", "fd00:10:244:1::10"];

/// The code of a language in the document.
fn example(language: &str) -> Result<String> {
    let (_, rest) = DOCUMENT.split_once(&format!("```{language}\n")).context("no such example")?;
    let (text, _) = rest.split_once("```").context("it has no end")?;
    Ok(text.to_owned())
}

/// The conditions of a node whose machine shuts down.
fn ending() -> Value {
    json!([{
        "type": "Ready", "status": "False", "reason": "KubeletNotReady",
        "message": "node is shutting down",
    }])
}

struct World {
    client: Host,
    switch: Host,
    frr: Host,
    bird: Host,
    node: Host,
    _server: Process,
    agent: Option<Agent>,
    daemons: Frr,
    birds: Bird,
    speaker: Speaker,
    topology: Topology,
}

/// What the manifests say.
#[derive(Clone, Copy)]
struct ManifestFacts {
    has_endpoint: bool,
    is_cordoned: bool,
    /// kubelet has reported that the machine shuts down.
    is_ending: bool,
    /// Another Service, and one whose cluster IPs are advertised.
    has_more: bool,
}

const ALL: ManifestFacts =
    ManifestFacts { has_endpoint: true, is_cordoned: false, is_ending: false, has_more: false };

impl World {
    fn start() -> Result<Self> {
        let topology = Topology::new("bgp")?;
        let [client, switch] = ["client", "switch"].map(|name| topology.host(name));
        let (client, switch) = (client?, switch?);
        let [frr, bird, node] = ["frr", "bird", "node"].map(|name| topology.router(name));
        let (frr, bird, node) = (frr?, bird?, node?);
        for (router, number, four, six) in
            [(&frr, 0, "192.0.2", "2001:db8:1"), (&bird, 1, "198.51.100", "2001:db8:2")]
        {
            topology.link(
                client
                    .port(&format!("eth{number}"))
                    .addresses(&[&format!("10.{number}.0.2/24"), &format!("fd00:{number}::2/64")]),
                router
                    .port("lan")
                    .addresses(&[&format!("10.{number}.0.1/24"), &format!("fd00:{number}::1/64")]),
            )?;
            // Routers don't see a link of the node go down.
            let bridge = format!("br{number}");
            switch.bridge(&bridge)?;
            topology.link(
                router.port("rack").addresses(&[&format!("{four}.1/24"), &format!("{six}::1/64")]),
                switch.port(&format!("router{number}")).bridge(&bridge),
            )?;
            topology.link(
                switch.port(&format!("node{number}")).bridge(&bridge),
                node.port(&format!("ext{number}"))
                    .addresses(&[&format!("{four}.11/24"), &format!("{six}::11/64")]),
            )?;
            node.route(&format!("10.{number}.0.0/24"), &format!("{four}.1"))?;
            node.route(&format!("fd00:{number}::/64"), &format!("{six}::1"))?;
        }
        node.default_routes(&["192.0.2.1", "2001:db8:1::1"])?;
        let pod = node.pod("pod", &POD)?;
        let listen = [format!("{}:8080", POD[0]), format!("[{}]:8080", POD[1])];
        let server = pod.http_server(&[&listen[0], &listen[1]], "pod")?;
        let configuration = example("frr")?;
        let (bgp, bfd) = configuration.split_once("\nbfd\n").context("BFD comes last")?;
        let bfd = format!("bfd\n{bfd}");
        let daemons = Frr::start(&topology, &frr, &[("bfdd", &bfd), ("bgpd", bgp)])?;
        let birds = Bird::start(&topology, &bird, &example("bird")?)?;
        let speaker = Speaker::of(&node, topology.warm_agent_pins());
        let mut world = Self {
            client,
            switch,
            frr,
            bird,
            node,
            _server: server,
            agent: None,
            daemons,
            birds,
            speaker,
            topology,
        };
        world.write(ALL)?;
        world.launch(&[])?;
        Ok(world)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.topology.directory().join(name)
    }

    fn write(&self, objects: ManifestFacts) -> Result<()> {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"},
            "spec": {"unschedulable": objects.is_cordoned},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "192.0.2.11"}],
                "conditions": objects.is_ending.then(ending),
            },
        });
        let service = |name: &str, cluster: [&str; 2], addresses: &[&str], has_endpoint: bool| {
            let service = Service::new(name, &cluster).load_balancer(addresses).tcp(80, 8080);
            if has_endpoint { service.here(&POD) } else { service }
        };
        let mut services = vec![service(
            "web",
            ["10.96.0.10", "fd00:10:96::10"],
            &ADDRESSES,
            objects.has_endpoint,
        )];
        let mut example = example("yaml")?;
        if objects.has_more {
            let inner = Service::new("inner", &CLUSTER_IPS).tcp(80, 8080).here(&POD);
            services.push(inner);
            let asn = "  localASN: 64512\n";
            let wanted = format!("{asn}  serviceAdvertisements: [{{clusterIPs: true}}]\n");
            example = example.replace(asn, &wanted);
            let second = ["203.0.113.11", "2001:db8:f::11"];
            services.push(service("api", ["10.96.0.11", "fd00:10:96::11"], &second, true));
        }
        let text = format!("{example}---\n{node}\n{}", manifests(&services));
        self.topology.replace_manifests(&text)
    }

    fn launch(&mut self, more: &[&str]) -> Result<()> {
        let (pins, manifests) = (self.topology.warm_agent_pins(), self.topology.manifests());
        let state = self.file("state");
        let state = state.to_str().context("UTF-8")?;
        let more = [&["--device", "ext1", "--xdp-mode", "off", "--state-directory", state], more];
        let agent = Agent::start(&self.node, &pins, &manifests, "ext0", &more.concat())?;
        self.agent = Some(agent);
        Ok(())
    }

    fn agent(&mut self) -> Result<Agent> {
        self.agent.take().context("it runs")
    }

    fn wait_for_peers(&self, what: &str, so: impl Fn(&Value) -> bool) -> Result<()> {
        self.speaker.wait_for_peers(what, 2, so)
    }

    /// Waits until the kernel answers both routers.
    fn wait_for_paths(&self) -> Result<()> {
        self.speaker.wait_for_paths("paths that are watched", 2, is_answered)
    }

    /// What changes when a router finds the path broken.
    fn faults(&self) -> Result<(Value, Vec<BirdBfdSession>)> {
        let counters = self.daemons.json("bfdd", "show bfd peers counters json")?;
        Ok((counters[0]["session-down"].clone(), self.birds.bfd_sessions()?))
    }

    /// Whether a router has a route to an address.
    fn has_route(&self, router: &Host, address: &str) -> bool {
        let family = if address.contains(':') { "-6" } else { "-4" };
        router.ip(&format!("{family} route show {address}")).is_ok_and(|text| text.contains("via"))
    }

    fn wait_for_routes(&self, what: &str, addresses: &[&str], are_there: bool) -> Result<()> {
        wait_until(what, SOON, || {
            [&self.frr, &self.bird].iter().all(|router| {
                addresses.iter().all(|address| self.has_route(router, address) == are_there)
            })
        })
        .with_context(|| {
            let routes = |router: &Host| {
                ["-4 route", "-6 route"].map(|words| router.ip(words).unwrap_or_default()).concat()
            };
            let peers =
                self.speaker.show(&["bgp", "frr"]).unwrap_or_else(|error| error.to_string());
            format!("frr:\n{}bird:\n{}{peers}", routes(&self.frr), routes(&self.bird))
        })
    }

    /// Gets the page through each router, in both families.
    fn check_pages(&self, addresses: &[&str; 2]) -> Result<()> {
        for number in 0..2 {
            for (address, via) in
                addresses.iter().zip([format!("10.{number}.0.1"), format!("fd00:{number}::1")])
            {
                self.client.ip(&format!("route replace {address} via {via}"))?;
                let host = if address.contains(':') {
                    format!("[{address}]")
                } else {
                    (*address).to_owned()
                };
                let page = self.client.curl(&format!("http://{host}/"))?;
                ensure!(page.trim() == "pod", "{page}");
            }
        }
        Ok(())
    }

    /// Follows changes of a router's routes.
    fn monitor(&self, router: &Host) -> Result<Process> {
        let mut command = router.command("ip");
        router.spawn(command.args(["-ts", "monitor", "route"]).env("TZ", "UTC"))
    }

    /// Whether the switch forwards; the links stay up.
    fn connect(&self, number: usize, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        self.switch.ip(&format!("link set br{number} {state}")).map(drop)
    }
}

/// When a route to an address was deleted, since midnight.
fn deleted_at(log: &str, address: &str) -> Option<Duration> {
    let is_it = |line: &&str| line.contains("Deleted") && line.contains(address);
    let line = log.lines().find(is_it)?;
    // [2026-11-24T19:44:11.123456] Deleted ...
    let (_, time) = line.split_once(']')?.0.split_once('T')?;
    let parts = time.split(':').map(|part| part.parse::<f64>().ok());
    let seconds = parts.into_iter().try_fold(0.0, |sum, part| Some(sum * 60.0 + part?))?;
    Some(Duration::from_secs_f64(seconds))
}

fn since_midnight() -> Result<Duration> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(Duration::new(now.as_secs() % 86_400, now.subsec_nanos()))
}

/// One world for all steps.
#[test]
fn routers_learn_the_addresses_that_a_node_serves() -> Result<()> {
    let mut world = World::start()?;
    // The paths first: until the kernel answers on them, a busy machine can break them, and the sessions with them.
    world.wait_for_paths()?;
    world.wait_for_peers("sessions", is_established)?;
    world.wait_for_routes("routes", &ADDRESSES, true)?;
    world.check_pages(&ADDRESSES).context("through the routers")?;
    for peer in world.speaker.peers()? {
        ensure!(peer["families"] == json!(["IPv4", "IPv6"]), "{peer}");
        ensure!(peer["prefixesAdvertised"] == 2 && peer["gracefulRestart"] == true, "{peer}");
    }
    let shown = world.speaker.show(&["bgp", "bird"])?;
    ensure!(shown.contains("203.0.113.10/32") && shown.contains("64512:100"), "{shown}");
    let table = world.speaker.show(&["bgp", "-o", "wide"])?;
    ensure!(table.contains("Established") && table.contains("9s"), "{table}");

    // An agent that is killed, and another one: no route is lost, and no router sees a broken path.
    let faults = world.faults()?;
    let monitors = [world.monitor(&world.frr)?, world.monitor(&world.bird)?];
    world.agent()?.kill();
    std::thread::sleep(Duration::from_secs(2));
    world.check_pages(&ADDRESSES).context("without an agent")?;
    world.launch(&[])?;
    world.wait_for_peers("sessions after the restart", is_established)?;
    std::thread::sleep(Duration::from_secs(1));
    world.wait_for_routes("routes after the restart", &ADDRESSES, true)?;
    world.check_pages(&ADDRESSES).context("after the restart")?;
    for monitor in monitors {
        let log = monitor.output();
        let lost = log.lines().find(|line| line.contains("Deleted") && line.contains("proto"));
        ensure!(lost.is_none(), "a route was lost: {log}");
    }
    world.wait_for_paths()?;
    let after = world.faults()?;
    ensure!(after == faults, "before: {faults:?}, afterwards: {after:?}");

    // A new Service: from the file to the router.
    let began = Instant::now();
    world.write(ManifestFacts { has_more: true, ..ALL })?;
    world.wait_for_routes("the second Service", &["203.0.113.11", "2001:db8:f::11"], true)?;
    println!("file written to route in both routers: {:?}", began.elapsed());

    // Cluster IPs, while the peers' objects name them.
    world.wait_for_routes("the cluster IPs", &CLUSTER_IPS, true)?;
    world.check_pages(&CLUSTER_IPS).context("at the cluster IPs")?;

    // A drained node asks routers to prefer others.
    world.write(ManifestFacts { is_cordoned: true, ..ALL })?;
    let mut shown = String::new();
    wait_until("the community of a drain", SOON, || {
        shown = world.birds.show("show route 203.0.113.10/32 all").unwrap_or_default();
        shown.contains("(65535,0)") && shown.contains("(64512,100)")
    })
    .context(shown)?;
    world.wait_for_routes("no cluster IPs", &CLUSTER_IPS, false)?;
    world.check_pages(&ADDRESSES).context("on a drained node")?;

    // Without endpoints nothing is advertised.
    world.write(ManifestFacts { has_endpoint: false, ..ALL })?;
    world.wait_for_routes("withdrawn", &ADDRESSES, false)?;
    world.wait_for_peers("sessions remain", is_established)?;
    world.write(ALL)?;
    world.wait_for_routes("advertised again", &ADDRESSES, true)?;

    // An agent that shuts down with its machine withdraws all routes. The data plane stays.
    world.write(ManifestFacts { is_ending: true, ..ALL })?;
    wait_until("the community of a drain", SOON, || {
        let shown = world.birds.show("show route 203.0.113.10/32 all").unwrap_or_default();
        shown.contains("(65535,0)")
    })?;
    // Asked on the wire: a router that first hears that BFD ends does not show the Cease.
    let filter = "tcp port 179";
    let mut sessions = [world.frr.capture("rack", filter)?, world.bird.capture("rack", filter)?];
    world.agent()?.terminate()?;
    for session in &mut sessions {
        session.wait_for("Cease (6), subcode Administrative Shutdown (2)")?;
    }
    world.wait_for_routes("gone with the machine", &ADDRESSES, false)?;
    world.write(ALL)?;
    world.launch(&[])?;
    world.wait_for_peers("sessions", is_established)?;
    world.wait_for_routes("advertised again", &ADDRESSES, true)?;

    // An agent that removes its programs withdraws everything at once.
    world.agent()?.terminate()?;
    world.launch(&["--cleanup-on-exit"])?;
    world.wait_for_peers("sessions", is_established)?;
    world.agent()?.terminate()?;
    world.wait_for_routes("gone with the programs", &ADDRESSES, false)?;
    Ok(())
}

/// BFD finds broken paths, and not the hold time of 9 s.
#[test]
fn a_node_without_power_gets_no_more_traffic() -> Result<()> {
    let mut world = World::start()?;
    world.wait_for_paths()?;
    world.wait_for_peers("sessions", is_established)?;
    world.wait_for_routes("routes", &ADDRESSES, true)?;

    // Both sides see that packets no longer arrive.
    for number in 0..2 {
        world.connect(number, false)?;
    }
    // In the log: a failed attempt to connect is the next failure that is shown.
    let log = || world.agent.as_ref().map(Agent::log).unwrap_or_default();
    let has_ended = |line: &&str| line.contains("bgp session ended") && line.contains("BFD down");
    wait_until("the agent has seen it", SOON, || log().lines().filter(has_ended).count() == 2)
        .with_context(log)?;
    world.wait_for_routes("withdrawn", &ADDRESSES, false)?;
    for number in 0..2 {
        world.connect(number, true)?;
    }
    world.wait_for_paths()?;
    world.wait_for_peers("sessions again", is_established)?;
    world.wait_for_routes("routes again", &ADDRESSES, true)?;

    // Neither agent nor kernel. In this order, because nothing says goodbye when the power is gone.
    let monitors = [world.monitor(&world.frr)?, world.monitor(&world.bird)?];
    let (mut off, mut by_bfd) = (Vec::new(), [false; 2]);
    for number in 0..2 {
        off.push(since_midnight()?);
        world.node.ip(&format!("link set ext{number} down"))?;
    }
    world.agent()?.kill();
    // Now: a failed attempt to connect is the next failure that they show.
    wait_until("both routers say that it was BFD", SOON, || {
        let neighbour = world.daemons.show("bgpd", "show bgp neighbors 192.0.2.11 json");
        by_bfd[0] |= neighbour.is_ok_and(|it| it.contains("BFD Down"));
        let protocol = world.birds.show("show protocols all node1");
        by_bfd[1] |= protocol.is_ok_and(|it| it.contains("BFD"));
        by_bfd == [true; 2]
    })?;
    for ((router, monitor), off) in ["frr", "bird"].iter().zip(&monitors).zip(off) {
        for address in ADDRESSES {
            wait_until(&format!("{router} removes {address}"), SOON, || {
                deleted_at(&monitor.output(), address).is_some()
            })?;
            let at = deleted_at(&monitor.output(), address).context("just seen")?;
            println!("{router} removed {address} after {:?}", at.saturating_sub(off));
        }
    }
    Ok(())
}

/// The document names what the test runs.
#[test]
fn the_document_has_all_examples() -> Result<()> {
    for language in ["frr", "bird", "yaml"] {
        ensure!(!example(language)?.is_empty(), "{language}");
    }
    ensure!(Path::new("/usr/lib/frr/bgpd").exists(), "install frr");
    Ok(())
}

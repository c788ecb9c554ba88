//! `cargo xtask bench startup`: how long an agent takes from its start until it is ready, among many Services of a
//! cluster, and what that costs.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::figures::Sample;
use ::tests::programs::agent::{Agent, AgentSource};
use ::tests::programs::api_server::ApiServer;
use ::tests::programs::usage::{AnonymousPeak, processor_time};
use ::tests::worlds::one_node::{DEVICE, OneNode};
use anyhow::{Context, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use clap::Args;
use lb_common::family::V4;
use lb_common::header::protocol;
use lb_common::layout::{Frontend, FrontendKey, map};
use lb_kernel::Plain;
use serde_json::{Value, json};

/// Measure the start of an agent among many Services: time until it is ready, CPU time and memory
#[derive(Debug, Args)]
pub struct StartupOptions {
    /// Number of Services
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000)]
    services: usize,

    /// Number of endpoints of each Service
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    endpoints: usize,

    /// Number of starts of each kind
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    rounds: usize,

    /// MiB that the API server sends to each client in a second [default: as fast as it can]
    #[arg(long, value_name = "NUMBER")]
    server_mib: Option<usize>,
}

fn address(first: [u8; 4], number: usize) -> String {
    Ipv4Addr::from(u32::from(Ipv4Addr::from(first)) + number as u32).to_string()
}

fn objects(services: usize, endpoints: usize) -> Vec<Value> {
    let of_service = |number: usize| {
        let endpoint = |which: usize| {
            json!({
                "addresses": [address([10, 128, 0, 1], number * endpoints + which)],
                "conditions": {"ready": true}, "nodeName": format!("node-{which}")
            })
        };
        let name = format!("service-{number}");
        [
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]}
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {
                    "name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name}
                },
                "ports": [{"port": 8080, "protocol": "TCP"}],
                "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>()
            }),
        ]
    };
    (0..services).flat_map(of_service).collect()
}

/// What one start took.
struct Start {
    /// From the start of the process until all objects had arrived.
    listed: Duration,
    /// From the start of the process until packets of all Services were translated.
    ready: Duration,
    /// From the start of the process until a Service was programmed that was created before it.
    changed: Duration,
    processor: Duration,
    peak: f64,
}

/// How an agent starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// Maps and programs; all objects are listed.
    Maps,
    /// The objects that the agent before it has saved, too.
    Objects,
}

struct StartupBench<'a> {
    network: &'a OneNode,
    server: &'a ApiServer,
    /// Of the server, or of a slower way to it.
    kubeconfig: PathBuf,
    state: PathBuf,
    flags: Vec<String>,
    /// Services that were created between starts.
    changes: usize,
}

impl StartupBench<'_> {
    fn start(&mut self, before: Before) -> Result<(Start, Agent)> {
        if before != Before::Objects {
            let _ = fs::remove_dir_all(&self.state);
        }
        self.changes += 1;
        let change = address([10, 96, 0, 100], self.changes);
        self.server.create(
            &self.network.node,
            vec![json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": format!("change-{}", self.changes)},
                "spec": {"clusterIP": change, "ports": [{"port": 80}]}
            })],
        )?;
        let began = Instant::now();
        let (node, pins) = (&self.network.node, self.network.pin_path());
        let source = AgentSource::Cluster(&self.kubeconfig);
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let mut agent = Agent::launch(node, &pins, source, DEVICE, &flags)?;
        let pid = agent.pid();
        let peak = AnonymousPeak::follow(pid);
        let mut wait = || -> Result<[Duration; 3]> {
            agent.wait_for_output("endpoints and nodes listed")?;
            let listed = began.elapsed();
            agent.wait_for_output("ready service_ports=")?;
            let ready = began.elapsed();
            wait_for_frontend(&pins.join(map::FRONTENDS4), change.parse()?)?;
            Ok([listed, ready, began.elapsed()])
        };
        let (waited, peak) = (wait(), peak.end());
        let [listed, ready, changed] = waited?;
        Ok((Start { listed, ready, changed, processor: processor_time(pid)?, peak }, agent))
    }
}

/// Waits until port 80 of an address is in the pinned map.
fn wait_for_frontend(path: &Path, address: Ipv4Addr) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(60);
    let map = MapData::from_pin(path).with_context(|| path.display().to_string())?;
    let frontends: HashMap<_, Plain<FrontendKey<V4>>, Plain<Frontend>> =
        HashMap::try_from(Map::from_map_data(map)?)?;
    let key = Plain(FrontendKey::<V4>::new(address.into(), 80, protocol::TCP));
    let began = Instant::now();
    while frontends.get(&key, 0).is_err() {
        ensure!(began.elapsed() < LIMIT, "{address} is not programmed after {LIMIT:?}");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

pub fn run_startup(options: &StartupOptions) -> Result<()> {
    let StartupOptions { services, endpoints, rounds, server_mib } = *options;
    let network = OneNode::with_pods(0)?;
    let data = network.kubeconfig().parent().context("it is in a directory")?.to_owned();
    let server = ApiServer::start(&network.node, data, "127.0.0.1:0".parse()?)?;
    // Agents know a cluster by its uid.
    let kubernetes = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes"},
        "spec": {"ports": [{"port": 443}]}
    });
    server.create(&network.node, vec![kubernetes])?;
    server.create_at_once(&network.node, objects(services, endpoints))?;
    let kubeconfig = match server_mib {
        Some(mib) => slowed(&network, server.kubeconfig(), mib)?,
        None => server.kubeconfig().to_owned(),
    };

    println!("{services} Services of {endpoints} endpoints");
    println!(
        "| start | lists ms | ready ms | a change programmed ms | CPU ms | peak MiB | steps |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let [room, backends] = [services * 2, services * endpoints * 2].map(|room| room.to_string());
    let state = network.topology.directory().join("state");
    let directory = state.to_str().context("UTF-8")?;
    let flags = [
        "--max-service-ports",
        &room,
        "--max-endpoints",
        &backends,
        "--state-directory",
        directory,
    ];
    let flags = flags.map(str::to_owned).to_vec();
    let mut benchmark = StartupBench {
        network: &network,
        server: &server,
        kubeconfig,
        state: state.clone(),
        flags,
        changes: 0,
    };
    let mut rows: [(&str, Before, [Sample; 6]); 3] = [
        ("no maps and programs before", Before::Nothing, Default::default()),
        ("both there, objects listed", Before::Maps, Default::default()),
        ("both there, objects saved", Before::Objects, Default::default()),
    ];
    for _ in 0..rounds {
        for (what, before, samples) in &mut rows {
            let (figures, agent) = benchmark.start(*before)?;
            let steps = agent.start_steps()?;
            let log = agent.end()?;
            let is_resumed = log.contains("continuing with the objects of the earlier agent");
            ensure!(is_resumed == (*before == Before::Objects), "{what}: {log}");
            let writes_anew = steps > (services * endpoints) as u64;
            ensure!(writes_anew == (*before == Before::Nothing), "{what}: {steps} steps");
            let milliseconds = |time: Duration| time.as_secs_f64() * 1_000.0;
            let figures = [
                milliseconds(figures.listed),
                milliseconds(figures.ready),
                milliseconds(figures.changed),
                milliseconds(figures.processor),
                figures.peak,
                steps as f64,
            ];
            samples.iter_mut().zip(figures).for_each(|(sample, figure)| sample.push(figure));
        }
        network.cleanup()?;
    }
    for (what, _, samples) in &rows {
        let cells = samples.each_ref().map(|sample| {
            let [median, least, most] = sample.summary().map(Option::unwrap_or_default);
            format!("{median:.0} ({least:.0}..{most:.0})")
        });
        println!("| {what} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// A kubeconfig for the same server behind a relay that passes on so many MiB a second to each client: what a real API
/// server encodes takes longer than it does the embedded API. Runs until the process ends.
fn slowed(network: &OneNode, kubeconfig: &Path, mib: usize) -> Result<PathBuf> {
    let text = fs::read_to_string(kubeconfig)?;
    let server = text.split_once("https://").context("a server by https")?.1;
    let server: SocketAddr =
        server.split(['\n', '"', '/']).next().unwrap_or_default().trim().parse()?;
    let listener = network.node.enter(|| Ok(TcpListener::bind("127.0.0.1:0")?))?;
    let address = listener.local_addr()?;
    let namespace = network.node.clone();
    thread::spawn(move || {
        let _ = namespace.enter(|| {
            for client in listener.incoming().flatten() {
                let to_server = TcpStream::connect(server)?;
                let (mut from_client, mut up) = (client.try_clone()?, to_server.try_clone()?);
                thread::spawn(move || io::copy(&mut from_client, &mut up));
                thread::spawn(move || relay(to_server, client, mib));
            }
            Ok(())
        });
    });
    let path = kubeconfig.with_extension("slowed");
    fs::write(&path, text.replace(&server.to_string(), &address.to_string()))?;
    Ok(path)
}

fn relay(mut from: TcpStream, mut to: TcpStream, mib: usize) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let mut free_at = Instant::now();
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..length])?;
        let takes = Duration::from_secs_f64(length as f64 / (mib << 20) as f64);
        free_at = free_at.max(Instant::now()) + takes;
        thread::sleep(free_at.saturating_duration_since(Instant::now()));
    }
}

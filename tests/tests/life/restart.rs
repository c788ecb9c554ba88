//! An agent that is killed and restarted with 10,000 Services: connections continue, and if nothing
//! has changed, nothing is written.
//!
//! One server has the addresses of all endpoints, by a local route. Its replies contain the address
//! that the client reached.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Instant;
use std::{env, fs, thread};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tests::programs::agent::Agent;
use tests::worlds::one_node::{DEVICE, OneNode};
use tests::worlds::topology::Host;

const SERVICES: u32 = 10_000;
const ENDPOINTS: u32 = 10;
const CONNECTIONS: u32 = 1_000;
/// Each restart reads 20,000 objects, which takes an unoptimised agent seconds. The full test is
/// `MILLRACE_RESTARTS=20`.
const RESTARTS: u32 = 2;

fn cluster_ip(service: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + service)
}

fn endpoint(service: u32, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 64, 0, 1)) + service * ENDPOINTS + number)
}

fn service(number: u32, endpoints: u32) -> String {
    let mut text = format!(
        "apiVersion: v1\n\
         kind: Service\n\
         metadata: {{name: s{number}}}\n\
         spec: {{clusterIP: {}, ports: [{{port: 80}}]}}\n\
         ---\n\
         apiVersion: discovery.k8s.io/v1\n\
         kind: EndpointSlice\n\
         metadata: {{name: s{number}-1, labels: {{kubernetes.io/service-name: s{number}}}}}\n\
         addressType: IPv4\n\
         ports: [{{port: 9000}}]\n\
         endpoints:\n",
        cluster_ip(number)
    );
    for other in 0..endpoints {
        let _ = writeln!(text, "- {{addresses: [{}], nodeName: node}}", endpoint(number, other));
    }
    text + "---\n"
}

/// Echoes each line after the address that the client reached. One thread for each connection.
fn serve(host: &Host) -> Result<()> {
    let listener = host.enter(|| Ok(TcpListener::bind("0.0.0.0:9000")?))?;
    let answer = |stream: TcpStream| -> Result<()> {
        let address = stream.local_addr()?.ip();
        stream.set_nodelay(true)?;
        for line in BufReader::new(&stream).lines() {
            (&stream).write_all(format!("{address} {}\n", line?).as_bytes())?;
        }
        Ok(())
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let thread = thread::Builder::new().stack_size(1 << 16);
            // A failure is noticed by the client, which gets no reply.
            let _ = thread.spawn(move || answer(stream));
        }
    });
    Ok(())
}

struct OpenStream {
    stream: TcpStream,
    /// The address of its endpoint.
    address: String,
}

impl OpenStream {
    fn open(client: &Host, service: u32) -> Result<Self> {
        let stream = client.tcp_connect(&format!("{}:80", cluster_ip(service)))?;
        let address = ask(&stream, "first")?;
        Ok(Self { stream, address })
    }

    /// Whether the same endpoint still echoes.
    fn goes_on(&self, text: &str) -> bool {
        ask(&self.stream, text).is_ok_and(|address| address == self.address)
    }
}

fn ask(mut stream: &TcpStream, text: &str) -> Result<String> {
    stream.write_all(format!("{text}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let (address, echo) = line.trim_end().split_once(' ').context("the connection was closed")?;
    ensure!(echo == text, "{line} as the reply to {text}");
    Ok(address.to_owned())
}

struct Case {
    network: OneNode,
    file: PathBuf,
    connections: Vec<OpenStream>,
}

impl Case {
    fn new() -> Result<(Self, Agent)> {
        // Each connection has two sockets in this process.
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(1 << 16)), hard)?;
        let network = OneNode::with_pods(0)?;
        let backend = network.node.pod("backend", &["10.244.1.10"])?;
        network.node.ip("route add 10.64.0.0/12 via 10.244.1.10 dev backend onlink")?;
        backend.ip("route add local 10.64.0.0/12 dev lo")?;
        serve(&backend)?;
        let file = network.topology.directory().join("manifests.yaml");
        fs::write(&file, manifests(ENDPOINTS))?;
        let agent = Agent::start(&network.node, &network.pin_path(), &file, DEVICE, &[])?;
        let mut random = 1;
        let connect = |_| {
            random = lb_common::hash::mix(random);
            OpenStream::open(&network.client, lb_common::hash::scale(random as u32, SERVICES))
        };
        let connections = (0..CONNECTIONS).map(connect).collect::<Result<_>>()?;
        Ok((Self { network, file, connections }, agent))
    }

    fn restart(&self, agent: Agent) -> Result<Agent> {
        agent.kill();
        let began = Instant::now();
        let agent =
            Agent::start(&self.network.node, &self.network.pin_path(), &self.file, DEVICE, &[])?;
        eprintln!("ready after {:?}, {} steps", began.elapsed(), agent.start_steps()?);
        Ok(agent)
    }

    fn lost(&self, text: &str) -> usize {
        self.connections.iter().filter(|connection| !connection.goes_on(text)).count()
    }
}

/// All Services. The first one has `of_first` endpoints.
fn manifests(of_first: u32) -> String {
    (0..SERVICES)
        .map(|number| service(number, if number == 0 { of_first } else { ENDPOINTS }))
        .collect()
}

#[test]
fn restarts_without_changes_break_no_connection_and_write_nothing() -> Result<()> {
    let (case, mut agent) = Case::new()?;
    assert!(agent.start_steps()? > u64::from(SERVICES * ENDPOINTS));
    let restarts = env::var("MILLRACE_RESTARTS").map_or(Ok(RESTARTS), |text| text.parse())?;
    for round in 0..restarts {
        // Every second agent loads its programs, as after an upgrade.
        if round % 2 == 1 {
            case.network.forget_programs()?;
        }
        agent = case.restart(agent)?;
        assert_eq!(agent.start_steps()?, 0, "restart {round}");
        assert_eq!(case.lost(&round.to_string()), 0, "restart {round}");
    }

    // Only changes made while no agent runs are written.
    fs::write(&case.file, manifests(ENDPOINTS - 1))?;
    let agent = case.restart(agent)?;
    let taken = agent.start_steps()?;
    assert!((1..8).contains(&taken), "{taken} steps");
    let gone = endpoint(0, ENDPOINTS - 1).to_string();
    let lost = case.connections.iter().filter(|c| c.address != gone && !c.goes_on("last")).count();
    assert_eq!(lost, 0);
    Ok(())
}

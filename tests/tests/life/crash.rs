//! Agents that are killed repeatedly, under traffic and while Services change.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use tests::load::watcher::{RequestResult, Watcher};
use tests::maps::contents::Contents;
use tests::programs::agent::{Agent, AgentSource};
use tests::worlds::one_node::{DEVICE, OneNode};
use tests::worlds::topology::{Echo, LARGE, SOON, name_of_server, wait_until};

/// The number of kills.
const KILLS: u64 = 25;
/// The longest run of an agent, in milliseconds: some become ready, others do not.
const LIFE: u64 = 600;

/// A frontend that stays, with `pod-0` and sometimes `pod-1`, and others that come and go.
fn state(number: u64) -> String {
    let mut text = String::from(
        "apiVersion: v1\n\
         kind: Service\n\
         metadata: {name: web}\n\
         spec:\n\
         \x20 clusterIP: 10.96.0.10\n\
         \x20 externalIPs: [203.0.113.10]\n\
         \x20 ports: [{name: http, port: 80}, {name: echo, port: 90}]\n\
         ---\n\
         apiVersion: discovery.k8s.io/v1\n\
         kind: EndpointSlice\n\
         metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\n\
         addressType: IPv4\n\
         ports: [{name: http, port: 8080}, {name: echo, port: 9000}]\n\
         endpoints:\n\
         - {addresses: [10.244.1.10], nodeName: node}\n",
    );
    // Connections to pod-1 continue while it is not ready.
    let ready = !number.is_multiple_of(3);
    text += &format!(
        "- {{addresses: [10.244.1.11], nodeName: node, conditions: {{ready: {ready}}}}}\n"
    );
    for other in (0..40).filter(|other| !(other + number).is_multiple_of(4)) {
        let node_port = 30_000 + (other * 7 + number) % 50;
        text += &format!(
            "---\n\
             apiVersion: v1\n\
             kind: Service\n\
             metadata: {{name: other-{other}}}\n\
             spec:\n\
             \x20 type: NodePort\n\
             \x20 clusterIP: 10.96.1.{}\n\
             \x20 sessionAffinity: {}\n\
             \x20 ports: [{{port: 80, nodePort: {node_port}}}]\n\
             ---\n\
             apiVersion: discovery.k8s.io/v1\n\
             kind: EndpointSlice\n\
             metadata: {{name: other-{other}, labels: {{kubernetes.io/service-name: other-{other}}}}}\n\
             addressType: IPv4\n\
             ports: [{{port: {}}}]\n\
             endpoints: [{{addresses: [10.244.2.{}]}}, {{addresses: [10.244.3.{}]}}]\n",
            // Addresses and backends move between Services.
            1 + (other + number) % 60,
            if (other + number).is_multiple_of(5) { "ClientIP" } else { "None" },
            8000 + number % 2,
            1 + (other * number) % 250,
            1 + other,
        );
    }
    text
}

fn replace(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, text)?;
    Ok(fs::rename(new, file)?)
}

#[test]
fn repeated_kills_break_no_connection_and_leave_nothing_behind() -> Result<()> {
    let network = OneNode::with_pods(2)?;
    let echo = |number: usize| -> Result<Echo> {
        let listen = format!("10.244.1.{}:9000", 10 + number);
        network.pods[number].host.tcp_echo(&listen, &format!("pod-{number}"))
    };
    let _echoes = [echo(0)?, echo(1)?];
    let (agent, file) = network.agent_on(&state(1))?;
    let watcher = Watcher::start(&network.client, "203.0.113.10:90")?;
    let connections: Vec<TcpStream> =
        (0..8).map(|_| network.client.tcp_connect("203.0.113.10:90")).collect::<Result<_>>()?;
    let servers = connections.iter().map(name_of_server).collect::<Result<Vec<String>>>()?;
    // This takes about as long as all the kills.
    let mut transfer = network.client.command("curl");
    transfer.args(["--silent", "--show-error", "--fail", "--limit-rate", "2M"]);
    transfer.args(["--write-out", "%{size_download}", "--output", "/dev/null"]);
    transfer.arg("http://203.0.113.10/large");
    let mut transfer = network.client.spawn(&mut transfer)?;

    agent.kill();
    // Pseudo-random numbers, the same in each run.
    let mut random = 1u64;
    let mut ready = 0;
    for kill in 0..KILLS {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        replace(&file, &state(random >> 40))?;
        let source = AgentSource::Manifests(&file);
        let agent = Agent::launch(&network.node, &network.pin_path(), source, DEVICE, &[])?;
        let life = Duration::from_millis((random >> 33) % LIFE);
        thread::sleep(life / 2);
        replace(&file, &state(random >> 20))?;
        thread::sleep(life / 2);
        ready += u32::from(agent.log().contains("ready service_ports="));
        agent.kill();
        for (connection, server) in connections.iter().zip(&servers) {
            assert_eq!(&name_of_server(connection)?, server, "after {kill} kills");
        }
    }
    eprintln!("{ready} of {KILLS} agents were ready before they were killed");

    replace(&file, &state(7))?;
    let agent = network.agent(&file)?;
    watcher.wait_for_more(20)?;
    let seen = watcher.stop();
    assert_eq!(seen.others(&["pod-0", "pod-1"]), Vec::<&(RequestResult, usize)>::new());
    for (connection, server) in connections.iter().zip(&servers) {
        assert_eq!(&name_of_server(connection)?, server);
    }
    let ended = transfer.wait(SOON)?;
    assert!(ended.success(), "{}", transfer.output());
    assert_eq!(transfer.output().trim(), LARGE.to_string());

    let left = Contents::of(&network.pin_path())?;
    agent.terminate()?;
    network.cleanup()?;
    let _agent = network.agent(&file)?;
    assert_eq!(left, Contents::of(&network.pin_path())?, "(after all kills, after a fresh start)");
    Ok(())
}

#[test]
fn a_pod_that_is_added_while_an_agent_waits_for_its_source_reaches_services() -> Result<()> {
    let network = OneNode::with_pods(2)?;
    let (agent, _file) = network.agent_on(&state(1))?;
    agent.kill();
    let _waiting = network.agent_that_waits()?;
    let late = network.node.pod("late", &["10.244.1.99"])?;
    wait_until("the pod is served", SOON, || late.curl("http://10.96.0.10/").is_ok())?;
    // And what was there.
    network.curl("http://203.0.113.10/").map(drop)
}

#[test]
fn a_source_that_is_not_ready_removes_nothing() -> Result<()> {
    let network = OneNode::with_pods(2)?;
    let (agent, _file) = network.agent_on(&state(1))?;
    let before = Contents::of(&network.pin_path())?;
    assert!(before.frontends.len() > 50, "{before:?}");
    agent.kill();

    let agent = network.agent_that_waits()?;
    assert!(agent.log().contains("adopting"), "{}", agent.log());
    assert_eq!(Contents::of(&network.pin_path())?, before);
    assert!(network.curl("http://203.0.113.10/").is_ok());
    // SIGTERM changes nothing, either.
    agent.terminate()?;
    assert_eq!(Contents::of(&network.pin_path())?, before);
    assert!(network.curl("http://203.0.113.10/").is_ok());
    Ok(())
}

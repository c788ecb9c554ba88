//! An agent of a cluster that starts again continues with the objects that the one before it has left, writes nothing
//! that the maps have, and serves what changed between the two.

use std::fs;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tests::programs::agent::{Agent, AgentSource};
use tests::programs::api_server::ApiServer;
use tests::worlds::one_node::{DEVICE, OneNode};
use tests::worlds::topology::{SOON, wait_until};

/// What an agent logs that finds the objects of the one before it.
const CONTINUES: &str = "continuing with the objects of the earlier agent";
const SERVICES: usize = 2_000;
const ENDPOINTS: usize = 10;

/// A Service, and one endpoint of it. Without an address it gets one.
fn service(name: &str, address: &str) -> [Value; 2] {
    [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"clusterIP": address, "ports": [{"port": 443}]}
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "ports": [{"port": 443}], "endpoints": [{"addresses": ["10.244.1.10"]}]
        }),
    ]
}

#[test]
fn a_restarted_agent_of_a_cluster_serves_what_changed_while_it_was_away() -> Result<()> {
    let network = OneNode::with_pods(0)?;
    let data = network.kubeconfig().parent().context("it is in a directory")?.to_owned();
    let server = ApiServer::start(&network.node, data, "127.0.0.1:0".parse()?)?;
    let create = |objects: [Value; 2]| server.create(&network.node, objects.into());
    create(service("kubernetes", "10.96.0.1"))?;
    create(service("web", "10.96.0.10"))?;
    let state = network.topology.directory().join("state");
    let flags = ["--state-directory", state.to_str().context("UTF-8")?];
    let start = || -> Result<Agent> {
        let source = AgentSource::Cluster(server.kubeconfig());
        let pins = network.pin_path();
        let mut agent = Agent::launch(&network.node, &pins, source, DEVICE, &flags)?;
        agent.wait_for_output("ready service_ports=")?;
        Ok(agent)
    };
    let serves = |agent: &Agent, address: &str| {
        agent.get(&["frontends", "-o", "json"]).is_ok_and(|all| all.contains(address))
    };
    let first = start()?;
    assert!(!first.log().contains(CONTINUES), "{}", first.log());
    first.end()?;
    assert!(state.join("objects").exists());

    create(service("later", "10.96.0.20"))?;
    let second = start()?;
    assert!(second.log().contains(CONTINUES), "{}", second.log());
    wait_until("what was created meanwhile is served", SOON, || serves(&second, "10.96.0.20"))?;
    assert!(serves(&second, "10.96.0.10"));
    assert!(!state.join("objects").exists());
    second.end()?;

    // A damaged file: everything is listed.
    fs::write(state.join("objects"), "{}\n")?;
    let third = start()?;
    let log = third.log();
    assert!(
        log.contains("objects of the earlier agent not used") && !log.contains(CONTINUES),
        "{log}"
    );
    assert!(serves(&third, "10.96.0.20"));
    third.end()?;
    Ok(())
}

fn service_of_many(number: usize) -> [Value; 2] {
    let name = format!("many-{number}");
    let endpoints: Vec<Value> = (0..ENDPOINTS)
        .map(|which| {
            let address =
                u32::from(Ipv4Addr::new(10, 128, 0, 1)) + (number * ENDPOINTS + which) as u32;
            json!({"addresses": [Ipv4Addr::from(address).to_string()], "nodeName": "other"})
        })
        .collect();
    [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"ports": [{"port": 80}]}
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "ports": [{"port": 80}], "endpoints": endpoints
        }),
    ]
}

/// Also if they are listed, and the programs loaded again, as after a crash and an upgrade.
#[test]
fn an_agent_that_starts_again_among_2_000_services_writes_only_what_changed() -> Result<()> {
    let network = OneNode::with_pods(0)?;
    let data = network.kubeconfig().parent().context("it is in a directory")?.to_owned();
    let server = ApiServer::start(&network.node, data, "127.0.0.1:0".parse()?)?;
    server.create(&network.node, service("kubernetes", "10.96.0.1").into())?;
    server.create_at_once(&network.node, (0..SERVICES).flat_map(service_of_many).collect())?;
    let state = network.topology.directory().join("state");
    let flags = [
        "--state-directory",
        state.to_str().context("UTF-8")?,
        "--max-service-ports",
        "20000",
        "--max-endpoints",
        "200000",
    ];
    let start = || -> Result<Agent> {
        let source = AgentSource::Cluster(server.kubeconfig());
        let pins = network.pin_path();
        let mut agent = Agent::launch(&network.node, &pins, source, DEVICE, &flags)?;
        agent.wait_for_output("ready service_ports=")?;
        Ok(agent)
    };
    let mut agent = start()?;
    assert!(agent.start_steps()? > (SERVICES * ENDPOINTS) as u64);
    for is_saved in [true, false] {
        if is_saved {
            agent.end()?;
        } else {
            agent.kill();
            network.forget_programs()?;
        }
        agent = start()?;
        let log = agent.log();
        assert_eq!(log.contains(CONTINUES), is_saved, "{log}");
        assert_eq!(agent.start_steps()?, 0, "{log}");

        // What its watches bring later is the change, and nothing else.
        let [later, _] = service(&format!("later-{is_saved}"), "");
        server.create(&network.node, vec![later])?;
        agent.wait_for_output("services changed ")?;
        let log = agent.log();
        let changes: Vec<&str> =
            log.lines().filter(|line| line.contains("services changed ")).collect();
        assert!(changes.iter().all(|change| change.contains("services=1 ")), "{log}");
    }
    agent.end()?;
    Ok(())
}

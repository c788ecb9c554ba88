//! While Services change, clients reach the backends of the old or of the new state, and nothing
//! else.

use std::fs;
use std::path::Path;

use anyhow::Result;
use tests::load::watcher::{RequestResult, Watcher};
use tests::worlds::one_node::OneNode;
use tests::worlds::topology::{Echo, SOON, wait_until};

/// Changes per test.
const CHANGES: usize = 24;
/// Requests in each state before the next change.
const MEETINGS: usize = 5;

/// A Service with the externalIP 203.0.113.10 or none; `ports` are `{name: …, port: …}`.
fn service(name: &str, cluster_ip: &str, external: bool, ports: &str) -> String {
    let external = if external { "  externalIPs: [203.0.113.10]\n" } else { "" };
    format!(
        "---\n\
         apiVersion: v1\n\
         kind: Service\n\
         metadata: {{name: {name}}}\n\
         spec:\n\
         \x20 clusterIP: {cluster_ip}\n\
         {external}\
         \x20 ports: [{ports}]\n"
    )
}

/// An EndpointSlice with one port, and endpoints in YAML.
fn slice(name: &str, service: &str, port: &str, endpoints: &[String]) -> String {
    let endpoints: String = endpoints.iter().map(|endpoint| format!("- {endpoint}\n")).collect();
    format!(
        "---\n\
         apiVersion: discovery.k8s.io/v1\n\
         kind: EndpointSlice\n\
         metadata: {{name: {name}, labels: {{kubernetes.io/service-name: {service}}}}}\n\
         addressType: IPv4\n\
         ports: [{port}]\n\
         endpoints:\n{endpoints}"
    )
}

fn ready(pod: usize) -> String {
    format!("{{addresses: [10.244.1.{}], nodeName: node}}", 10 + pod)
}

const HTTP: &str = "{name: http, port: 80}";
const TARGET: &str = "{name: http, port: 9000}";

/// A Service of both pods that never changes. It keeps both backends, so that their connections are
/// not reset when another Service drops one of them.
fn kept() -> String {
    service("kept", "10.96.0.99", false, HTTP)
        + &slice("kept-1", "kept", TARGET, &[ready(0), ready(1)])
}

/// Echo servers of all pods, which reply with the pod's name.
fn echoes(network: &OneNode) -> Result<Vec<Echo>> {
    let echo = |number: usize| {
        let listen = format!("10.244.1.{}:9000", 10 + number);
        network.pods[number].host.tcp_echo(&listen, &format!("pod-{number}"))
    };
    (0..network.pods.len()).map(echo).collect()
}

/// Replaces the file by a rename, so that the agent never reads half of it.
fn replace(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, text)?;
    Ok(fs::rename(new, file)?)
}

/// Alternates between two states of the manifests, and asserts that the responses from each
/// frontend alternate, too. Each frontend comes with its expected response in each state.
fn take_turns(
    changes: usize,
    states: [String; 2],
    frontends: &[(&str, [RequestResult; 2])],
) -> Result<()> {
    let network = OneNode::warm(2)?;
    let _echoes = echoes(&network)?;
    let (_agent, file) = network.agent_on(&states[0])?;
    let watchers: Vec<Watcher> = frontends
        .iter()
        .map(|(frontend, _)| Watcher::start(&network.client, frontend))
        .collect::<Result<_>>()?;
    for change in 0..=changes {
        replace(&file, &states[change % 2])?;
        for ((_, outcomes), watcher) in frontends.iter().zip(&watchers) {
            watcher.wait_for(&outcomes[change % 2])?;
        }
        watchers[0].wait_for_more(MEETINGS)?;
    }
    for ((frontend, outcomes), watcher) in frontends.iter().zip(watchers) {
        let seen = watcher.stop();
        let expected: Vec<&RequestResult> =
            (0..=changes).map(|change| &outcomes[change % 2]).collect();
        assert_eq!(seen.turns(), expected, "{frontend}:\n{seen}");
    }
    Ok(())
}

fn pods(first: usize, second: usize) -> [RequestResult; 2] {
    [first, second].map(|number| RequestResult::from(&format!("pod-{number}")))
}

#[test]
fn a_frontend_moves_between_services_atomically() -> Result<()> {
    let state = |owner: usize| {
        kept()
            + &service("a", "10.96.0.1", owner == 0, HTTP)
            + &slice("a-1", "a", TARGET, &[ready(0)])
            + &service("b", "10.96.0.2", owner == 1, HTTP)
            + &slice("b-1", "b", TARGET, &[ready(1)])
    };
    take_turns(CHANGES, [state(0), state(1)], &[("203.0.113.10:80", pods(0, 1))])
}

#[test]
fn two_services_swap_their_ports_atomically() -> Result<()> {
    let state = |ports: [u16; 2]| {
        let [a, b] = ports.map(|port| format!("{{name: http, port: {port}}}"));
        kept()
            + &service("a", "10.96.0.1", true, &a)
            + &slice("a-1", "a", TARGET, &[ready(0)])
            + &service("b", "10.96.0.2", true, &b)
            + &slice("b-1", "b", TARGET, &[ready(1)])
    };
    let frontends = [("203.0.113.10:80", pods(0, 1)), ("203.0.113.10:81", pods(1, 0))];
    take_turns(CHANGES, [state([80, 81]), state([81, 80])], &frontends)
}

#[test]
fn two_ports_of_a_service_swap_their_targets_atomically() -> Result<()> {
    // Both pods listen on port 9000, so the slice's port name decides which pod is used.
    let state = |first: usize| {
        let target = |name: &str, pod: usize| {
            let port = format!("{{name: {name}, port: 9000}}");
            slice(&format!("web-{name}"), "web", &port, &[ready(pod)])
        };
        kept()
            + &service("web", "10.96.0.1", true, "{name: x, port: 80}, {name: y, port: 81}")
            + &target("x", first)
            + &target("y", 1 - first)
    };
    let frontends = [("203.0.113.10:80", pods(0, 1)), ("203.0.113.10:81", pods(1, 0))];
    take_turns(CHANGES, [state(0), state(1)], &frontends)
}

#[test]
fn a_recreated_service_takes_over_its_address_atomically() -> Result<()> {
    let state = |name: &str, pod: usize| {
        kept()
            + &service(name, "10.96.0.1", true, HTTP)
            + &slice(&format!("{name}-1"), name, TARGET, &[ready(pod)])
    };
    let frontends = [("203.0.113.10:80", pods(0, 1)), ("10.96.0.1:80", pods(0, 1))];
    take_turns(CHANGES, [state("old", 0), state("new", 1)], &frontends)
}

#[test]
fn a_service_is_added_and_removed_atomically() -> Result<()> {
    let web = service("web", "10.96.0.1", true, HTTP) + &slice("web-1", "web", TARGET, &[ready(0)]);
    // Never refused: a refusal would mean a frontend that exists without backends.
    let frontends =
        [("203.0.113.10:80", [RequestResult::from("pod-0"), RequestResult::NoConnection])];
    take_turns(8, [kept() + &web, kept()], &frontends)
}

/// One endpoint comes and goes more than ten times a second, next to one that stays.
fn flap(there: &str, not_there: Option<&str>) -> Result<()> {
    let state = |flapping: Option<&str>| {
        let endpoints: Vec<String> =
            [Some(ready(0)), flapping.map(str::to_owned)].into_iter().flatten().collect();
        kept()
            + &service("web", "10.96.0.1", true, HTTP)
            + &slice("web-1", "web", TARGET, &endpoints)
    };
    let network = OneNode::warm(2)?;
    let _echoes = echoes(&network)?;
    let (agent, file) = network.agent_on(&state(Some(there)))?;
    let watcher = Watcher::start(&network.client, "203.0.113.10:80")?;
    for _ in 0..4 * CHANGES {
        replace(&file, &state(not_there))?;
        watcher.wait_for_more(MEETINGS)?;
        replace(&file, &state(Some(there)))?;
        watcher.wait_for_more(MEETINGS)?;
    }
    watcher.wait_for(&RequestResult::from("pod-1"))?;
    replace(&file, &state(not_there))?;
    wait_until("the endpoint gets no new connections", SOON, || {
        let frontends = agent.get(&["frontends"]).unwrap_or_default();
        let line = frontends.lines().find(|line| line.contains("203.0.113.10:80"));
        line.is_some_and(|line| !line.contains("10.244.1.11"))
    })?;
    // The connection of the current request may have been opened before the change.
    watcher.wait_for_more(1)?;
    let before = watcher.seen();
    watcher.wait_for_more(4 * MEETINGS)?;
    let seen = watcher.stop();
    assert_eq!(seen.others(&["pod-0", "pod-1"]), Vec::<&(RequestResult, usize)>::new());
    assert_eq!(seen.count_of("pod-1"), before.count_of("pod-1"), "a new connection to pod-1");
    Ok(())
}

#[test]
fn an_endpoint_whose_readiness_flaps_breaks_no_connection() -> Result<()> {
    let not_ready = "{addresses: [10.244.1.11], nodeName: node, conditions: {ready: false}}";
    flap(&ready(1), Some(not_ready))
}

#[test]
fn an_endpoint_that_comes_and_goes_breaks_no_connection() -> Result<()> {
    flap(&ready(1), None)
}

//! `millrace trace` reports what the kernel then does, and changes nothing.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use lb_common::layout::map;
use serde_json::{Value, json};
use tests::manifests::{Service, manifests};
use tests::maps::any_map::{AnyMap, Entry};
use tests::packets::datapath::Conversation;
use tests::packets::datapath::cases::{self, Ends, V4, V6};
use tests::programs::agent::{Agent, SMALL_MAPS};
use tests::worlds::one_node::{CLIENT, DEVICE, OneNode, REFUSED};
use tests::worlds::topology::{SOON, wait_until};

type Case = fn(&mut Conversation, &Ends);

/// Each packet of these tables is traced with the kernel's maps before the kernel's programs
/// process it. Verdict, bytes and reasons must be the same.
const TRACED: [Case; 36] = [
    cases::translation::a_request_goes_to_a_backend_and_its_reply_comes_back,
    cases::translation::a_datagram_goes_to_a_backend_and_its_reply_comes_back,
    cases::translation::tags_of_networks_stay,
    cases::affinity::a_client_stays_with_its_backend_whatever_it_dials,
    cases::affinity::affinity_selects_only_backends_that_the_policy_allows,
    cases::affinity::datagrams_stay_too,
    cases::source_ranges::clients_outside_of_the_ranges_are_dropped,
    cases::source_ranges::pods_are_held_to_the_ranges_too,
    cases::selection::a_connection_stays_with_its_backend,
    cases::selection::a_node_port_is_open_on_the_nodes_addresses_only,
    cases::selection::without_backends_connections_are_reset,
    cases::selection::policy_local_wants_a_local_backend,
    cases::selection::policy_local_drops_packets_while_only_other_nodes_serve,
    cases::selection::another_port_of_a_cluster_address_is_refused,
    cases::flows::a_connection_lives_from_syn_to_fin,
    cases::flows::a_syn_on_a_closed_connection_starts_a_new_one,
    cases::flows::a_reply_without_a_flow_passes,
    cases::flows::a_flow_moves_when_its_backend_goes,
    cases::flows::one_port_of_a_client_reaches_two_services,
    cases::draining::datagrams_leave_a_backend_that_ends,
    cases::errors::a_client_learns_what_happens_to_its_requests,
    cases::fragments::all_of_a_question_and_of_its_reply_are_translated,
    cases::corrupt::there_is_no_slot_beyond_the_last,
    cases::corrupt::a_slot_may_name_no_backend,
    cases::next_hop::a_request_leaves_to_the_next_hop_and_its_reply_to_the_client,
    cases::next_hop::an_unknown_neighbour_is_left_to_the_stack,
    cases::undeliverable::without_a_route_packets_are_dropped,
    cases::undeliverable::packets_too_large_for_an_interface_are_rejected,
    cases::next_hop::tc_does_the_same,
    cases::next_hop::a_pod_reaches_itself_under_an_address_of_the_node,
    cases::undeliverable::a_route_may_be_narrower_than_its_device,
    cases::next_hop::associations_leave_too,
    cases::neighbours::requests_for_an_announced_address_are_answered,
    cases::neighbours::requests_to_this_machine_alone_are_answered,
    cases::neighbours::claims_of_other_machines_are_noted,
    cases::tunnels_in::a_packet_from_a_tunnel_reaches_the_backend_that_it_names,
];

#[test]
fn the_trace_is_what_the_kernel_does() -> Result<()> {
    for case in TRACED {
        for at in [&V4, &V6] {
            case(&mut Conversation::traced()?, at);
        }
    }
    Ok(())
}

const VIP: &str = "203.0.113.10";
const VIP6: &str = "2001:db8:113::10";

/// `web` has no session affinity; `sticky` has.
fn web_and_sticky() -> String {
    let pods = ["10.244.1.10", "10.244.1.11", "10.244.1.12"];
    let web = Service::new("web", &["10.96.0.10", "fd00:10:96::a"])
        .with("externalIPs", json!(["203.0.113.10", "2001:db8:113::10"]))
        .with("ipFamilies", json!(["IPv4", "IPv6"]))
        .tcp(80, 8080)
        .here(&pods)
        .here(&["fd00:10:244:1::10", "fd00:10:244:1::11"]);
    let sticky = Service::new("sticky", &["10.96.0.11"])
        .with("externalIPs", json!(["203.0.113.10"]))
        .with("sessionAffinity", json!("ClientIP"))
        .tcp(81, 8080)
        .here(&pods);
    manifests(&[web, sticky])
}

/// A client, a node with a real agent, and pods.
struct Scene {
    network: OneNode,
    agent: Option<Agent>,
}

impl Scene {
    fn new() -> Result<Self> {
        let network = OneNode::with_pods(3)?;
        let manifests = format!("{}---{REFUSED}", web_and_sticky());
        let agent = network.agent_with(&manifests, &SMALL_MAPS)?;
        Ok(Self { network, agent: Some(agent) })
    }

    fn trace(&self, arguments: &str) -> Result<Value> {
        let mut command = self.network.millrace(&["trace", "-o", "json"])?;
        let output = command.args(arguments.split(' ')).output()?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{complaint}");
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Sends a request from this port of the client.
    fn curl(&self, port: u16, url: &str) -> Result<String> {
        let page = self.network.client.curl_with(&["--local-port", &port.to_string()], url)?;
        Ok(page.trim().to_owned())
    }

    fn contents(&self) -> Result<BTreeMap<&'static str, Vec<Entry>>> {
        // The network's state changes by itself, and program arrays cannot be read.
        const NOT: [&str; 5] =
            [map::XDP_STAGES, map::TC_STAGES, map::EVENTS, map::NETWORK, map::DEVICES];
        let names = map::ALL.into_iter().filter(|name| !NOT.contains(name));
        names
            .map(|name| Ok((name, AnyMap::open(&self.network.pin_path().join(name))?.contents()?)))
            .collect()
    }
}

/// The pod that a trace selects.
fn pod(trace: &Value) -> Result<String> {
    let backend = trace["backend"].as_str().with_context(|| format!("no backend: {trace:#}"))?;
    let backend: SocketAddr = backend.parse()?;
    let address = backend.ip().to_string();
    let digit = address.chars().last().context("an address has digits")?;
    Ok(format!("pod-{digit}"))
}

fn steps<'a>(trace: &'a Value, step: &str) -> Vec<&'a str> {
    let steps = trace["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    steps.iter().filter(|s| s["step"] == step).filter_map(|s| s["text"].as_str()).collect()
}

#[test]
fn clients_reach_the_traced_backends_and_no_map_changes() -> Result<()> {
    let scene = Scene::new()?;
    let before = scene.contents()?;
    let ports = 40_001..40_006_u16;
    let mut chosen = Vec::new();
    for port in ports.clone() {
        let v4 = scene.trace(&format!("tcp {CLIENT}:{port} {VIP}:80"))?;
        // Both address families of the client share its ports.
        let port = port + 100;
        let v6 = scene.trace(&format!("--device {DEVICE} tcp [2001:db8::2]:{port} [{VIP6}]:80"))?;
        for trace in [&v4, &v6] {
            assert_eq!(trace["verdict"], "translated", "{trace:#}");
            assert_eq!(trace["servicePort"], "default/web:tcp-80", "{trace:#}");
            assert_eq!(steps(trace, "maglev").len(), 1, "{trace:#}");
        }
        chosen.push((pod(&v4)?, pod(&v6)?));
    }
    let nobody = scene.trace(&format!("tcp {CLIENT}:40000 {VIP}:82"))?;
    assert_eq!(
        (&nobody["verdict"], &nobody["reasons"][0]),
        (&"answered".into(), &"no_backend".into())
    );
    assert_eq!(nobody["result"]["flags"], "rst,ack");
    let private = scene.trace(&format!("udp {CLIENT}:40000 203.0.113.11:53"))?;
    assert_eq!(
        (&private["verdict"], &private["reasons"][0]),
        (&"dropped".into(), &"source_not_allowed".into())
    );
    let other = scene.trace(&format!("udp {CLIENT}:40000 192.0.2.77:53"))?;
    assert_eq!(other["verdict"], "untouched");
    let sticky = scene.trace(&format!("tcp {CLIENT}:40000 {VIP}:81"))?;
    assert_eq!(steps(&sticky, "affinity").len(), 2, "expected a lookup and an update: {sticky:#}");
    for (name, before) in before {
        let after = AnyMap::open(&scene.network.pin_path().join(name))?.contents()?;
        assert_eq!(before, after, "{name} has changed");
    }

    for (port, (v4, v6)) in ports.zip(chosen) {
        assert_eq!(scene.curl(port, &format!("http://{VIP}/"))?, v4);
        assert_eq!(scene.curl(port + 100, &format!("http://[{VIP6}]/"))?, v6);
    }
    let refused = scene.curl(40_000, &format!("http://{VIP}:82/")).unwrap_err().to_string();
    assert!(refused.contains("refused") || refused.contains("Failed to connect"), "{refused}");
    let socket = scene.network.client.udp_socket(&format!("{CLIENT}:40000"))?;
    socket.send_to(b"?", "203.0.113.11:53")?;
    let agent = scene.agent.as_ref().context("an agent runs")?;
    wait_until("the datagram is dropped", SOON, || {
        agent.counted("source_not_allowed").is_ok_and(|packets| packets == 1)
    })?;
    Ok(())
}

#[test]
fn an_established_connection_is_traced_without_an_agent() -> Result<()> {
    let mut scene = Scene::new()?;
    let first = scene.curl(40_001, &format!("http://{VIP}:81/"))?;
    let mut connection = scene.network.client.tcp_connect(&format!("{VIP}:80"))?;
    let port = connection.local_addr()?.port();
    scene.agent.take().context("an agent runs")?.kill();

    let request = scene.trace(&format!("--flags ack tcp {CLIENT}:{port} {VIP}:80"))?;
    ensure!(steps(&request, "flow")[0].starts_with("found: "), "{request:#}");
    ensure!(steps(&request, "maglev").is_empty(), "{request:#}");
    connection.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut page = String::new();
    connection.read_to_string(&mut page)?;
    assert!(page.trim().ends_with(&pod(&request)?), "{page} from {request:#}");

    let backend = request["result"]["destination"].as_str().context("a result")?;
    let answer =
        format!("--direction out --device {DEVICE} --flags ack tcp {backend} {CLIENT}:{port}");
    let answer = scene.trace(&answer)?;
    assert_eq!(answer["result"]["source"], format!("{VIP}:80"), "{answer:#}");

    // Session affinity holds for every port of the client.
    for port in 40_010..40_014 {
        let trace = scene.trace(&format!("tcp {CLIENT}:{port} {VIP}:81"))?;
        assert_eq!(pod(&trace)?, first, "{trace:#}");
        assert!(steps(&trace, "maglev").is_empty(), "{trace:#}");
    }
    Ok(())
}

/// A named device narrows what is served: replies from the other node then arrive elsewhere.
#[test]
fn a_reply_that_would_arrive_without_a_program_is_warned_of() -> Result<()> {
    let network = OneNode::warm(0)?;
    let _other = network.other_node()?;
    let web = Service::new("web", &["10.96.0.10"]).with("externalIPs", json!([VIP]));
    let web = manifests(&[web.tcp(80, 8080).there(&["10.0.0.2"])]);
    let mut scene = Scene { agent: Some(network.agent_with(&web, &[])?), network };
    let arguments = format!("--device {DEVICE} tcp {CLIENT}:40000 {VIP}:80");
    let trace = scene.trace(&arguments)?;
    let warnings = steps(&trace, "warning");
    ensure!(
        warnings.len() == 1 && warnings[0].starts_with("the reply will arrive at in0"),
        "{trace:#}"
    );
    scene.agent.take().context("an agent runs")?.terminate()?;

    scene.agent = Some(scene.network.start_agent(&["--device", "in0"])?);
    let trace = scene.trace(&arguments)?;
    ensure!(steps(&trace, "warning").is_empty(), "{trace:#}");
    Ok(())
}

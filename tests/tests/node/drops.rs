//! `millrace drops` reports packets that are dropped or refused, and no others.

use anyhow::{Context, Result};
use lb_common::datapath::Reports;
use lb_common::layout::map;
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::packets::udp;
use tests::programs::agent::Agent;
use tests::worlds::one_node::{CLIENT, NODE, OneNode, REFUSED};
use tests::worlds::topology::{Process, SOON, wait_until};

const NOT_PRINTED: &str = " more not printed: too many at once";

fn start(network: &OneNode) -> Result<Agent> {
    network.agent_on(REFUSED).map(|(agent, _)| agent)
}

/// Starts `millrace drops`, and waits until it listens.
fn listen(network: &OneNode, arguments: &[&str]) -> Result<Process> {
    let mut command = network.millrace(&[&["drops"], arguments].concat())?;
    let mut process = network.node.spawn(&mut command)?;
    process.wait_for_output("listening", SOON)?;
    Ok(process)
}

/// The reported packets. The process must exit by itself.
fn reported(mut process: Process) -> Result<Vec<Value>> {
    assert!(process.wait(SOON)?.success(), "{}", process.output());
    let output = process.output();
    let lines = output.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| Ok(serde_json::from_str(line)?)).collect()
}

#[test]
fn dropped_and_refused_packets_are_reported_with_addresses() -> Result<()> {
    let network = OneNode::warm(1)?;
    let _agent = start(&network)?;
    let process = listen(&network, &["--count", "3", "-o", "json"])?;
    let socket = network.client.udp_socket(&format!("{CLIENT}:40000"))?;
    let own_port = format!("{NODE}:54");
    socket.send_to(b"?", "203.0.113.11:53")?;
    // Passes, so it is not reported.
    socket.send_to(b"?", &own_port)?;
    socket.send_to(b"?", "203.0.113.10:53")?;
    network.client.tcp_connect("203.0.113.10:82").expect_err("it has no backend");

    let reported = reported(process)?;
    let field = |at: usize, name: &str| reported[at][name].as_str().unwrap_or_default().to_owned();
    let reasons: Vec<String> = (0..3).map(|at| field(at, "reason")).collect();
    assert_eq!(reasons, ["source_not_allowed", "no_backend", "no_backend"]);
    let endings: Vec<String> = (0..3).map(|at| field(at, "ending")).collect();
    assert_eq!(endings, ["dropped", "answered", "answered"]);
    assert_eq!(field(0, "source"), format!("{CLIENT}:40000"));
    assert_eq!(field(0, "destination"), "203.0.113.11:53");
    assert_eq!(field(0, "protocol"), "UDP");
    assert_eq!(field(0, "device"), "ext0");
    assert_eq!(field(0, "servicePort"), "default/private:dns");
    assert_eq!(field(2, "destination"), "203.0.113.10:82");
    assert_eq!(field(2, "flags"), "syn");
    Ok(())
}

#[test]
fn passed_packets_and_other_reasons_are_reported_on_request() -> Result<()> {
    let network = OneNode::warm(1)?;
    let _agent = start(&network)?;
    let socket = network.client.udp_socket(&format!("{CLIENT}:40000"))?;
    let own_port = format!("{NODE}:54");

    let process = listen(&network, &["--reason", "no_frontend", "--count", "1", "-o", "json"])?;
    socket.send_to(b"?", "203.0.113.11:53")?;
    socket.send_to(b"?", &own_port)?;
    let only = reported(process)?;
    assert_eq!((&only[0]["reason"], &only[0]["ending"]), (&"no_frontend".into(), &"passed".into()));
    assert_eq!(only[0]["destination"], *own_port);

    let process = listen(&network, &["--passed", "--count", "2"])?;
    socket.send_to(b"?", &own_port)?;
    socket.send_to(b"?", "203.0.113.11:53")?;
    let mut process = process;
    assert!(process.wait(SOON)?.success());
    let output = process.output();
    let [passed, dropped] = ["no_frontend", "source_not_allowed"]
        .map(|reason| output.lines().position(|line| line.contains(reason)));
    assert!(passed.context("no passed packet")? < dropped.context("no dropped one")?, "{output}");
    Ok(())
}

/// Packets of each kind: many times the burst that is reported.
const FLOOD: u64 = 5_000;

#[test]
fn in_a_flood_every_packet_is_reported_or_counted() -> Result<()> {
    let network = OneNode::warm(1)?;
    let agent = start(&network)?;
    let wanted = ["source_not_allowed", "no_backend"];
    let arguments = ["--reason", wanted[0], "--reason", wanted[1], "-o", "json"];
    let mut process = listen(&network, &arguments)?;
    let socket = network.client.raw_socket()?;
    let from = format!("{CLIENT}:40000");
    for _ in 0..FLOOD {
        socket.send(&udp(from.as_str(), "203.0.113.11:53").payload(b"?"))?;
        socket.send(&udp(from.as_str(), "203.0.113.10:53").payload(b"?"))?;
    }
    let counted = || wanted.iter().map(|reason| agent.counted(reason)).sum::<Result<u64>>();
    let mut met = 0;
    wait_until("every packet was counted or lost on the link", SOON, || {
        met = counted().unwrap_or(0);
        network.client.count_lost_packets("eth0").is_ok_and(|lost| met + lost >= 2 * FLOOD)
    })?;

    process.signal(Signal::SIGTERM)?;
    assert!(process.wait(SOON)?.success(), "SIGTERM ends it without an error");
    let output = process.output();
    let reported = output.lines().filter(|line| line.starts_with('{')).count() as u64;
    let not_printed =
        output.lines().filter_map(|line| line.strip_suffix(NOT_PRINTED)?.parse::<u64>().ok());
    let not_printed: u64 = not_printed.sum();
    assert_eq!(reported + not_printed, met, "{reported} were reported, {not_printed} were not");
    assert!(
        reported >= u64::from(Reports::BURST) && not_printed > reported,
        "{reported} of {met} were reported"
    );
    Ok(())
}

#[test]
fn only_one_listener_is_allowed_and_a_killed_one_times_out() -> Result<()> {
    let network = OneNode::warm(1)?;
    start(&network)?.kill();
    // The next agent adopts the maps for these reports, too.
    let agent = start(&network)?;
    let adopted = format!("adopted_maps={0} maps={0}", map::ALL.len());
    assert!(agent.log().contains(&adopted), "{}", agent.log());
    let first = listen(&network, &[])?;
    let refused = listen(&network, &[]).map(drop).unwrap_err().to_string();
    assert!(refused.contains("another `millrace drops` is running"), "{refused}");
    first.kill();
    // The killed listener is replaced once its deadline has passed.
    let mut next = None;
    wait_until("the deadline has passed", SOON, || {
        next = listen(&network, &["--count", "1", "-o", "json"]).ok();
        next.is_some()
    })?;
    let socket = network.client.udp_socket(&format!("{CLIENT}:40000"))?;
    socket.send_to(b"?", "203.0.113.10:53")?;
    assert_eq!(reported(next.context("it listens")?)?[0]["reason"], "no_backend");
    Ok(())
}

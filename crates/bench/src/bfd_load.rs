//! `cargo xtask bench bfd-load`: whether BFD sees broken paths while the node's processors are busy, and its agent is restarted. Beside it, on another
//! node of the same machine, FRR's bfdd. The router's daemons have the highest priority, as if on a machine of their
//! own; the nodes' have the normal one.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ::tests::manifests::manifests;
use ::tests::programs::bgp::{Speaker, is_answered, is_established};
use ::tests::programs::frr::Frr;
use ::tests::worlds::one_node::{CLIENT, NODE, OneNode};
use ::tests::worlds::topology::{SOON, wait_until};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::json;

const RIVAL: &str = "198.51.100.2";
const ROUTER: &str = "198.51.100.1";

/// Measure whether BFD sees broken paths while all CPUs are busy, beside FRR's bfdd
#[derive(Debug, Args)]
pub struct BfdLoadOptions {
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "NUMBER", default_value_t = 120)]
    seconds: u64,

    /// Interval of BFD packets, in milliseconds; three lost ones break a path
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    interval: usize,

    /// Number of busy threads [default: four for each CPU]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
}

/// How often the router has seen the path to a peer break.
fn flaps(router: &Frr, peer: &str) -> Result<u64> {
    let counters = router.json("bfdd", "show bfd peers counters json")?;
    let found = counters.as_array().into_iter().flatten().find(|found| found["peer"] == peer);
    found.and_then(|found| found["session-down"].as_u64()).with_context(|| counters.to_string())
}

fn is_up(router: &Frr, peer: &str) -> bool {
    let peers = router.json("bfdd", "show bfd peers json").unwrap_or_default();
    peers.as_array().into_iter().flatten().any(|it| it["peer"] == peer && it["status"] == "up")
}

pub fn run_bfd_load(options: &BfdLoadOptions) -> Result<()> {
    let BfdLoadOptions { seconds, interval, threads } = *options;
    let processors = thread::available_parallelism()?.get();
    let threads = threads.unwrap_or(4 * processors);

    let network = OneNode::warm(0)?;
    let rival = network.topology.host("rival")?;
    network.topology.link(
        network.client.port("lan").address(&format!("{ROUTER}/24")),
        rival.port("ext0").address(&format!("{RIVAL}/24")),
    )?;
    let timers = format!("receive-interval {interval}\n transmit-interval {interval}\n");
    let router = Frr::start(
        &network.topology,
        &network.client,
        &[
            (
                "bfdd",
                &format!(
                    "bfd\n profile all\n {timers} exit\n peer {RIVAL} local-address {ROUTER} interface lan\n {timers} exit\nexit\n"
                ),
            ),
            (
                "bgpd",
                &format!(
                    "router bgp 64513\n no bgp ebgp-requires-policy\n neighbor {NODE} remote-as 64512\n \
                     neighbor {NODE} timers 3 9\n neighbor {NODE} bfd\n neighbor {NODE} bfd profile all\n"
                ),
            ),
        ],
    )?;
    let theirs =
        format!("bfd\n peer {ROUTER} local-address {RIVAL} interface ext0\n {timers} exit\nexit\n");
    let _rival = Frr::start_ordinary(&network.topology, &rival, &[("bfdd", &theirs)])?;

    let peer = json!({
        "apiVersion": "millrace.io/v1alpha1", "kind": "BGPPeer", "metadata": {"name": "router"},
        "spec": {
            "address": CLIENT, "peerASN": 64_513, "localASN": 64_512,
            "bfd": {"intervalMilliseconds": interval},
        },
    });
    network.write_manifests(&format!("---\n{peer}\n{}", manifests(&[])))?;
    let agent = network.start_agent(&["--xdp-mode", "off"])?;
    let speaker = Speaker::of(&network.node, network.pin_path());
    speaker.wait_for_peers("a session", 1, is_established)?;
    speaker.wait_for_paths("a path", 1, is_answered)?;
    wait_until("bfdd's session is up", SOON, || is_up(&router, RIVAL))?;
    let before = [flaps(&router, NODE)?, flaps(&router, RIVAL)?];

    let stop = AtomicBool::new(false);
    let after = thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        let measured = || {
            thread::sleep(Duration::from_secs(seconds / 2));
            agent.kill();
            let next = network.start_agent(&["--xdp-mode", "off"])?;
            thread::sleep(Duration::from_secs(seconds / 2));
            Ok((next, [flaps(&router, NODE)?, flaps(&router, RIVAL)?]))
        };
        let measured = measured();
        stop.store(true, Ordering::Relaxed);
        measured
    });
    let (_agent, after): (_, [u64; 2]) = after.map_err(|error: anyhow::Error| error)?;
    let [ours, theirs] = [after[0] - before[0], after[1] - before[1]];
    println!(
        "{threads} busy threads on {processors} processors for {seconds} s, 3 x {interval} ms: \
         Millrace {ours} flaps, with a restart of its agent; bfdd {theirs} flaps"
    );
    ensure!(ours == 0, "{ours} flaps");
    Ok(())
}

//! `cargo xtask run`: Millrace at work in network namespaces.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use tests::one_node::{NODE, OneNode};

const REQUESTS: usize = 300;
const URLS: [(&str, &str); 3] = [
    ("LoadBalancer, IPv4", "http://203.0.113.10/"),
    ("LoadBalancer, IPv6", "http://[2001:db8:113::10]/"),
    ("NodePort", "http://192.0.2.1:30080/"),
];

fn main() -> Result<()> {
    let exit_after_demo = env::args().skip(1).any(|argument| argument == "--exit-after-demo");
    if let Some(unknown) = env::args().skip(1).find(|argument| argument != "--exit-after-demo") {
        anyhow::bail!("{unknown} is not known; there is --exit-after-demo");
    }
    // A handler instead of the default: Ctrl-C must not skip the clean-up.
    let (ended, end) = mpsc::channel();
    ctrlc::set_handler(move || {
        let _ = ended.send(());
    })?;

    println!("Laying out a client, this node and three pods with web servers ...");
    let network = OneNode::with_pods(3)?;
    let manifests = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests"));
    println!("Starting the agent on tests/manifests ...");
    let agent = network.agent(&manifests)?;
    println!("\n{}", agent.get(&["frontends"])?);

    for (kind, url) in URLS {
        let spread = spread(&network, url).with_context(|| format!("{kind}: {url}"))?;
        println!("{REQUESTS} requests to {url} ({kind}):");
        for (pod, count) in spread {
            println!("  {pod}  {count:>4}  {}", "#".repeat(count * 60 / REQUESTS));
        }
    }

    let pin_path = network.pin_path();
    let client = network.client.namespace();
    println!("\nLook into it:");
    println!("  bpftool map dump pinned {}/FRONTENDS4", pin_path.display());
    println!("  millrace --pin-path {} get flows -o wide", pin_path.display());
    println!("  nsenter --net=/run/netns/{client} curl http://{NODE}:30080/");
    if !exit_after_demo {
        println!("\nIt stays up until Ctrl-C.");
        end.recv()?;
    }
    println!("Taking everything away.");
    agent.terminate()?;
    Ok(())
}

/// How many requests each pod answered. One curl makes them all, each on a connection of its own.
fn spread(network: &OneNode, url: &str) -> Result<BTreeMap<String, usize>> {
    let urls = format!("{url}?[1-{REQUESTS}]");
    let quiet = ["curl", "--silent", "--show-error", "--fail", "--max-time", "30"];
    let each_anew = ["--no-keepalive", "--header", "Connection: close", &glob(&urls)];
    let words = quiet.into_iter().chain(each_anew);
    let answers = network.client.run_within(Duration::from_secs(40), words)?;
    let mut spread: BTreeMap<String, usize> =
        network.pods.iter().map(|pod| (pod.name.clone(), 0)).collect();
    for answer in answers.lines() {
        *spread.entry(answer.to_owned()).or_default() += 1;
    }
    Ok(spread)
}

/// The URL as curl's own patterns want it: the brackets of an IPv6 address are none.
fn glob(url: &str) -> String {
    match url.split_once("]/") {
        Some((address, rest)) => format!("{}\\]/{rest}", address.replace('[', "\\[")),
        None => url.to_owned(),
    }
}

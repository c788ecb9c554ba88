//! `cargo xtask run`: runs Millrace in network namespaces.

mod failover;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use ::tests::programs::agent::{Agent, program};
use ::tests::worlds::one_node::{NODE, OneNode, has_kubectl};
use ::tests::worlds::topology::{SOON, wait_until};
use anyhow::{Context, Result};
use clap::Parser;

const REQUESTS: usize = 300;
const TLS_REQUESTS: usize = 100;
/// The host of the Ingress.
const HOST: &str = "shop.example.org";
const URLS: [(&str, &str); 3] = [
    ("an address of its own, IPv4", "http://203.0.113.10/"),
    ("an address of its own, IPv6", "http://[2001:db8:113::10]/"),
    ("NodePort", "http://192.0.2.1:30080/"),
];

/// Show Millrace at work in network namespaces
///
/// A client, a node, three pods, an Ingress, and an address that moves to another node. Prints commands to try, and stays
/// until Ctrl-C. Removes everything that it created.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask run", bin_name = "cargo xtask run")]
struct DemoOptions {
    /// Exit when everything was shown
    #[arg(long)]
    exit_after_demo: bool,

    /// Read the Services from files, not from the embedded API
    #[arg(long)]
    manifests: bool,
}

fn main() -> Result<()> {
    let options = DemoOptions::parse();
    // A handler instead of the default: Ctrl-C must not skip the clean-up.
    let (ended, end) = mpsc::channel();
    ctrlc::set_handler(move || {
        let _ = ended.send(());
    })?;

    println!("Laying out a client, this node and three pods with web servers ...");
    let network = OneNode::with_pods(3)?;
    let by_api = !options.manifests && has_kubectl();
    if !options.manifests && !by_api {
        println!(
            "There is no kubectl on the PATH, so the Services come from files, not from the API."
        );
    }
    let agent = if by_api { standalone(&network)? } else { from_manifests(&network)? };
    println!("\n{}", agent.get(&["frontends"])?);

    for (kind, url) in URLS {
        let spread = spread(&network, url).with_context(|| format!("{kind}: {url}"))?;
        println!("{REQUESTS} requests to {url} ({kind}):");
        for (pod, count) in spread {
            println!("  {pod}  {count:>4}  {}", "#".repeat(count * 60 / REQUESTS));
        }
    }

    if by_api {
        show_ingress(&network)?;
    }
    failover::show_failover()?;
    if by_api {
        print_commands(&network);
    }
    let pin_path = network.pin_path();
    println!("\nLook into it:");
    println!("  bpftool map dump pinned {}/FRONTENDS4", pin_path.display());
    println!("  millrace --pin-path {} flows -o wide", pin_path.display());
    if !options.exit_after_demo {
        println!("\nIt stays up until Ctrl-C.");
        end.recv()?;
    }
    println!("Taking everything away.");
    agent.terminate()?;
    Ok(())
}

/// Starts the agent with the embedded API, and applies the example with kubectl.
fn standalone(network: &OneNode) -> Result<Agent> {
    println!("Starting `millrace standalone` on the node ...");
    let agent = network.standalone_with(&["--ingress", "--status-address", NODE])?;
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.yaml");
    println!("$ kubectl apply -f examples/web.yaml");
    print!("{}", network.kubectl(&["apply", "-f", example])?);
    println!("$ kubectl get services,endpointslices");
    print!("{}", network.kubectl(&["get", "services,endpointslices"])?);
    let programmed = || agent.get(&["frontends"]).is_ok_and(|all| all.contains("10.244.1.12:8080"));
    wait_until("the Service is programmed", SOON, programmed)?;
    Ok(agent)
}

fn from_manifests(network: &OneNode) -> Result<Agent> {
    println!("Starting the agent on tests/manifests ...");
    network.agent(&PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/manifests")))
}

/// An Ingress with TLS whose canary gets a fifth of the requests, and why a request goes where it goes.
fn show_ingress(network: &OneNode) -> Result<()> {
    let pair = network.certificate(HOST, "shop")?;
    println!("\n$ kubectl create secret tls shop-tls --cert shop.crt --key shop.key");
    network.tls_secret("shop-tls", &pair)?;
    println!("$ kubectl apply -f examples/ingress.yaml");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/ingress.yaml");
    print!("{}", network.kubectl(&["apply", "-f", example])?);
    let is_served = || network.curl_tls(HOST, &pair.certificate, &[]).is_ok();
    wait_until("the Ingress is served", SOON, is_served)?;

    println!("{TLS_REQUESTS} requests to https://{HOST}/, a fifth of them to the canary, pod-2:");
    let resolve = format!("{HOST}:443:{NODE}");
    let authority = pair.certificate.to_string_lossy();
    let urls = format!("https://{HOST}/?[1-{TLS_REQUESTS}]");
    let quiet = ["curl", "--silent", "--show-error", "--fail", "--max-time", "30"];
    let target = ["--resolve", &resolve, "--cacert", &authority, &urls];
    let answers = network.client.run([&quiet[..], &target].concat())?;
    let mut spread: BTreeMap<String, usize> = BTreeMap::new();
    for answer in answers.lines() {
        *spread.entry(answer.to_owned()).or_default() += 1;
    }
    for (pod, count) in spread {
        println!("  {pod}  {count:>4}  {}", "#".repeat(count * 60 / TLS_REQUESTS));
    }
    let url = format!("https://{HOST}/cart");
    println!("$ millrace explain {url} --header 'X-Canary: always'");
    let program = program()?;
    let words = [&*program.to_string_lossy(), "explain", &url, "--header", "X-Canary: always"];
    print!("{}", network.node.run(words)?);
    Ok(())
}

/// Commands to try first.
fn print_commands(network: &OneNode) {
    let node = network.node.namespace();
    let client = network.client.namespace();
    let kubeconfig = network.kubeconfig();
    let kubectl =
        format!("nsenter --net=/run/netns/{node} kubectl --kubeconfig {}", kubeconfig.display());
    println!("\nTry it, as root: look, remove a backend, and see which one replies now:");
    println!("  {kubectl} get svc");
    println!(
        "  {kubectl} patch endpointslice web-ipv4 --type=json -p \
         '[{{\"op\": \"remove\", \"path\": \"/endpoints/2\"}}]'"
    );
    println!("  nsenter --net=/run/netns/{client} curl -s 'http://203.0.113.10/?[1-9]'");
}

/// The number of requests that each pod served. One curl sends them all, each over its own connection.
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

/// Escapes the brackets of an IPv6 address, which are patterns to curl.
fn glob(url: &str) -> String {
    match url.split_once("]/") {
        Some((address, rest)) => format!("{}\\]/{rest}", address.replace('[', "\\[")),
        None => url.to_owned(),
    }
}

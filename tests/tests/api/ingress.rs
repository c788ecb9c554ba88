//! `millrace ingress` as a process: what stock kubectl applies is served, explained and reported; it has no privileges,
//! and neither its end nor its upgrade loses a request.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tests::programs::agent::program;
use tests::worlds::one_node::{NODE, OneNode, has_kubectl};
use tests::worlds::topology::{Process, SOON, wait_until};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/ingress.yaml");
const HOST: &str = "shop.example.org";
/// Not the default of `ingress-user`.
const USER: u32 = 61234;

/// Gets a page of the host as the client; `authority`: whose certificates are accepted.
fn get(network: &OneNode, authority: &Path, headers: &[&str]) -> Result<String> {
    network.curl_tls(HOST, authority, headers)
}

fn explain(network: &OneNode, arguments: &[&str]) -> Result<String> {
    let program = program()?;
    let words = [&*program.to_string_lossy(), "explain"];
    network.node.run(words.iter().chain(arguments))
}

/// The child process that serves Ingresses.
fn child(parent: &Process) -> Result<u32> {
    let pid = parent.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?;
    let of_threads =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let all: Vec<String> = of_threads.chain([children]).collect();
    let found = all.iter().flat_map(|list| list.split_ascii_whitespace());
    Ok(found.last().context("no child")?.parse()?)
}

/// A field of `/proc/PID/status`.
fn status(pid: u32, field: &str) -> Result<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    Ok(line
        .context("no such field")?
        .split_ascii_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned())
}

fn standalone(network: &OneNode) -> Result<Process> {
    let user = USER.to_string();
    let more = ["--ingress", "--status-address", NODE, "--ingress-user", &user];
    let mut process = api(network, &more)?;
    process.wait_for_output("serving ingresses", SOON)?;
    Ok(process)
}

fn api(network: &OneNode, more: &[&str]) -> Result<Process> {
    let mut command = network.node.command(program()?);
    let data = network.kubeconfig();
    command
        .args(["standalone", "--api-only", "--node-name", "node"])
        .args(more)
        .arg("--data-dir")
        .arg(data.parent().context("a directory")?);
    network.node.spawn(&mut command)
}

#[test]
fn what_kubectl_applies_is_served_explained_and_reported() -> Result<()> {
    if !has_kubectl() {
        eprintln!("skipped: no kubectl on the PATH");
        return Ok(());
    }
    let network = OneNode::with_pods(3)?;
    let directory = network.topology.directory().to_owned();
    let pair = network.certificate(HOST, "first")?;
    let first = pair.certificate.clone();
    let server = standalone(&network)?;

    let apply = |text: &str| {
        let file = directory.join("object.yaml");
        fs::write(&file, text)?;
        network.kubectl(&["apply", "-f", &file.to_string_lossy()])
    };
    network.tls_secret("shop-tls", &pair)?;
    network.kubectl(&["apply", "-f", EXAMPLE])?;
    let is_served = || get(&network, &first, &[]).is_ok_and(|page| page.starts_with("pod-"));
    wait_until("the Ingress is served", SOON, is_served)?;

    // The canary, which is another object: always, never, and by its share.
    let is_canary =
        || get(&network, &first, &["X-Canary: always"]).is_ok_and(|page| page == "pod-2");
    wait_until("the canary is served", SOON, is_canary)?;
    let mut pods: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..20 {
        *pods.entry(get(&network, &first, &["X-Canary: never"])?).or_default() += 1;
    }
    ensure!(pods.keys().eq(["pod-0", "pod-1"]), "{pods:?}");

    // Without TLS there is a redirect.
    let resolve = format!("{HOST}:80:{NODE}");
    let target = ["--resolve", &resolve, "--output", "/dev/null", "--write-out", "%{redirect_url}"];
    let location = network.client.curl_with(&target, &format!("http://{HOST}/a?b"))?;
    ensure!(location == format!("https://{HOST}/a?b"), "{location}");

    // The status, as people look at it.
    let path = "--for=jsonpath={.status.loadBalancer.ingress[0].ip}=192.0.2.1";
    network.kubectl(&["wait", path, "ingress/shop", "ingress/shop-canary", "--timeout=120s"])?;
    let listed = network.kubectl(&["get", "ingress", "shop"])?;
    ensure!(listed.contains("millrace") && listed.contains(NODE), "{listed}");

    // The explanation.
    let url = format!("https://{HOST}/cart");
    let text = explain(&network, &[&url])?;
    for part in [
        "ingress default/shop, host shop.example.org, path /",
        "terminated here",
        "default/shop-canary: 20 of 100 requests",
        "10.244.1.10:8080, 10.244.1.11:8080",
        "forwarded to one of 2 endpoints of default/shop:http",
    ] {
        ensure!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let text = explain(&network, &[&url, "--header", "X-Canary: always"])?;
    ensure!(text.contains("10.244.1.12:8080") && text.contains("canary-by-header"), "{text}");
    let redirected = explain(&network, &[&format!("http://{HOST}/"), "-o", "json"])?;
    ensure!(redirected.contains("308: redirected to https://shop.example.org/"), "{redirected}");

    // A mistake is reported on its Ingress, and affects no other.
    apply(
        "apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: wrong}
spec:
  ingressClassName: millrace
  rules:
  - host: wrong.example.org
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: none, port: {number: 80}}}}
",
    )?;
    let described = || network.kubectl(&["describe", "ingress", "wrong"]);
    let is_reported =
        || described().is_ok_and(|text| text.contains("Warning") && text.contains("NotServed"));
    wait_until("the mistake is reported", SOON, is_reported)?;
    ensure!(is_served());

    // Passwords in a Secret, which the proxy sees because the Ingress names it.
    let users = "ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=";
    let literal = format!("--from-literal=auth={users}");
    network.kubectl(&["create", "secret", "generic", "users", &literal])?;
    let annotations = "nginx.ingress.kubernetes.io/auth-type=basic";
    let secret = "nginx.ingress.kubernetes.io/auth-secret=users";
    network.kubectl(&["annotate", "ingress", "shop", annotations, secret])?;
    // `ann` and `password`.
    let with_password = ["Authorization: Basic YW5uOnBhc3N3b3Jk"];
    let is_closed = || get(&network, &first, &[]).is_err();
    wait_until("a password is asked for", SOON, is_closed)?;
    let is_open = || get(&network, &first, &with_password).is_ok();
    wait_until("the password is accepted", SOON, is_open)?;
    let wrong = get(&network, &first, &["Authorization: Basic YW5uOndyb25n"]);
    ensure!(wrong.is_err() && is_closed());
    network.kubectl(&["delete", "secret", "users"])?;
    wait_until("nobody has access without the Secret", SOON, || !is_open())?;
    network.kubectl(&["annotate", "ingress", "shop", "nginx.ingress.kubernetes.io/auth-type-"])?;
    network.kubectl(&[
        "annotate",
        "ingress",
        "shop",
        "nginx.ingress.kubernetes.io/auth-secret-",
    ])?;
    wait_until("no password is asked for", SOON, is_served)?;

    // A renewed certificate is used at once, without a restart.
    let renewed = network.certificate(HOST, "second")?;
    network.tls_secret("shop-tls", &renewed)?;
    let second = renewed.certificate;
    wait_until("the new certificate is used", SOON, || get(&network, &second, &[]).is_ok())?;

    // It is another user's process without capabilities. Connections wait while it is restarted.
    let pid = child(&server)?;
    ensure!(status(pid, "Uid")? == USER.to_string() && status(pid, "Gid")? == USER.to_string());
    for set in ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"] {
        ensure!(status(pid, set)?.trim_matches('0').is_empty(), "{set}: {}", status(pid, set)?);
    }
    ensure!(status(pid, "NoNewPrivs")? == "1");
    network.node.run(["kill", "-KILL", &pid.to_string()])?;
    for _ in 0..5 {
        get(&network, &second, &[]).context("while the proxy is restarted")?;
    }

    // It ends with its parent, even if that is killed.
    // Not with its process group.
    let pid = child(&server)?;
    network.node.run(["kill", "-KILL", &server.pid().to_string()])?;
    let is_gone = || !Path::new(&format!("/proc/{pid}")).exists();
    wait_until("the proxy ends with its parent", SOON, is_gone)
}

const SITE: &str = "
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: millrace}
spec: {controller: millrace.io/ingress-controller}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: site}
spec:
  ingressClassName: millrace
  defaultBackend: {service: {name: site, port: {number: 80}}}
---
apiVersion: v1
kind: Service
metadata: {name: site}
spec: {clusterIP: 10.96.0.20, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: site-1, labels: {kubernetes.io/service-name: site}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.10], nodeName: node}]
";

fn proxy(network: &OneNode, manifests: &Path) -> Result<Process> {
    let mut command = network.node.command(program()?);
    command.args(["ingress", "--node-name", "node", "--access-log", "off", "--manifests"]);
    let mut process = network.node.spawn(command.arg(manifests))?;
    process.wait_for_output("serving ingresses", SOON)?;
    Ok(process)
}

/// Sends requests until one fails, each over a connection of its own.
fn keep_requesting(network: &OneNode) -> Result<Process> {
    let requests = format!("http://{NODE}/?[1-1000000]");
    let mut curl = network.client.command("curl");
    curl.args(["--silent", "--show-error", "--fail-early", "--fail", "--no-keepalive"]);
    curl.args(["--header", "Connection: close", "--output", "/dev/null"]);
    let mut requests = network.client.spawn(curl.args(["--write-out", "done\\n", &requests]))?;
    requests.wait_for_output("done", SOON)?;
    Ok(requests)
}

/// Waits for requests that begin after the call.
fn some_are_served(requests: &mut Process) -> Result<()> {
    let count = requests.output().lines().count();
    wait_until("requests are served", SOON, || requests.output().lines().count() > count + 20)?;
    ensure!(!requests.has_ended(), "a request failed: {}", requests.output());
    Ok(())
}

#[test]
fn an_outage_of_the_api_changes_nothing_and_later_changes_apply() -> Result<()> {
    if !has_kubectl() {
        eprintln!("skipped: no kubectl on the PATH");
        return Ok(());
    }
    let network = OneNode::with_pods(2)?;
    let file = network.write_manifests(SITE)?;
    let apply = || network.kubectl(&["apply", "-f", &file.to_string_lossy()]).is_ok();
    let server = api(&network, &[])?;
    wait_until("the API serves", SOON, apply)?;
    let mut command = network.node.command(program()?);
    command.args(["ingress", "--node-name", "node", "--access-log", "off", "--kubeconfig"]);
    let mut proxy = network.node.spawn(command.arg(network.kubeconfig()))?;
    proxy.wait_for_output("serving ingresses", SOON)?;
    let mut requests = keep_requesting(&network)?;

    server.kill();
    some_are_served(&mut requests)?;
    // The proxy has noticed.
    proxy.wait_for_output("WARN", SOON)?;
    some_are_served(&mut requests)?;

    let _server = api(&network, &[])?;
    fs::write(&file, SITE.replace("10.244.1.10", "10.244.1.11"))?;
    wait_until("the API serves again", SOON, apply)?;
    network.wait_for_pod(&format!("http://{NODE}/"), "pod-1")?;
    some_are_served(&mut requests)
}

/// Each request has a connection of its own, so that some arrive at every moment of the upgrade.
#[test]
fn an_upgrade_takes_over_the_ports_without_a_failed_request() -> Result<()> {
    let network = OneNode::with_pods(1)?;
    let manifests = network.write_manifests(SITE)?;
    let mut old = proxy(&network, &manifests)?;
    let mut requests = keep_requesting(&network)?;
    for _ in 0..3 {
        let new = proxy(&network, &manifests)?;
        ensure!(new.output().contains("taken over"), "{}", new.output());
        let status = old.wait(SOON)?;
        ensure!(status.success(), "the old proxy ended with {status}: {}", old.output());
        old = new;
    }
    // Some requests of the last proxy alone.
    some_are_served(&mut requests)?;
    requests.kill();

    // Ending, it is not ready any more, and ends with success.
    old.signal(Signal::SIGTERM)?;
    ensure!(old.wait(Duration::from_secs(120))?.success(), "{}", old.output());
    Ok(())
}

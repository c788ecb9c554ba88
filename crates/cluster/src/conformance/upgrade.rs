//! A rolling upgrade of Millrace under load: no request of any client may fail.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::worlds::topology::{Host, wait_until};

use super::results::Results;
use crate::cluster::Cluster;
use crate::images::AGNHOST;

const NAMESPACE: &str = "upgrade";
const POD_PORT: u16 = 9376;
const LIMIT: Duration = Duration::from_secs(120);
/// Of one request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests of each client before the upgrade begins.
const WARM_UP: usize = 200;
const CLIENTS: usize = 4;
const WORKLOADS: [&str; 2] = ["daemonset/millrace", "deployment/millrace-controller"];

/// Sends requests to the ClusterIP until it finds a file; prints why a request failed, and how many succeeded and failed.
const LOOP: &str = "good=0; bad=0; while [ ! -e /tmp/stop ]; do \
    if why=$(curl -sSf --max-time 5 -o /dev/null http://$WEB_SERVICE_HOST/ 2>&1); then good=$((good+1)); \
    elif [ $good -gt 0 ]; then bad=$((bad+1)); echo failed at $(date +%T): $why; fi; \
    echo $good $bad; done";

pub fn run_upgrade_suite(cluster: &mut Cluster, log: &Path) -> Result<Results> {
    let mut log = File::create(log)?;
    let service = create_workloads(cluster)?;
    let outside = OutsideClients::start(&cluster.network.client, SocketAddr::new(service, 80));
    wait_until("all clients have sent requests", LIMIT, || {
        outside.requests() >= WARM_UP * CLIENTS
            && inside_counts(cluster).is_ok_and(|(good, _)| good >= WARM_UP)
    })?;
    for workload in WORKLOADS {
        cluster.plane.kubectl(&["-n", "kube-system", "rollout", "restart", workload])?;
        cluster.plane.kubectl(&[
            "-n",
            "kube-system",
            "rollout",
            "status",
            "--timeout=600s",
            workload,
        ])?;
    }
    cluster.plane.kubectl(&["-n", NAMESPACE, "exec", "client", "--", "touch", "/tmp/stop"])?;
    let (succeeded, failures) = outside.stop()?;
    let (good, bad) = inside_counts(cluster)?;
    let inside = cluster.plane.kubectl(&["-n", NAMESPACE, "logs", "client"])?;
    let reasons: Vec<_> = inside.lines().filter(|line| line.starts_with("failed")).collect();
    writeln!(
        log,
        "outside: {succeeded} succeeded, failures: {failures:#?}\ninside: {good} succeeded, failures: {reasons:#?}"
    )?;
    println!("Requests: {succeeded} from outside, {good} from a pod");

    let mut results = Results::default();
    let check = |failed: usize, of: usize| -> Result<()> {
        ensure!(failed == 0, "{failed} of {of} requests failed");
        Ok(())
    };
    results.add(
        "rolling upgrade",
        "no request from outside fails",
        check(failures.len(), failures.len() + succeeded),
    );
    results.add("rolling upgrade", "no request from a pod fails", check(bad, bad + good));
    cluster.plane.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    Ok(results)
}

/// Creates endpoints, their Service, and a pod that sends requests; returns the Service's address.
fn create_workloads(cluster: &Cluster) -> Result<IpAddr> {
    let labels = json!({"app": "web"});
    let container =
        |name: &str| json!({"name": name, "image": AGNHOST, "imagePullPolicy": "Never"});
    let mut web = container("web");
    web["args"] = json!(["serve-hostname", "--http", "--port", POD_PORT.to_string()]);
    web["readinessProbe"] = json!({"httpGet": {"path": "/", "port": POD_PORT}, "periodSeconds": 1});
    let mut client = container("client");
    client["command"] = json!(["sh", "-c", LOOP]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {
                "replicas": 6, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [web]}},
            },
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {
                "type": "LoadBalancer", "selector": labels,
                "ports": [{"port": 80, "targetPort": POD_PORT}],
            },
        },
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client", "namespace": NAMESPACE},
            "spec": {"containers": [client], "restartPolicy": "Never"},
        },
    ]});
    cluster.plane.apply("upgrade.json", &list.to_string())?;
    cluster.plane.kubectl(&[
        "-n",
        NAMESPACE,
        "rollout",
        "status",
        "--timeout=180s",
        "deployment/web",
    ])?;
    cluster.plane.kubectl(&[
        "-n",
        NAMESPACE,
        "wait",
        "--for=condition=ready",
        "--timeout=120s",
        "pod/client",
    ])?;
    let mut address = None;
    wait_until("the Service has an address", LIMIT, || {
        let output = ["-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"];
        let shown = cluster
            .plane
            .kubectl(&[&["-n", NAMESPACE, "get", "service", "web"], &output[..]].concat());
        address = shown.ok().and_then(|shown| shown.parse().ok());
        address.is_some()
    })?;
    let address: IpAddr = address.context("the Service has an address")?;
    wait_until("the address replies", LIMIT, || {
        cluster.network.client.enter(|| request(SocketAddr::new(address, 80))).is_ok()
    })?;
    Ok(address)
}

/// How many requests of the pod succeeded, and failed after the first success: before it, the Service may have no endpoints.
fn inside_counts(cluster: &Cluster) -> Result<(usize, usize)> {
    let last = cluster.plane.kubectl(&["-n", NAMESPACE, "logs", "client", "--tail=1"])?;
    let mut counts = last.split_whitespace().map(str::parse);
    let (good, bad) = (counts.next().context("no count")??, counts.next().context("no count")??);
    Ok((good, bad))
}

struct OutsideClients {
    stopped: Arc<AtomicBool>,
    succeeded: Arc<std::sync::atomic::AtomicUsize>,
    threads: Vec<JoinHandle<Result<Vec<String>>>>,
}

impl OutsideClients {
    /// Starts threads that send one request after the other, each over a new connection.
    fn start(client: &Host, server: SocketAddr) -> Self {
        let (stopped, succeeded) = (Arc::<AtomicBool>::default(), Arc::default());
        let thread = |_| {
            let (client, stopped, succeeded) =
                (client.clone(), Arc::clone(&stopped), Arc::clone(&succeeded));
            thread::spawn(move || client.enter(|| Ok(send_requests(server, &stopped, &succeeded))))
        };
        let threads = (0..CLIENTS).map(thread).collect();
        Self { stopped, succeeded, threads }
    }

    fn requests(&self) -> usize {
        self.succeeded.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that succeeded, and the errors of the others.
    fn stop(self) -> Result<(usize, Vec<String>)> {
        self.stopped.store(true, Ordering::Relaxed);
        let mut failures = Vec::new();
        for thread in self.threads {
            let failed = thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?;
            failures.extend(failed?);
        }
        Ok((self.succeeded.load(Ordering::Relaxed), failures))
    }
}

fn send_requests(
    server: SocketAddr,
    stopped: &AtomicBool,
    succeeded: &std::sync::atomic::AtomicUsize,
) -> Vec<String> {
    let mut failures = Vec::new();
    while !stopped.load(Ordering::Relaxed) {
        match request(server) {
            Ok(()) => drop(succeeded.fetch_add(1, Ordering::Relaxed)),
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    failures
}

fn request(server: SocketAddr) -> Result<()> {
    let mut connection = TcpStream::connect_timeout(&server, PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    write!(connection, "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    connection.read_to_string(&mut response)?;
    ensure!(response.starts_with("HTTP/1.1 200"), "got {response:?}");
    Ok(())
}

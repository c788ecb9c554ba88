//! Clients outside the cluster and in a pod that send requests to a Service, while something happens to the cluster.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::worlds::topology::{Host, wait_until};

use super::results::Results;
use crate::cluster::Cluster;
use crate::images::AGNHOST;

const NAMESPACE: &str = "load";
const POD_PORT: u16 = 9376;
const LIMIT: Duration = Duration::from_secs(180);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests of a client that succeed one after the other once nothing fails any more.
const RUN_LENGTH: usize = 200;
const CLIENTS: usize = 4;

/// Sends requests to the ClusterIP. After each it prints how many succeeded and failed so far, and how many succeeded since
/// the last failure. A failure before the first success is none: the Service may have had no endpoints.
const LOOP: &str = "good=0; bad=0; run=0; while :; do \
    if why=$(curl -sSf --max-time 5 -o /dev/null http://$WEB_SERVICE_HOST/ 2>&1); then good=$((good+1)); run=$((run+1)); \
    elif [ $good -gt 0 ]; then bad=$((bad+1)); run=0; echo failed at $(date +%T): $why; fi; \
    echo $good $bad $run; done";

/// Where clients outside send requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The address of the Service's load balancer
    LoadBalancer,
    /// The port of all nodes, each of another client
    NodePort,
}

/// Six pods, their Service, and clients that send requests to it, each over a new connection.
pub(crate) struct ConnectionLoad {
    targets: Vec<SocketAddr>,
    /// The node that announces the load balancer's address. The pod that sends requests is on another one.
    pub announcer: usize,
    clients: Vec<Arc<OutsideClient>>,
    /// Requests of the pod that earlier reports contain: succeeded and failed.
    reported: (usize, usize),
}

#[derive(Default)]
struct OutsideClient {
    stopped: AtomicBool,
    succeeded: AtomicUsize,
    /// Requests that succeeded since the last failure.
    run: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

/// Requests since the last report.
pub(crate) struct LoadReport {
    outside: ClientReport,
    inside: ClientReport,
}

struct ClientReport {
    succeeded: usize,
    failures: Vec<String>,
}

impl ConnectionLoad {
    /// Creates the workloads, starts the clients, and waits until requests of all succeed.
    pub fn start(cluster: &Cluster, target: Target) -> Result<Self> {
        create_endpoints(cluster)?;
        let targets = match target {
            Target::LoadBalancer => vec![wait_for_address(cluster)?],
            Target::NodePort => node_ports(cluster)?,
        };
        wait_until("all targets reply", LIMIT, || {
            let mut targets = targets.iter();
            targets.all(|target| cluster.network.client.enter(|| request(*target)).is_ok())
        })?;
        let announcer = match target {
            Target::LoadBalancer => announcing_node(cluster, targets[0].ip())?,
            Target::NodePort => 0,
        };
        let nodes = &cluster.network.nodes;
        create_client(cluster, &nodes[(announcer + 1) % nodes.len()].1.name)?;
        let clients: Vec<Arc<OutsideClient>> = (0..CLIENTS).map(|_| Arc::default()).collect();
        for (client, target) in clients.iter().zip(targets.iter().cycle()) {
            let (host, client, target) =
                (cluster.network.client.clone(), Arc::clone(client), *target);
            thread::spawn(move || client.send_requests(&host, target));
        }
        let load = Self { targets, announcer, clients, reported: (0, 0) };
        load.wait_for_runs(cluster)?;
        Ok(load)
    }

    /// Waits until each client has sent requests from now on, the last of which have all succeeded.
    pub fn wait_for_runs(&self, cluster: &Cluster) -> Result<()> {
        for client in &self.clients {
            client.run.store(0, Ordering::Relaxed);
        }
        let mut first = None;
        wait_until("requests of all clients succeed", LIMIT, || {
            let inside = inside_counts(cluster).is_ok_and(|[good, _, run]| {
                run >= RUN_LENGTH && good >= *first.get_or_insert(good) + RUN_LENGTH
            });
            let mut outside = self.clients.iter();
            inside && outside.all(|client| client.run.load(Ordering::Relaxed) >= RUN_LENGTH)
        })
    }

    /// Waits until each client outside has sent that many more requests: without the API server, those of the pod can't be
    /// counted.
    pub fn wait_for_requests_outside(&self) -> Result<()> {
        let before: Vec<_> = self.clients.iter().map(|client| client.requests()).collect();
        wait_until("all clients outside have sent requests", LIMIT, || {
            let mut pairs = self.clients.iter().zip(&before);
            pairs.all(|(client, before)| client.requests() >= before + RUN_LENGTH)
        })
    }

    /// Reports the requests since the last report.
    pub fn report(&mut self, cluster: &Cluster) -> Result<LoadReport> {
        let mut outside = ClientReport { succeeded: 0, failures: Vec::new() };
        for client in &self.clients {
            outside.succeeded += client.succeeded.swap(0, Ordering::Relaxed);
            let mut failures = client.failures.lock().unwrap_or_else(PoisonError::into_inner);
            outside.failures.append(&mut failures);
        }
        let [good, bad, _] = inside_counts(cluster)?;
        let output = cluster.plane.kubectl(&["-n", NAMESPACE, "logs", "client"])?;
        let failures = output.lines().filter(|line| line.starts_with("failed"));
        let (reported_good, reported_bad) = std::mem::replace(&mut self.reported, (good, bad));
        let inside = ClientReport {
            succeeded: good - reported_good,
            failures: failures.take(bad).skip(reported_bad).map(str::to_owned).collect(),
        };
        Ok(LoadReport { outside, inside })
    }

    /// Replaces all endpoints; waits until requests reach only new ones.
    pub fn replace_endpoints(&self, cluster: &Cluster) -> Result<()> {
        let old = endpoint_names(cluster)?;
        cluster.plane.kubectl(&["-n", NAMESPACE, "rollout", "restart", "deployment/web"])?;
        wait_for_deployment(cluster)?;
        let server = self.targets[0];
        let is_new = |response: String| {
            let name = response.lines().last().unwrap_or_default();
            old.iter().all(|old| old != name)
        };
        wait_until("requests reach only new endpoints", LIMIT, || {
            let replies = || cluster.network.client.enter(|| request(server));
            (0..RUN_LENGTH).all(|_| replies().is_ok_and(is_new))
        })
    }

    /// Fails unless a node has endpoints.
    pub fn ensure_endpoints_on(&self, cluster: &Cluster, node: &str) -> Result<()> {
        let field = format!("--field-selector=spec.nodeName={node}");
        let pods = ["-n", NAMESPACE, "get", "pods", "-l", "app=web", &field, "-o", "name"];
        ensure!(!cluster.plane.kubectl(&pods)?.is_empty(), "no pod of the Service is on {node}");
        Ok(())
    }

    /// Stops the clients, and removes the workloads.
    pub fn end(self, cluster: &Cluster) -> Result<()> {
        drop(self);
        cluster.plane.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=180s"]).map(drop)
    }
}

impl Drop for ConnectionLoad {
    fn drop(&mut self) {
        for client in &self.clients {
            client.stopped.store(true, Ordering::Relaxed);
        }
    }
}

impl OutsideClient {
    fn send_requests(&self, host: &Host, server: SocketAddr) {
        let sent = host.enter(|| {
            while !self.stopped.load(Ordering::Relaxed) {
                match request(server) {
                    Ok(_) => {
                        self.succeeded.fetch_add(1, Ordering::Relaxed);
                        self.run.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => self.add_failure(format!("{error:#}")),
                }
            }
            Ok(())
        });
        if let Err(error) = sent {
            self.add_failure(format!("the client can't start: {error:#}"));
        }
    }

    fn add_failure(&self, why: String) {
        self.run.store(0, Ordering::Relaxed);
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(why);
    }

    fn requests(&self) -> usize {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        self.succeeded.load(Ordering::Relaxed) + failures.len()
    }
}

impl LoadReport {
    /// Adds the results that no request failed.
    pub fn add_to(&self, results: &mut Results, group: &str, log: &mut File) -> Result<()> {
        self.add_with_limit(0, "no request fails", results, group, log)
    }

    /// Adds the results that no client lost more than the connection that it had.
    pub fn add_broken_to(&self, results: &mut Results, group: &str, log: &mut File) -> Result<()> {
        self.add_with_limit(1, "only open connections break", results, group, log)
    }

    fn add_with_limit(
        &self,
        limit_of_client: usize,
        name: &str,
        results: &mut Results,
        group: &str,
        log: &mut File,
    ) -> Result<()> {
        self.write(group, log)?;
        for (from, clients, report) in
            [("outside", CLIENTS, &self.outside), ("a pod", 1, &self.inside)]
        {
            let (failed, all) = (report.failures.len(), report.failures.len() + report.succeeded);
            let first = report.failures.first().map(String::as_str).unwrap_or_default();
            let result = if failed <= limit_of_client * clients {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{failed} of {all} requests failed; the first: {first}"))
            };
            results.add(group, format!("{group}: {name}, from {from}"), result);
        }
        Ok(())
    }

    /// Prints the counts, and writes the failures to a log.
    pub fn write(&self, group: &str, log: &mut File) -> Result<()> {
        for (from, report) in [("outside", &self.outside), ("a pod", &self.inside)] {
            let (succeeded, failed) = (report.succeeded, report.failures.len());
            println!("{group}: {succeeded} requests from {from} succeeded, {failed} failed");
            writeln!(log, "{group}, {from}: {succeeded} succeeded, {failed} failed")?;
            for failure in &report.failures {
                writeln!(log, "  {failure}")?;
            }
        }
        Ok(())
    }
}

fn create_endpoints(cluster: &Cluster) -> Result<()> {
    let labels = json!({"app": "web"});
    let container = json!({
        "name": "web", "image": AGNHOST, "imagePullPolicy": "Never",
        "args": ["serve-hostname", "--http", "--port", POD_PORT.to_string()],
        "readinessProbe": {"httpGet": {"path": "/", "port": POD_PORT}, "periodSeconds": 1},
        // Until service proxies know that the pod ends.
        "lifecycle": {"preStop": {"sleep": {"seconds": 10}}},
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {
                "replicas": 6, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {
                "type": "LoadBalancer", "selector": labels,
                "ports": [{"port": 80, "targetPort": POD_PORT}],
            },
        },
    ]});
    cluster.plane.apply("endpoints.json", &list.to_string())?;
    wait_for_deployment(cluster)
}

/// Creates the pod that sends requests.
fn create_client(cluster: &Cluster, node: &str) -> Result<()> {
    let container = json!({
        "name": "client", "image": AGNHOST, "imagePullPolicy": "Never", "command": ["sh", "-c", LOOP],
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client", "namespace": NAMESPACE},
        "spec": {
            "containers": [container], "nodeName": node, "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
        },
    });
    cluster.plane.apply("client.json", &pod.to_string())
}

fn wait_for_deployment(cluster: &Cluster) -> Result<()> {
    let status = ["rollout", "status", "--timeout=180s", "deployment/web"];
    cluster.plane.kubectl(&[&["-n", NAMESPACE], &status[..]].concat()).map(drop)
}

/// The names of all pods of the Service, and of those that end.
fn endpoint_names(cluster: &Cluster) -> Result<Vec<String>> {
    let output = ["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"];
    let names = cluster.plane.kubectl(&[&["-n", NAMESPACE], &output[..]].concat())?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

fn wait_for_address(cluster: &Cluster) -> Result<SocketAddr> {
    let mut address = None;
    wait_until("the Service has an address", LIMIT, || {
        let shown = read_service(cluster, "{.status.loadBalancer.ingress[0].ip}");
        address = shown.ok().and_then(|shown| shown.parse().ok());
        address.is_some()
    })?;
    Ok(SocketAddr::new(address.context("the Service has an address")?, 80))
}

fn node_ports(cluster: &Cluster) -> Result<Vec<SocketAddr>> {
    let port = read_service(cluster, "{.spec.ports[0].nodePort}")?.parse()?;
    let nodes = cluster.network.nodes.iter();
    nodes.map(|(_, node)| Ok(SocketAddr::new(node.node[0].parse()?, port))).collect()
}

fn read_service(cluster: &Cluster, path: &str) -> Result<String> {
    let output = format!("jsonpath={path}");
    cluster.plane.kubectl(&["-n", NAMESPACE, "get", "service", "web", "-o", &output])
}

/// The node whose link-layer address the router has for a load balancer's address.
fn announcing_node(cluster: &Cluster, address: IpAddr) -> Result<usize> {
    let neighbour = cluster.network.router.ip(&format!("neigh show {address}"))?;
    let position = cluster.network.nodes.iter().position(|(_, node)| neighbour.contains(&node.mac));
    position.with_context(|| format!("no node announces {address}: {neighbour:?}"))
}

/// What the pod printed last: requests that succeeded, failed, and succeeded since the last failure.
fn inside_counts(cluster: &Cluster) -> Result<[usize; 3]> {
    let last = cluster.plane.kubectl(&["-n", NAMESPACE, "logs", "client", "--tail=2"])?;
    let counts = last.lines().rev().find(|line| !line.starts_with("failed")).unwrap_or_default();
    let counts = counts.split_whitespace().map(str::parse).collect::<Result<Vec<_>, _>>()?;
    counts.try_into().map_err(|counts| anyhow::anyhow!("{counts:?} are not three counts"))
}

fn request(server: SocketAddr) -> Result<String> {
    let mut connection = TcpStream::connect_timeout(&server, REQUEST_TIMEOUT)?;
    connection.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    write!(connection, "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    connection.read_to_string(&mut response)?;
    ensure!(response.starts_with("HTTP/1.1 200"), "got {response:?}");
    Ok(response)
}

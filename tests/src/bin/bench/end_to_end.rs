//! From a real client to a real server, through a NodePort and past it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tests::one_node::{NODE, OneNode};

use super::report::{Record, Sample};

const NODE_PORT: u16 = 30080;
const STREAM_NODE_PORT: u16 = 30521;
const STREAM_PORT: u16 = 5201;
/// Behind the Service.
const POD: &str = "10.244.1.10";
/// Dialled directly. It is another pod: on one and the same, the connections of both ways would
/// meet each other's ports in TIME-WAIT.
const DIRECT: &str = "10.244.1.11";
/// Connections in flight.
const CLIENTS: usize = 4;

const MANIFESTS: &str = "\
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: NodePort, clusterIP: 10.96.0.10,
  ports: [{name: http, port: 80, nodePort: 30080}, {name: stream, port: 5201, nodePort: 30521}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
  metadata: {name: web-1, labels: {kubernetes.io/service-name: web}},
  ports: [{name: http, port: 8080}, {name: stream, port: 5201}],
  endpoints: [{addresses: [10.244.1.10], nodeName: node}]}
";

pub fn measure(quick: bool, wants: impl Fn(&str) -> bool) -> Result<Vec<Record>> {
    let crr = wants("e2e.nodeport.crr") || wants("e2e.direct.crr");
    let stream = wants("e2e.nodeport.stream") || wants("e2e.direct.stream");
    if !crr && !stream {
        return Ok(Vec::new());
    }
    let network = OneNode::with_pods(2)?;
    let manifests = network.topology.directory().join("bench.yaml");
    fs::write(&manifests, MANIFESTS)?;
    let agent = network.agent(&manifests)?;
    let _behind = network.pods[0].host.iperf3_server(&format!("{POD}:{STREAM_PORT}"))?;
    let _direct = network.pods[1].host.iperf3_server(&format!("{DIRECT}:{STREAM_PORT}"))?;

    let (rounds, seconds) = if quick { (1, 1) } else { (5, 2) };
    let mut samples: [Sample; 4] = Default::default();
    for _ in 0..rounds {
        if crr {
            samples[0].push(requests(&network, NODE, NODE_PORT, seconds)?);
            samples[1].push(requests(&network, DIRECT, 8080, seconds)?);
        }
        if stream {
            samples[2].push(throughput(&network, NODE, STREAM_NODE_PORT, seconds)?);
            samples[3].push(throughput(&network, DIRECT, STREAM_PORT, seconds)?);
        }
    }
    // The proof that the NodePort was Millrace's work.
    let frontends = agent.get(&["frontends", "-o", "json"])?;
    let frontends: Vec<serde_json::Value> = serde_json::from_str(&frontends)?;
    let flows: u64 = frontends.iter().filter_map(|f| f["newFlows"].as_u64()).max().unwrap_or(0);
    ensure!(flows > 0, "no connection went through the balancer");

    let cases = [
        ("e2e.nodeport.crr", "requests/s"),
        ("e2e.direct.crr", "requests/s"),
        ("e2e.nodeport.stream", "Gbit/s"),
        ("e2e.direct.stream", "Gbit/s"),
    ];
    Ok(cases
        .into_iter()
        .zip(samples)
        .filter(|((case, _), sample)| wants(case) && sample.median() > 0.0)
        .map(|((case, unit), sample)| Record::end_to_end(case, sample.median(), unit))
        .collect())
}

/// Requests a second, each over a connection of its own.
fn requests(network: &OneNode, address: &str, port: u16, seconds: u64) -> Result<f64> {
    let server: SocketAddr = format!("{address}:{port}").parse()?;
    let ended = Instant::now() + Duration::from_secs(seconds);
    let workers: Vec<Result<u64>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(move || {
                    network.client.enter(move || {
                        let mut done = 0;
                        while Instant::now() < ended {
                            request(server)?;
                            done += 1;
                        }
                        Ok(done)
                    })
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().expect("a client does not panic")).collect()
    });
    let total = workers.into_iter().sum::<Result<u64>>()?;
    Ok(total as f64 / seconds as f64)
}

fn request(server: SocketAddr) -> Result<()> {
    let mut connection = TcpStream::connect_timeout(&server, Duration::from_secs(5))?;
    connection.set_read_timeout(Some(Duration::from_secs(5)))?;
    connection.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::with_capacity(512);
    connection.read_to_end(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "not answered");
    Ok(())
}

/// Gbit/s that arrive over one connection.
fn throughput(network: &OneNode, address: &str, port: u16, seconds: u64) -> Result<f64> {
    let (port, seconds) = (port.to_string(), seconds.to_string());
    let dial = ["iperf3", "--client", address, "--port", &port, "--time", &seconds, "--json"];
    let said = network.client.run(dial)?;
    let report: serde_json::Value = serde_json::from_str(&said)?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.context("iperf3 reported no throughput")? / 1e9)
}

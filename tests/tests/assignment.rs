//! How long it takes from the creation of a Service of type LoadBalancer until its status has an
//! address, and until a client on the link reaches it: `millrace standalone`, the API over HTTP,
//! ARP.
//!
//! `cargo test --release -p tests --test assignment -- --ignored --nocapture`

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::PostParams;
use lb_userspace::kinds::AddressPool;
use serde_json::json;
use tests::agent::Agent;
use tests::api_server;
use tests::one_node::{DEVICE, OneNode};
use tests::topology::{Host, SOON};
use tokio::runtime::Builder;

const COUNT: usize = 200;
/// Services before the measurement: with the first one, the node begins to listen to others.
const UNCOUNTED: usize = 3;

#[derive(Default)]
struct Times {
    assigned: Vec<Duration>,
    reached: Vec<Duration>,
}

#[test]
#[ignore = "a measurement"]
fn from_creation_to_address_and_to_reachability() -> Result<()> {
    let network = OneNode::with_pods(1)?;
    // Otherwise the client asks again only after a second if its first question is too early.
    let retry = "net.ipv4.neigh.eth0.retrans_time_ms=5";
    network.client.sysctl(&[retry, "net.ipv4.neigh.eth0.mcast_solicit=100"])?;
    let data = network.topology.directory().join("data");
    let pins = network.topology.pins();
    let _agent = Agent::standalone(&network.node, &pins, &data, DEVICE, &["--xdp-mode", "off"])?;
    let kubeconfig = data.join("kubeconfig");
    let mut times = network.node.enter(|| {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(measure(&kubeconfig, &network.client))
    })?;
    for (what, times) in [("address", &mut times.assigned), ("reachable", &mut times.reached)] {
        times.sort();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        let (p50, p99, last) = (at(50), at(99), at(100));
        println!("from creation to {what}: p50 {p50:.1?}, p99 {p99:.1?}, longest {last:.1?}");
    }
    Ok(())
}

async fn measure(kubeconfig: &Path, client: &Host) -> Result<Times> {
    let api = api_server::client(kubeconfig).await?;
    let pool = json!({
        "apiVersion": "millrace.io/v1alpha1", "kind": "AddressPool",
        "metadata": {"name": "measured"}, "spec": {"addresses": ["192.0.2.16-192.0.2.250"]}
    });
    let pool: AddressPool = serde_json::from_value(pool)?;
    Api::all(api.clone()).create(&PostParams::default(), &pool).await?;
    let services: Api<Service> = Api::default_namespaced(api.clone());
    let slices: Api<EndpointSlice> = Api::default_namespaced(api);
    let mut times = Times::default();
    for number in 0..COUNT + UNCOUNTED {
        let name = format!("web-{number}");
        slices.create(&PostParams::default(), &slice(&name)?).await?;
        let began = Instant::now();
        services.create(&PostParams::default(), &service(&name)?).await?;
        let address = loop {
            ensure!(began.elapsed() < SOON, "{name} got no address");
            let status = services.get_status(&name).await?.status.unwrap_or_default();
            let points = status.load_balancer.and_then(|balancer| balancer.ingress);
            if let Some(address) = points.into_iter().flatten().find_map(|point| point.ip) {
                break address;
            }
        };
        let assigned = began.elapsed();
        let target: SocketAddr = format!("{address}:80").parse()?;
        client
            .enter(|| Ok(TcpStream::connect_timeout(&target, SOON)?))
            .with_context(|| format!("{target} of {name}"))?;
        if number >= UNCOUNTED {
            times.assigned.push(assigned);
            times.reached.push(began.elapsed());
        }
    }
    Ok(times)
}

fn service(name: &str) -> Result<Service> {
    let spec = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
    Ok(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?)
}

fn slice(service: &str) -> Result<EndpointSlice> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"port": 8080}],
        "endpoints": [{"addresses": ["10.244.1.10"], "nodeName": "node"}]
    }))?)
}

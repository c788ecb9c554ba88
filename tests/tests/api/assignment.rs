//! From the creation of a Service of type LoadBalancer to its address, to a client on the link that
//! reaches it, and to the BGP UPDATE that a router gets: `millrace standalone`, the API over HTTP,
//! ARP.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fuzz::bgp::router::{RawRouter, apply_update};
use k8s_openapi::api::core::v1::{Event, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use lb_bgp::wire::MessageKind;
use serde_json::{Value, json};
use tests::programs::agent::Agent;
use tests::programs::api_server;
use tests::worlds::one_node::{CLIENT, DEVICE, OneNode};
use tests::worlds::topology::{Host, SOON};
use tokio::runtime::Builder;
use tokio::time::sleep;

/// The IPv4 prefixes of a router after an UPDATE.
type Update = BTreeSet<[u8; 5]>;

#[test]
fn a_created_service_is_reachable_and_advertised_and_a_deleted_one_is_withdrawn() -> Result<()> {
    with_standalone(async |world| {
        world.create("web").await?;
        world.delete("web").await
    })
}

/// A node with a pool of addresses and a router, as clients of its API see them.
struct World<'a> {
    client: &'a Host,
    services: Api<Service>,
    slices: Api<EndpointSlice>,
    updates: Receiver<Update>,
}

fn with_standalone(act: impl AsyncFnOnce(World<'_>) -> Result<()> + Send) -> Result<()> {
    let network = OneNode::warm(1)?;
    // Otherwise the client asks again only after a second if its first question is too early.
    let retry = "net.ipv4.neigh.eth0.retrans_time_ms=5";
    network.client.sysctl(&[retry, "net.ipv4.neigh.eth0.mcast_solicit=100"])?;
    let listener = network.client.enter(|| Ok(TcpListener::bind((CLIENT, 179))?))?;
    let (sender, updates) = channel();
    // It ends with the agent, or with the other end of the channel.
    thread::spawn(move || route(&listener, &sender));
    let data = network.topology.directory().join("data");
    let pins = network.pin_path();
    let _agent = Agent::standalone(&network.node, &pins, &data, DEVICE, &["--xdp-mode", "off"])?;
    network.node.enter(|| {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let api = api_server::build_client(&data.join("kubeconfig")).await?;
            api_server::create_objects(&api, pool_and_peer()).await?;
            let services = Api::default_namespaced(api.clone());
            let slices = Api::default_namespaced(api);
            updates.recv_timeout(SOON).context("no session")?;
            act(World { client: &network.client, services, slices, updates }).await
        })
    })
}

/// The router: one session, and what it has at its beginning and after each UPDATE.
fn route(listener: &TcpListener, updates: &Sender<Update>) -> Result<()> {
    let (stream, _) = listener.accept()?;
    let mut router = RawRouter::new(stream);
    router.establish(64_513)?;
    let mut held = BTreeSet::new();
    updates.send(held.clone())?;
    loop {
        let body = router.next(MessageKind::Update)?;
        apply_update(&body, &mut held);
        updates.send(held.clone())?;
    }
}

fn pool_and_peer() -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "millrace.io/v1alpha1", "kind": "AddressPool",
            "metadata": {"name": "pool"}, "spec": {"addresses": ["192.0.2.16-192.0.2.250"]},
        }),
        json!({
            "apiVersion": "millrace.io/v1alpha1", "kind": "BGPPeer", "metadata": {"name": "router"},
            "spec": {"address": CLIENT, "localASN": 64_512, "peerASN": 64_513},
        }),
    ]
}

impl World<'_> {
    /// Creates a Service, and waits until it has an address, a client reaches it, the router has it, and an Event says who
    /// announces it.
    async fn create(&self, name: &str) -> Result<()> {
        self.slices.create(&PostParams::default(), &slice(name)?).await?;
        let began = Instant::now();
        self.services.create(&PostParams::default(), &service(name)?).await?;
        let address: Ipv4Addr = loop {
            ensure!(began.elapsed() < SOON, "{name} got no address");
            let status = self.services.get_status(name).await?.status.unwrap_or_default();
            let points = status.load_balancer.and_then(|balancer| balancer.ingress);
            if let Some(address) = points.into_iter().flatten().find_map(|point| point.ip) {
                break address.parse()?;
            }
        };
        let target = SocketAddr::from((address, 80));
        self.client
            .enter(|| Ok(TcpStream::connect_timeout(&target, SOON)?))
            .with_context(|| format!("{target} of {name}"))?;
        let [a, b, c, d] = address.octets();
        let prefix = [32, a, b, c, d];
        self.wait_for_update(|held| held.contains(&prefix)).context(address)?;
        self.wait_for_event(name, &format!("{address} is announced by ")).await
    }

    /// Waits for an Event of a Service that says who announces it.
    async fn wait_for_event(&self, service: &str, message: &str) -> Result<()> {
        let events: Api<Event> = Api::default_namespaced(self.services.clone().into_client());
        let announced = ListParams::default().fields("reason=AddressAnnounced");
        let is_wanted = |event: &Event| {
            event.involved_object.name.as_deref() == Some(service)
                && event.message.as_ref().is_some_and(|text| text.starts_with(message))
        };
        let began = Instant::now();
        while !events.list(&announced).await?.iter().any(is_wanted) {
            ensure!(began.elapsed() < SOON, "no Event says who announces {service}");
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.services.delete(name, &DeleteParams::default()).await?;
        self.wait_for_update(BTreeSet::is_empty).context("withdrawn")
    }

    /// Waits for the UPDATE after which something holds.
    fn wait_for_update(&self, so: impl Fn(&BTreeSet<[u8; 5]>) -> bool) -> Result<()> {
        while !so(&self.updates.recv_timeout(SOON)?) {}
        Ok(())
    }
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

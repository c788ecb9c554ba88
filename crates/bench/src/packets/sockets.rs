//! What the socket hooks add to the system calls of a node's processes. BPF_PROG_TEST_RUN does not run such programs.

use std::net::SocketAddr;

use crate::figures::Sample;
use ::tests::programs::agent::Agent;
use ::tests::worlds::one_node::OneNode;
use anyhow::{Result, ensure};

use crate::progress::Progress;

use super::interrupt::check_interrupted;
use super::pattern::Pattern;
use super::record::CaseRecord;
use super::socket_timer::{Operation, Timer};

/// A Service whose endpoint is the node itself, so that datagrams stay on one CPU.
const MANIFESTS: &str = "\
{apiVersion: v1, kind: Service, metadata: {name: dns}, spec: {
  clusterIP: 10.96.0.53, clusterIPs: [10.96.0.53, \"fd00:10:96::53\"], ipFamilies: [IPv4, IPv6],
  ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
  metadata: {name: dns-4, labels: {kubernetes.io/service-name: dns}},
  ports: [{port: 5300, protocol: UDP}], endpoints: [{addresses: [192.0.2.1], nodeName: node}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv6,
  metadata: {name: dns-6, labels: {kubernetes.io/service-name: dns}},
  ports: [{port: 5300, protocol: UDP}], endpoints: [{addresses: [\"2001:db8::1\"], nodeName: node}]}
";

/// Services are reached at these addresses of the node only.
const ARGUMENTS: [&str; 2] = ["--nodeport-addresses", "192.0.2.0/24,2001:db8::/64"];

const FAMILIES: [Family; 2] = [
    Family {
        name: "v4",
        service: "10.96.0.53:53",
        backend: "192.0.2.1:5300",
        elsewhere: "198.51.100.1:5300",
        client: "192.0.2.2:5300",
    },
    Family {
        name: "v6",
        service: "[fd00:10:96::53]:53",
        backend: "[2001:db8::1]:5300",
        elsewhere: "[2001:db8:51::1]:5300",
        client: "[2001:db8::2]:5300",
    },
];

struct Family {
    name: &'static str,
    service: &'static str,
    /// The server that the Service leads to.
    backend: &'static str,
    /// A server on the node that no Service leads to.
    elsewhere: &'static str,
    /// A server on the client.
    client: &'static str,
}

impl Family {
    /// The operations of which some case is wanted.
    fn operations(&self, only: &Pattern) -> Vec<Operation> {
        let is_wanted = |operation: &Operation| {
            Place::ALL.iter().any(|place| only.fits(&place.case(self, *operation)))
        };
        Operation::ALL.into_iter().filter(is_wanted).collect()
    }
}

/// Where the calls are made, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On a node without programs, to the backend.
    Bare,
    /// On the node, to an address of no Service.
    None,
    /// In another network namespace, like a pod: the programs run for it, too.
    Pod,
    /// On the node, to the Service.
    Service,
}

impl Place {
    const ALL: [Self; 4] = [Self::Bare, Self::None, Self::Pod, Self::Service];

    fn case(self, family: &Family, operation: Operation) -> String {
        let ending = match self {
            Self::Bare => ".bare",
            Self::None => ".none",
            Self::Pod => ".pod",
            Self::Service => "",
        };
        format!("socket.{}.{}{ending}", family.name, operation.name())
    }
}

/// Measures all wanted calls in turn, one family after the other.
pub fn measure_socket_calls(
    quick: bool,
    only: &Pattern,
    progress: &Progress,
) -> Result<Vec<CaseRecord>> {
    let wanted: Vec<_> = FAMILIES
        .iter()
        .map(|family| (family, family.operations(only)))
        .filter(|(_, operations)| !operations.is_empty())
        .collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let (network, bare) = (OneNode::with_pods(0)?, OneNode::with_pods(0)?);
    for node in [&network.node, &bare.node] {
        node.address("lo", "198.51.100.1/32")?;
        node.address("lo", "2001:db8:51::1/128")?;
    }
    let agent = network.agent_with(MANIFESTS, &ARGUMENTS)?;
    let (rounds, times) = if quick { (1, 1_000) } else { (15, 20_000) };
    let mut records = Vec::new();
    for (family, operations) in wanted {
        let mut hosts = Hosts::new(family, &network, &bare, &agent)?;
        let mut samples: Vec<_> = operations.iter().map(|o| (*o, Samples::default())).collect();
        for _ in 0..rounds {
            for (operation, samples) in &mut samples {
                check_interrupted()?;
                progress.step(&Place::Service.case(family, *operation));
                hosts.measure(*operation, times, samples)?;
            }
        }
        for (operation, samples) in samples {
            let of = |(place, sample): (Place, _)| {
                CaseRecord::end_to_end(&sample, &place.case(family, operation), "ns")
            };
            records.extend(Place::ALL.into_iter().zip(samples).map(of));
        }
    }
    Ok(records.into_iter().filter(|record| only.fits(&record.case)).collect())
}

/// A sample for each place.
type Samples = [Sample; Place::ALL.len()];

/// The processes that make the calls, in the network with programs and in the one without.
struct Hosts<'a> {
    family: &'a Family,
    agent: &'a Agent,
    node: Timer,
    client: Timer,
    bare_node: Timer,
    bare_client: Timer,
}

impl<'a> Hosts<'a> {
    fn new(
        family: &'a Family,
        network: &OneNode,
        bare: &OneNode,
        agent: &'a Agent,
    ) -> Result<Self> {
        let on_node = [family.backend, family.elsewhere];
        Ok(Self {
            family,
            agent,
            node: Timer::start(&network.node, &on_node)?,
            client: Timer::start(&network.client, &[family.client])?,
            bare_node: Timer::start(&bare.node, &on_node)?,
            bare_client: Timer::start(&bare.client, &[family.client])?,
        })
    }

    /// Measures a call once in each place: what it takes more than without programs, to the same server.
    fn measure(&mut self, operation: Operation, times: u32, samples: &mut Samples) -> Result<()> {
        let Family { service, backend, elsewhere, client, .. } = *self.family;
        let call = Call { operation, times };
        let bare = call.time(&mut self.bare_node, backend)?;
        let balanced = self.time_balanced(&call, service)?;
        let own = call.time(&mut self.node, elsewhere)?;
        let bare_own = call.time(&mut self.bare_node, elsewhere)?;
        let bare_pods = call.time(&mut self.bare_client, client)?;
        let pods = call.time(&mut self.client, client)?;
        for (place, sample) in Place::ALL.into_iter().zip(samples) {
            sample.push(match place {
                Place::Bare => bare,
                Place::None => own - bare_own,
                Place::Pod => pods - bare_pods,
                Place::Service => balanced - bare,
            });
        }
        Ok(())
    }

    /// Fails unless all flows are counted for the Service: otherwise something else was measured.
    fn time_balanced(&mut self, call: &Call, service: &str) -> Result<f64> {
        let before = self.agent.new_flows(service)?;
        let time = call.time(&mut self.node, service)?;
        let seen = self.agent.new_flows(service)? - before;
        let opened = call.operation.opened(call.times) + call.operation.opened(call.warm_up());
        let case = Place::Service.case(self.family, call.operation);
        ensure!(seen == opened, "{case}: {seen} flows were counted, where {opened} were opened");
        Ok(time)
    }
}

struct Call {
    operation: Operation,
    times: u32,
}

impl Call {
    /// The number of calls that warm up the caches, and are not measured.
    fn warm_up(&self) -> u32 {
        self.times / 10
    }

    fn time(&self, timer: &mut Timer, target: &str) -> Result<f64> {
        let target: SocketAddr = target.parse()?;
        timer.time(self.operation, target, self.warm_up())?;
        timer.time(self.operation, target, self.times)
    }
}

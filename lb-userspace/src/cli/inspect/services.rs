//! `millrace services`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use lb_inspect::{ListedPort, ListedService, Traffic, TunnelNodes};

use super::options::Named;
use crate::cli::output::{Row, list_first};

pub const EXAMPLES: &str = "\
Examples:
  millrace services
  millrace services -n shop -o wide
  All details of a Service: frontends, policies, pools, slots, traffic:
    millrace services shop/web -o yaml
  How each Service distributes connections to its backends:
    millrace services -o name | xargs -n 1 millrace maglev";

pub fn show_services(options: &Named, pin_path: &Path) -> Result<()> {
    options.show(pin_path, lb_inspect::list_services)
}

impl Row for ListedService {
    const PLURAL: &'static str = "Services";
    const HEADERS: &'static [&'static str] = &[
        "NAMESPACE",
        "NAME",
        "ADDRESSES",
        "PORTS",
        "BACKENDS",
        "FLOWS",
        "INTERNAL",
        "EXTERNAL",
        "AFFINITY",
        "FORWARDING",
        "TABLE",
        "PACKETS-IN",
        "PACKETS-OUT",
        "BYTES-IN",
        "BYTES-OUT",
    ];
    const NARROW: usize = 6;

    fn cells(&self) -> Vec<String> {
        let frontends = || self.ports.iter().flat_map(|port| &port.frontends);
        let addresses: BTreeSet<_> = frontends().filter_map(|frontend| frontend.address).collect();
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let backends: BTreeSet<_> = self
            .ports
            .iter()
            .flat_map(ListedPort::backends)
            .map(|member| &member.address)
            .collect();
        let traffic = Traffic::sum(self.ports.iter().map(|port| port.traffic));
        let affinity = |port: &ListedPort| match port.session_affinity_seconds {
            Some(seconds) => format!("{seconds}s"),
            None => "-".to_owned(),
        };
        vec![
            self.namespace.clone(),
            self.name.clone(),
            list_first(&addresses),
            list_first(&distinct(self, ports)),
            backends.len().to_string(),
            traffic.new_flows.to_string(),
            list_first(&distinct(self, |port| port.internal_traffic_policy.to_owned())),
            list_first(&distinct(self, |port| port.external_traffic_policy.to_owned())),
            list_first(&distinct(self, affinity)),
            list_first(&distinct(self, forwarding)),
            list_first(&distinct(self, |port| port.cluster_pool.checksum.clone())),
            traffic.forward_packets.to_string(),
            traffic.reverse_packets.to_string(),
            traffic.forward_bytes.to_string(),
            traffic.reverse_bytes.to_string(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The distinct values of a Service's ports.
fn distinct(service: &ListedService, of: impl Fn(&ListedPort) -> String) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for text in service.ports.iter().map(of) {
        if !all.contains(&text) {
            all.push(text);
        }
    }
    all
}

/// With the number of nodes that tunnels lead to: `auto (3/4 nodes)`.
fn forwarding(port: &ListedPort) -> String {
    match port.tunnel_nodes {
        Some(TunnelNodes { decapsulating, all }) => {
            format!("{} ({decapsulating}/{all} nodes)", port.forwarding)
        }
        None => port.forwarding.to_owned(),
    }
}

/// In kubectl's format: `80:30080/TCP`.
fn ports(port: &ListedPort) -> String {
    let numbers = |node: bool| {
        let frontends = port.frontends.iter().filter(move |f| f.address.is_none() == node);
        let numbers: BTreeSet<u16> = frontends.map(|frontend| frontend.port).collect();
        numbers.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let all = [numbers(false), numbers(true)].concat();
    format!("{}/{}", all.join(":"), port.protocol)
}

//! `millrace get`: what the kernel holds, read from the pinned maps.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use lb_common::family::Family;
use lb_common::header::protocol;
use lb_common::layout::{Flow, FlowState, FrontendKind, Ticks};
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::output::{self, Format, Row};
use crate::kernel::Tables;
use crate::plan::Scope;

#[derive(Debug, Args)]
pub struct Options {
    what: What,

    #[arg(long, short, value_enum, default_value_t)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// What clients dial, and the backends behind it
    Frontends,
    /// The connections in progress
    Flows,
    /// Why packets were passed untouched or dropped
    Counters,
}

pub fn get(options: &Options, pin_path: &Path) -> Result<()> {
    if !pin_path.exists() {
        bail!(
            "no data plane is pinned at {}.\nStart one with `millrace agent`, or say where it is \
             with --pin-path",
            pin_path.display()
        );
    }
    let tables = Tables::open(|name| pin_path.join(name))?;
    match options.what {
        What::Frontends => output::print(&frontends(&tables)?, options.output),
        What::Flows => output::print(&flows(&tables)?, options.output),
        What::Counters => output::print(&counters(&tables)?, options.output),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FrontendRow {
    kind: &'static str,
    address: String,
    protocol: &'static str,
    backends: Vec<String>,
    new_flows: u64,
    forward_packets: u64,
    reverse_packets: u64,
}

impl Row for FrontendRow {
    const HEADERS: &'static [&'static str] =
        &["KIND", "ADDRESS", "PROTOCOL", "BACKENDS", "FLOWS", "PACKETS-IN", "PACKETS-OUT"];
    const NARROW: usize = 5;

    fn cells(&self) -> Vec<String> {
        let backends = match self.backends.len() {
            0 => "<none>".to_owned(),
            1..=3 => self.backends.join(","),
            more => format!("{} + {} more...", self.backends[..3].join(","), more - 3),
        };
        vec![
            self.kind.to_owned(),
            self.address.clone(),
            self.protocol.to_owned(),
            backends,
            self.new_flows.to_string(),
            self.forward_packets.to_string(),
            self.reverse_packets.to_string(),
        ]
    }
}

fn frontends(tables: &Tables) -> Result<Vec<FrontendRow>> {
    let snapshot = tables.snapshot()?;
    let backends: HashMap<u32, String> = snapshot
        .backends
        .iter()
        .filter_map(|found| Some((found.index, found.backend?.0.to_string())))
        .collect();
    let pools: HashMap<u32, _> = snapshot.pools.iter().copied().collect();

    let mut found = snapshot.frontends;
    found.sort_by_key(|(key, _)| *key);
    found
        .into_iter()
        .filter(|(_, frontend)| frontend.kind != FrontendKind::NodeAddress as u8)
        .map(|(key, frontend)| {
            let scope = if frontend.external_local != 0 { Scope::Local } else { Scope::Cluster };
            let mut members: Vec<u32> = pools
                .get(&scope.pool_index(frontend.service_port))
                .map_or(Vec::new(), |&pool| tables.slots(pool));
            members.sort_unstable();
            members.dedup();
            let mut backends: Vec<String> =
                members.iter().filter_map(|index| backends.get(index).cloned()).collect();
            backends.sort();
            let traffic = tables.service_traffic(frontend.service_port)?;
            let address = if key.is_node_port() {
                format!("*:{}", key.port)
            } else {
                SocketAddr::new(key.address, key.port).to_string()
            };
            Ok(FrontendRow {
                kind: kind_name(frontend.kind),
                address,
                protocol: protocol_name(key.protocol),
                backends,
                new_flows: traffic.new_flows,
                forward_packets: traffic.forward_packets,
                reverse_packets: traffic.reverse_packets,
            })
        })
        .collect()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FlowRow {
    protocol: &'static str,
    client: String,
    frontend: String,
    backend: String,
    state: &'static str,
    idle_seconds: f64,
}

impl Row for FlowRow {
    const HEADERS: &'static [&'static str] =
        &["PROTOCOL", "CLIENT", "FRONTEND", "BACKEND", "STATE", "IDLE"];
    const NARROW: usize = 5;

    fn cells(&self) -> Vec<String> {
        vec![
            self.protocol.to_owned(),
            self.client.clone(),
            self.frontend.clone(),
            self.backend.clone(),
            self.state.to_owned(),
            format!("{:.1}s", self.idle_seconds),
        ]
    }
}

fn flows(tables: &Tables) -> Result<Vec<FlowRow>> {
    let clock = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE)?;
    let now = clock.tv_sec() as u64 * 1_000_000_000 + clock.tv_nsec() as u64;
    let now = Ticks::from_nanoseconds(now);
    let mut rows: Vec<FlowRow> = tables
        .flows4()
        .map(|(state, seen, flow)| flow_row(state, seen, &flow, now))
        .chain(tables.flows6().map(|(state, seen, flow)| flow_row(state, seen, &flow, now)))
        .collect();
    rows.sort_by(|a, b| (&a.frontend, &a.client).cmp(&(&b.frontend, &b.client)));
    Ok(rows)
}

fn flow_row<F: Family>(state: FlowState, seen: Ticks, flow: &Flow<F>, now: Ticks) -> FlowRow
where
    F::Address: Into<IpAddr>,
{
    let end = |address: F::Address, port| SocketAddr::new(address.into(), port).to_string();
    FlowRow {
        protocol: protocol_name(flow.protocol),
        client: end(flow.client, flow.client_port),
        frontend: end(flow.frontend, flow.frontend_port),
        backend: end(flow.backend, flow.backend_port),
        state: match state {
            FlowState::Free | FlowState::Claimed => "-",
            FlowState::Nascent => "nascent",
            FlowState::Answered => "answered",
            FlowState::Established => "established",
            FlowState::ClosedForward | FlowState::ClosedReverse => "closing",
            FlowState::Closed => "closed",
        },
        idle_seconds: now.seconds_since(seen),
    }
}

#[derive(Serialize)]
struct CounterRow {
    reason: &'static str,
    packets: u64,
}

impl Row for CounterRow {
    const HEADERS: &'static [&'static str] = &["REASON", "PACKETS"];
    const NARROW: usize = 2;

    fn cells(&self) -> Vec<String> {
        vec![self.reason.to_owned(), self.packets.to_string()]
    }
}

fn counters(tables: &Tables) -> Result<Vec<CounterRow>> {
    let counted = tables.reasons()?.into_iter();
    Ok(counted.map(|(reason, packets)| CounterRow { reason: reason.name(), packets }).collect())
}

fn kind_name(kind: u8) -> &'static str {
    use FrontendKind::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    [ClusterIp, NodePort, ExternalIp, LoadBalancer]
        .into_iter()
        .find(|&known| known as u8 == kind)
        .map_or("?", |kind| match kind {
            ClusterIp => "ClusterIP",
            NodePort => "NodePort",
            ExternalIp => "ExternalIP",
            _ => "LoadBalancer",
        })
}

fn protocol_name(number: u8) -> &'static str {
    match number {
        protocol::TCP => "TCP",
        protocol::UDP => "UDP",
        protocol::SCTP => "SCTP",
        _ => "?",
    }
}

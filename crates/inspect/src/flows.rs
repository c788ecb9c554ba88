//! The flows in the maps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use clap::ValueEnum;
use ipnet::IpNet;
use lb_common::conntrack::state::{Phase, phase_of};
use lb_common::family::Family;
use lb_common::layout::{self, FlowKind, FlowState, Ticks};
use lb_rules::notation::protocol_name;
use serde::Serialize;

use super::Selector;
use super::reading::{IndexOwner, Reading};

/// The phase of a connection: [`Phase`], for the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub enum FlowPhase {
    /// The client has sent; the backend has not replied
    Nascent,
    /// The backend has replied
    Answered,
    /// Only one side is seen, or it was picked up mid-connection
    Probation,
    /// The client has acknowledged the reply
    Established,
    /// One side has closed
    Closing,
    /// Both have closed, or one has reset the connection
    Closed,
}

impl FlowPhase {
    pub const ALL: [Self; 6] = [
        Self::Nascent,
        Self::Answered,
        Self::Probation,
        Self::Established,
        Self::Closing,
        Self::Closed,
    ];

    /// `None`: there is no flow.
    pub fn of(state: FlowState) -> Option<Self> {
        Some(match phase_of(state)? {
            Phase::Nascent => Self::Nascent,
            Phase::Answered => Self::Answered,
            Phase::Probation => Self::Probation,
            Phase::Established => Self::Established,
            Phase::Closing => Self::Closing,
            Phase::Closed => Self::Closed,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Nascent => "nascent",
            Self::Answered => "answered",
            Self::Probation => "probation",
            Self::Established => "established",
            Self::Closing => "closing",
            Self::Closed => "closed",
        }
    }
}

/// A flow of either family, as in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    pub state: FlowPhase,
    pub seen: Ticks,
    pub protocol: u8,
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    pub backend: SocketAddr,
    pub snat: SocketAddr,
    pub kind: FlowKind,
    pub service_port: u32,
}

impl FlowRecord {
    pub fn of<F: Family>(state: FlowState, seen: Ticks, flow: &layout::Flow<F>) -> Option<Self>
    where
        F::Address: Into<IpAddr>,
    {
        let end = |address: F::Address, port| SocketAddr::new(address.into(), port);
        Some(Self {
            state: FlowPhase::of(state)?,
            seen,
            protocol: flow.protocol,
            client: end(flow.client, flow.client_port),
            frontend: end(flow.frontend, flow.frontend_port),
            backend: end(flow.backend, flow.backend_port),
            snat: end(flow.snat, flow.snat_port),
            kind: flow.kind,
            service_port: flow.service_port,
        })
    }
}

/// A connection through a Service.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedFlow {
    /// Empty if its Service was deleted.
    pub namespace: String,
    pub service: String,
    pub port: String,
    pub protocol: &'static str,
    pub client: String,
    pub frontend: String,
    pub backend: String,
    pub state: FlowPhase,
    pub idle_seconds: f64,
    /// `stack`: through the kernel's stack to a backend on this node; `forwarded`: by the data
    /// plane; `ipip`, `gue`: through a tunnel to the backend's node.
    pub path: &'static str,
    /// The SNAT address, if there is one.
    pub snat: Option<String>,
}

/// An address, perhaps with a port: `10.244.1.10`, `10.244.1.10:8080`, `[fd00::1]:8080`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEnd {
    pub address: IpAddr,
    pub port: Option<u16>,
}

impl FlowEnd {
    fn matches(&self, end: SocketAddr) -> bool {
        self.address == end.ip() && self.port.is_none_or(|port| port == end.port())
    }
}

impl FromStr for FlowEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(end) = text.parse::<SocketAddr>() {
            return Ok(Self { address: end.ip(), port: Some(end.port()) });
        }
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        match bare.parse() {
            Ok(address) => Ok(Self { address, port: None }),
            Err(_) => {
                Err("no address such as 10.244.1.10, 10.244.1.10:8080 or [fd00::1]:8080".to_owned())
            }
        }
    }
}

/// Selects the flows that match all conditions.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub client: Option<IpNet>,
    pub backend: Option<FlowEnd>,
    pub state: Option<FlowPhase>,
    pub service: Selector,
}

impl Filter {
    /// Whether records must be read; otherwise the state decides.
    pub fn needs_records(&self) -> bool {
        self.client.is_some() || self.backend.is_some() || !self.service.is_everything()
    }

    fn matches(&self, record: &FlowRecord, origins: &FlowOwners) -> bool {
        self.state.is_none_or(|state| state == record.state)
            && self.client.is_none_or(|clients| clients.contains(&record.client.ip()))
            && self.backend.is_none_or(|backend| backend.matches(record.backend))
            && (self.service.is_everything() || origins.is_of(record, &self.service))
    }
}

/// The Services of flows. A flow outlives its Service, and another Service may get the index: it
/// is the flow's Service only if it has the flow's frontend.
#[derive(Debug, Default)]
pub struct FlowOwners(HashMap<u32, FlowOwner>);

#[derive(Debug)]
struct FlowOwner {
    owner: IndexOwner,
    frontends: HashSet<SocketAddr>,
    node_ports: HashSet<u16>,
}

impl FlowOwners {
    pub fn of(reading: &Reading) -> Self {
        let mut origins = HashMap::new();
        for (&index, owner) in &reading.service_ports {
            let (frontends, node_ports) = (HashSet::new(), HashSet::new());
            origins.insert(index, FlowOwner { owner: owner.clone(), frontends, node_ports });
        }
        for (key, frontend) in &reading.frontends {
            let Some(origin) = origins.get_mut(&frontend.service_port) else { continue };
            if key.is_node_port() {
                origin.node_ports.insert(key.port);
            } else {
                origin.frontends.insert(SocketAddr::new(key.address, key.port));
            }
        }
        Self(origins)
    }

    fn origin(&self, record: &FlowRecord) -> Option<&FlowOwner> {
        let origin = self.0.get(&record.service_port)?;
        let destination = record.frontend;
        let has = origin.owner.protocol == record.protocol
            && (origin.frontends.contains(&destination)
                || origin.node_ports.contains(&destination.port()));
        has.then_some(origin)
    }

    fn is_of(&self, record: &FlowRecord, meant: &Selector) -> bool {
        self.origin(record).is_some_and(|origin| {
            let is_port = |port: &String| {
                *port == origin.owner.port || *port == record.frontend.port().to_string()
            };
            meant.matches(&origin.owner.service) && meant.port.as_ref().is_none_or(is_port)
        })
    }
}

/// The selected flows, ordered by client.
pub fn list_flows(
    records: impl Iterator<Item = FlowRecord>,
    filter: &Filter,
    origins: &FlowOwners,
    now: Ticks,
) -> Vec<ListedFlow> {
    let mut found: Vec<FlowRecord> =
        records.filter(|record| filter.matches(record, origins)).collect();
    found.sort_unstable_by_key(|r| (r.client, r.frontend, r.protocol, r.backend));
    found.iter().map(|record| flow(record, origins, now)).collect()
}

fn flow(record: &FlowRecord, origins: &FlowOwners, now: Ticks) -> ListedFlow {
    let owner = origins.origin(record).map(|origin| &origin.owner);
    let part = |part: fn(&IndexOwner) -> &String| owner.map_or(String::new(), |o| part(o).clone());
    let path = match record.kind {
        kind if kind.has(FlowKind::TUNNELLED) && kind.has(FlowKind::IN_UDP) => "gue",
        kind if kind.has(FlowKind::TUNNELLED) => "ipip",
        kind if kind.has(FlowKind::FORWARDED) => "forwarded",
        _ => "stack",
    };
    let has_snat = record.kind.has(FlowKind::SNAT);
    ListedFlow {
        namespace: part(|owner| &owner.service.namespace),
        service: part(|owner| &owner.service.name),
        port: part(|owner| &owner.port),
        protocol: protocol_name(record.protocol),
        client: record.client.to_string(),
        frontend: record.frontend.to_string(),
        backend: record.backend.to_string(),
        state: record.state,
        idle_seconds: now.seconds_since(record.seen),
        path,
        snat: has_snat.then(|| record.snat.to_string()),
    }
}

/// Numbers of flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowCounts {
    pub total: u64,
    pub by_state: BTreeMap<FlowPhase, u64>,
}

impl FlowCounts {
    /// Counts flows by their states.
    pub fn of_states(states: impl Iterator<Item = FlowState>, filter: &Filter) -> Self {
        let meant = |state: &FlowPhase| filter.state.is_none_or(|wanted| wanted == *state);
        Self::of(states.filter_map(FlowPhase::of).filter(meant))
    }

    fn of(states: impl Iterator<Item = FlowPhase>) -> Self {
        let mut counts = [0; FlowPhase::ALL.len()];
        states.for_each(|state| counts[state as usize] += 1);
        let by_state = FlowPhase::ALL.into_iter().zip(counts).collect();
        Self { total: counts.iter().sum(), by_state }
    }
}

/// Counts the selected flows by their records.
pub fn count_flows(
    records: impl Iterator<Item = FlowRecord>,
    filter: &Filter,
    origins: &FlowOwners,
) -> FlowCounts {
    let meant = records.filter(|record| filter.matches(record, origins));
    FlowCounts::of(meant.map(|record| record.state))
}

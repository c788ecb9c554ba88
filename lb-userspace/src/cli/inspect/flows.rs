//! `millrace flows`.

use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use clap::Args;
use ipnet::IpNet;
use lb_inspect::{
    Filter, FlowCounts, FlowEnd, FlowOwners, FlowPhase, FlowRecord, ListedFlow, Selector,
};
use lb_kernel::{Tables, read_clock};

use super::options::{Namespaces, open_tables, read_tables};
use crate::cli::output::{self, Output, OutputFormat, Row};

pub const EXAMPLES: &str = "\
Examples:
  millrace flows --service shop/web
  The flows of one client:
    millrace flows --client 192.0.2.7 -o wide
  How many connections a backend still has, for example before it is removed:
    millrace flows --backend 10.244.1.10:8080 --state established --count
  How full the flow table is (reads no flow records):
    millrace flows --count

A flow stays in the table until a new flow replaces it. IDLE, shown by -o wide, is the time
since its last packet.";

#[derive(Debug, Args)]
pub struct Flows {
    /// Only flows of clients in this network, or with this address
    #[arg(long, value_name = "CIDR", value_parser = clients)]
    client: Option<IpNet>,

    /// Only flows to this Service, optionally to one port by name or number: default/web:http
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    service: Option<Selector>,

    /// Only flows to this backend
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    backend: Option<FlowEnd>,

    /// Only flows in this state
    #[arg(long, value_enum)]
    state: Option<FlowPhase>,

    /// Print the number of flows by state instead of the flows
    #[arg(long, conflicts_with = "watch")]
    count: bool,

    #[command(flatten)]
    namespaces: Namespaces,

    #[command(flatten)]
    output: Output,
}

/// Parses a network or a single address.
fn clients(text: &str) -> Result<IpNet, String> {
    let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    network.map_err(|_| "neither a network, such as 192.0.2.0/24, nor an address".to_owned())
}

pub fn show_flows(options: &Flows, pin_path: &Path) -> Result<()> {
    let tables = open_tables(pin_path)?;
    let filter = Filter {
        client: options.client,
        backend: options.backend,
        state: options.state,
        service: options.namespaces.of(options.service.as_ref()),
    };
    if options.count {
        return print_counts(&count(&tables, &filter)?, &options.output);
    }
    output::show_rows(&options.output, || {
        let origins = FlowOwners::of(&read_tables(&tables)?);
        Ok(lb_inspect::list_flows(records(&tables), &filter, &origins, read_clock()?))
    })
}

fn count(tables: &Tables, filter: &Filter) -> Result<FlowCounts> {
    if !filter.needs_records() {
        return Ok(FlowCounts::of_states(
            tables.flow_states4().chain(tables.flow_states6()),
            filter,
        ));
    }
    // Names are needed only to select Services.
    let origins = match filter.service.is_everything() {
        true => FlowOwners::default(),
        false => FlowOwners::of(&read_tables(tables)?),
    };
    Ok(lb_inspect::count_flows(records(tables), filter, &origins))
}

fn records(tables: &Tables) -> impl Iterator<Item = FlowRecord> + '_ {
    let four = tables.flows4().filter_map(|(state, seen, flow)| FlowRecord::of(state, seen, &flow));
    let six = tables.flows6().filter_map(|(state, seen, flow)| FlowRecord::of(state, seen, &flow));
    four.chain(six)
}

fn print_counts(counts: &FlowCounts, output: &Output) -> Result<()> {
    match output.format {
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name => {
            output::show_rows(output, || Ok(count_rows(counts)))
        }
        format => output::print_document(counts, format),
    }
}

#[derive(serde::Serialize)]
struct CountRow {
    state: &'static str,
    flows: u64,
}

fn count_rows(counts: &FlowCounts) -> Vec<CountRow> {
    let states = counts.by_state.iter().map(|(state, &flows)| (state.name(), flows));
    let all = states.chain([("total", counts.total)]);
    all.map(|(state, flows)| CountRow { state, flows }).collect()
}

impl Row for CountRow {
    const PLURAL: &'static str = "flows";
    const HEADERS: &'static [&'static str] = &["STATE", "FLOWS"];
    const NARROW: usize = 2;

    fn cells(&self) -> Vec<String> {
        vec![self.state.to_owned(), self.flows.to_string()]
    }

    fn name(&self) -> String {
        self.state.to_owned()
    }
}

impl Row for ListedFlow {
    const PLURAL: &'static str = "flows";
    const HEADERS: &'static [&'static str] = &[
        "PROTOCOL",
        "CLIENT",
        "FRONTEND",
        "BACKEND",
        "STATE",
        "NAMESPACE",
        "SERVICE",
        "PORT",
        "IDLE",
        "PATH",
        "SNAT",
    ];
    const NARROW: usize = 5;

    fn cells(&self) -> Vec<String> {
        vec![
            self.protocol.to_owned(),
            self.client.clone(),
            self.frontend.clone(),
            self.backend.clone(),
            self.state.name().to_owned(),
            self.namespace.clone(),
            self.service.clone(),
            self.port.clone(),
            format!("{:.1}s", self.idle_seconds),
            self.path.to_owned(),
            self.snat.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}/{}", self.protocol, self.client, self.frontend)
    }
}

//! What commands read from the kernel: Services with their frontends, pools and backends, flows, rates.
//!
//! Needs neither an agent nor a cluster. The maps are read once ([`Reading`]); everything else is a pure function of the
//! reading. Writes nothing, except that `drops` asks the programs to report.
//!
//! - `trace`: what the data plane does with a packet, by running it over the maps
//! - `drops`: packets for which a reason was counted
//! - `status`: whether the node is healthy, of the maps and the agent's report

mod backends;
pub mod drops;
mod flows;
mod frontends;
mod maglev;
mod names;
mod rates;
mod reading;
mod select;
mod services;
mod status;
#[cfg(test)]
mod tests;
pub mod trace;
mod traffic;

pub use backends::{ListedBackend, Serves, list_backends};
pub use flows::{
    Filter, FlowCounts, FlowEnd, FlowOwners, FlowPhase, FlowRecord, ListedFlow, count_flows,
    list_flows,
};
pub use frontends::{Frontend, list_frontends};
pub use maglev::{Departure, Evenness, Share, Spread, list_spreads};
pub use names::LiveNames;
pub use rates::{CounterSample, Rate, Rates, ReasonRate, Sort, format_short};
pub use reading::{FoundBackend, IndexOwner, Reading, TunnelNodes};
pub use select::Selector;
pub use services::{Destination, ListedPool, ListedPort, ListedService, Member, list_services};
pub use status::{Fill, Severity, Status, StatusFindings, trouble_of_path, trouble_of_peer};
pub use traffic::Traffic;

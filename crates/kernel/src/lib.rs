//! The kernel side of the agent: loads the programs, writes the maps, attaches to interfaces. It makes no decisions about
//! Services.
//!
//! - programs and maps: `object` (the embedded BPF object), `programs`, `adoption` (of what an earlier agent left),
//!   `pins`, `sizes`, `sizing`, `data_plane`
//! - attachment: `attach`, `hook`, `link`
//! - contents of maps: `tables`, written through `backlog`, which keeps the order of steps; `flow_tables`, `flow_core`,
//!   `snat_ports`, `tunnel_keys`, `announce`, `bfd`
//! - what a command checks: `preflight`, `conflicts`, `forwarding`, `routing`, `netfilter`
//!
//! # Invariants
//! - Everything that forwards packets is pinned, so forwarding continues while no agent runs.
//! - A failed step blocks all later ones, except entries that nothing depends on (`backlog`, `set_aside`).
//! - Attached programs keep their own maps until they are replaced (`adoption`).

mod adoption;
mod announce;
mod attach;
mod backlog;
mod bfd;
mod buffer_sum;
mod clock;
mod conflicts;
mod crowded;
mod data_plane;
mod flow_core;
mod flow_tables;
mod forwarding;
mod hash_table;
mod hook;
mod host;
mod link;
mod mapped;
mod memory;
mod messages;
mod multicast;
mod netfilter;
mod object;
mod pins;
mod plain;
mod preflight;
pub mod privileges;
mod programs;
mod removal;
mod repeat;
mod routing;
mod set_aside;
pub mod settings;
mod side_entries;
mod sizes;
mod sizing;
mod snat_ports;
mod sockets;
mod source_lines;
mod stages;
mod survey;
mod system_call;
mod tables;
mod transmit;
mod tunnel_keys;
mod tunnel_probes;
mod types;
mod verify;

pub use adoption::check_schema;
pub use announce::{AddressClaim, Announcement, Announcements, clock_of_deadlines};
pub use attach::{
    Links, Modes, cgroup_root, list_attached, list_stray_filters, remove_data_plane,
    remove_stray_filters, resolve_cgroup,
};
pub use backlog::{Backlog, BacklogTables};
pub use bfd::{BfdSessions, Heard};
pub use clock::read_clock;
pub use conflicts::on_device;
pub use crowded::{CrowdedBits, clear_crowded_bits};
pub use data_plane::DataPlane;
pub use flow_core::{FlowPlaces, FlowTableLoad, begins_in_rest, place_new_flows};
pub use flow_tables::Occupancy;
pub use forwarding::check_forwarding;
pub use hook::{Hook, HookPoint};
pub use mapped::Mapped;
pub use memory::give_back_memory;
pub use messages::TARGET as MESSAGES;
pub use object::{Parameters, Prepared, compute_memory};
pub use pins::{Opened, Pins, agent_on};
pub use plain::{Layout, Plain};
pub use preflight::{CheckResult, Finding, check_preflight, list_machine_findings, require_root};
pub use routing::check_routing;
pub use set_aside::OptionalEntry;
pub use sizes::Sizes;
pub use sizing::{AvailableMemory, WantedSizes, existing_sizes};
pub use snat_ports::{ReservedPorts, SnatPorts, snat_ports};
pub use sockets::WithSockets;
pub use survey::{
    Attachment, Features, Survey, SurveyedMap, list_attachments, probe_features, survey_pins,
};
pub use system_call::bpf;
pub use tables::Tables;
pub use transmit::Transmitter;
pub use tunnel_keys::TunnelKeys;
pub use tunnel_probes::{TunnelProbes, is_own};

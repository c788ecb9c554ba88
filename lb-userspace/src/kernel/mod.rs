//! The kernel's side of the agent: loads the programs, keeps the maps, attaches to devices.
//! Nothing here decides anything about Services.
//!
//! Everything that forwards packets is pinned, so it goes on forwarding while no agent runs.

mod adoption;
mod attach;
mod backlog;
mod buffer_sum;
mod clock;
mod conflicts;
mod details;
mod link;
mod mapped;
mod messages;
pub(crate) mod netlink;
mod object;
mod pins;
mod plain;
mod preflight;
mod set_aside;
mod sizes;
mod sockets;
mod survey;
mod system_call;
mod tables;
mod types;
mod verify;

pub use attach::{
    Hook, Links, Modes, Place, TcMode, XdpMode, attached, cgroup_root, remove,
    remove_stray_filters, stray_filters,
};
pub use backlog::{Backlog, Write};
pub use clock::clock;
pub use conflicts::{kube_proxy, on_device};
pub use mapped::Mapped;
pub use messages::{BpfLogLevel, TARGET as MESSAGES};
pub use object::{DataPlane, memory};
pub use pins::{DEFAULT_PIN_PATH, Opened, Pins, agent_on};
pub use plain::{Layout, Plain};
pub use preflight::{Finding, Outcome, machine, preflight, require_root};
pub use set_aside::Entry;
pub use sizes::{MOST_ENDPOINTS, MOST_FLOWS, MOST_SERVICE_PORTS, Sizes};
pub use sockets::{WithSockets, serve_own_namespace};
pub use survey::{Attachment, Features, Survey, SurveyedMap, attachments, features, survey};
pub use tables::{Occupancy, Tables};

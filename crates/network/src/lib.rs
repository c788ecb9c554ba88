//! This machine's network, and its changes: the devices to attach to, the addresses with
//! NodePorts, the source address of connections through each device, and when next hops must be
//! resolved again.
//!
//! Pure functions decide everything from a [`Snapshot`]; [`NetworkWatch`] reads it from the kernel
//! and keeps it up to date.
//!
//! # Invariants
//! - No change is missed: after lost notifications or a socket error everything is read again, and
//!   an [`NetworkEvent::Epoch`] is sent.
//! - The first change after a quiet time is reported at once, those of a burst together.
//!
//! Tests: beside the code, and `tests/tests/node/network.rs` with real devices.

mod addresses;
mod attachments;
pub mod bytes;
mod dump;
mod links;
mod message;
mod netdev;
pub mod netlink;
mod notices;
mod requests;
mod selection;
mod snapshot;
pub mod snat_ports;
mod socket;
mod watch;

pub use addresses::{
    Device, choose_preferred_address, list_devices, list_node_addresses, list_own_addresses,
};
pub use attachments::{
    AttachmentRefusal, Attachments, DeviceName, DeviceRole, ServedDevice, plan_attachments,
};
pub use links::AnnouncingLink;
pub use netdev::{XdpFeatures, read_xdp_features};
pub use requests::read_addresses;
pub use selection::{DeviceSelector, DeviceSettings, NodePortAddresses};
pub use snapshot::{
    AddressScope, BondMode, ChangeEffect, DefaultRoute, InterfaceAddress, Link, LinkKind,
    MacAddress, NetworkChange, Snapshot,
};
pub use watch::{NetworkEvent, NetworkWatch};

//! What the agent knows of this machine's network, and follows while it changes: which devices to
//! attach to, on which addresses NodePorts are open, which address a connection that leaves by a
//! device is sent from, and when next hops that were resolved before have to be resolved anew.
//!
//! Everything is decided by pure functions of a [`Snapshot`]; [`NetworkWatch`] reads it from the
//! kernel and keeps it true.
//!
//! # Invariants
//! - Nothing is missed in silence: notices that were lost, or a socket that died, lead to reading
//!   everything anew and to an [`Event::Epoch`].
//! - The first change after a quiet time is told at once, those of a burst together.
//!
//! Tests: beside the code, and `tests/tests/network.rs` with real devices.

mod addresses;
mod attachments;
mod message;
mod netdev;
mod notices;
mod pace;
mod requests;
mod selection;
mod snapshot;
mod socket;
mod watch;

pub use addresses::{Device, devices, node_addresses};
pub use attachments::{Attachments, DeviceName, Refusal, Role, Served, plan_attachments};
pub use netdev::{XdpFeatures, xdp_features};
pub use selection::{DeviceSelector, NodePortAddresses, Settings};
pub use snapshot::{
    Address, BondMode, DefaultRoute, Effect, Kind, Link, Mac, Notice, Scope, Snapshot,
};
pub use watch::{Event, NetworkWatch};

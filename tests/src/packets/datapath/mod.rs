//! The data plane with given tables and expected packets: rungs 2 and 3 of the ladder.
//!
//! A case is a [`Conversation`]: it sets Services, sends packets, and checks each result. It runs
//! on the host alone, or on the host and in the kernel at once: then all results, flow entries and
//! counters must be equal, byte for byte. Both have the same tables, because the steps of one
//! planner are executed on both.

pub mod cases;
mod checksum_complete;
mod conversation;
mod given;
mod host;
pub mod kernel;
mod processed;
pub mod surroundings;
pub mod tunnel;
mod worlds;

use std::net::IpAddr;

use lb_common::family::{V4, V6};
use lb_common::host::Exit;
use lb_common::layout::{
    BfdHeard, BfdSession, Flow, FlowState, NeighbourEvent, Reason, Ticks, TunnelKey,
};
use lb_network::Device;
use lb_plan::Step;

use crate::packets::Mac;

pub use conversation::Conversation;
pub use given::{Service, service};
pub use host::HostWorld;
pub use kernel::KernelWorld;
pub use processed::{Processed, ends};
pub use worlds::{Borrowed, FLOWS};

/// The hook of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Ingress of an external device.
    Forward,
    /// In tc, without XDP or after XDP has left the packet to it.
    Stack,
    /// Ingress of an external device, after XDP has passed the packet.
    AfterXdp,
    /// Ingress of a pod's device.
    Workload,
    /// Egress of a device.
    Reverse,
    /// Egress of a device, of a packet that was sent on this machine.
    Process,
}

/// The fate of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOutcome {
    pub fate: Fate,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Passed,
    Dropped,
    /// The packet continues unchanged to tc.
    Deferred,
    /// XDP transmits it through its ingress device.
    Transmitted,
    /// The packet leaves through a device without passing the stack.
    Sent,
}

impl PacketOutcome {
    /// Whether it was neither dropped nor sent.
    pub fn passed(&self) -> bool {
        matches!(self.fate, Fate::Passed | Fate::Deferred)
    }
}

/// An environment that runs the data plane.
pub trait World {
    fn apply(&mut self, step: &Step);
    /// Adds or changes a device.
    fn set_device(&mut self, index: u32, device: &Device);
    /// Sets the route to an address; `None` removes it.
    fn set_exit(&mut self, to: IpAddr, exit: Option<&Exit>);
    /// Sets the tunnel keys: the one that is sent, and another that is accepted.
    fn set_tunnel_keys(&mut self, keys: [u64; TunnelKey::COUNT]);
    /// What a probe has shown of a node: a [`TunnelPeer`](lb_common::layout::TunnelPeer).
    fn set_tunnel_peer(&mut self, node: IpAddr, value: u32);
    /// Announces an address on the external device, until later or until long ago.
    fn announce(&mut self, address: IpAddr, expired: bool);
    /// Watches an address on the external device for claims.
    fn watch(&mut self, address: IpAddr);
    /// The machine that was last seen to use a watched address.
    fn claimant(&self, address: IpAddr) -> Option<Mac>;
    /// Adds a session of BFD.
    fn set_bfd_session(&mut self, discriminator: u32, session: &BfdSession);
    /// When its peer was heard last, and how often.
    fn bfd_heard(&self, discriminator: u32) -> BfdHeard;
    /// Whether next hops depend on the destination only.
    fn share_hops(&mut self, shared: bool);
    /// No agent follows the network any more.
    fn end_epoch_lease(&mut self);
    /// Whether flows begin in the rest of the flow table, instead of its core.
    fn begin_in_rest(&mut self, rest: bool);
    /// Invalidates resolved next hops.
    fn next_epoch(&mut self);
    /// Makes all entries in the tables older.
    fn grow_older(&mut self, ticks: u32);
    /// Runs a packet that a device will cut into segments of this size, unless it is 0.
    fn run_segments(&mut self, hook: Hook, frame: &[u8], segment: u32) -> PacketOutcome;

    fn run(&mut self, hook: Hook, frame: &[u8]) -> PacketOutcome {
        self.run_segments(hook, frame, 0)
    }

    fn flows(&self) -> Flows;
    fn reasons(&self) -> Vec<(Reason, u64)>;
    /// How often each event was counted.
    fn neighbour_events(&self) -> Vec<(NeighbourEvent, u64)>;
}

/// All flow entries in the order of the table.
#[derive(Clone, Debug, Default)]
pub struct Flows {
    pub v4: Vec<(FlowState, Ticks, Flow<V4>)>,
    pub v6: Vec<(FlowState, Ticks, Flow<V6>)>,
}

/// Compares entries and positions; the times may differ, because clocks do.
impl PartialEq for Flows {
    fn eq(&self, other: &Self) -> bool {
        fn same<F: PartialEq>(a: &[(FlowState, Ticks, F)], b: &[(FlowState, Ticks, F)]) -> bool {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && a.2 == b.2)
        }
        same(&self.v4, &other.v4) && same(&self.v6, &other.v6)
    }
}

impl Flows {
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn states(&self) -> Vec<FlowState> {
        self.v4.iter().map(|flow| flow.0).chain(self.v6.iter().map(|flow| flow.0)).collect()
    }

    /// The state of the flow from a client's port.
    pub fn state_of(&self, client_port: u16) -> FlowState {
        let v4 = self.v4.iter().map(|(state, _, flow)| (*state, flow.client_port));
        let mut all = v4.chain(self.v6.iter().map(|(state, _, flow)| (*state, flow.client_port)));
        let found = all.find(|(_, port)| *port == client_port);
        found.unwrap_or_else(|| panic!("no flow from port {client_port}: {self:?}")).0
    }

    /// The state of the only flow.
    pub fn only_state(&self) -> FlowState {
        let states = self.states();
        assert_eq!(states.len(), 1, "one flow was expected: {self:?}");
        states[0]
    }
}

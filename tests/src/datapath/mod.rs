//! The data plane between given tables and expected packets: rungs 2 and 3 of the ladder.
//!
//! A case is a [`Conversation`]: Services are set, packets go in, and each answer is judged. It
//! runs on the host alone, or on the host and in the kernel at once; then every answer, the flow
//! entries written and the counted reasons must be the same on both, byte for byte. Both hold
//! the same tables by construction: the same planner's steps are carried out on both.

pub mod cases;
mod checksum_complete;
mod conversation;
mod given;
mod host;
pub mod kernel;
mod maps;
pub mod random;
pub mod random_kernel;
pub mod surroundings;
mod worlds;

use std::net::IpAddr;

use lb_common::family::{V4, V6};
use lb_common::host::Exit;
use lb_common::layout::{Flow, FlowState, Reason, Ticks, TunnelKey};
use lb_userspace::network::Device;
use lb_userspace::plan::Step;

pub use conversation::{Answer, Conversation, FLOWS, ends};
pub use given::{Service, service};
pub use host::HostWorld;
pub use kernel::KernelWorld;
pub use maps::{AnyMap, Entry};
pub use worlds::Borrowed;

/// Where a packet meets the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Arriving on an external device.
    Forward,
    /// The same, where XDP is not used or has left the packet to tc.
    Stack,
    /// Arriving from a pod of this node.
    Workload,
    /// Leaving by a device.
    Reverse,
}

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub fate: Fate,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Passed,
    Dropped,
    /// Untouched, it goes on to tc, which can do more.
    Deferred,
    /// Straight from XDP it leaves by the device that it came in by.
    Transmitted,
    /// It leaves by a device without going up the stack.
    Sent,
}

impl Outcome {
    /// It was neither dropped nor sent from here.
    pub fn passed(&self) -> bool {
        matches!(self.fate, Fate::Passed | Fate::Deferred)
    }
}

/// A home of the data plane.
pub trait World {
    fn apply(&mut self, step: &Step);
    /// Makes a device known, or known otherwise.
    fn set_device(&mut self, index: u32, device: &Device);
    /// Sets where packets for an address leave; `None`: there is no way to it.
    fn set_exit(&mut self, to: IpAddr, exit: Option<&Exit>);
    /// The keys of tunnels: the one that is sent, and another that is accepted.
    fn set_tunnel_keys(&mut self, keys: [u64; TunnelKey::COUNT]);
    /// The network has changed.
    fn next_epoch(&mut self);
    /// Makes everything that the tables hold so much older.
    fn grow_older(&mut self, ticks: u32);
    /// Runs a packet that a device will cut into segments of so many bytes, if not 0.
    fn run_segments(&mut self, hook: Hook, frame: &[u8], segment: u32) -> Outcome;

    fn run(&mut self, hook: Hook, frame: &[u8]) -> Outcome {
        self.run_segments(hook, frame, 0)
    }

    fn flows(&self) -> Flows;
    fn reasons(&self) -> Vec<(Reason, u64)>;
}

/// All flow entries, in the order in which they lie in the table.
#[derive(Clone, Debug, Default)]
pub struct Flows {
    pub v4: Vec<(FlowState, Ticks, Flow<V4>)>,
    pub v6: Vec<(FlowState, Ticks, Flow<V6>)>,
}

/// The same entries in the same places; when they were last seen may differ, as clocks do.
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

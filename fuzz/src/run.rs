//! The data plane on the host, with the tables of a scenario.

use std::net::IpAddr;
use std::rc::Rc;

use lb_common::datapath::{MOST_STAGES, Role, Stage, Verdict};
use lb_common::host::{self, EntryPoint, Exit, HostFrame, HostTables, Routes};
use lb_common::layout::{Device, LinkAddresses, NeighbourEvent, Reason};

use crate::universe::{self, LINK_ADDRESS, LINK_ADDRESS_ABOVE};

/// Where a packet reaches the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Arriving on an external device, in XDP.
    Forward,
    /// Arriving on an external device, in tc, without XDP. For packets about neighbours.
    Stack,
    /// Arriving from a pod of this node.
    Workload,
    /// Leaving through a device.
    Reverse,
}

/// What happened to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineOutcome {
    pub fate: PipelineFate,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineFate {
    Passed,
    /// Left unmodified to the next hook.
    Deferred,
    Dropped,
    /// Left the node without passing through the stack.
    Sent,
}

/// Buckets of the flow table. So few that they fill up.
const BUCKETS: u32 = 4;

pub struct FuzzedHost {
    pub tables: HostTables,
    pub routes: Routes,
    /// The device that all packets arrive on.
    device: u32,
}

impl FuzzedHost {
    pub fn new(flow_seed: u64, device: u32) -> Self {
        let mut tables = HostTables::new(BUCKETS, flow_seed);
        let entry =
            Device { flags: Device::TRANSMIT, link_address: LINK_ADDRESS, ..Device::default() };
        tables.devices.insert(device, entry);
        let received = (LinkAddresses::bucket(device)..).zip([LINK_ADDRESS, LINK_ADDRESS_ABOVE]);
        let words = received.map(|(slot, link)| (slot, LinkAddresses::word(device, link)));
        tables.link_addresses.extend(words);
        Self { tables, routes: Routes::default(), device }
    }

    /// Adds a second device, and the routes.
    pub fn set_routes(&mut self, routes: Vec<(IpAddr, Exit)>) {
        let address = |v6| universe::node_address(v6, 1);
        for (index, flags) in [(self.device, Device::TRANSMIT), (OTHER_DEVICE, Device::REDIRECT)] {
            let (IpAddr::V4(v4), IpAddr::V6(v6)) = (address(false), address(true)) else { return };
            let entry = Device {
                address4: v4.into(),
                address6: v6.into(),
                mtu: 1500,
                link_address: [2, 0, 0, 0, 1, index as u8],
                flags,
                reserved: 0,
            };
            self.tables.devices.insert(index, entry);
        }
        self.routes = Routes(Rc::new(routes.into_iter().collect()));
    }

    pub fn run(&self, hook: Hook, bytes: &[u8]) -> PipelineOutcome {
        let mut frame = HostFrame {
            device: self.device,
            routes: self.routes.clone(),
            ..HostFrame::new(bytes.to_vec())
        };
        frame.resolves = matches!(hook, Hook::Stack | Hook::Workload);
        // A kernel runs packets on the loopback interface, which has this address.
        frame.received = hook == Hook::Stack && bytes.starts_with(&[0; 6]);
        // BPF_PROG_TEST_RUN has packets that arrived on no device.
        frame.sent_here = hook == Hook::Reverse;
        if hook == Hook::Workload {
            frame.role = Role::Workload;
        }
        let entry = if hook == Hook::Reverse { EntryPoint::Egress } else { EntryPoint::Ingress };
        let mut expected = bytes.to_vec();
        let mut stages = Vec::new();
        let verdict = host::run(entry, &mut frame, &self.tables, |stage, frame| {
            // Each stage gets the packet as it arrived, as it was decapsulated, or a refusal that its client need not see.
            if matches!(stages.last(), Some(Stage::Decapsulate | Stage::Redispatch)) {
                expected.clone_from(&frame.bytes);
            }
            assert_eq!(frame.bytes, expected, "the packet was modified before {stage:?}");
            stages.push(stage);
            assert!(stages.len() <= MOST_STAGES as usize, "too many stages: {stages:?}");
        });
        let fate = match verdict {
            Verdict::Pass | Verdict::Decline => PipelineFate::Passed,
            Verdict::Yield if frame.resolves => PipelineFate::Passed,
            Verdict::Defer | Verdict::Yield => PipelineFate::Deferred,
            Verdict::Transmit | Verdict::Redirect | Verdict::Resolve => PipelineFate::Sent,
            Verdict::Drop => PipelineFate::Dropped,
            Verdict::Next(stage) => panic!("stage {stage:?} was not run"),
        };
        PipelineOutcome { fate, bytes: frame.bytes }
    }

    /// How often each event was counted.
    pub fn neighbour_events(&self) -> Vec<(NeighbourEvent, u64)> {
        let events = self.tables.neighbour_events.borrow();
        let count = |event| (event, events.get(&event).copied().unwrap_or_default());
        NeighbourEvent::ALL.into_iter().map(count).collect()
    }

    /// How often each reason was counted.
    pub fn reasons(&self) -> Vec<(Reason, u64)> {
        let reasons = self.tables.reasons.borrow();
        let count = |reason| (reason, reasons.get(&reason).copied().unwrap_or_default());
        Reason::ALL.into_iter().map(count).collect()
    }
}

pub const OTHER_DEVICE: u32 = 9;

/// A next hop through either device: usable, with an unknown neighbour, with a small MTU, or none.
pub fn numbered_exit(number: usize, device: u32) -> Option<Exit> {
    let by =
        |device: u32| Exit { device, neighbour: Some([2, 0, 0, 0, 2, device as u8]), mtu: 1500 };
    match number % 8 {
        0..3 => Some(by(device)),
        3..5 => Some(by(OTHER_DEVICE)),
        5 => Some(Exit { neighbour: None, ..by(OTHER_DEVICE) }),
        6 => Some(Exit { mtu: 1280, ..by(OTHER_DEVICE) }),
        _ => None,
    }
}

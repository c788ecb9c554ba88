//! Random scenarios: Services are added and removed, and packets of all kinds arrive.
//!
//! Everything uses a few addresses and ports, so that packets belong to Services, and replies to
//! flows. Strategies are proptest's, so failures are minimized on the host; [`draw_value`] provides the
//! same for a given seed.

mod headers;
mod packet;
mod service;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::packets::datapath::{Conversation, Processed, Service};

pub use packet::{Sent, any_damaged_packet, any_intact_packet};
pub use service::{BACKENDS, ENDS, any_frontends, any_service, any_serving_service};

/// One event.
#[derive(Clone, Debug)]
pub enum ScenarioEvent {
    Set(Service),
    Remove(Service),
    /// From now on NodePorts are open on these addresses.
    NodeAddresses(Vec<&'static str>),
    Packet(Sent),
}

/// A few Services, then random events, most of which are packets.
pub fn any_scenario(
    events: impl Into<prop::collection::SizeRange>,
) -> impl Strategy<Value = Vec<ScenarioEvent>> {
    let morning = vec(any_serving_service().prop_map(ScenarioEvent::Set), 4..8);
    let nodes = node_addresses().prop_map(ScenarioEvent::NodeAddresses);
    (morning, nodes, vec(event(), events)).prop_map(|(mut day, nodes, events)| {
        day.push(nodes);
        day.extend(events);
        day
    })
}

fn event() -> impl Strategy<Value = ScenarioEvent> {
    prop_oneof![
        4 => any_service().prop_map(ScenarioEvent::Set),
        1 => any_service().prop_map(ScenarioEvent::Remove),
        1 => node_addresses().prop_map(ScenarioEvent::NodeAddresses),
        32 => any_intact_packet().prop_map(ScenarioEvent::Packet),
        12 => any_damaged_packet().prop_map(ScenarioEvent::Packet),
    ]
}

fn node_addresses() -> impl Strategy<Value = Vec<&'static str>> {
    let all: Vec<&str> = ENDS.iter().flat_map(|at| [at.node, at.elsewhere]).collect();
    prop::sample::subsequence(all, 2..=4)
}

impl ScenarioEvent {
    /// Executes the event; returns the result of a packet.
    pub fn happen(&self, conversation: &mut Conversation) -> Option<Processed> {
        match self {
            Self::Set(service) => conversation.set(service),
            Self::Remove(service) => conversation.remove(service),
            Self::NodeAddresses(addresses) => conversation.node_addresses(addresses),
            Self::Packet(sent) => return Some(conversation.run(sent.hook, &sent.packet)),
        }
        None
    }
}

/// The value of a strategy for a seed: always the same.
pub fn draw_value<S: Strategy>(strategy: &S, seed: u64) -> S::Value {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let tree = strategy.new_tree(&mut runner);
    tree.unwrap_or_else(|reason| panic!("nothing can be drawn: {reason}")).current()
}

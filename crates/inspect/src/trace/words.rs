//! How [`super::story`] names flows, their states and stages.

use lb_common::datapath::Stage;
use lb_common::layout::{FlowKind, FlowState};
use lb_rules::notation::protocol_name;

use super::observation::AnyFlow;

pub(crate) fn mac_text([a, b, c, d, e, f]: [u8; 6]) -> String {
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

pub fn describe_policy(name: &str, local_wanted: u8, local: bool) -> String {
    match (local_wanted != 0, local) {
        (true, true) => format!(", by {name}: Local"),
        (false, false) => format!(", by {name}: Cluster"),
        // Clients within the cluster use all backends.
        (true, false) => format!(": {name}: Local is for clients outside"),
        (false, true) => String::new(),
    }
}

pub(crate) fn flow_text(flow: &AnyFlow) -> String {
    let AnyFlow { client, frontend, backend, snat, .. } = flow;
    let protocol = protocol_name(flow.protocol);
    let mut text = format!("{protocol} {client} → {frontend} → {backend}");
    if flow.kind.has(FlowKind::SNAT) {
        text += &format!(", with the SNAT address {snat}");
    }
    if flow.kind.has(FlowKind::TUNNELLED) {
        text += if flow.kind.has(FlowKind::IN_UDP) { ", by GUE" } else { ", by IP in IP" };
    } else if flow.kind.has(FlowKind::FORWARDED) {
        text += ", forwarded from here";
    }
    text
}

pub(crate) fn state_text(flow: &AnyFlow) -> String {
    let becomes = if flow.before == flow.state {
        String::new()
    } else {
        format!(", becomes {}", state_name(flow.state))
    };
    format!(
        "it is {}{becomes}; its last packet came {:.1} s ago",
        state_name(flow.before),
        flow.idle_seconds
    )
}

fn state_name(state: FlowState) -> &'static str {
    match state {
        FlowState::Free => "free",
        FlowState::Claimed => "claimed",
        FlowState::SynSent => "SYN sent",
        FlowState::SynReceived => "SYN received",
        FlowState::Established => "established",
        FlowState::FinFromClient => "closed by its client",
        FlowState::FinFromBackend => "closed by its backend",
        FlowState::TimeWait => "closed",
        FlowState::Reset => "reset",
        FlowState::PickedUp => "picked up mid-connection",
        FlowState::Probation => "picked up mid-connection, on probation",
        FlowState::OneWaySyn => "SYN sent, one way",
        FlowState::OneWayProbation => "on probation, one way",
        FlowState::OneWayEstablished => "established, one way",
        FlowState::OneWayClosed => "closed, one way",
        FlowState::Datagram => "not replied to",
        FlowState::DatagramReplied => "replied to",
        FlowState::DatagramContinued => "replied to, and continues",
        FlowState::DatagramStream => "a stream",
    }
}

pub(crate) fn stage_text(stage: Stage) -> &'static str {
    match stage {
        Stage::Open => "it may open a flow",
        Stage::Begin => "it opens a flow",
        Stage::Send => "its flow was found or begun",
        Stage::Spread => "its client's buckets are full or crowded: its flow may be in others",
        Stage::Untracked => "there is no entry for the flow: it is forwarded without one",
        Stage::Accept => "it came through a tunnel, and may open a flow",
        Stage::Earlier => {
            "its connection is not known here: its slot may have had another owner when it began"
        }
        Stage::Shadow => "client and backend past all Services: an earlier flow between them ends",
        Stage::Neighbour => {
            "ARP or neighbour discovery: a request for an announced address is answered"
        }
        Stage::Redispatch => "no backend has accepted the connection: it may move to another",
        Stage::Bfd => "BFD: the packet of a session that is up is answered",
        Stage::Snat => "the flow needs an SNAT port, or a slot in the reply index",
        Stage::Reset => "its sender receives a TCP reset",
        Stage::Reject => "its sender receives an ICMP error",
        Stage::Unserved => "no port of a Service takes it",
        Stage::ErrorIn => "ICMP that arrives: possibly an error about a packet of a Service",
        Stage::ErrorOut => "ICMP that leaves: possibly an error about a packet of a Service",
        Stage::FragmentIn => "a fragment that arrives",
        Stage::FragmentOut => "a fragment that leaves",
        Stage::Reply => "translating a reply",
        Stage::Encapsulate => "it goes through a tunnel to the backend's node",
        Stage::Decapsulate => "it may have come through a tunnel",
        Stage::Delivered => {
            "it has come through a tunnel, from a node that chose a backend of this one"
        }
    }
}

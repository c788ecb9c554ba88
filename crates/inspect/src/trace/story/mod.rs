//! Describes observations.

mod selection;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lb_common::datapath::{Direction, RejectionKind, Route, Stage};
use lb_common::layout::{Frontend, Member, NeighbourEvent, Pool};
use lb_rules::notation::protocol_name;
use lb_rules::reasons::explain_reason;
use serde::Serialize;

use super::observation::{AnyBackend, Observation};
use super::words::{flow_text, mac_text, stage_text, state_text};

/// A step of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceStep {
    /// Name for scripts.
    pub step: &'static str,
    pub text: String,
}

/// Looks up what the data plane does not know: names and weights.
pub trait NameLookup {
    /// The name of a service port: `namespace/name:port`.
    fn service_port(&self, index: u32) -> String;
    fn device(&self, index: u32) -> String;
    /// The weight of a backend in a pool, if it is not the default.
    fn weight(&self, member: Member) -> Option<u32>;
}

/// Describes a packet's path at one hook. Keeps the context of earlier observations.
pub(crate) struct Narrator<'a> {
    names: &'a dyn NameLookup,
    steps: Vec<TraceStep>,
    /// Searched buckets of the flow table since the stage began.
    buckets: Vec<u32>,
    found: bool,
    searched_reply_index: bool,
    /// Attempts to find an SNAT port.
    rounds: u32,
    frontend: Option<(SocketAddr, Frontend)>,
    pool: Option<(u32, Pool)>,
    /// Whether a slot was read, whose backend is looked up next.
    chosen: bool,
    remembered: bool,
    routed: bool,
    backends: Vec<(u32, AnyBackend)>,
    /// The service port and the backend's index.
    pub served_by: Option<(u32, u32)>,
}

impl<'a> Narrator<'a> {
    pub fn new(names: &'a dyn NameLookup) -> Self {
        Self {
            names,
            steps: Vec::new(),
            buckets: Vec::new(),
            found: false,
            searched_reply_index: false,
            rounds: 0,
            frontend: None,
            pool: None,
            chosen: false,
            remembered: false,
            routed: false,
            backends: Vec::new(),
            served_by: None,
        }
    }

    pub(crate) fn add_step(&mut self, step: &'static str, text: impl Into<String>) {
        self.steps.push(TraceStep { step, text: text.into() });
    }

    pub fn describe(&mut self, observations: Vec<Observation>) {
        for observation in observations {
            self.describe_one(observation);
        }
        self.end_of_stage();
    }

    pub(crate) fn into_steps(self) -> Vec<TraceStep> {
        self.steps
    }

    /// Address and port of a backend.
    pub fn backend_end(&self, index: u32) -> Option<SocketAddr> {
        self.backends.iter().rev().find(|(known, _)| *known == index).map(|(_, found)| found.end)
    }

    fn end_of_stage(&mut self) {
        if !self.buckets.is_empty() && !self.found {
            let buckets: Vec<String> = self.buckets.iter().map(u32::to_string).collect();
            let index = if self.searched_reply_index { ", nor in the reply index" } else { "" };
            let text = format!("no flow in buckets {}{index}", buckets.join(" and "));
            self.add_step("flow", text);
        }
        self.buckets.clear();
        self.found = false;
        self.searched_reply_index = false;
    }

    fn describe_one(&mut self, observation: Observation) {
        match observation {
            Observation::Stage(stage) => {
                self.end_of_stage();
                if stage == Stage::Snat {
                    // The stage repeats until a port is found.
                    self.rounds += 1;
                    if self.rounds > 1 {
                        let text = format!("try {} found no port that is free", self.rounds - 1);
                        self.add_step("snat", text);
                    }
                }
                self.add_step("stage", stage_text(stage));
            }
            Observation::MayBeDestination(address, may) => {
                let text = if may {
                    format!("{address} may be a Service address or an SNAT address")
                } else {
                    format!("{address} is not an address of a Service: not handled")
                };
                self.add_step("prefilter", text);
            }
            Observation::MayBeSource(end, number, may) => {
                let (protocol, is) = (protocol_name(number), if may { "may be" } else { "is not" });
                self.add_step("prefilter", format!("{protocol} {end} {is} a backend's end"));
            }
            Observation::Bucket(index) => {
                if !self.buckets.contains(&index) {
                    self.buckets.push(index);
                }
            }
            Observation::ReplyBucket(_) => self.searched_reply_index = true,
            Observation::Touched(flow) => {
                self.found = true;
                self.add_step("flow", format!("found: {}", flow_text(&flow)));
                self.add_step("flow", state_text(&flow));
            }
            Observation::Released(flow) => {
                self.found = true;
                self.add_step("flow", format!("given up: {}", flow_text(&flow)));
            }
            Observation::Replaced(flow) => {
                let text = format!("it replaces an expired flow: {}", flow_text(&flow));
                self.add_step("flow", text);
            }
            Observation::Opened(flow) => {
                self.found = true;
                self.add_step("flow", format!("opened: {}", flow_text(&flow)));
            }
            Observation::Frontend(end, number, found) => self.frontend(end, number, found),
            Observation::SourceAllowed(_, client, allowed) => {
                let is = if allowed { "is" } else { "is not" };
                self.add_step(
                    "source-ranges",
                    format!("{client} {is} in loadBalancerSourceRanges"),
                );
            }
            Observation::Pool(index, pool) => self.pool(index, pool),
            Observation::Affinity(_, found, now) => {
                self.affinity(found.map(|a| (a.backend, now.since(a.used))))
            }
            Observation::Member(member, is) => {
                if !is {
                    let text = format!("backend {} is not in the pool any more", member.backend);
                    self.add_step("affinity", text);
                }
                self.remembered = is;
            }
            Observation::Slot(index, found) => self.slot(index, found),
            Observation::Backend(index, found) => self.backend(index, found),
            Observation::Device(index, None) => {
                let device = self.names.device(index);
                self.add_step("device", format!("{device} is not a served device"));
            }
            Observation::Device(_, Some(_)) => {}
            Observation::AffinitySet(_, affinity) => {
                let text =
                    format!("the client stays with backend {} from here on", affinity.backend);
                self.add_step("affinity", text);
            }
            Observation::Fragment(known) => self.add_step(
                "fragment",
                if known {
                    "its first fragment was seen: the ports are known"
                } else {
                    "its first fragment was not seen: its ports are unknown"
                },
            ),
            Observation::FragmentSet(source, destination) => self.add_step(
                "fragment",
                format!("the first one: ports {source} and {destination} are kept for the others"),
            ),
            Observation::Peer(address, is) => self.add_step(
                "tunnel",
                if is {
                    format!("{address} is a node of the cluster")
                } else {
                    format!("{address} is not a node of the cluster")
                },
            ),
            Observation::Decapsulates(node, does) => self.add_step(
                "tunnel",
                if does {
                    format!("{node} takes packets out of tunnels, as its last probe has shown")
                } else {
                    format!("{node} has returned no probe: reached with an address of this node")
                },
            ),
            Observation::Target(target, found) => self.add_step(
                "tunnel",
                match found {
                    Some(index) => format!("tag {:#06x} is for backend {index}", target.tag),
                    None => format!("tag {:#06x} is for no backend of this node", target.tag),
                },
            ),
            Observation::EarlierOwner(slot, position, found) => {
                let text = match (found, position) {
                    (Some(index), _) => {
                        format!("slot {} led to the node of backend {index} before", slot.slot)
                    }
                    (None, 0) => format!("slot {} has no earlier owner", slot.slot),
                    (None, _) => format!("slot {} has no more earlier owners", slot.slot),
                };
                self.add_step("earlier", text);
            }
            Observation::Returns(node, does) => self.add_step(
                "earlier",
                if does {
                    format!("{node} can be asked whether it knows the connection")
                } else {
                    format!("{node} has not shown that it returns what it does not know: not asked")
                },
            ),
            Observation::Rejection(rejection) => self.add_step(
                "answer",
                match rejection.kind {
                    RejectionKind::TOO_BIG => {
                        format!("an ICMP error reports the MTU {} to its sender", rejection.mtu)
                    }
                    RejectionKind::HOP_LIMIT => {
                        "an ICMP error reports to its sender that its hop limit is exceeded"
                            .to_owned()
                    }
                    _ => "an ICMP error reports to its sender that the port has no backend"
                        .to_owned(),
                },
            ),
            Observation::Counted(reason) => {
                self.add_step(
                    "reason",
                    format!("{}: {}", reason.name(), explain_reason(reason).what),
                );
            }
            Observation::Packet(service_port, backend, direction) => {
                self.served_by = Some((service_port, backend));
                let name = self.names.service_port(service_port);
                self.add_step(
                    "translate",
                    match direction {
                        Direction::Forward => format!("as a packet of {name} to backend {backend}"),
                        Direction::Reverse => {
                            format!("as a reply of {name} from backend {backend}")
                        }
                    },
                );
            }
            Observation::NewFlow(service_port, backend) => {
                self.served_by = Some((service_port, backend));
            }
            Observation::Route { to, from, route } => {
                self.routed = true;
                let text = self.route_text(to, from, route);
                self.add_step("route", text);
            }
            Observation::Announced(at, remaining) => {
                let (address, device) = (at.ip(), self.names.device(at.device));
                let text = match remaining {
                    Some(Duration::ZERO) => format!(
                        "{address} was announced on {device}, and its deadline has passed: left to \
                         the stack"
                    ),
                    Some(left) => format!(
                        "{address} is announced on {device}, for another {:.1} s",
                        left.as_secs_f64()
                    ),
                    None => format!("{address} is not announced on {device} by this node"),
                };
                self.add_step("announced", text);
            }
            Observation::Claimed(address, link) => {
                let text = format!("{} says that it has {address}: noted", mac_text(link));
                self.add_step("claim", text);
            }
            Observation::Answered(NeighbourEvent::Arp) => {
                self.add_step("answer", "an ARP reply with this node's link-layer address");
            }
            Observation::Answered(NeighbourEvent::Ndp) => {
                let text = "a neighbour advertisement with this node's link-layer address";
                self.add_step("answer", text);
            }
            Observation::Answered(NeighbourEvent::Echo) => {
                self.add_step("answer", "an ICMP echo reply");
            }
            Observation::Answered(NeighbourEvent::Expired | NeighbourEvent::Claimed) => {}
            // An internal marker of the data plane.
            Observation::LeaveBy(0) => {}
            Observation::LeaveBy(device) => {
                let how = if self.routed { "" } else { "; the next hop is from the flow" };
                let device = self.names.device(device);
                self.add_step("leave", format!("by {device}{how}"));
            }
        }
    }

    fn route_text(&self, to: IpAddr, from: IpAddr, route: Route) -> String {
        match route {
            Route::Known { next, .. } => {
                let device = self.names.device(next.device);
                format!("to {to} from {from}: {device}, next hop {}", mac_text(next.neighbour))
            }
            Route::NoNeighbour(device) => {
                let device = self.names.device(device);
                format!("to {to} from {from}: {device}, next hop not resolved yet")
            }
            Route::TooBig(mtu) => format!("to {to} from {from}: only {mtu} bytes fit"),
            Route::None => format!("to {to} from {from}: the kernel would not forward it"),
        }
    }
}

//! `millrace trace`: what the data plane does with a packet, step by step.
//!
//! The data plane itself runs here, the same code as in the kernel, over a read-only [`View`] of
//! the pinned maps. `observe` records lookups and writes, and [`story`] describes them. Nothing
//! is decided here.

pub mod capture;
mod observation;
mod observe;
mod overlay;
pub mod packet;
pub mod routes;
pub mod story;
mod view;
mod words;

use std::net::SocketAddr;

use lb_common::datapath::{
    self, FamilyTables, Packet, PacketFunction, Query, Role, Route, Stage, Verdict,
    given_rejection, parse_frame,
};
use lb_common::family::{Family, V4, V6};
use lb_common::header::Header;
use lb_common::host::{self, EntryPoint, HostFrame};
use lb_common::layout::NeighbourEvent;
use lb_kernel::HookPoint;
use serde::Serialize;

use observation::{Notes, Observation};
use observe::Observed;
use packet::Summary;
use routes::Routes;
use story::{NameLookup, Narrator, TraceStep};
pub use view::View;

/// The final result for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceFate {
    /// The packet continues unchanged.
    Untouched,
    /// The packet is translated, and continues to the stack or through its egress device.
    Translated,
    Dropped,
    /// The packet continues unchanged to tc, which has no program.
    Deferred,
    /// The packet is replaced by a reset, an ICMP error or an answer to its sender.
    Answered,
    /// The packet is sent without passing the stack.
    Sent,
    /// The packet is sent after the stack has resolved its next hop.
    Resolved,
}

/// A packet's path from its hook to the final result.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    pub packet: Summary,
    pub device: String,
    pub direction: &'static str,
    pub steps: Vec<TraceStep>,
    pub verdict: TraceFate,
    /// The counted reasons.
    pub reasons: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_port: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaves_by: Option<String>,
    /// The packet as it leaves the data plane.
    pub result: Summary,
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

impl Trace {
    /// Adds information that the data plane does not have, after the first step.
    pub fn note(&mut self, step: &'static str, text: String) {
        self.steps.insert(1, TraceStep { step, text });
    }

    /// Adds a warning about a later failure.
    pub fn warn(&mut self, text: String) {
        self.steps.push(TraceStep { step: "warning", text });
    }

    /// The device where the reply arrives, if it comes back to an address of this node.
    pub fn reply_arrives_at(&self) -> Option<&str> {
        let is_sent = matches!(self.verdict, TraceFate::Sent | TraceFate::Resolved);
        let to_backend =
            self.backend.is_some_and(|end| self.result.destination == Some(end.to_string()));
        let masqueraded = self.result.source != self.packet.source;
        self.leaves_by.as_deref().filter(|_| is_sent && to_backend && masqueraded)
    }
}

/// The hooks that a packet passes.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// The device's index.
    pub device: u32,
    /// The programs in the packet's direction, in the order in which they run.
    pub points: Vec<HookPoint>,
    /// Segment size if a device will segment the packet; otherwise 0.
    pub segment: u32,
    /// The frame is for this machine, whatever its link-layer address.
    pub is_received: bool,
    /// A leaving packet was sent on this machine. The data plane then asks whether its source is this node's, too.
    pub is_sent_here: bool,
}

/// Runs a packet through the data plane.
pub fn trace_packet<T>(
    tables: &T,
    routes: &dyn Routes,
    names: &dyn NameLookup,
    meeting: &Meeting,
    frame: &[u8],
) -> Trace
where
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    let mut narrator = Narrator::new(names);
    let before = Summary::of(frame);
    narrator.add_step("packet", format!("{before}, at {}", names.device(meeting.device)));

    let mut bytes = frame.to_vec();
    let mut verdict = Verdict::Pass;
    let mut left_by = 0;
    let mut reasons = Vec::new();
    let mut answered = false;
    // XDP has left the packet to tc, instead of passing it.
    let mut deferred = false;
    for (number, &point) in meeting.points.iter().enumerate() {
        let at = match number {
            0 => "",
            _ if deferred => "left to ",
            _ => "passed to ",
        };
        narrator.add_step("hook", format!("{at}{}", hook_text(point)));
        let notes = Notes::default();
        let mut packet = WatchedFrame {
            frame: HostFrame {
                device: meeting.device,
                role: if point == HookPoint::WorkloadIn { Role::Workload } else { Role::External },
                resolves: point != HookPoint::ExternalIn,
                segment: meeting.segment,
                received: meeting.is_received,
                sent_here: meeting.is_sent_here && point.is_egress(),
                ..HostFrame::new(bytes.clone())
            },
            notes: &notes,
            routes,
        };
        let observed = Observed::new(tables, &notes);
        let entry = match point {
            _ if point.is_egress() => EntryPoint::Egress,
            HookPoint::ExternalDeferred if !deferred => EntryPoint::AfterXdp,
            _ => EntryPoint::Ingress,
        };
        verdict = host::run(entry, &mut packet, &observed, |stage, _| {
            if stage == Stage::Reject {
                observed.note(Observation::Rejection(given_rejection(&observed)));
            }
            observed.note(Observation::Stage(stage));
        });
        observed.note_changes();
        let observations = notes.take();
        reasons.extend(observations.iter().filter_map(|observation| match observation {
            Observation::Counted(reason) => Some(reason.name()),
            _ => None,
        }));
        answered |= observations.contains(&Observation::Stage(Stage::Neighbour))
            || observations.contains(&Observation::Answered(NeighbourEvent::Echo));
        narrator.describe(observations);
        if verdict == Verdict::Yield {
            narrator.add_step("receiver", "the frame is for another machine".to_owned());
        }
        // XDP leaves to tc what requires the stack.
        if point == HookPoint::ExternalIn
            && matches!(verdict, Verdict::Defer | Verdict::Resolve | Verdict::Yield)
        {
            verdict = Verdict::Defer;
            deferred = true;
            continue;
        }
        // And what only tc answers.
        let is_passed = point == HookPoint::ExternalIn && verdict == Verdict::Pass;
        let in_tc = packet.frame.in_tc();
        let frame = parse_frame(&in_tc).filter(|_| is_passed);
        if frame.is_some_and(|frame| datapath::passed(&in_tc, frame) != Verdict::Pass) {
            continue;
        }
        if matches!(verdict, Verdict::Defer | Verdict::Yield) {
            verdict = Verdict::Pass;
        }
        left_by = packet.frame.left_by;
        bytes = packet.frame.bytes;
        break;
    }
    let result = Summary::of(&bytes);
    let fate = fate_of(verdict, answered, frame, &bytes, &reasons);
    let leaves = matches!(fate, TraceFate::Sent | TraceFate::Resolved | TraceFate::Answered);
    // Transmitted packets leave through their ingress device.
    let left_by = if verdict == Verdict::Transmit { meeting.device } else { left_by };
    let leaves_by = leaves.then(|| names.device(left_by));
    if bytes != frame && fate != TraceFate::Dropped {
        narrator.add_step("rewritten", format!("to {result}"));
    }
    narrator.add_step("verdict", verdict_text(fate, leaves_by.as_deref()));
    let served_by = narrator.served_by;
    Trace {
        packet: before,
        device: names.device(meeting.device),
        direction: if meeting.points.iter().any(|point| point.is_egress()) { "out" } else { "in" },
        verdict: fate,
        reasons,
        service_port: served_by.map(|(service_port, _)| names.service_port(service_port)),
        backend: served_by.and_then(|(_, backend)| narrator.backend_end(backend)),
        leaves_by,
        result,
        steps: narrator.into_steps(),
        bytes,
    }
}

fn fate_of(
    verdict: Verdict,
    answered: bool,
    before: &[u8],
    after: &[u8],
    reasons: &[&str],
) -> TraceFate {
    match verdict {
        Verdict::Drop => TraceFate::Dropped,
        // A reason is counted for each refused packet, and for no packet of a flow.
        Verdict::Transmit if answered || !reasons.is_empty() => TraceFate::Answered,
        Verdict::Transmit | Verdict::Redirect => TraceFate::Sent,
        Verdict::Resolve => TraceFate::Resolved,
        Verdict::Defer => TraceFate::Deferred,
        _ if before != after => TraceFate::Translated,
        _ => TraceFate::Untouched,
    }
}

fn hook_text(point: HookPoint) -> &'static str {
    match point {
        HookPoint::ExternalIn => "XDP, where clients' packets arrive",
        HookPoint::ExternalDeferred => "tc on the same device, which can have next hops resolved",
        HookPoint::ExternalInTc => "tc ingress, where clients' packets arrive (no XDP here)",
        HookPoint::WorkloadIn => "tc ingress, where a pod's packets arrive",
        HookPoint::RawIn => "tc ingress of a device without link-layer headers",
        HookPoint::Out | HookPoint::RawOut => "tc egress, where packets leave",
    }
}

fn verdict_text(fate: TraceFate, leaves_by: Option<&str>) -> String {
    let device = leaves_by.unwrap_or("?");
    match fate {
        TraceFate::Untouched => {
            "passes untouched: the stack decides, as if there were no Millrace".into()
        }
        TraceFate::Translated => "passes as another packet: the stack routes it from here".into(),
        TraceFate::Dropped => "dropped".into(),
        TraceFate::Deferred => {
            "left unmodified to tc, where no program of Millrace is attached".into()
        }
        TraceFate::Answered => format!("answered: a reply to it leaves through {device}"),
        TraceFate::Sent => format!("leaves through {device} directly, without passing the stack"),
        TraceFate::Resolved => {
            format!("leaves through {device} once the stack has resolved the next hop")
        }
    }
}

/// A frame that records requests to its hook.
struct WatchedFrame<'a> {
    frame: HostFrame,
    notes: &'a Notes,
    routes: &'a dyn Routes,
}

impl Packet for WatchedFrame<'_> {
    fn role(&self) -> Role {
        self.frame.role()
    }

    fn set_role(&mut self, role: Role) {
        self.frame.set_role(role);
    }

    fn is_sent_here(&self) -> bool {
        self.frame.is_sent_here()
    }

    fn device(&self) -> u32 {
        self.frame.device()
    }

    fn resolves(&self) -> bool {
        self.frame.resolves()
    }

    fn call<F: Family>(&self, _: PacketFunction, _: usize, execute: impl FnOnce() -> u32) -> u32 {
        execute()
    }

    fn is_received(&self) -> bool {
        self.frame.is_received()
    }

    fn segment(&self) -> u32 {
        self.frame.segment()
    }

    fn leave_by(&mut self, device: u32) {
        self.notes.add(Observation::LeaveBy(device));
        self.frame.leave_by(device);
    }

    fn route<F: Family>(&self, query: &Query<F>) -> Route {
        let (to, from) = (query.to.into(), query.from.into());
        let exit = self.routes.exit(self.frame.device, to, from);
        let route = self.frame.route(query, exit);
        self.notes.add(Observation::Route { to, from, route });
        route
    }

    fn grow_front(&mut self, bytes: usize) -> Option<()> {
        self.frame.grow_front(bytes)
    }

    fn shrink_front(&mut self, bytes: usize) -> Option<()> {
        self.frame.shrink_front(bytes)
    }

    fn resize(&mut self, length: u32) -> Option<()> {
        self.frame.resize(length)
    }

    fn header<H: Header>(&self, offset: usize) -> Option<&H> {
        self.frame.header(offset)
    }

    fn header_mut<H: Header>(&mut self, offset: usize) -> Option<&mut H> {
        self.frame.header_mut(offset)
    }

    fn length(&self) -> u32 {
        self.frame.length()
    }
}

//! Properties that hold for every packet and every state of the tables.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use lb_common::family::{Family, V4, V6};
use lb_common::header::protocol::{TCP, UDP};
use lb_common::host::HostFamily;
use lb_common::layout::{
    AnnouncedAddress, Flow, FlowState, FrontendKey, FrontendKind, LastClaim, Reason, Silence, Ticks,
};

use crate::inspect::{self, ParsedDatagram};
use crate::neighbour::{self, Meaning};
use crate::reply::Translated;
use crate::tunnel::{self, Tunnel};
use crate::{
    FuzzEvent, FuzzedHost, Hook, PipelineFate, PipelineOutcome, Reply, Scenario, TableChange,
    TransportAddress, announced_entry, announced_key, checksum, universe,
};

/// How much a run covered.
#[derive(Clone, Debug, Default)]
pub struct Met {
    pub packets: u64,
    pub translated: u64,
    /// Left the node without passing through the stack.
    pub sent: u64,
    /// Packets that were encapsulated; `opened` counts those that were decapsulated.
    pub wrapped: u64,
    pub opened: u64,
    /// Replies that were compared with the packets that they reply to.
    pub undone: u64,
    /// Requests for announced addresses.
    pub answered: u64,
    /// Echo requests that were answered.
    pub echoes: u64,
    pub reasons: HashSet<Reason>,
}

impl Met {
    pub fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.translated += other.translated;
        self.sent += other.sent;
        self.wrapped += other.wrapped;
        self.opened += other.opened;
        self.undone += other.undone;
        self.answered += other.answered;
        self.echoes += other.echoes;
        self.reasons.extend(other.reasons);
    }
}

/// Runs a scenario and panics at the first property that does not hold.
pub fn check_scenario(scenario: &Scenario) -> Met {
    let mut day = Day::new(scenario);
    for event in &scenario.events {
        match event {
            FuzzEvent::Change(change) => day.change(change),
            FuzzEvent::Packet(hook, bytes) => drop(day.process(*hook, bytes)),
            FuzzEvent::Reply(reply) => day.reply(*reply),
        }
    }
    day.met
}

/// A run, and what the checks know about it.
struct Day {
    host: FuzzedHost,
    /// Address, port and protocol of every backend that the tables ever contained.
    backends: HashSet<TransportAddress>,
    /// Source, destination and protocol of every packet so far. A packet in the opposite direction
    /// goes to a client.
    requested: HashSet<(SocketAddr, SocketAddr, u8)>,
    last: Option<Translated>,
    /// Whether there was no event since the last translated packet.
    fresh: bool,
    /// False once entries of the reply index have been damaged: only the index says which flow an
    /// SNAT port belongs to.
    index_is_whole: bool,
    met: Met,
}

impl Day {
    fn new(scenario: &Scenario) -> Self {
        let mut host = FuzzedHost::new(7, universe::DEVICE);
        host.tables.now.set(Ticks(1 << 24));
        // So few ports that they run out.
        host.tables.settings.snat_port_count = 7;
        host.set_routes(scenario.routes.clone());
        let mut day = Self {
            host,
            backends: HashSet::new(),
            requested: HashSet::new(),
            last: None,
            fresh: false,
            index_is_whole: true,
            met: Met::default(),
        };
        scenario.changes.iter().for_each(|change| day.change(change));
        day
    }

    fn change(&mut self, change: &TableChange) {
        self.fresh = false;
        if let TableChange::Backend { end, .. } = change {
            self.backends.insert(*end);
        }
        self.index_is_whole &= *change != TableChange::DamagedReturns;
        change.apply(&mut self.host.tables);
    }

    /// Sends a reply to the last translated packet. Directly after that packet, the reply must be
    /// translated back.
    fn reply(&mut self, reply: Reply) {
        let Some(last) = self.last.clone() else { return };
        let (hook, bytes) = last.reply(reply);
        let undone = self.fresh && !reply.again && is_plain(reply) && last.hook != Hook::Reverse;
        let undone = undone && last.can_be_undone() && !self.is_left(&last.before);
        let outcome = self.process(hook, &bytes);
        // Without a route back the reply is not sent.
        if undone
            && matches!(outcome.fate, PipelineFate::Passed | PipelineFate::Sent)
            && !is_error(&outcome)
        {
            self.met.undone += 1;
            let expected = last.expected(reply);
            let same = without_hop(&outcome.bytes) == without_hop(&expected);
            assert!(same, "{hook:?}: not undone\n{:02x?}\n{expected:02x?}", outcome.bytes);
        }
    }

    /// Whether a packet is a reply of a draining backend in a flow of datagrams. The client's next
    /// datagram need not go to that backend: it may open another flow, and is checked like every
    /// other packet.
    fn is_left(&self, bytes: &[u8]) -> bool {
        fn has<F: Family>(family: &HostFamily<F>, end: TransportAddress) -> bool {
            family.backends.values().any(|backend| {
                let address: IpAddr = backend.address.into();
                let same = (address, backend.port, backend.protocol)
                    == (end.address, end.port, end.protocol);
                same && backend.is_draining()
            })
        }
        let Some((source, _, UDP)) = ends(bytes) else { return false };
        let is_reply = self.flows().iter().any(|flow| Some(flow.reply_key()) == ends(bytes));
        if !is_reply {
            return false;
        }
        let end = TransportAddress { address: source.ip(), port: source.port(), protocol: UDP };
        has(&self.host.tables.v4, end) || has(&self.host.tables.v6, end)
    }

    /// Checks that the same frame, addressed to another machine, passes unmodified and opens no
    /// flow.
    fn judge_for_another(&self, hook: Hook, bytes: &[u8]) {
        const OTHER: [u8; 6] = [2, 0, 0, 0, 9, 9];
        if !matches!(hook, Hook::Forward | Hook::Stack) || bytes.len() < OTHER.len() {
            return;
        }
        let frame = [&OTHER, &bytes[OTHER.len()..]].concat();
        let flows = self.flows().len();
        let outcome = self.host.run(hook, &frame);
        let passed = matches!(outcome.fate, PipelineFate::Passed | PipelineFate::Deferred);
        let untouched = passed && outcome.bytes == frame && self.flows().len() == flows;
        assert!(untouched, "for another machine: {outcome:02x?}\n{frame:02x?}");
    }

    fn process(&mut self, hook: Hook, bytes: &[u8]) -> PipelineOutcome {
        self.judge_for_another(hook, bytes);
        let before = self.flows();
        let counts = self.host.reasons();
        let claims = self.host.tables.claims.borrow().clone();
        let outcome = self.host.run(hook, bytes);
        if self.judge_neighbour(hook, bytes, &outcome, claims) {
            self.met.packets += 1;
            self.met.answered += 1;
            return outcome;
        }
        let counted: Vec<Reason> = self
            .host
            .reasons()
            .into_iter()
            .zip(counts)
            .filter_map(|((reason, now), (_, before))| (now > before).then_some(reason))
            .collect();
        let inner = Tunnel::read(bytes).map(|tunnel| tunnel.inner);
        for packet in [Some(bytes), inner.as_deref()].into_iter().flatten() {
            self.requested.extend(ends(packet));
        }
        if outcome.fate == PipelineFate::Sent && is_echo_request(bytes) {
            self.judge_echo(hook, bytes, &outcome.bytes);
            self.met.echoes += 1;
        } else {
            self.judge(bytes, &outcome, &counted);
        }
        self.judge_flows(bytes, &before);
        if counted.contains(&Reason::Moved) {
            self.judge_move(bytes, &before);
        }
        self.fresh = false;
        self.met.packets += 1;
        self.met.reasons.extend(counted);
        self.met.sent += u64::from(outcome.fate == PipelineFate::Sent);
        let grown = outcome.bytes.len().cmp(&bytes.len());
        self.met.wrapped += u64::from(Tunnel::read(&outcome.bytes).is_some() && grown.is_gt());
        self.met.opened += u64::from(outcome.fate == PipelineFate::Passed && grown.is_lt());
        self.met.translated +=
            u64::from(outcome.fate == PipelineFate::Passed && outcome.bytes != bytes);
        if let Some(translated) = Translated::of(hook, bytes, &outcome) {
            self.last = Some(translated);
            self.fresh = true;
        }
        outcome
    }

    /// Returns whether the packet asked for an announced address. Checks that exactly such packets
    /// are answered, and that exactly the claims of watched addresses are noted.
    fn judge_neighbour(
        &self,
        hook: Hook,
        before: &[u8],
        outcome: &PipelineOutcome,
        mut claims: HashMap<AnnouncedAddress, LastClaim>,
    ) -> bool {
        let tables = &self.host.tables;
        let mut expected = None;
        let meanings =
            if hook == Hook::Stack { neighbour::list_meanings(before) } else { Vec::new() };
        for meaning in meanings {
            match meaning {
                Meaning::Claim { address, link } => {
                    if let Some(claim) = claims.get_mut(&announced_key(address)) {
                        claim.time = tables.since_boot.get();
                        claim.claimant.link_address = link;
                    }
                }
                Meaning::Request { target, answer } => {
                    let entry = tables.announced.get(&announced_key(target));
                    let is_valid = entry.is_some_and(|entry| *entry == announced_entry(false));
                    let is_own =
                        (0..2).any(|n| universe::node_address(target.is_ipv6(), n) == target);
                    expected = (is_valid && !is_own).then_some(answer);
                }
            }
        }
        assert!(*tables.claims.borrow() == claims, "other claims: {before:02x?}");
        let Some(answer) = expected else { return false };
        let right = outcome.fate == PipelineFate::Sent && outcome.bytes == answer;
        assert!(right, "{before:02x?}\n{outcome:02x?}\n{answer:02x?}");
        true
    }

    fn judge(&self, before: &[u8], outcome: &PipelineOutcome, counted: &[Reason]) {
        let after = &outcome.bytes;
        let context = || format!("{counted:?}\n{before:02x?}\n{after:02x?}");
        match outcome.fate {
            PipelineFate::Dropped => {
                assert!(!counted.is_empty(), "dropped without a counted reason: {}", context());
                let half_done = counted.contains(&Reason::Unwritable);
                let opened = is_opened(before, after);
                assert!(
                    after == before || half_done || opened,
                    "changed and dropped: {}",
                    context()
                );
            }
            PipelineFate::Deferred => {
                assert!(after == before, "changed and deferred: {}", context())
            }
            PipelineFate::Passed if after == before => {}
            PipelineFate::Passed => self.judge_change(before, after, &context),
            PipelineFate::Sent if tunnel::is_returned_question(before, after) => {}
            PipelineFate::Sent if self.judge_question(before, after, &context) => {}
            PipelineFate::Sent if is_rejection(before, after) => {
                let found =
                    inspect::parse_frame(after).expect("the data plane's packets are complete");
                // Only a returned probe keeps the checksum that it had, right or wrong.
                let right = found.is_right(after) || tunnel::is_returned_probe(before, after);
                assert!(right, "made with a wrong checksum: {}", context());
            }
            PipelineFate::Sent => self.judge_change(before, after, &context),
        }
    }

    /// Checks that the answer to an echo request is that of a host, and from an address that may answer.
    fn judge_echo(&self, hook: Hook, before: &[u8], after: &[u8]) {
        let context = || format!("{before:02x?}\n{after:02x?}");
        let found = inspect::parse_frame(before).expect("an echo request");
        let entry = match found.destination {
            IpAddr::V4(address) => {
                let key = FrontendKey::<V4>::new(address.into(), 0, 0);
                self.host.tables.v4.frontends.get(&key)
            }
            IpAddr::V6(address) => {
                let key = FrontendKey::<V6>::new(address.into(), 0, 0);
                self.host.tables.v6.frontends.get(&key)
            }
        };
        let entry = entry.unwrap_or_else(|| panic!("no address of a load balancer: {}", context()));
        let is_silent = entry.silence == Silence::Always as u8
            || entry.silence == Silence::Outside as u8 && hook != Hook::Workload;
        let is_right_kind = entry.kind == FrontendKind::LoadBalancer as u8;
        assert!(is_right_kind && !is_silent, "{entry:?} answers: {}", context());
        let mut expected = before.to_vec();
        expected[..12].rotate_left(6);
        let (ends, length, hop) = if found.v6 { (8, 32, 7) } else { (12, 8, 8) };
        let ends = found.network + ends;
        expected[ends..ends + length].rotate_left(length / 2);
        expected[found.network + hop] = 64;
        expected[found.transport] = if found.v6 { 129 } else { 0 };
        let new = inspect::parse_frame(after).expect("an answer");
        assert!(new.is_right(after) || !found.is_right(before), "checksums: {}", context());
        // The header's own checksum, and the message's.
        let sums = [found.network + 10, found.transport + 2];
        let sums = if found.v6 { &sums[1..] } else { &sums[..] };
        for &sum in sums {
            expected[sum..sum + 2].copy_from_slice(&after[sum..sum + 2]);
        }
        assert!(expected == after, "another answer: {}", context());
    }

    /// Whether a packet came through a tunnel and left through another one, as a question.
    fn judge_question(&self, before: &[u8], after: &[u8], context: &dyn Fn() -> String) -> bool {
        let (Some(old), Some(new)) = (Tunnel::read(before), Tunnel::read(after)) else {
            return false;
        };
        if !tunnel::between_nodes(&new.outer) {
            return false;
        }
        assert!(tunnel::may_be_asked(&old, &new), "forwarded from a tunnel: {}", context());
        assert!(new.is_right(after), "the outer checksums: {}", context());
        let inner = tunnel::with_class_of(&old.inner, &new.inner);
        assert!(without_hop(&inner) == without_hop(&new.inner), "changed: {}", context());
        true
    }

    /// Checks a packet that was decapsulated, encapsulated, or only translated.
    fn judge_change(&self, before: &[u8], after: &[u8], context: &dyn Fn() -> String) {
        if after.len() < before.len() {
            let tunnel = Tunnel::read(before).expect("only a tunnel's headers are removed");
            assert_eq!(tunnel.inner.len(), after.len(), "not what was inside: {}", context());
            let inner = tunnel::with_class_of(&tunnel.inner, after);
            let packet = inspect::parse_frame(&inner).expect("read as a tunnel");
            let class = |bytes| tunnel::traffic_class(bytes, &packet);
            let right = tunnel::may_become(class(&tunnel.inner), class(after), tunnel.class);
            assert!(right, "another class: {}", context());
            self.judge_translation(&inner, after, context);
        } else if after.len() > before.len() {
            let tunnel = Tunnel::read(after).expect("only a tunnel is put around a packet");
            assert!(tunnel.is_right(after), "the outer checksums: {}", context());
            assert!(tunnel::between_nodes(&tunnel.outer), "not between nodes: {}", context());
            assert!(without_hop(&tunnel.inner) == without_hop(before), "changed: {}", context());
        } else {
            self.judge_translation(before, after, context);
        }
    }

    fn judge_translation(&self, before: &[u8], after: &[u8], context: &dyn Fn() -> String) {
        assert_eq!(before.len(), after.len(), "another length: {}", context());
        let (Ok(old), Ok(new)) = (inspect::parse_frame(before), inspect::parse_frame(after)) else {
            panic!("headers that can't be read were translated: {}", context());
        };
        let unacknowledges = is_refusal_hidden(&old, before, after);
        for at in (0..before.len()).filter(|&at| before[at] != after[at]) {
            let may = may_change(&old, before, at) || unacknowledges && in_refusal(&old, at);
            assert!(may, "byte {at} changed: {}", context());
        }
        assert!(new.is_right(after) || !old.is_right(before), "checksums: {}", context());
        if let Some((source, destination, protocol)) = ends(after) {
            let (address, port) = (destination.ip(), destination.port());
            let to_backend = self.backends.contains(&TransportAddress { address, port, protocol });
            let to_client = self.requested.contains(&(destination, source, protocol));
            assert!(to_backend || to_client, "neither to a backend nor to a client: {}", context());
        }
    }

    fn flows(&self) -> Vec<TrackedFlow> {
        let mut flows = tracked_flows(&self.host.tables.v4);
        flows.extend(tracked_flows(&self.host.tables.v6));
        flows
    }

    /// Checks that a connection that has moved had no reply before, and has another backend.
    fn judge_move(&self, packet: &[u8], before: &[TrackedFlow]) {
        let own = ends(packet);
        let is_own = |flow: &&TrackedFlow| Some(flow.tuple()) == own;
        let old = before.iter().find(is_own).expect("a flow that has ended");
        assert!(matches!(old.state, FlowState::SynSent | FlowState::Reset), "moved: {old:?}");
        if let Some(new) = self.flows().iter().find(is_own) {
            assert!(new.backend != old.backend, "{old:?} moved to the same: {new:?}");
        }
    }

    fn judge_flows(&self, packet: &[u8], before: &[TrackedFlow]) {
        let after = self.flows();
        let now = self.host.tables.now.get();
        for (number, flow) in after.iter().enumerate() {
            for other in &after[number + 1..] {
                assert!(flow.tuple() != other.tuple(), "twice: {flow:?}\n{other:?}");
                let mixed = flow.reply_key() == other.reply_key();
                let both = !flow.expired(now) && !other.expired(now);
                assert!(
                    !(mixed && both && self.index_is_whole),
                    "two flows with the same replies: {flow:?}\n{other:?}"
                );
            }
        }
        let inner = Tunnel::read(packet).and_then(|tunnel| ends(&tunnel.inner));
        let own = [ends(packet), inner];
        for flow in before.iter().filter(|flow| flow.is_protected()) {
            // A closing flow ends when its client connects to the backend directly from the same
            // port.
            let shadowed = own.contains(&Some(flow.reply_key()));
            let ended = flow.expired(now) || shadowed || own.contains(&Some(flow.tuple()));
            let kept = after.iter().any(|other| other.tuple() == flow.tuple());
            assert!(kept || ended, "evicted: {flow:?}");
        }
    }
}

/// A flow of either address family.
#[derive(Clone, Debug)]
struct TrackedFlow {
    state: FlowState,
    seen: Ticks,
    client: SocketAddr,
    frontend: SocketAddr,
    backend: SocketAddr,
    snat: SocketAddr,
    protocol: u8,
}

fn tracked_flows<F: Family>(family: &HostFamily<F>) -> Vec<TrackedFlow> {
    let known = |(state, seen, flow): (FlowState, Ticks, Flow<F>)| {
        let end = |address: F::Address, port| SocketAddr::new(address.into(), port);
        TrackedFlow {
            state,
            seen,
            client: end(flow.client, flow.client_port),
            frontend: end(flow.frontend, flow.frontend_port),
            backend: end(flow.backend, flow.backend_port),
            snat: end(flow.snat, flow.snat_port),
            protocol: flow.protocol,
        }
    };
    family.flows.iter().flat_map(|bucket| bucket.entries()).map(known).collect()
}

impl TrackedFlow {
    fn tuple(&self) -> (SocketAddr, SocketAddr, u8) {
        (self.client, self.frontend, self.protocol)
    }

    fn reply_key(&self) -> (SocketAddr, SocketAddr, u8) {
        (self.backend, self.snat, self.protocol)
    }

    /// Whether no new flow may replace this one. True for connections in which both sides have
    /// taken part.
    fn is_protected(&self) -> bool {
        use FlowState::{Established, FinFromBackend, FinFromClient};
        matches!(self.state, Established | FinFromClient | FinFromBackend)
    }

    /// Whether the flow has been idle for longer than its documented timeout.
    fn expired(&self, now: Ticks) -> bool {
        use FlowState::*;
        let seconds = match self.state {
            Free | Claimed => unreachable!("no flow"),
            Datagram | DatagramReplied | DatagramContinued => 30,
            DatagramStream => 180,
            SynSent | SynReceived | PickedUp | OneWaySyn | TimeWait | OneWayClosed => 60,
            Reset => 10,
            Probation | OneWayProbation => 300,
            Established | OneWayEstablished => 86_400,
            FinFromClient | FinFromBackend => 3_600,
        };
        now.0.wrapping_sub(self.seen.0) > Ticks::in_seconds(seconds)
    }
}

/// Source, destination and protocol of a packet that has ports.
fn ends(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr, u8)> {
    let found = inspect::parse_frame(bytes).ok()?;
    let (source, destination) = found.ports(bytes)?;
    let end = SocketAddr::new;
    Some((end(found.source, source), end(found.destination, destination), found.protocol))
}

/// Whether `after` is the packet that `before` carried in its tunnel.
fn is_opened(before: &[u8], after: &[u8]) -> bool {
    Tunnel::read(before).is_some_and(|tunnel| tunnel::with_class_of(&tunnel.inner, after) == after)
}

/// Whether the flags neither begin nor end a connection.
fn is_plain(reply: Reply) -> bool {
    matches!(reply.tcp_flags, 0x10 | 0x18)
}

/// Whether the data plane made this packet as a response to the other: it goes to the other's
/// sender.
fn is_rejection(before: &[u8], after: &[u8]) -> bool {
    match (inspect::parse_frame(before), inspect::parse_frame(after)) {
        (Ok(before), Ok(after)) => {
            after.destination == before.source && after.source == before.destination
        }
        _ => false,
    }
}

fn is_echo_request(bytes: &[u8]) -> bool {
    inspect::parse_frame(bytes).is_ok_and(|found| {
        let kind = if found.v6 { 128 } else { 8 };
        found.is_icmp() && found.fragment.is_none() && bytes.get(found.transport) == Some(&kind)
    })
}

fn is_error(outcome: &PipelineOutcome) -> bool {
    inspect::parse_frame(&outcome.bytes).is_ok_and(|found| found.is_icmp())
}

/// The packet with zeros in what each hop changes: link-layer addresses, hop limit, IPv4 checksum.
fn without_hop(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[..12].fill(0);
    if let Ok(found) = inspect::parse_frame(&bytes) {
        let changing = if found.v6 { vec![7] } else { vec![8, 10, 11] };
        changing.into_iter().for_each(|at| bytes[found.network + at] = 0);
    }
    bytes
}

/// Whether translation may change this byte: addresses, ports and checksums of the packet and of
/// the packet that an ICMP error quotes. For forwarded packets also the link-layer header and hop
/// limit.
fn may_change(packet: &ParsedDatagram, bytes: &[u8], at: usize) -> bool {
    if at < 12 || in_header(packet, at) {
        return true;
    }
    if packet.is_icmp() {
        let quote = packet.transport + 8;
        let quoted = inspect::parse_datagram(bytes, quote, packet.v6);
        return (packet.transport + 2..packet.transport + 4).contains(&at)
            || quoted.is_ok_and(|quoted| in_header(&quoted, at) || in_transport(&quoted, at));
    }
    in_transport(packet, at)
}

/// Whether a reset that refuses a connection has become an acknowledgement of what came before the SYN.
fn is_refusal_hidden(packet: &ParsedDatagram, before: &[u8], after: &[u8]) -> bool {
    let read = |bytes: &[u8]| {
        let tcp = bytes.get(packet.transport..)?.first_chunk::<20>()?;
        Some((u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]), tcp[13]))
    };
    let (Some((refused, flags)), Some((told, told_flags))) = (read(before), read(after)) else {
        return false;
    };
    packet.protocol == TCP && flags == 0x14 && told_flags == 0x10 && told == refused.wrapping_sub(2)
}

/// Whether this is in the acknowledgement number or the flags.
fn in_refusal(packet: &ParsedDatagram, at: usize) -> bool {
    at.checked_sub(packet.transport).is_some_and(|at| (8..12).contains(&at) || at == 13)
}

fn in_header(packet: &ParsedDatagram, at: usize) -> bool {
    let Some(at) = at.checked_sub(packet.network) else { return false };
    if packet.v6 { at == 7 || (8..40).contains(&at) } else { at == 8 || (10..20).contains(&at) }
}

fn in_transport(packet: &ParsedDatagram, at: usize) -> bool {
    let Some(at) = at.checked_sub(packet.transport) else { return false };
    let sum = checksum::checksum_field(packet.protocol).is_some_and(|field| field.contains(&at));
    let later = packet.fragment == Some(inspect::Part::Later);
    !later && (at < 4 || sum)
}

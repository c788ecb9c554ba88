//! A link with nodes, in simulated time: processes that run, pause and end, kernels that answer
//! until a deadline, and a network that loses, delays and reorders datagrams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::super::*;

pub const MS: Duration = Duration::from_millis(1);

pub fn address(number: usize) -> IpAddr {
    Ipv4Addr::from(0xc633_6400 + number as u32).into()
}

pub fn link_address(node: usize) -> LinkAddress {
    let [high, low] = (node as u16).to_be_bytes();
    [2, 0, 0, 0, high, low]
}

/// Pseudo-random numbers from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        lb_common::hash::mix(self.0) % limit.max(1)
    }
}

pub struct SimulatedNode {
    pub name: String,
    /// The process; `None` if it has ended.
    pub link: Option<LinkElection>,
    pub paused: bool,
    /// If not, its kernel answers nothing.
    pub powered: bool,
    pub wanted: BTreeMap<IpAddr, CandidateRank>,
    /// The addresses that its kernel answers for, with deadline and epoch.
    pub kernel: BTreeMap<IpAddr, (Time, u32)>,
    watched: BTreeSet<IpAddr>,
    /// Datagrams that arrive while the process is paused.
    pub inbox: VecDeque<Vec<u8>>,
    /// When its timer is due.
    timer: Time,
}

enum SimulatedEvent {
    Datagram { to: usize, octets: Vec<u8> },
    Probe { from: usize, to: usize, address: IpAddr },
    Claim { to: usize, address: IpAddr, by: LinkAddress },
}

pub struct World {
    pub now: Time,
    pub nodes: Vec<SimulatedNode>,
    pub timing: ElectionTiming,
    pub keys: SealKeys,
    pub random: Random,
    /// Directions, as sender and receiver, in which everything is lost.
    pub cut: BTreeSet<(usize, usize)>,
    /// Nodes that get no heartbeats, but all other frames.
    pub firewalled: BTreeSet<usize>,
    /// How many of a thousand datagrams are lost; never more than two in a row.
    pub loss: u64,
    pub delay: Duration,
    /// How long everything takes in a direction, as sender and receiver, in addition to `delay`.
    pub late: BTreeMap<(usize, usize), Duration>,
    /// The most addresses of the link.
    pub most_addresses: usize,
    lost: BTreeMap<(usize, usize), u32>,
    /// Addresses that machines without Millrace use.
    pub others: BTreeMap<IpAddr, LinkAddress>,
    queue: BTreeMap<(Time, u64), SimulatedEvent>,
    number: u64,
    pub announcements: Vec<(Time, usize, IpAddr)>,
    pub news: Vec<(Time, usize, ElectionEvent)>,
    /// The node that was the last to say that it holds an address.
    pub last_taker: BTreeMap<IpAddr, usize>,
    pub octets: usize,
    /// The last datagram of each node.
    pub sent: BTreeMap<usize, Vec<u8>>,
    pub watch: Watch,
    /// Which kernels answer, or which processes run, may have changed.
    changed: bool,
}

/// For how long no kernel, or several, answered for an address since the last disturbance.
#[derive(Default)]
pub struct Watch {
    pub disturbed: Time,
    none: BTreeMap<IpAddr, Time>,
    several: BTreeMap<IpAddr, Time>,
    pub longest_none: BTreeMap<IpAddr, Duration>,
    pub longest_several: BTreeMap<IpAddr, Duration>,
    /// The longest time with several holders while the process of one of the nodes does not run.
    pub longest_several_without_process: Duration,
}

impl World {
    pub fn new(nodes: usize, addresses: usize, seed: u64) -> Self {
        let mut world = Self {
            now: Time::from_secs(1_000),
            nodes: Vec::new(),
            timing: ElectionTiming::default(),
            keys: SealKeys::derive(["0123456789abcdef0123456789abcdef"]),
            random: Random(seed),
            cut: BTreeSet::new(),
            firewalled: BTreeSet::new(),
            loss: 0,
            delay: MS * 2,
            late: BTreeMap::new(),
            most_addresses: MAX_ADDRESSES,
            lost: BTreeMap::new(),
            others: BTreeMap::new(),
            queue: BTreeMap::new(),
            number: 0,
            announcements: Vec::new(),
            news: Vec::new(),
            last_taker: BTreeMap::new(),
            octets: 0,
            sent: BTreeMap::new(),
            watch: Watch::default(),
            changed: true,
        };
        for node in 0..nodes {
            world.add(addresses);
            world.start(node);
        }
        world
    }

    /// A node that wants addresses, and whose process does not run.
    pub fn add(&mut self, addresses: usize) {
        let wanted = (0..addresses).map(|number| (address(number), CandidateRank::Candidate));
        let name = format!("node-{}", self.nodes.len());
        self.nodes.push(SimulatedNode {
            name,
            link: None,
            paused: false,
            powered: true,
            wanted: wanted.collect(),
            kernel: BTreeMap::new(),
            watched: BTreeSet::new(),
            inbox: VecDeque::new(),
            timer: Time::ZERO,
        });
    }

    /// Starts a process, which adopts the addresses that its kernel answers for.
    pub fn start(&mut self, node: usize) {
        let identity = ParticipantIdentity {
            node: self.nodes[node].name.clone(),
            interface: "eth0".to_owned(),
            incarnation: self.random.below(u64::MAX),
        };
        let held: Vec<AdoptedAddress> = self.nodes[node]
            .kernel
            .iter()
            .map(|(address, (_, epoch))| AdoptedAddress { address: *address, epoch: *epoch })
            .collect();
        let mut link = LinkElection::new(identity, self.timing, self.keys.clone(), &held, self.now);
        link.most_addresses = self.most_addresses;
        self.nodes[node].link = Some(link);
        self.nodes[node].paused = false;
        self.nodes[node].inbox.clear();
        self.nodes[node].timer = Time::MAX;
        self.give(node, LinkInput::Interface { usable: true, link_address: link_address(node) });
        let wanted = self.nodes[node].wanted.clone();
        self.give(node, LinkInput::Wanted(wanted));
    }

    pub fn kill(&mut self, node: usize) {
        self.nodes[node].link = None;
        self.nodes[node].paused = false;
    }

    pub fn power_off(&mut self, node: usize) {
        self.kill(node);
        self.nodes[node].powered = false;
        self.nodes[node].kernel.clear();
        self.nodes[node].watched.clear();
    }

    pub fn power_on(&mut self, node: usize) {
        self.nodes[node].powered = true;
        self.start(node);
    }

    pub fn resume(&mut self, node: usize) {
        self.nodes[node].paused = false;
        // In any order: the timer may come before or between what has arrived.
        if self.random.below(2) == 0 {
            self.give(node, LinkInput::Timer);
        }
        while let Some(octets) = self.nodes[node].inbox.pop_front() {
            self.give(node, LinkInput::Received(&octets));
            if self.random.below(10) == 0 {
                self.give(node, LinkInput::Backlog);
            }
        }
    }

    pub fn want(&mut self, node: usize, address: IpAddr, rank: Option<CandidateRank>) {
        match rank {
            Some(rank) => drop(self.nodes[node].wanted.insert(address, rank)),
            None => drop(self.nodes[node].wanted.remove(&address)),
        }
        if self.runs(node) {
            let wanted = self.nodes[node].wanted.clone();
            self.give(node, LinkInput::Wanted(wanted));
        }
    }

    pub fn runs(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        node.powered && !node.paused && node.link.is_some()
    }

    /// Nodes whose kernel answers for an address.
    pub fn answering(&self, address: IpAddr) -> Vec<usize> {
        let answers = |node: &SimulatedNode| {
            node.powered && node.kernel.get(&address).is_some_and(|(until, _)| *until > self.now)
        };
        (0..self.nodes.len()).filter(|node| answers(&self.nodes[*node])).collect()
    }

    pub fn give(&mut self, node: usize, input: LinkInput<'_>) {
        let now = self.now;
        let is_timer = matches!(input, LinkInput::Timer | LinkInput::Backlog);
        let SimulatedNode { link: Some(link), timer, .. } = &mut self.nodes[node] else { return };
        let effects = link.handle(input, now);
        // A process is scheduled a little later than its timer is due.
        let next = link.next_timer().max(now) + MS / 4;
        *timer = if is_timer { next } else { next.min(*timer) };
        for effect in effects {
            self.perform(node, effect);
        }
    }

    fn perform(&mut self, node: usize, effect: LinkEffect) {
        let kernel = &mut self.nodes[node];
        match effect {
            LinkEffect::Send(octets) => {
                assert!(octets.len() <= MAX_HEARTBEAT_OCTETS, "{}", octets.len());
                self.octets += octets.len();
                self.sent.insert(node, octets.clone());
                for to in 0..self.nodes.len() {
                    let arrives = !self.firewalled.contains(&to);
                    if to != node && arrives && !self.is_lost(node, to) {
                        self.enqueue(node, SimulatedEvent::Datagram { to, octets: octets.clone() });
                    }
                }
            }
            LinkEffect::Announce { address, epoch, hold } => {
                if kernel.kernel.insert(address, (self.now + hold, epoch)).is_none() {
                    self.last_taker.insert(address, node);
                }
                self.changed = true;
            }
            LinkEffect::Withdraw(address) => {
                kernel.kernel.remove(&address);
                self.changed = true;
            }
            LinkEffect::StillHeld(address) => drop(self.last_taker.insert(address, node)),
            LinkEffect::Watch(address) => drop(kernel.watched.insert(address)),
            LinkEffect::Unwatch(address) => drop(kernel.watched.remove(&address)),
            LinkEffect::Transmit(LinkFrame::Announcement { address, .. }) => {
                self.announcements.push((self.now, node, address));
                self.claim(node, address);
            }
            LinkEffect::Transmit(LinkFrame::Probe(address)) => {
                for to in 0..self.nodes.len() {
                    if to != node && !self.is_lost(node, to) {
                        self.enqueue(node, SimulatedEvent::Probe { from: node, to, address });
                    }
                }
                if let Some(by) = self.others.get(&address).copied() {
                    self.enqueue(node, SimulatedEvent::Claim { to: node, address, by });
                }
            }
            LinkEffect::Transmit(LinkFrame::ProbeOf(address, [.., high, low])) => {
                let to = usize::from(u16::from_be_bytes([high, low]));
                if !self.is_lost(node, to) {
                    self.enqueue(node, SimulatedEvent::Probe { from: node, to, address });
                }
            }
            LinkEffect::Report(news) => self.news.push((self.now, node, news)),
        }
    }

    /// A frame of a node claims the address, and reaches the other nodes.
    fn claim(&mut self, node: usize, address: IpAddr) {
        for to in 0..self.nodes.len() {
            if to != node && !self.is_lost(node, to) {
                self.enqueue(node, SimulatedEvent::Claim { to, address, by: link_address(node) });
            }
        }
    }

    fn is_lost(&mut self, from: usize, to: usize) -> bool {
        if self.cut.contains(&(from, to)) {
            return true;
        }
        let in_row = self.lost.entry((from, to)).or_default();
        let lost = *in_row < 2 && self.random.below(1_000) < self.loss;
        *in_row = if lost { *in_row + 1 } else { 0 };
        lost
    }

    fn enqueue(&mut self, from: usize, event: SimulatedEvent) {
        let (SimulatedEvent::Datagram { to, .. }
        | SimulatedEvent::Probe { to, .. }
        | SimulatedEvent::Claim { to, .. }) = event;
        let late = self.late.get(&(from, to)).copied().unwrap_or_default();
        let delay = self.delay.as_micros() as u64;
        let at = self.now + late + Duration::from_micros(50 + self.random.below(delay));
        self.number += 1;
        self.queue.insert((at, self.number), event);
    }

    /// Lets time pass.
    pub fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.observe();
        loop {
            let timers = (0..self.nodes.len()).filter(|node| self.runs(*node));
            let timer = timers.map(|node| (self.nodes[node].timer.max(self.now), node)).min();
            let event = self.queue.keys().next().map(|(at, _)| *at);
            let expiry = self.nodes.iter().flat_map(|node| node.kernel.values());
            let expiry = expiry.map(|(until, _)| *until).filter(|until| *until > self.now).min();
            let next = [timer.map(|(at, _)| at), event, expiry].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = next.max(self.now);
            if event == Some(next) {
                if let Some((_, event)) = self.queue.pop_first() {
                    self.happen(event);
                }
            } else if let Some((at, node)) = timer
                && at == next
            {
                self.give(node, LinkInput::Timer);
            } else {
                self.changed = true;
            }
            if std::mem::take(&mut self.changed) {
                self.observe();
            }
        }
        self.now = end;
        self.observe();
    }

    fn happen(&mut self, event: SimulatedEvent) {
        match event {
            SimulatedEvent::Datagram { to, octets } => {
                if self.runs(to) {
                    self.give(to, LinkInput::Received(&octets));
                } else if self.nodes[to].paused && self.nodes[to].inbox.len() < 200 {
                    self.nodes[to].inbox.push_back(octets);
                }
            }
            SimulatedEvent::Probe { from, to, address } => {
                if self.answering(address).contains(&to) && !self.is_lost(to, from) {
                    self.enqueue(
                        to,
                        SimulatedEvent::Claim { to: from, address, by: link_address(to) },
                    );
                }
            }
            SimulatedEvent::Claim { to, address, by } => {
                if self.runs(to) && self.nodes[to].watched.contains(&address) {
                    self.give(to, LinkInput::Claim { address, by });
                }
            }
        }
    }

    /// A new disturbance begins: times without a holder, or with several, are measured from now.
    pub(crate) fn disturb(&mut self) {
        self.watch.disturbed = self.now;
        self.watch.none.clear();
        self.watch.several.clear();
    }

    fn observe(&mut self) {
        let now = self.now;
        let addresses: BTreeSet<IpAddr> =
            self.nodes.iter().flat_map(|node| node.wanted.keys().copied()).collect();
        for address in addresses {
            let answering = self.answering(address);
            let candidates = (0..self.nodes.len()).filter(|node| self.runs(*node));
            let is_wanted = candidates
                .filter_map(|node| self.nodes[node].wanted.get(&address))
                .any(|rank| *rank != CandidateRank::None);
            if answering.is_empty() && is_wanted {
                let since = *self.watch.none.entry(address).or_insert(now);
                let longest = self.watch.longest_none.entry(address).or_default();
                *longest = now.saturating_sub(since).max(*longest);
            } else {
                self.watch.none.remove(&address);
            }
            if answering.len() > 1 {
                let since = *self.watch.several.entry(address).or_insert(now);
                let lasted = now.saturating_sub(since);
                if answering.iter().all(|node| self.runs(*node)) {
                    let longest = self.watch.longest_several.entry(address).or_default();
                    *longest = lasted.max(*longest);
                } else {
                    let longest = &mut self.watch.longest_several_without_process;
                    *longest = lasted.max(*longest);
                }
            } else {
                self.watch.several.remove(&address);
            }
        }
    }

    /// How many addresses each node answers for.
    pub fn loads(&self) -> Vec<usize> {
        let holds = |node: &SimulatedNode| {
            node.kernel.values().filter(|(until, _)| *until > self.now).count()
        };
        self.nodes.iter().map(|node| if node.powered { holds(node) } else { 0 }).collect()
    }

    pub(crate) fn longest_none(&self) -> Duration {
        self.watch.longest_none.values().max().copied().unwrap_or_default()
    }

    pub(crate) fn longest_several(&self) -> Duration {
        self.watch.longest_several.values().max().copied().unwrap_or_default()
    }

    pub(crate) fn forget_observations(&mut self) {
        self.watch = Watch::default();
        self.announcements.clear();
        self.news.clear();
        self.octets = 0;
    }
}

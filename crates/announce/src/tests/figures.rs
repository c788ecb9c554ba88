//! Takeover of a thousand addresses, and measurements of cost.

use std::time::{Duration, Instant};

use super::super::wire::{self, Acknowledgement, Heartbeat, TableChanges, TableRow};
use super::super::*;
use super::world::{MS, World, address, link_address};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_thousand_addresses_are_taken_over_at_once() {
    let mut world = World::new(3, 1_000, 1);
    world.run(SECOND * 3);
    let sum: usize = world.loads().iter().sum();
    assert_eq!(sum, 1_000, "{:?}", world.loads());
    assert!(world.loads().iter().all(|load| *load <= limit_share(1_000, 3)), "{:?}", world.loads());
    world.disturb();
    world.forget_observations();
    world.power_off(0);
    world.run(SECOND);
    assert!(world.longest_none() <= MS * 500, "{:?}", world.longest_none());
    assert_eq!(world.loads().iter().sum::<usize>(), 1_000);
    // Frames are limited to what switches let through.
    assert!(world.announcements.len() < 1_500, "{}", world.announcements.len());
}

/// Prints the octets that a link carries, by the number of nodes.
#[test]
#[ignore = "a measurement"]
fn traffic_of_many_nodes() {
    for nodes in [5, 25] {
        let mut world = World::new(nodes, 100, 1);
        world.run(SECOND * 2);
        world.forget_observations();
        let begun = Instant::now();
        world.run(SECOND);
        let (octets, elapsed) = (world.octets, begun.elapsed());
        println!("{nodes} nodes: {octets} octets of payload a second, simulated in {elapsed:?}");
    }
}

/// Prints what the election costs. Run in release mode:
/// `cargo test --release -p lb-announce --lib tests::figures -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn cost_of_heartbeats() {
    let mut world = World::new(5, 1_000, 1);
    world.run(SECOND * 20);
    world.forget_observations();
    let seconds = 20;
    world.run(SECOND * seconds);
    let octets = world.octets / seconds as usize;
    println!("{octets} octets of payload a second, sent by 5 nodes with 1,000 addresses");
    let now = world.now + MS * 100;
    let mut sent = Vec::new();
    for effect in world.nodes[1].link.as_mut().expect("it runs").handle(LinkInput::Timer, now) {
        if let LinkEffect::Send(octets) = effect {
            sent.push(octets);
        }
    }
    println!("{} octets in a heartbeat", sent[0].len());
    let rounds = 20_000_u32;
    let link = world.nodes[0].link.as_mut().expect("it runs");
    let begun = Instant::now();
    for _ in 0..rounds {
        std::hint::black_box(link.handle(LinkInput::Received(&sent[0]), world.now));
    }
    println!("{:?} for each heartbeat that is received", begun.elapsed() / rounds);
    let begun = Instant::now();
    world.run(SECOND * 20);
    println!("{:?} of simulation for a second, all nodes together", begun.elapsed() / 20);
    world.want(0, address(2_000), Some(CandidateRank::Candidate));
    let begun = Instant::now();
    for number in 0..200 {
        world.want(0, address(2_000 + number), Some(CandidateRank::Candidate));
    }
    println!("{:?} for each change of a candidacy", begun.elapsed() / 200);
}

/// A participant under test, and others whose messages the test composes.
struct Crowd {
    link: LinkElection,
    others: Vec<Heartbeat>,
    now: Time,
    /// The sequence number of the participant's last message.
    sequence: u64,
}

impl Crowd {
    const VERSION: u64 = 1 << 32;

    /// The others hold all addresses.
    fn new(nodes: usize, addresses: usize) -> Self {
        let now = Time::from_secs(1_000);
        let node = "node-0".to_owned();
        let identity = ParticipantIdentity { node, interface: "eth0".to_owned(), incarnation: 7 };
        let mut link =
            LinkElection::new(identity, ElectionTiming::default(), SealKeys::default(), &[], now);
        link.handle(LinkInput::Interface { usable: true, link_address: link_address(0) }, now);
        let wanted = (0..addresses).map(|number| (address(number), CandidateRank::Candidate));
        link.handle(LinkInput::Wanted(wanted.collect()), now);
        let others = (1..nodes).map(|node| Heartbeat {
            node: format!("node-{node}"),
            interface: "eth0".to_owned(),
            incarnation: 1,
            sequence: 0,
            link_address: link_address(node),
            version: Self::VERSION + addresses as u64,
            heard: Vec::new(),
            changes: TableChanges { since: Self::VERSION, until: Self::VERSION, rows: Vec::new() },
        });
        let others = others.collect();
        let mut crowd = Self { link, others, now, sequence: 0 };
        for beat in 0..80 {
            crowd.others.iter_mut().enumerate().for_each(|(other, message)| {
                let since = message.changes.until;
                // Rows that are sent before the others are participants are ignored.
                let rows = if beat < 3 { 0 } else { 100 };
                let until = (since + rows).min(message.version);
                let rows = (since..until).map(|row| {
                    let number = (row - Self::VERSION) as usize;
                    let holds = (number % (nodes - 1) == other).then_some(1);
                    TableRow { address: address(number), rank: CandidateRank::Candidate, holds }
                });
                message.changes = TableChanges { since, until, rows: rows.collect() };
            });
            for other in 0..nodes - 1 {
                crowd.hear(other);
            }
            crowd.now += MS * 100;
            crowd.timer();
        }
        let view = crowd.link.link_view(crowd.now);
        assert_eq!(view.peers.iter().map(|peer| peer.holds).sum::<usize>(), addresses);
        crowd
    }

    fn hear(&mut self, other: usize) -> Duration {
        let message = &mut self.others[other];
        message.sequence += 1;
        let id = ParticipantId::of_interface("node-0", "eth0");
        let (incarnation, sequence) = (7, self.sequence);
        message.heard = vec![Acknowledgement { id, incarnation, sequence, version: 0 }];
        let mut octets = wire::encode_heartbeat(message);
        SealKeys::default().append_seal(&mut octets);
        let begun = Instant::now();
        self.link.handle(LinkInput::Received(&octets), self.now);
        begun.elapsed()
    }

    fn timer(&mut self) -> Duration {
        let begun = Instant::now();
        let effects = self.link.handle(LinkInput::Timer, self.now);
        let elapsed = begun.elapsed();
        for effect in effects {
            if let LinkEffect::Send(octets) = effect {
                let message =
                    SealKeys::default().open_sealed(&octets).and_then(wire::parse_heartbeat);
                self.sequence = message.expect("a message").sequence;
            }
        }
        elapsed
    }
}

/// Prints what the election costs. Run in release mode:
/// `cargo test --release -p lb-announce --lib tests::figures -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn cost_of_deciding() {
    for (nodes, addresses) in [(5, 1_000), (5, 2_000), (128, 1_000), (128, 2_000)] {
        let mut crowd = Crowd::new(nodes, addresses);
        println!("{nodes} participants, {addresses} addresses:");
        println!("  {:?} for a heartbeat without news", crowd.hear(1));
        let begun = Instant::now();
        std::hint::black_box(crowd.link.link_view(crowd.now));
        println!("  {:?} for the view", begun.elapsed());
        for (what, row) in [
            (
                "one address has another epoch",
                TableRow { address: address(0), rank: CandidateRank::Candidate, holds: Some(2) },
            ),
            (
                "one candidacy changes",
                TableRow { address: address(1), rank: CandidateRank::LastResort, holds: None },
            ),
        ] {
            let message = &mut crowd.others[0];
            message.version += 1;
            let changes = TableChanges {
                since: message.version - 1,
                until: message.version,
                rows: vec![row],
            };
            message.changes = changes;
            crowd.hear(0);
            println!("  {:?} to decide when {what}", crowd.timer());
        }
        crowd.others[0].changes.rows.clear();
        crowd.others[0].changes.since = crowd.others[0].version;
        let mut longest = Duration::ZERO;
        for _ in 0..80 {
            crowd.now += MS * 5;
            if crowd.now.as_millis().is_multiple_of(100) {
                for other in 1..nodes - 1 {
                    crowd.hear(other);
                }
            }
            longest = longest.max(crowd.timer());
        }
        assert!(crowd.link.link_view(crowd.now).peers.iter().any(|peer| peer.silent));
        println!("  {longest:?} for the longest decision when a participant dies");
    }
}

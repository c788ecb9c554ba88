//! Senders without the key, and senders that misbehave with the key, or where there is none.

use std::time::Duration;

use super::super::identity::CandidateRank;
use super::super::wire::{self, Acknowledgement, Heartbeat, TableChanges, TableRow};
use super::super::*;
use super::world::{MS, Random, World, address, link_address};

const SECOND: Duration = Duration::from_secs(1);

fn settled() -> World {
    let mut world = World::new(3, 12, 3);
    world.run(SECOND * 15);
    world.forget_observations();
    world
}

/// The last message of a node.
fn overheard(world: &mut World, node: usize) -> Vec<u8> {
    world.run(MS * 150);
    world.sent[&node].clone()
}

fn random(random: &mut Random) -> Vec<u8> {
    let length = random.below(2_000);
    (0..length).map(|_| random.below(256) as u8).collect()
}

#[test]
fn random_and_changed_messages_change_nothing() {
    let mut world = settled();
    let before = world.loads();
    let genuine = overheard(&mut world, 1);
    let mut numbers = Random(9);
    for round in 0..3_000 {
        let octets = if round % 2 == 0 {
            random(&mut numbers)
        } else {
            let mut changed = genuine.clone();
            let at = numbers.below(changed.len() as u64) as usize;
            changed[at] ^= 1 << numbers.below(8);
            changed
        };
        world.give(0, LinkInput::Received(&octets));
    }
    let link = world.nodes[0].link.as_ref().expect("it runs");
    assert!(link.counts().refused >= 2_900, "{:?}", link.counts());
    world.run(SECOND);
    assert_eq!(world.loads(), before);
    assert_eq!(world.news, []);
}

/// Replayed messages do not keep a node alive that has lost power.
#[test]
fn recorded_messages_are_worthless() {
    let mut world = settled();
    let recorded: Vec<Vec<u8>> = (0..5).map(|_| overheard(&mut world, 1)).collect();
    recorded.iter().for_each(|octets| world.give(0, LinkInput::Received(octets)));
    world.power_off(1);
    for _ in 0..100 {
        for node in [0, 2] {
            recorded.iter().for_each(|octets| world.give(node, LinkInput::Received(octets)));
        }
        world.run(MS * 100);
    }
    assert_eq!(world.loads()[1], 0);
    assert_eq!(world.loads().iter().sum::<usize>(), 12);
    // Nor when it has been forgotten, or when its next process runs.
    world.run(SECOND * 30);
    world.forget_observations();
    for node in [0, 2] {
        recorded.iter().for_each(|octets| world.give(node, LinkInput::Received(octets)));
    }
    world.run(SECOND);
    assert_eq!(world.news, []);
    world.power_on(1);
    world.run(SECOND * 2);
    world.forget_observations();
    for node in [0, 2] {
        recorded.iter().for_each(|octets| world.give(node, LinkInput::Received(octets)));
        world.run(SECOND);
    }
    assert_eq!(world.news, []);
}

/// All nodes have been restarted. Messages of their earlier processes are replayed all the time.
#[test]
fn recordings_of_earlier_processes_shut_out_nobody() {
    let mut world = settled();
    let mut recorded: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 3];
    for _ in 0..10 {
        world.run(MS * 100);
        (0..3).for_each(|node| recorded[node].push(world.sent[&node].clone()));
    }
    for node in 0..3 {
        world.power_off(node);
        world.power_on(node);
    }
    for _ in 0..1_000 {
        for to in 0..3 {
            for octets in (0..3).filter(|node| *node != to).flat_map(|node| &recorded[node]) {
                world.give(to, LinkInput::Received(octets));
            }
        }
        world.run(MS * 2);
    }
    for node in 0..3 {
        let view = world.nodes[node].link.as_ref().expect("it runs").link_view(world.now);
        assert_eq!(view.peers.len(), 2, "{node}");
        assert!(view.peers.iter().all(|peer| !peer.silent && !peer.deaf), "{:?}", view.peers);
    }
    assert_eq!(world.loads().iter().sum::<usize>(), 12);
}

/// Every node keeps acknowledging a process that it has heard only once. That must not make a node
/// that receives nothing look as if it received something.
#[test]
fn a_recorded_message_hides_no_node_that_receives_nothing() {
    let mut world = settled();
    let recorded = overheard(&mut world, 2);
    world.kill(2);
    world.start(2);
    world.run(SECOND * 10);
    (0..3).for_each(|node| world.give(node, LinkInput::Received(&recorded)));
    world.run(SECOND * 10);
    world.cut.extend([(1, 0), (2, 0)]);
    for round in 0..50 {
        world.run(MS * 100);
        for number in (0..12).filter(|_| round >= 4) {
            let answering = world.answering(address(number));
            assert!(answering.iter().any(|node| *node != 0), "{number}: {answering:?}");
        }
    }
}

fn read(octets: &[u8], keys: &SealKeys) -> Heartbeat {
    keys.open_sealed(octets).and_then(wire::parse_heartbeat).expect("a message of a node")
}

fn settled_without_a_key(nodes: usize) -> World {
    let mut world = World::new(nodes, 12, 3);
    world.keys = SealKeys::default();
    (0..nodes).for_each(|node| world.start(node));
    world.run(SECOND * 15);
    world.disturb();
    world.forget_observations();
    world
}

/// A participant that says it holds all addresses.
fn greedy(node: &str, epoch: u32, heard: Vec<Acknowledgement>) -> Heartbeat {
    let row = |number| TableRow {
        address: address(number),
        rank: CandidateRank::Candidate,
        holds: Some(epoch),
    };
    let rows: Vec<TableRow> = (0..12).map(row).collect();
    let changes = TableChanges { since: 1 << 32, until: (1 << 32) + 12, rows };
    Heartbeat {
        node: node.to_owned(),
        interface: "eth0".to_owned(),
        incarnation: 1,
        sequence: 1,
        link_address: link_address(99),
        version: changes.until,
        heard,
        changes,
    }
}

/// An acknowledgement of a node's last message.
fn acknowledge(world: &World, node: usize) -> Acknowledgement {
    let Heartbeat { node, interface, incarnation, sequence, .. } =
        read(&world.sent[&node], &world.keys);
    Acknowledgement {
        id: ParticipantId::of_interface(&node, &interface),
        incarnation,
        sequence,
        version: 0,
    }
}

fn send_to_all(world: &mut World, message: &Heartbeat) {
    let mut octets = wire::encode_heartbeat(message);
    world.keys.clone().append_seal(&mut octets);
    (0..world.nodes.len()).for_each(|node| world.give(node, LinkInput::Received(&octets)));
}

/// With the key or without it, a sender that acknowledges no message of a node never becomes a
/// participant.
#[test]
fn who_never_acknowledges_takes_nothing() {
    for mut world in [settled(), settled_without_a_key(3)] {
        let before = world.loads();
        let mut liar = greedy("liar", u32::MAX, Vec::new());
        for _ in 0..200 {
            liar.sequence += 1;
            send_to_all(&mut world, &liar);
            world.run(MS * 50);
        }
        assert_eq!(world.loads(), before);
        assert_eq!(world.news, []);
    }
}

/// A participant that stops acknowledging others looks as if it did not hear them, and its claims
/// would win. They count only if its link-layer address answers probes.
#[test]
fn who_hears_nobody_and_answers_nothing_takes_nothing() {
    for mut world in [settled(), settled_without_a_key(3)] {
        let before = world.loads();
        let mut liar = greedy("liar", u32::MAX, Vec::new());
        liar.changes.rows.clear();
        send_to_all(&mut world, &liar);
        world.run(MS * 150);
        liar.heard = (0..3).map(|node| acknowledge(&world, node)).collect();
        liar.sequence += 1;
        send_to_all(&mut world, &liar);
        for sequence in 10..50 {
            send_to_all(&mut world, &Heartbeat { sequence, ..greedy("liar", 1 << 20, Vec::new()) });
            world.run(MS * 100);
        }
        assert_eq!(world.loads(), before);
    }
}

/// Without a key, a machine on the link can take addresses, but only for as long as it sends.
#[test]
fn without_a_key_a_liar_keeps_addresses_only_while_it_sends() {
    for epoch in [1, 1 << 20, i32::MAX as u32, u32::MAX - 1, u32::MAX] {
        let mut world = settled_without_a_key(3);
        let mut liar = greedy("liar", epoch, Vec::new());
        send_to_all(&mut world, &liar);
        for _ in 0..30 {
            world.run(MS * 100);
            liar.heard = (0..3).map(|node| acknowledge(&world, node)).collect();
            liar.sequence += 1;
            send_to_all(&mut world, &liar);
        }
        if [1 << 20, i32::MAX as u32].contains(&epoch) {
            assert_eq!(world.loads(), [0; 3], "{epoch}");
        }
        world.forget_observations();
        world.run(SECOND * 5);
        assert_eq!(world.loads().iter().sum::<usize>(), 12, "{epoch}");
        assert!(world.longest_none() <= SECOND, "{:?}", world.longest_none());
        // The election works as before: addresses move when they should, and without a gap.
        world.run(SECOND * 30);
        world.disturb();
        world.forget_observations();
        world.give(1, LinkInput::Leave);
        world.run(SECOND * 15);
        assert_eq!(world.loads()[1], 0, "{epoch}");
        assert_eq!(world.longest_none(), Duration::ZERO, "{epoch}");
        assert!(world.longest_several() <= MS * 5, "{epoch} {:?}", world.longest_several());
    }
}

/// Without a key, one message in another node's name must not shut that node out for long.
#[test]
fn a_forged_message_in_another_name_has_no_lasting_effect() {
    for what in ["sequence", "version", "incarnation"] {
        let mut world = settled_without_a_key(3);
        let mut forged = read(&overheard(&mut world, 1), &world.keys.clone());
        forged.changes =
            TableChanges { since: forged.version, until: forged.version, rows: Vec::new() };
        match what {
            "sequence" => forged.sequence = u64::MAX,
            "version" => {
                forged.sequence += 1;
                forged.version = u64::MAX;
                forged.changes.since = u64::MAX - 1;
                forged.changes.until = u64::MAX;
            }
            _ => {
                forged.incarnation += 1;
                forged.sequence = u64::MAX;
            }
        }
        send_to_all(&mut world, &forged);
        world.run(SECOND * 30);
        assert_eq!(world.loads().iter().sum::<usize>(), 12, "{what}");
        let view = world.nodes[0].link.as_ref().expect("it runs").link_view(world.now);
        let peer = view.peers.iter().find(|peer| peer.node == "node-1").expect("it is there");
        assert!(!peer.silent && !peer.deaf, "{what}");
        // The other nodes still follow its table.
        world.disturb();
        world.forget_observations();
        for number in 0..12 {
            world.nodes[1].wanted.insert(address(number), CandidateRank::LastResort);
        }
        world.want(1, address(0), Some(CandidateRank::LastResort));
        world.run(SECOND * 15);
        assert_eq!(world.loads()[1], 0, "{what}");
        assert_eq!(world.longest_none(), Duration::ZERO, "{what}");
        assert!(world.longest_several() <= MS * 500, "{what} {:?}", world.longest_several());
    }
}

const TOO_MANY: &str = "as many other nodes take part as can";

/// Without a key any sender may take part, but all together they take bounded memory.
#[test]
fn participants_without_a_key_are_bounded() {
    let mut world = World::new(1, 4, 5);
    world.keys = SealKeys::default();
    world.start(0);
    world.run(SECOND * 2);
    let mut liars: Vec<(LinkElection, Time)> = Vec::new();
    for number in 0..1_200 {
        let identity = ParticipantIdentity {
            node: format!("liar-{number}"),
            interface: "eth0".to_owned(),
            incarnation: number,
        };
        let mut link =
            LinkElection::new(identity, world.timing, SealKeys::default(), &[], world.now);
        let usable = LinkInput::Interface { usable: true, link_address: link_address(9) };
        link.handle(usable, world.now);
        link.handle(LinkInput::Wanted(world.nodes[0].wanted.clone()), world.now);
        liars.push((link, world.now));
    }
    for _ in 0..20 {
        world.run(MS * 100);
        let now = world.now;
        let heartbeat = overheard(&mut world, 0);
        for (liar, _) in &mut liars {
            let mut effects = liar.handle(LinkInput::Received(&heartbeat), now);
            effects.extend(liar.handle(LinkInput::Timer, now));
            for effect in effects {
                if let LinkEffect::Send(octets) = effect {
                    world.give(0, LinkInput::Received(&octets));
                }
            }
        }
    }
    let view = world.nodes[0].link.as_ref().expect("it runs").link_view(world.now);
    assert_eq!(view.peers.len(), 128);
    assert!(view.crowded);
    // In whatever order they came, those with the lowest ids are tracked, as on every node.
    let mut ids: Vec<ParticipantId> = (0..1_200)
        .map(|number| ParticipantId::of_interface(&format!("liar-{number}"), "eth0"))
        .collect();
    ids.sort_unstable();
    let followed =
        view.peers.iter().map(|peer| ParticipantId::of_interface(&peer.node, &peer.interface));
    assert_eq!(followed.collect::<Vec<ParticipantId>>(), ids[..128]);
    assert!(ids[127] < ParticipantId::of_interface("node-0", "eth0"));
    let why_not = |row: &AddressView| row.why_not_here.as_deref() == Some(TOO_MANY);
    assert!(view.addresses.iter().all(why_not), "{:?}", view.addresses);
}

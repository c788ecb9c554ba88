//! Which nodes count as dead while nodes lose power, agents crash or pause, and networks are cut.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::*;
use super::world::{MS, World};

const SECOND: Duration = Duration::from_secs(1);
/// Between two looks of a node at its signs.
const STEP: Duration = Duration::from_millis(10);

/// Nodes that also probe each other by a network that may differ from the announcing link.
struct Cluster {
    world: World,
    liveness: Vec<NodeLiveness>,
    /// What came of probes, when that is known: observer, node, time of sending, outcome.
    results: BTreeMap<(Time, usize, usize), (Time, ProbeOutcome)>,
    /// Pairs that can't connect to each other, in neither direction.
    unconnected: BTreeSet<(usize, usize)>,
    /// Nodes whose firewall drops probes.
    closed: BTreeSet<usize>,
    probes: usize,
    /// How many of a thousand probes are lost.
    probe_loss: u64,
    /// Which nodes each observer has set aside.
    set_aside: BTreeSet<(usize, usize)>,
    /// Those of them that have power, and that it can connect to, and since when both are so.
    wrong: BTreeMap<(usize, usize), Time>,
    /// The longest time for which a node that has power was set aside by one that can connect to it.
    longest_wrong: Duration,
}

impl Cluster {
    fn start(nodes: usize) -> Self {
        let mut cluster = Self {
            world: World::new(nodes, nodes, 1),
            liveness: vec![NodeLiveness::new(ElectionTiming::default()); nodes],
            results: BTreeMap::new(),
            unconnected: BTreeSet::new(),
            closed: BTreeSet::new(),
            probes: 0,
            probe_loss: 0,
            set_aside: BTreeSet::new(),
            wrong: BTreeMap::new(),
            longest_wrong: Duration::ZERO,
        };
        cluster.run(SECOND * 5);
        assert_eq!(cluster.set_aside, BTreeSet::new());
        cluster
    }

    fn run(&mut self, duration: Duration) {
        let end = self.world.now + duration;
        while self.world.now < end {
            self.world.run(STEP.min(end - self.world.now));
            self.note_results();
            for observer in 0..self.liveness.len() {
                if self.world.runs(observer) {
                    self.look(observer);
                }
            }
            self.observe();
        }
    }

    fn look(&mut self, observer: usize) {
        let (now, liveness) = (self.world.now, &mut self.liveness[observer]);
        let Some(link) = &self.world.nodes[observer].link else { return };
        liveness.note_signs(&link.node_signs(now), now);
        let limit = liveness.answer_limit();
        for name in liveness.due_probes(now) {
            let node = number_of(&name);
            let answers = self.can_connect(observer, node)
                && self.world.random.below(1_000) >= self.probe_loss;
            let (at, outcome) = match answers {
                true => (now + MS, ProbeOutcome::Answered),
                false => (now + limit, ProbeOutcome::Unanswered),
            };
            self.probes += 1;
            self.results.insert((at, observer, node), (now, outcome));
        }
    }

    fn can_connect(&self, from: usize, to: usize) -> bool {
        let is_cut =
            self.unconnected.contains(&(from, to)) || self.unconnected.contains(&(to, from));
        self.world.nodes[to].powered && !is_cut && !self.closed.contains(&to)
    }

    fn note_results(&mut self) {
        let now = self.world.now;
        while let Some(entry) = self.results.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, observer, node), (sent, outcome)) = entry.remove_entry();
            // A process that is paused or has ended reads nothing.
            if self.world.runs(observer) {
                self.liveness[observer].note_probe(&format!("node-{node}"), sent, outcome, now);
            }
        }
    }

    fn observe(&mut self) {
        let now = self.world.now;
        let observers = (0..self.liveness.len()).filter(|observer| self.world.runs(*observer));
        let all = observers.flat_map(|observer| {
            self.dead_to(observer).into_iter().map(move |node| (observer, node))
        });
        self.set_aside = all.collect();
        let is_wrong = |pair: &&(usize, usize)| self.can_connect(pair.0, pair.1);
        let since = |pair: &(usize, usize)| self.wrong.get(pair).copied().unwrap_or(now);
        let wrong = self.set_aside.iter().filter(is_wrong).map(|pair| (*pair, since(pair)));
        let wrong: BTreeMap<(usize, usize), Time> = wrong.collect();
        let longest = wrong.values().map(|since| now + STEP - *since).max();
        self.longest_wrong = self.longest_wrong.max(longest.unwrap_or_default());
        self.wrong = wrong;
    }

    /// The nodes that a node has set aside.
    fn dead_to(&self, observer: usize) -> Vec<usize> {
        self.liveness[observer].dead_nodes().iter().map(|name| number_of(name)).collect()
    }

    /// Lets time pass until all nodes that run, but those given, have set aside exactly these.
    fn wait_for_dead(&mut self, dead: &[usize], but: &[usize], limit: Duration) -> Duration {
        let begun = self.world.now;
        loop {
            let mut observers = (0..self.liveness.len())
                .filter(|node| self.world.runs(*node) && !but.contains(node));
            if observers.all(|node| self.dead_to(node) == dead) {
                return self.world.now - begun;
            }
            assert!(self.world.now < begun + limit, "{:?}", self.set_aside);
            self.run(STEP);
        }
    }

    fn power_off(&mut self, node: usize) {
        self.world.power_off(node);
        self.liveness[node] = NodeLiveness::new(ElectionTiming::default());
    }

    /// The process of a node starts again.
    fn restart(&mut self, node: usize) {
        self.liveness[node] = NodeLiveness::new(ElectionTiming::default());
        self.world.start(node);
    }

    /// Cuts the announcing link between two sets of nodes.
    fn cut_link(&mut self, one: &[usize], other: &[usize]) {
        for &a in one {
            self.world.cut.extend(other.iter().flat_map(|&b| [(a, b), (b, a)]));
        }
    }

    /// Cuts the announcing link and all connections between two sets of nodes.
    fn cut_all(&mut self, one: &[usize], other: &[usize]) {
        self.cut_link(one, other);
        for &a in one {
            self.unconnected.extend(other.iter().map(|&b| (a, b)));
        }
    }

    fn heal(&mut self) {
        self.world.cut.clear();
        self.unconnected.clear();
    }
}

fn number_of(name: &str) -> usize {
    name.trim_start_matches("node-").parse().expect("node-N")
}

#[test]
fn a_node_without_power_is_set_aside_within_a_second_and_given_back_when_it_is_heard() {
    for (nodes, rounds) in [(3, 5), (5, 3), (25, 1)] {
        let mut cluster = Cluster::start(nodes);
        for round in 0..rounds {
            cluster.run(MS * 20 * round);
            cluster.power_off(1);
            let lasted = cluster.wait_for_dead(&[1], &[], SECOND);
            assert!(lasted > MS * 300 && lasted <= MS * 800, "{nodes}: {lasted:?}");
            // Long after the links have forgotten it.
            cluster.run(SECOND * 15);
            cluster.wait_for_dead(&[1], &[], Duration::ZERO);
            cluster.world.power_on(1);
            let lasted = cluster.wait_for_dead(&[], &[], SECOND);
            assert!(lasted <= MS * 400, "{nodes}: {lasted:?}");
            // It was given back, so it is not set aside again at once.
            cluster.run(SECOND * 11);
        }
        assert!(cluster.longest_wrong <= SECOND, "{:?}", cluster.longest_wrong);
    }
}

#[test]
fn several_nodes_that_lose_power_together_are_set_aside() {
    let mut cluster = Cluster::start(7);
    for node in [0, 1, 2, 3] {
        cluster.power_off(node);
    }
    cluster.wait_for_dead(&[0, 1, 2, 3], &[], MS * 800);
}

#[test]
fn a_machine_that_boots_is_given_back_when_its_agent_runs() {
    let mut cluster = Cluster::start(4);
    cluster.power_off(1);
    cluster.wait_for_dead(&[1], &[], SECOND);
    cluster.run(SECOND * 20);
    // Its kernel answers; no pod runs yet.
    cluster.world.nodes[1].powered = true;
    for _ in 0..40 {
        cluster.run(SECOND);
        cluster.wait_for_dead(&[1], &[], Duration::ZERO);
    }
    cluster.restart(1);
    cluster.wait_for_dead(&[], &[], MS * 400);
}

#[test]
fn a_machine_that_boots_without_an_agent_is_given_back_after_a_minute() {
    let mut cluster = Cluster::start(4);
    cluster.power_off(1);
    cluster.run(SECOND * 20);
    cluster.world.nodes[1].powered = true;
    cluster.run(SECOND * 55);
    cluster.wait_for_dead(&[1], &[], Duration::ZERO);
    // A miss begins the minute anew.
    cluster.closed.insert(1);
    cluster.run(SECOND * 2);
    cluster.closed.clear();
    cluster.run(SECOND * 55);
    cluster.wait_for_dead(&[1], &[], Duration::ZERO);
    cluster.wait_for_dead(&[], &[], SECOND * 10);
}

/// The machine of node 1, whose agent has crashed, stands still for a short time.
#[test]
fn a_machine_that_answers_soon_is_given_back_without_its_agent() {
    let mut cluster = Cluster::start(4);
    cluster.world.kill(1);
    cluster.world.nodes[1].powered = false;
    cluster.wait_for_dead(&[1], &[], SECOND);
    cluster.run(SECOND * 2);
    cluster.world.nodes[1].powered = true;
    cluster.wait_for_dead(&[], &[], MS * 1_500);
}

#[test]
fn a_node_that_was_given_back_is_not_set_aside_again_for_ten_seconds() {
    let mut cluster = Cluster::start(4);
    cluster.power_off(1);
    cluster.wait_for_dead(&[1], &[], SECOND);
    cluster.world.power_on(1);
    cluster.wait_for_dead(&[], &[], SECOND);
    cluster.run(SECOND * 2);
    cluster.power_off(1);
    let lasted = cluster.wait_for_dead(&[1], &[], SECOND * 10);
    assert!(lasted > SECOND * 6, "{lasted:?}");
}

/// A firewall that was there before never sets a node aside; one that begins to drop both heartbeats and probes does.
#[test]
fn a_node_whose_firewall_closes_is_set_aside_until_it_opens() {
    let mut cluster = Cluster::start(4);
    cluster.closed.insert(1);
    cluster.cut_link(&[1], &[0, 2, 3]);
    cluster.wait_for_dead(&[1], &[1], SECOND);
    cluster.run(SECOND * 20);
    cluster.closed.clear();
    cluster.heal();
    cluster.wait_for_dead(&[], &[], SECOND);
}

/// Three probes in a row may be lost by chance, too.
#[test]
fn a_node_whose_probes_were_lost_for_a_short_time_is_set_aside_soon_after() {
    let mut cluster = Cluster::start(4);
    cluster.run(SECOND * 31);
    cluster.closed.insert(1);
    // Longer than a control probe and its two repetitions.
    cluster.run(SECOND * 34);
    cluster.closed.clear();
    cluster.run(SECOND * 9);
    cluster.power_off(1);
    cluster.wait_for_dead(&[1], &[], SECOND);
}

#[test]
fn a_node_that_never_answers_is_probed_twice_a_minute() {
    let mut cluster = Cluster::start(3);
    cluster.closed.extend([0, 1, 2]);
    cluster.run(SECOND * 120);
    let before = cluster.probes;
    cluster.run(SECOND * 60);
    assert_eq!(cluster.probes - before, 12);
}

#[test]
fn nodes_that_can_not_be_found_dead_are_neither_probed_nor_counted() {
    let cluster = Cluster::start(2);
    let watched = |cluster: &Cluster| {
        cluster.liveness.iter().map(NodeLiveness::count_watched).collect::<Vec<_>>()
    };
    assert_eq!((watched(&cluster), cluster.probes), (vec![0, 0], 0));
    let mut cluster = Cluster::start(3);
    assert_eq!(watched(&cluster), [2, 2, 2]);
    for node in 0..3 {
        cluster.world.give(node, LinkInput::Keys(SealKeys::default()));
    }
    cluster.run(SECOND);
    let before = cluster.probes;
    cluster.run(SECOND * 60);
    assert_eq!((watched(&cluster), cluster.probes), (vec![0, 0, 0], before));
}

#[test]
fn nodes_whose_agents_crash_stop_or_pause_are_not_set_aside() {
    let mut cluster = Cluster::start(5);
    cluster.world.kill(1);
    cluster.world.nodes[2].paused = true;
    cluster.run(SECOND * 60);
    cluster.restart(1);
    cluster.world.resume(2);
    cluster.run(SECOND * 10);
    cluster.world.give(3, LinkInput::Leave);
    cluster.run(SECOND * 3);
    cluster.world.kill(3);
    cluster.run(SECOND * 20);
    assert_eq!((cluster.longest_wrong, cluster.set_aside.len()), (Duration::ZERO, 0));
}

/// The agent of node 1 has crashed, and its machine fails before the others have forgotten it.
#[test]
fn a_node_whose_agent_has_crashed_is_set_aside_when_it_loses_power() {
    let mut cluster = Cluster::start(5);
    cluster.world.kill(1);
    cluster.run(SECOND * 5);
    cluster.power_off(1);
    let lasted = cluster.wait_for_dead(&[1], &[], SECOND * 4);
    assert!(lasted > MS * 100, "{lasted:?}");
}

#[test]
fn one_node_alone_sets_none_aside() {
    let mut cluster = Cluster::start(2);
    cluster.power_off(1);
    cluster.run(SECOND * 20);
    assert_eq!(cluster.dead_to(0), []);
    // All other nodes hear node 1 and can connect to it.
    let mut cluster = Cluster::start(4);
    cluster.cut_all(&[0], &[1]);
    cluster.run(SECOND * 20);
    assert_eq!(cluster.set_aside, BTreeSet::new());
    // And in one direction.
    cluster.heal();
    cluster.run(SECOND * 5);
    cluster.world.cut.insert((1, 0));
    cluster.unconnected.insert((1, 0));
    cluster.run(SECOND * 20);
    assert_eq!(cluster.set_aside, BTreeSet::new());
}

#[test]
fn without_the_key_or_an_answer_before_no_node_is_set_aside() {
    let mut cluster = Cluster::start(4);
    cluster.closed.insert(1);
    // Longer than between two probes of a node that is heard.
    cluster.run(SECOND * 35);
    cluster.power_off(1);
    cluster.run(SECOND * 20);
    assert_eq!(cluster.set_aside, BTreeSet::new());

    let mut cluster = Cluster::start(4);
    for node in 0..4 {
        cluster.world.give(node, LinkInput::Keys(SealKeys::default()));
    }
    cluster.run(SECOND);
    cluster.power_off(1);
    cluster.run(SECOND * 20);
    assert_eq!(cluster.set_aside, BTreeSet::new());
}

#[test]
fn a_node_that_can_connect_to_no_other_sets_none_aside() {
    let mut cluster = Cluster::start(4);
    cluster.unconnected.extend([(0, 1), (0, 2), (0, 3)]);
    cluster.world.kill(1);
    cluster.run(SECOND * 20);
    assert_eq!(cluster.set_aside, BTreeSet::new());
    // And one that hears no other.
    let mut cluster = Cluster::start(4);
    cluster.cut_link(&[0], &[1, 2, 3]);
    cluster.power_off(1);
    cluster.wait_for_dead(&[1], &[0], SECOND);
    cluster.run(SECOND * 20);
    assert_eq!(cluster.dead_to(0), []);
}

#[test]
fn a_node_that_no_other_reaches_is_set_aside_until_the_network_heals() {
    let mut cluster = Cluster::start(5);
    cluster.cut_all(&[0], &[1, 2, 3, 4]);
    cluster.wait_for_dead(&[0], &[0], SECOND);
    cluster.run(SECOND * 30);
    assert_eq!(cluster.dead_to(0), []);
    cluster.heal();
    let lasted = cluster.wait_for_dead(&[], &[], SECOND);
    assert!(lasted <= MS * 500, "{lasted:?}");
}

/// The process of node 0 stands still while node 1 loses power, and while it returns.
#[test]
fn a_pause_of_the_own_process_sets_no_living_node_aside() {
    let mut cluster = Cluster::start(4);
    for pause in [100, 200, 250, 310, 400, 700, 5_000] {
        cluster.world.nodes[0].paused = true;
        cluster.run(MS * pause);
        cluster.world.resume(0);
        cluster.run(SECOND * 3);
    }
    assert_eq!((cluster.longest_wrong, cluster.set_aside.len()), (Duration::ZERO, 0));
    cluster.world.nodes[0].paused = true;
    cluster.power_off(1);
    cluster.run(SECOND * 3);
    cluster.world.resume(0);
    cluster.wait_for_dead(&[1], &[], SECOND * 3);
    // Nor does it give a dead one back.
    cluster.world.nodes[0].paused = true;
    cluster.run(MS * 500);
    cluster.world.resume(0);
    for _ in 0..100 {
        cluster.run(STEP);
        assert_eq!(cluster.dead_to(0), [1]);
    }
    cluster.world.nodes[0].paused = true;
    cluster.world.power_on(1);
    cluster.run(SECOND * 3);
    cluster.world.resume(0);
    cluster.wait_for_dead(&[], &[], MS * 500);
}

/// Faults at random that leave all nodes able to connect to each other.
fn disturb_at_random(nodes: usize, rounds: usize) -> Cluster {
    let mut cluster = Cluster::start(nodes);
    cluster.probe_loss = 50;
    for _ in 0..rounds {
        let (fault, a) =
            (cluster.world.random.below(7), cluster.world.random.below(nodes as u64) as usize);
        let share = 1 + cluster.world.random.below(nodes as u64 - 1) as usize;
        let (one, other): (Vec<usize>, Vec<usize>) =
            (0..nodes).partition(|node| (node + a) % nodes < share);
        match fault {
            0 => cluster.cut_link(&one, &other),
            1 => cluster
                .world
                .cut
                .extend(one.iter().flat_map(|&a| other.iter().map(move |&b| (a, b)))),
            2 => cluster
                .cut_link(&[a], &other.into_iter().filter(|node| *node != a).collect::<Vec<_>>()),
            3 => cluster.world.nodes[a].paused = true,
            4 => cluster.world.kill(a),
            5 => cluster.world.loss = 300,
            _ => cluster.world.firewalled.extend(one),
        }
        let wait = cluster.world.random.below(1_500);
        cluster.run(MS * wait as u32);
        if cluster.world.random.below(2) == 0 {
            cluster.heal();
            cluster.world.loss = 0;
            cluster.world.firewalled.clear();
            for node in 0..nodes {
                if cluster.world.nodes[node].paused {
                    cluster.world.resume(node);
                } else if cluster.world.nodes[node].link.is_none() {
                    cluster.restart(node);
                }
            }
            cluster.run(MS * 700);
        }
    }
    cluster
}

#[test]
fn no_fault_that_leaves_nodes_able_to_connect_sets_one_aside_for_a_second() {
    for nodes in [3, 6] {
        let cluster = disturb_at_random(nodes, 60);
        assert!(cluster.longest_wrong <= SECOND, "{:?}", cluster.longest_wrong);
    }
}

#[test]
#[ignore = "takes minutes"]
fn of_a_hundred_nodes_none_that_lives_is_set_aside_for_a_second_and_a_dead_one_is() {
    let mut cluster = disturb_at_random(100, 12);
    assert!(cluster.longest_wrong <= SECOND, "{:?}", cluster.longest_wrong);
    cluster.heal();
    cluster.world.loss = 0;
    cluster.world.firewalled.clear();
    for node in 0..100 {
        if cluster.world.nodes[node].paused {
            cluster.world.resume(node);
        } else if cluster.world.nodes[node].link.is_none() {
            cluster.restart(node);
        }
    }
    // Nodes that were given back are not set aside again at once.
    cluster.run(SECOND * 15);
    cluster.power_off(40);
    let lasted = cluster.wait_for_dead(&[40], &[], SECOND * 2);
    assert!(lasted <= MS * 1_200, "{lasted:?}");
}

//! A simulated month of a cluster whose nodes and backends come and go, while a router moves
//! connections between nodes: how many break, with and without the history of slots.
//!
//! The small one runs with all tests. 1,000 nodes and 10,000 backends:
//! `cargo test --release -p lb-common --features std --test slot_history -- --ignored --nocapture`

#![cfg(feature = "std")]

use std::collections::HashMap;

use lb_common::hash::{mix, scale};
use lb_common::layout::{EarlierOwners, FlowKind};
use lb_common::maglev;
use lb_common::slot_history::SlotHistory;

const MINUTE: u32 = 60;
const HOUR: u32 = 60 * MINUTE;
const DAY: u32 = 24 * HOUR;

/// How a router distributes connections when its next hops change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Router {
    /// Only the connections of a lost next hop move, and a new one takes its share ("resilient").
    Consistent,
    /// All connections are distributed again, as with plain multipath.
    Modulo,
}

#[derive(Clone, Copy, Debug)]
struct Setup {
    nodes: u32,
    backends: u32,
    connections: usize,
    /// The mean duration of a connection.
    lifetime: u32,
    duration: u32,
    /// Backends are replaced this often, so many at once.
    replace_every: u32,
    replaced: u32,
    /// One backend is added or removed this often.
    scale_every: u32,
    /// A node leaves, or one is added, this often.
    node_every: u32,
    /// How long earlier owners are kept.
    age: u32,
    router: Router,
    seed: u64,
}

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// A random time of a memoryless process.
    fn exponential(&mut self, mean: u32) -> u32 {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - uniform).ln() * f64::from(mean)) as u32
    }
}

#[derive(Clone, Copy)]
struct Connection {
    hash: u32,
    backend: u32,
    /// The router's next hop, by the node's number.
    node: u32,
    end: u32,
    /// Which backend's node redirects its packets to the right one.
    via: Option<(u32, u32)>,
    /// Without history it would have ended before.
    broken_without: bool,
}

#[derive(Debug, Default)]
struct Figures {
    opened: u64,
    /// How often the router moved a connection to another node.
    moved: u64,
    /// Connections whose own backend was removed: lost in any case.
    ended_with_backend: u64,
    broken_without: u64,
    broken_with: u64,
    redirected: u64,
    /// Questions to earlier owners' nodes.
    asked: u64,
    /// Seconds of all connections, and of those that were redirected meanwhile.
    seconds: u64,
    redirected_seconds: u64,
    most_rows: usize,
    slots: usize,
}

struct World {
    setup: Setup,
    random: Random,
    now: u32,
    next_number: u32,
    /// The router's next hops. One that joins learns the history from others.
    nodes: Vec<u32>,
    /// The node of each backend in the pool.
    backends: HashMap<u32, u32>,
    /// The node of each backend, also of those that are gone.
    homes: HashMap<u32, u32>,
    /// As a list, from which some are picked.
    numbers: Vec<u32>,
    table: Vec<u32>,
    history: SlotHistory,
    connections: Vec<Connection>,
    figures: Figures,
}

impl World {
    fn new(setup: Setup) -> Self {
        let mut world = Self {
            setup,
            random: Random(setup.seed),
            now: DAY,
            next_number: 1,
            nodes: Vec::new(),
            backends: HashMap::new(),
            homes: HashMap::new(),
            numbers: Vec::new(),
            table: Vec::new(),
            history: SlotHistory::default(),
            connections: Vec::new(),
            figures: Figures::default(),
        };
        for _ in 0..setup.nodes {
            world.add_node();
        }
        for _ in 0..setup.backends {
            world.add_backend();
        }
        world.table = world.build();
        for _ in 0..setup.connections {
            let connection = world.open();
            world.connections.push(connection);
        }
        world
    }

    fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    fn add_node(&mut self) {
        let node = self.number();
        self.nodes.push(node);
    }

    fn add_backend(&mut self) {
        let backend = self.number();
        let node = self.nodes[self.random.below(self.nodes.len())];
        self.backends.insert(backend, node);
        self.homes.insert(backend, node);
        self.numbers.push(backend);
    }

    fn remove_backend(&mut self) {
        let at = self.random.below(self.numbers.len());
        let backend = self.numbers.swap_remove(at);
        self.backends.remove(&backend);
    }

    fn build(&self) -> Vec<u32> {
        let mut all: Vec<(u64, u32)> =
            self.numbers.iter().map(|&number| (mix(number.into()), number)).collect();
        all.sort_unstable();
        let identities: Vec<u64> = all.iter().map(|(identity, _)| *identity).collect();
        let slots = maglev::table(&identities, maglev::fitted_size(identities.len()));
        slots.into_iter().map(|position| all[position as usize].1).collect()
    }

    /// A new connection, to the current owner of its slot.
    fn open(&mut self) -> Connection {
        self.figures.opened += 1;
        let hash = self.random.next() as u32;
        Connection {
            hash,
            backend: self.table[self.slot(hash) as usize],
            node: self.route(hash),
            end: self.now + self.random.exponential(self.setup.lifetime),
            via: None,
            broken_without: false,
        }
    }

    fn slot(&self, hash: u32) -> u32 {
        scale(hash, self.table.len() as u32)
    }

    /// The router's choice.
    fn route(&self, hash: u32) -> u32 {
        match self.setup.router {
            Router::Modulo => self.nodes[hash as usize % self.nodes.len()],
            Router::Consistent => {
                let best = self.nodes.iter().max_by_key(|node| weight(hash, **node));
                *best.expect("there are nodes")
            }
        }
    }

    /// The router's choice after a change: only its own node's end, or the node that was added last, can matter
    /// to a consistent choice.
    fn route_again(&self, connection: &Connection) -> u32 {
        let &Connection { hash, node, .. } = connection;
        let is_there = self.nodes.contains(&node);
        if self.setup.router == Router::Modulo || !is_there {
            return self.route(hash);
        }
        let last = *self.nodes.last().expect("there are nodes");
        if weight(hash, last) > weight(hash, node) { last } else { node }
    }

    fn run(mut self) -> Figures {
        let end = self.now + self.setup.duration;
        let Setup { replace_every, scale_every, node_every, .. } = self.setup;
        let mut grows = false;
        while self.now < end {
            self.now += MINUTE;
            let is_due = |every: u32| self.now.is_multiple_of(every);
            let (replaces, scales, moves) =
                (is_due(replace_every), is_due(scale_every), is_due(node_every));
            if moves {
                self.change_nodes();
            }
            if replaces {
                for _ in 0..self.setup.replaced {
                    self.remove_backend();
                    self.add_backend();
                }
            }
            if scales {
                grows = !grows;
                if grows { self.add_backend() } else { self.remove_backend() }
            }
            if moves || replaces || scales {
                self.change_table();
            }
            if moves {
                self.move_connections();
            }
        }
        self.figures.slots = self.table.len();
        self.figures
    }

    /// A node leaves with its backends, which run elsewhere afterwards; or one is added.
    fn change_nodes(&mut self) {
        if self.nodes.len() < self.setup.nodes as usize {
            self.add_node();
        } else {
            let at = self.random.below(self.nodes.len());
            let node = self.nodes.swap_remove(at);
            let lost: Vec<u32> =
                self.numbers.iter().copied().filter(|n| self.backends[n] == node).collect();
            for backend in lost {
                self.numbers.retain(|number| *number != backend);
                self.backends.remove(&backend);
                self.add_backend();
            }
        }
    }

    /// The router distributes connections over the nodes that there are now.
    fn move_connections(&mut self) {
        for at in 0..self.connections.len() {
            let mut connection = self.connections[at];
            if connection.end <= self.now {
                connection = self.open();
            }
            let node = self.route_again(&connection);
            if node != connection.node {
                connection.node = node;
                connection = self.arrive(connection);
            }
            self.connections[at] = connection;
        }
    }

    /// The next packet of a connection arrives at a node that does not know it.
    fn arrive(&mut self, mut connection: Connection) -> Connection {
        self.figures.moved += 1;
        connection.via = None;
        let slot = self.slot(connection.hash);
        let owner = self.table[slot as usize];
        let node = self.backends[&owner];
        // The owner's node knows the connections of all its backends.
        if self.backends.get(&connection.backend).is_none_or(|own| *own == node) {
            return connection;
        }
        if !connection.broken_without {
            connection.broken_without = true;
            self.figures.broken_without += 1;
        }
        let asked = self.asked(slot);
        let own = self.backends[&connection.backend];
        match asked.iter().position(|node| *node == own) {
            Some(position) => {
                self.figures.asked += position as u64 + 1;
                self.figures.redirected += 1;
                connection.via = Some((owner, self.now));
                connection
            }
            None => {
                self.figures.asked += asked.len() as u64;
                self.figures.broken_with += 1;
                self.open()
            }
        }
    }

    /// The nodes that the current owner's node asks about a connection.
    fn asked(&self, slot: u32) -> Vec<u32> {
        let own = self.backends[&self.table[slot as usize]];
        let EarlierOwners { backends, .. } = self.history.get(slot).copied().unwrap_or_default();
        let nodes = backends.into_iter().filter_map(|backend| self.backends.get(&backend).copied());
        nodes.filter(|node| *node != own).take(FlowKind::MOST_ASKED.into()).collect()
    }

    fn change_table(&mut self) {
        let table = self.build();
        let mut first: HashMap<u32, u32> = HashMap::new();
        for (&backend, &node) in &self.backends {
            let first = first.entry(node).or_insert(backend);
            *first = backend.min(*first);
        }
        let Self { history, backends, homes, .. } = self;
        let asked = |owner: u32| {
            let node = homes[&owner];
            let is_there = backends.contains_key(&owner);
            let backend = if is_there { owner } else { *first.get(&node)? };
            Some((backend, node))
        };
        *history = history.after(&self.table, &table, self.now, asked);
        history.retain(self.now - self.setup.age, asked);
        self.figures.most_rows = self.figures.most_rows.max(self.history.len());
        self.table = table;
        for at in 0..self.connections.len() {
            let connection = self.connections[at];
            let is_over = connection.end <= self.now;
            let is_lost = !self.backends.contains_key(&connection.backend);
            // The node that redirects it forgets it with its own backend.
            let through = connection.via.filter(|(via, _)| !self.backends.contains_key(via));
            if !is_over && !is_lost && through.is_none() {
                continue;
            }
            if is_lost && !is_over {
                self.figures.ended_with_backend += 1;
            }
            let end = connection.end.min(self.now);
            let begin = end.saturating_sub(self.setup.lifetime);
            self.figures.seconds += u64::from(end - begin);
            if let Some((_, since)) = connection.via {
                self.figures.redirected_seconds += u64::from(end.saturating_sub(since));
            }
            self.connections[at] = if through.is_some() && !is_over && !is_lost {
                // Its next packet is taken for that of an unknown connection.
                self.arrive(connection)
            } else {
                self.open()
            };
        }
    }
}

/// The node with the highest weight gets a connection.
fn weight(hash: u32, node: u32) -> u64 {
    mix(u64::from(hash) << 32 | u64::from(node))
}

impl Figures {
    fn print(&self, setup: &Setup) {
        let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
        println!("{:?}, earlier owners kept for {} h", setup.router, setup.age / HOUR);
        println!("  connections                    {:>12}", self.opened);
        println!("  lost with their own backend    {:>12}", self.ended_with_backend);
        println!("  moved by the router            {:>12}", self.moved);
        for (what, broken) in
            [("without history", self.broken_without), ("with history", self.broken_with)]
        {
            let share = percent(broken, self.opened);
            println!("  broken {what:<24}{broken:>12}  {share:.5} % of all");
        }
        let share = percent(self.redirected_seconds, self.seconds);
        println!(
            "  redirected                     {:>12}  {share:.3} % of all packets",
            self.redirected
        );
        println!("  questions to earlier owners    {:>12}", self.asked);
        // Key, value, and what the kernel's hash map adds.
        let octets = self.most_rows as f64 * (8.0 + 32.0 + 48.0);
        println!(
            "  slots with history, at most    {:>12}  of {}; {:.1} octets per slot, {:.1} MiB",
            self.most_rows,
            self.slots,
            octets / self.slots as f64,
            octets / f64::from(1 << 20)
        );
    }
}

const SMALL: Setup = Setup {
    nodes: 8,
    backends: 50,
    connections: 2_000,
    lifetime: 2 * HOUR,
    duration: 12 * HOUR,
    replace_every: 10 * MINUTE,
    replaced: 1,
    scale_every: 30 * MINUTE,
    node_every: HOUR,
    age: 6 * HOUR,
    router: Router::Consistent,
    seed: 1,
};

#[test]
fn history_saves_nearly_all_connections_that_the_router_moves() {
    for router in [Router::Consistent, Router::Modulo] {
        let setup = Setup { router, ..SMALL };
        let figures = World::new(setup).run();
        figures.print(&setup);
        assert!(figures.broken_without > 50, "{figures:?}");
        assert!(figures.broken_with * 10 < figures.broken_without, "{figures:?}");
        assert!(figures.asked < 2 * figures.redirected + figures.broken_with * 3, "{figures:?}");
    }
}

#[test]
fn a_shorter_memory_saves_fewer_connections() {
    let setup = Setup { age: 0, ..SMALL };
    let figures = World::new(setup).run();
    assert!(figures.broken_with * 2 > figures.broken_without, "{figures:?}");
}

/// The rack of `tests/tests/peers/ecmp.rs`: half of the backends are replaced within the life of each
/// connection. Three questions reach all other nodes.
#[test]
fn no_owner_is_lost_among_four_nodes_after_many_changes() {
    let (mut displaced, mut not_found) = (0, 0);
    for seed in 0..5 {
        let lifetime = 30 * DAY;
        let mut world = World::new(Setup { nodes: 4, lifetime, seed, ..SMALL });
        for _ in 0..24 {
            world.now += MINUTE;
            world.remove_backend();
            world.add_backend();
            world.change_table();
        }
        for Connection { hash, backend, .. } in &world.connections {
            let slot = world.slot(*hash);
            let asker = world.backends[&world.table[slot as usize]];
            // Those on the owner's node are known there.
            if world.backends[backend] == asker {
                continue;
            }
            displaced += 1;
            not_found += usize::from(!world.asked(slot).contains(&world.backends[backend]));
        }
    }
    assert!(displaced > 1_000 && not_found == 0, "{not_found} of {displaced} are not found");
}

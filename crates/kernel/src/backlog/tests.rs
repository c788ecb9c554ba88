//! Random changes of in-memory tables whose writes fail at random, compared with tables on which no
//! write fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::anyhow;
use ipnet::IpNet;
use lb_common::family::Family;
use lb_common::layout::{self, Bitmap, FrontendKind, Pool, map};
use lb_common::maglev::DEFAULT_WEIGHT;
use lb_plan::{Change, Planner, SideEntry, Sweep, WriteFamily, WriteTables};
use lb_rules::model::{AddressFamily, Backend, Frontend, Protocol, ServiceName};
use lb_rules::model::{ServicePort, ServicePortKey};
use nix::errno::Errno;
use proptest::prelude::*;

use super::*;

/// Everything that steps write, by key.
#[derive(Clone, Debug, Default, PartialEq)]
struct WrittenCells {
    cells: BTreeMap<String, String>,
    /// Entries for which there may be no room.
    entries: BTreeMap<OptionalEntry, String>,
}

impl WrittenCells {
    fn apply(&mut self, step: &Step) {
        step.execute(self).expect("memory has room");
    }

    fn set(&mut self, cell: String, value: impl Debug) {
        self.cells.insert(cell, format!("{value:?}"));
    }
}

impl WriteTables for WrittenCells {
    fn write_slots(&mut self, offset: u32, slots: &[u32]) -> Result<()> {
        (offset..).zip(slots).for_each(|(slot, backend)| self.set(format!("slot {slot}"), backend));
        Ok(())
    }

    fn swap_pool(&mut self, index: u32, pool: Pool) -> Result<()> {
        self.set(format!("pool {index}"), pool);
        Ok(())
    }

    fn set_destination_bit(&mut self, bit: Bitmap) {
        self.set(format!("destination {bit:?}"), true);
    }

    fn set_source_bit(&mut self, bit: Bitmap) {
        self.set(format!("source {bit:?}"), true);
    }

    fn clear_source_bit(&mut self, bit: Bitmap) {
        self.set(format!("source {bit:?}"), false);
    }

    fn set_side_entry(&mut self, side_entry: &SideEntry) -> Result<()> {
        self.entries.insert(OptionalEntry::SideEntry(side_entry.key()), format!("{side_entry:?}"));
        Ok(())
    }

    fn remove_side_entry(&mut self, side_entry: &SideEntry) -> Result<()> {
        self.entries.remove(&OptionalEntry::SideEntry(side_entry.key()));
        Ok(())
    }

    fn sweep_flows(&mut self, sweep: &Sweep) {
        sweep.bits.iter().for_each(|bit| self.set(format!("destination {bit:?}"), false));
    }

    fn reset_service_traffic(&mut self, index: u32) -> Result<()> {
        self.set(format!("service traffic {index}"), 0);
        Ok(())
    }

    fn reset_backend_traffic(&mut self, index: u32) -> Result<()> {
        self.set(format!("backend traffic {index}"), 0);
        Ok(())
    }
}

impl<F: Family> WriteFamily<F> for WrittenCells {
    fn set_backend(&mut self, index: u32, entry: layout::Backend<F::Address>) -> Result<()> {
        self.set(format!("backend {index}"), entry);
        Ok(())
    }

    fn retire_backend(&mut self, index: u32, unused: layout::Backend<F::Address>) -> Result<()> {
        self.set(format!("backend {index}"), unused);
        Ok(())
    }

    fn set_frontend(&mut self, key: layout::FrontendKey<F>, value: layout::Frontend) -> Result<()> {
        self.entries.insert(OptionalEntry::of_frontend(key.into()), format!("{value:?}"));
        Ok(())
    }

    fn remove_frontend(&mut self, key: layout::FrontendKey<F>) -> Result<()> {
        self.entries.remove(&OptionalEntry::of_frontend(key.into()));
        Ok(())
    }
}

impl WrittenCells {
    fn count(&self, map: &str) -> usize {
        self.entries.keys().filter(|entry| entry.map() == map).count()
    }
}

/// Capacities of maps. Other maps are unlimited.
type Room = BTreeMap<&'static str, usize>;

/// Tables with limited room, whose writes fail as `fails` says, one by one.
struct Faulty {
    memory: WrittenCells,
    room: Room,
    fails: Box<dyn Iterator<Item = bool>>,
    /// The executed steps, in order.
    carried_out: Vec<Step>,
}

impl Faulty {
    fn new(room: Room, fails: Vec<bool>) -> Self {
        let fails = Box::new(fails.into_iter().chain(std::iter::repeat(false)));
        Self { memory: WrittenCells::default(), room, fails, carried_out: Vec::new() }
    }
}

impl BacklogTables for Faulty {
    fn execute_step(&mut self, step: &Step) -> Result<()> {
        if self.fails.next() == Some(true) {
            return Err(anyhow!(io::Error::from_raw_os_error(Errno::ENOMEM as i32)));
        }
        if let Step::SetFrontend { .. } | Step::SetSideEntry(_) = step
            && let Some(entry) = OptionalEntry::of(step)
            && !self.memory.entries.contains_key(&entry)
            && self.room.get(entry.map()) == Some(&self.memory.count(entry.map()))
        {
            // As the kernel's maps of these kinds do.
            let is_trie = matches!(entry, OptionalEntry::SideEntry(SideEntry::SourceRange { .. }));
            let full = if is_trie { Errno::ENOSPC } else { Errno::E2BIG };
            let full = anyhow!(io::Error::from_raw_os_error(full as i32));
            return Err(full.context("an entry can't be written"));
        }
        self.memory.apply(step);
        self.carried_out.push(step.clone());
        Ok(())
    }

    fn change_devices(&mut self, _: &BTreeMap<u32, Option<lb_network::Device>>) -> Result<()> {
        Ok(())
    }

    fn set_node_addresses(&mut self, _: &BTreeSet<IpAddr>) -> Result<()> {
        Ok(())
    }

    fn next_epoch(&mut self) {}

    fn lease_epoch(&mut self, _: bool) {}

    fn end_epoch_lease(&mut self) {}
}

/// Services by number: the number of their frontend, those of their backends, whether they have
/// session affinity, and the clients that may connect.
type State = BTreeMap<u8, (u8, BTreeSet<u8>, bool, BTreeSet<u8>)>;

fn states() -> impl Strategy<Value = Vec<State>> {
    let backends = prop::collection::btree_set(0u8..5, 0..4);
    let clients = prop::collection::btree_set(0u8..5, 0..3);
    let service = (0u8..6, backends, any::<bool>(), clients);
    prop::collection::vec(prop::collection::btree_map(0u8..6, service, 0..6), 1..10)
}

fn service_ports(state: &State) -> BTreeMap<ServicePortKey, ServicePort> {
    let mut taken = BTreeSet::new();
    let backend = |n: &u8| Backend {
        address: Ipv4Addr::new(10, 244, 0, *n).into(),
        port: 8080,
        local: true,
        node: None,
        weight: DEFAULT_WEIGHT,
    };
    let range = |n: &u8| IpNet::from(IpAddr::from([198, 51, 100, *n]));
    let ports = state.iter().filter(|(_, (frontend, ..))| taken.insert(*frontend));
    ports
        .map(|(name, (frontend, backends, stay, clients))| {
            let key = ServicePortKey {
                service: ServiceName::new("default", &name.to_string()),
                port: String::new(),
                protocol: Protocol::Tcp,
                family: AddressFamily::V4,
            };
            let address = Ipv4Addr::new(10, 96, 0, *frontend).into();
            let frontend = Frontend { address, port: 80, kind: FrontendKind::ClusterIp };
            let port = ServicePort {
                frontends: BTreeSet::from([frontend]),
                cluster: backends.iter().map(backend).collect(),
                affinity: stay.then_some(Duration::from_secs(60)),
                source_ranges: clients.iter().map(range).collect(),
                ..ServicePort::default()
            };
            (key, port)
        })
        .collect()
}

/// The plans from each state to the next, beginning with an empty one.
fn plans(states: &[State]) -> Vec<Plan> {
    let mut planner = Planner::new();
    let mut before = BTreeMap::new();
    let mut plans = Vec::new();
    for state in states {
        let now = service_ports(state);
        let gone = before.into_keys().filter(|key| !now.contains_key(key));
        let mut service_ports: BTreeMap<_, _> = gone.map(|key| (key, None)).collect();
        service_ports
            .extend(now.iter().map(|(key, port)| (key.clone(), Some(port.clone().into()))));
        plans.push(planner.plan(Change { service_ports, ..Change::default() }));
        before = now;
    }
    plans
}

proptest! {
    #[test]
    fn when_all_has_succeeded_the_tables_are_as_if_nothing_had_failed(
        states in states(),
        fails in prop::collection::vec(prop::bool::weighted(0.3), 0..400),
    ) {
        let mut backlog = Backlog::new(Faulty::new(Room::new(), fails));
        let mut sound = WrittenCells::default();
        let mut steps = Vec::new();
        for plan in plans(&states) {
            plan.steps().for_each(|step| sound.apply(step));
            steps.extend(plan.steps().cloned());
            let done = backlog.carry_out(&plan).is_ok();
            prop_assert_eq!(done, !backlog.is_waiting());
        }
        while backlog.retry().is_err() {}
        prop_assert_eq!(&backlog.tables().memory, &sound);
        prop_assert_eq!(&backlog.tables().carried_out, &steps, "in order, each once");
    }

    #[test]
    fn a_full_map_keeps_out_only_what_does_not_fit(
        states in states(),
        fails in prop::collection::vec(prop::bool::weighted(0.2), 0..200),
        room in [1usize..8, 1..6, 1..4],
    ) {
        let maps = [map::FRONTENDS4, map::MEMBERS, map::SOURCE_RANGES4];
        let room = Room::from_iter(maps.into_iter().zip(room));
        let mut backlog = Backlog::new(Faulty::new(room.clone(), fails));
        let mut sound = WrittenCells::default();
        for plan in plans(&states) {
            plan.steps().for_each(|step| sound.apply(step));
            if backlog.carry_out(&plan).is_err() {
                while backlog.retry().is_err() {}
            }

            let faulty = &backlog.tables().memory;
            prop_assert_eq!(&faulty.cells, &sound.cells);
            let kept_out: BTreeSet<OptionalEntry> = backlog.set_aside().cloned().collect();
            let mut expected = sound.entries.clone();
            expected.retain(|entry, _| !kept_out.contains(entry));
            prop_assert_eq!(&faulty.entries, &expected);
            // No more are set aside than necessary.
            let counts: BTreeMap<_, _> = backlog.without_room().collect();
            for (&map, &room) in &room {
                let count = counts.get(map).copied().unwrap_or_default();
                prop_assert_eq!(count, sound.count(map).saturating_sub(room), "{}", map);
            }
        }
    }
}

/// A Service for each number, each with a backend, session affinity and one allowed client.
fn services(numbers: &[u8]) -> State {
    let service = |&n: &u8| (n, (n, BTreeSet::from([n]), true, BTreeSet::from([n])));
    numbers.iter().map(service).collect()
}

#[test]
fn entries_set_aside_are_written_when_there_is_room() {
    // Cluster addresses have entries beside those of their ports, which are written first.
    for (map, room) in [(map::FRONTENDS4, 3), (map::MEMBERS, 1), (map::SOURCE_RANGES4, 1)] {
        let plans = plans(&[services(&[1, 2]), services(&[2])]);
        let mut backlog = Backlog::new(Faulty::new(Room::from([(map, room)]), Vec::new()));
        assert!(backlog.carry_out(&plans[0]).is_ok());
        let new = backlog.newly_set_aside();
        assert_eq!(new.iter().map(OptionalEntry::map).collect::<Vec<_>>(), [map]);
        assert_eq!(backlog.set_aside().cloned().collect::<Vec<_>>(), new);
        assert_eq!(backlog.without_room().collect::<Vec<_>>(), [(map, 1)]);

        assert!(backlog.carry_out(&plans[1]).is_ok());
        assert_eq!(backlog.set_aside().count(), 0);
        assert_eq!(backlog.newly_set_aside(), []);
        assert!(backlog.tables().memory.entries.contains_key(&new[0]), "{new:?}");
    }
}

/// An address would refuse clients of ports without an entry.
#[test]
fn there_is_room_for_addresses_after_all_ports() {
    let plans = plans(&[services(&[1, 2, 3]), services(&[2, 3])]);
    let mut backlog = Backlog::new(Faulty::new(Room::from([(map::FRONTENDS4, 2)]), Vec::new()));
    for (plan, missing_ports) in plans.iter().zip([1, 0]) {
        assert!(backlog.carry_out(plan).is_ok());
        let of_ports = backlog.set_aside().filter(|it| matches!(it, OptionalEntry::Frontend(_)));
        assert_eq!(of_ports.count(), missing_ports);
    }
    assert_eq!(backlog.without_room().collect::<Vec<_>>(), [(map::FRONTENDS4, 2)]);
}

#[test]
fn a_full_map_does_not_affect_other_maps() {
    let room = Room::from([(map::FRONTENDS4, 0), (map::MEMBERS, 1), (map::SOURCE_RANGES4, 2)]);
    let plans = plans(&[services(&[1, 2, 3]), services(&[2, 3]), services(&[3])]);
    let mut backlog = Backlog::new(Faulty::new(room, Vec::new()));
    for (plan, expected) in plans.iter().zip([[6, 2, 1], [4, 1, 0], [2, 0, 0]]) {
        assert!(backlog.carry_out(plan).is_ok());
        let counts: BTreeMap<_, _> = backlog.without_room().collect();
        let maps = [map::FRONTENDS4, map::MEMBERS, map::SOURCE_RANGES4];
        let found = maps.map(|map| counts.get(map).copied().unwrap_or_default());
        assert_eq!(found, expected);
    }
}

#[test]
fn an_entry_written_again_is_reported_once() {
    let mut changed = services(&[1, 2]);
    // Another policy: its frontend is written again.
    changed.entry(2).and_modify(|(.., stay, _)| *stay = false);
    let plans = plans(&[services(&[1, 2]), changed]);
    let mut backlog = Backlog::new(Faulty::new(Room::from([(map::FRONTENDS4, 3)]), Vec::new()));
    for (plan, new) in plans.iter().zip([1, 0]) {
        assert!(backlog.carry_out(plan).is_ok());
        assert_eq!(backlog.newly_set_aside().len(), new);
        assert_eq!(backlog.set_aside().count(), 1);
    }
}

//! Random changes on tables in memory whose writes fail at random, held against tables on which
//! nothing ever fails.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;

use anyhow::anyhow;
use lb_common::layout::FrontendKind;
use proptest::prelude::*;

use super::*;
use crate::model::{AddressFamily, Backend, Frontend, Protocol, ServiceName};
use crate::model::{ServicePort, ServicePortKey};
use crate::network;
use crate::plan::{Change, Planner};

/// Everything that steps write, by what it is written to.
#[derive(Clone, Debug, Default, PartialEq)]
struct Memory {
    cells: BTreeMap<String, String>,
    frontends: BTreeMap<FrontendKey, layout::Frontend>,
}

impl Memory {
    fn apply(&mut self, step: &Step) {
        let mut set = |cell: String, value: String| drop(self.cells.insert(cell, value));
        match step {
            Step::SetFrontend { key, value } => drop(self.frontends.insert(*key, *value)),
            Step::RemoveFrontend { key } => drop(self.frontends.remove(key)),
            Step::SetBackend { index, backend, standing, generation } => {
                set(format!("backend {index}"), format!("{backend:?} {standing:?} {generation}"));
            }
            Step::RetireBackend { index, generation, .. } => {
                set(format!("backend {index}"), format!("none {generation}"));
            }
            Step::WriteSlots { offset, slots } => {
                for (slot, backend) in (*offset..).zip(slots) {
                    set(format!("slot {slot}"), backend.to_string());
                }
            }
            Step::SwapPool { index, pool } => set(format!("pool {index}"), format!("{pool:?}")),
            Step::SetDestinationBit(bit) => set(format!("destination {bit:?}"), "1".into()),
            Step::ClearDestinationBit(bit) => set(format!("destination {bit:?}"), "0".into()),
            Step::SetDetail(detail) => set(format!("{detail:?}"), "1".into()),
            Step::RemoveDetail(detail) => set(format!("{detail:?}"), "0".into()),
            Step::SetSourceBit(bit) => set(format!("source {bit:?}"), "1".into()),
            Step::ClearSourceBit(bit) => set(format!("source {bit:?}"), "0".into()),
            other => set(format!("{other:?}"), String::new()),
        }
    }
}

/// Tables that hold so many frontends, and whose writes fail as told, one by one.
struct Faulty {
    memory: Memory,
    room: usize,
    fails: Box<dyn Iterator<Item = bool>>,
    /// What was carried out, in its order.
    carried_out: Vec<Step>,
}

impl Faulty {
    fn new(room: usize, fails: Vec<bool>) -> Self {
        let fails = Box::new(fails.into_iter().chain(std::iter::repeat(false)));
        Self { memory: Memory::default(), room, fails, carried_out: Vec::new() }
    }
}

impl Write for Faulty {
    fn apply(&mut self, step: &Step) -> Result<()> {
        if self.fails.next() == Some(true) {
            return Err(anyhow!(io::Error::from_raw_os_error(Errno::ENOMEM as i32)));
        }
        if let Step::SetFrontend { key, .. } = step
            && !self.memory.frontends.contains_key(key)
            && self.memory.frontends.len() == self.room
        {
            let full = anyhow!(io::Error::from_raw_os_error(Errno::E2BIG as i32));
            return Err(full.context("a frontend can't be written"));
        }
        self.memory.apply(step);
        self.carried_out.push(step.clone());
        Ok(())
    }

    fn change_devices(&mut self, _: &BTreeMap<u32, Option<network::Device>>) -> Result<()> {
        Ok(())
    }

    fn next_epoch(&mut self) {}
}

/// Services by number: the number of their frontend, and of their backends.
type State = BTreeMap<u8, (u8, BTreeSet<u8>)>;

fn states() -> impl Strategy<Value = Vec<State>> {
    let service = (0u8..6, prop::collection::btree_set(0u8..5, 0..4));
    prop::collection::vec(prop::collection::btree_map(0u8..6, service, 0..6), 1..10)
}

fn service_ports(state: &State) -> BTreeMap<ServicePortKey, ServicePort> {
    let mut taken = BTreeSet::new();
    let backend =
        |n: &u8| Backend { address: Ipv4Addr::new(10, 244, 0, *n).into(), port: 8080, local: true };
    let ports = state.iter().filter(|(_, (frontend, _))| taken.insert(*frontend));
    ports
        .map(|(name, (frontend, backends))| {
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
                ..ServicePort::default()
            };
            (key, port)
        })
        .collect()
}

/// The plans that lead from each state to the next, beginning from nothing.
fn plans(states: &[State]) -> Vec<Plan> {
    let mut planner = Planner::new();
    let mut before = BTreeMap::new();
    let mut plans = Vec::new();
    for state in states {
        let now = service_ports(state);
        let gone = before.into_keys().filter(|key| !now.contains_key(key));
        let mut service_ports: BTreeMap<_, _> = gone.map(|key| (key, None)).collect();
        service_ports.extend(now.iter().map(|(key, port)| (key.clone(), Some(port.clone()))));
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
        let mut backlog = Backlog::new(Faulty::new(usize::MAX, fails));
        let mut sound = Memory::default();
        let mut steps = Vec::new();
        for plan in plans(&states) {
            plan.steps().for_each(|step| sound.apply(step));
            steps.extend(plan.steps().cloned());
            let done = backlog.carry_out(&plan).is_ok();
            prop_assert_eq!(done, !backlog.is_waiting());
        }
        while backlog.retry().is_err() {}
        prop_assert_eq!(&backlog.tables().memory, &sound);
        prop_assert_eq!(&backlog.tables().carried_out, &steps, "in their order, each once");
    }

    #[test]
    fn a_full_map_keeps_out_only_what_does_not_fit(
        states in states(),
        fails in prop::collection::vec(prop::bool::weighted(0.2), 0..200),
        room in 1usize..6,
    ) {
        let mut backlog = Backlog::new(Faulty::new(room, fails));
        let mut sound = Memory::default();
        for plan in plans(&states) {
            plan.steps().for_each(|step| sound.apply(step));
            if backlog.carry_out(&plan).is_err() {
                while backlog.retry().is_err() {}
            }

            let faulty = &backlog.tables().memory;
            prop_assert_eq!(&faulty.cells, &sound.cells);
            let kept_out: BTreeSet<FrontendKey> = backlog.set_aside().copied().collect();
            let mut expected = sound.frontends.clone();
            expected.retain(|key, _| !kept_out.contains(key));
            prop_assert_eq!(&faulty.frontends, &expected);
            // Not one more than must be.
            prop_assert_eq!(kept_out.len(), sound.frontends.len().saturating_sub(room));
        }
    }
}

#[test]
fn what_does_not_fit_comes_in_when_there_is_room() {
    let first = State::from([(1, (1, BTreeSet::new())), (2, (2, BTreeSet::new()))]);
    let then = State::from([(2, (2, BTreeSet::new()))]);
    let plans = plans(&[first, then]);
    // Cluster addresses have entries of their own beside those of their ports, written before them.
    let mut backlog = Backlog::new(Faulty::new(3, Vec::new()));
    assert!(backlog.carry_out(&plans[0]).is_ok());
    let kept_out: Vec<_> = backlog.set_aside().map(|key| key.address.to_string()).collect();
    assert_eq!(kept_out, ["10.96.0.2"]);
    assert!(backlog.carry_out(&plans[1]).is_ok());
    assert_eq!(backlog.set_aside().count(), 0);
    assert_eq!(backlog.tables().memory.frontends.len(), 2);
}

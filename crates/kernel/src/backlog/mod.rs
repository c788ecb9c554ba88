//! Steps that could not be executed yet.
//!
//! # Invariants
//! - Steps are executed in order: an entry is written after those that it refers to, and freed
//!   before it is used again. A step that fails keeps all later ones waiting until it succeeds.
//! - Only an [`OptionalEntry`] for which a map has no room is set aside instead: nothing
//!   depends on it, and the rest must not wait for room that may never come. It is tried again
//!   whenever there may be room.
//! - Interfaces and addresses of this machine are written independently of steps (`network`):
//!   neither delays the other.
//! - When nothing waits and nothing is set aside, the tables are the same as if nothing had failed.

mod network;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use anyhow::Result;

use self::network::Unwritten;

use lb_network::Device;
use lb_plan::{Plan, Step};

use super::Tables;
use super::set_aside::{OptionalEntry, SetAside, is_full};

/// What a [`Backlog`] writes to: the kernel's [`Tables`], those whose sockets are looked after
/// ([`WithSockets`](crate::WithSockets)), or a test's that fail. A step is written as a whole, by
/// [`WriteTables`](lb_plan::WriteTables) underneath; what this machine's network needs is no step.
pub trait BacklogTables {
    fn execute_step(&mut self, step: &Step) -> Result<()>;
    /// By index; `None`: removed.
    fn change_devices(&mut self, devices: &BTreeMap<u32, Option<Device>>) -> Result<()>;
    /// All addresses of this node on which it serves.
    fn set_node_addresses(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<()>;
    /// Invalidates the next hops that flows store.
    fn next_epoch(&mut self);
    /// Says again that an agent follows the network, and whether next hops depend on the destination only, so that new
    /// flows may share them.
    fn lease_epoch(&mut self, shares_hops: bool);
    /// No agent follows the network any more.
    fn end_epoch_lease(&mut self);
}

impl BacklogTables for Tables {
    fn execute_step(&mut self, step: &Step) -> Result<()> {
        step.execute(self)
    }

    fn change_devices(&mut self, devices: &BTreeMap<u32, Option<Device>>) -> Result<()> {
        Tables::change_devices(self, devices)
    }

    fn set_node_addresses(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<()> {
        Tables::set_node_addresses(self, addresses)
    }

    fn next_epoch(&mut self) {
        Tables::next_epoch(self);
    }

    fn lease_epoch(&mut self, shares_hops: bool) {
        Tables::lease_epoch(self, shares_hops);
    }

    fn end_epoch_lease(&mut self) {
        Tables::end_epoch_lease(self);
    }
}

pub struct Backlog<T> {
    tables: T,
    waiting: VecDeque<Step>,
    set_aside: SetAside,
    unwritten: Unwritten,
    /// How many steps have been executed so far.
    carried_out: u64,
}

impl<T: BacklogTables> Backlog<T> {
    pub fn new(tables: T) -> Self {
        Self {
            tables,
            waiting: VecDeque::new(),
            set_aside: SetAside::default(),
            unwritten: Unwritten::default(),
            carried_out: 0,
        }
    }

    pub fn tables_mut(&mut self) -> &mut T {
        &mut self.tables
    }

    pub fn tables(&self) -> &T {
        &self.tables
    }

    /// Queues changes of this machine's interfaces. `write_network` writes them.
    pub fn set_devices(&mut self, changed: BTreeMap<u32, Option<Device>>) {
        self.unwritten.set_devices(changed);
    }

    /// Queues the addresses of this node. `write_network` writes them.
    pub fn set_node_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        self.unwritten.set_node_addresses(addresses);
    }

    /// Writes queued interfaces and addresses. After an error it must be called again later. Next
    /// hops that were resolved with earlier ones become invalid.
    pub fn write_network(&mut self) -> Result<()> {
        let written = self.unwritten.write(&mut self.tables);
        self.tables.next_epoch();
        written
    }

    /// Executes a plan as far as possible. After an error `retry` must be called later.
    pub fn carry_out(&mut self, plan: &Plan) -> Result<()> {
        let mut steps = plan.steps();
        if self.waiting.is_empty() {
            while let Some(step) = steps.next() {
                if let Err(error) = self.write(step) {
                    self.waiting.push_back(step.clone());
                    self.waiting.extend(steps.cloned());
                    return Err(error);
                }
            }
            return self.try_set_aside();
        }
        self.waiting.extend(steps.cloned());
        self.retry()
    }

    /// Tries again the steps that could not be executed.
    pub fn retry(&mut self) -> Result<()> {
        while let Some(step) = self.waiting.pop_front() {
            if let Err(error) = self.write(&step) {
                self.waiting.push_front(step);
                return Err(error);
            }
        }
        self.try_set_aside()
    }

    /// How many steps have been executed since the start.
    pub fn carried_out(&self) -> u64 {
        self.carried_out
    }

    /// Whether some steps are waiting.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Entries for which there is no room.
    pub fn set_aside(&self) -> impl Iterator<Item = &OptionalEntry> {
        self.set_aside.entries()
    }

    /// How many entries there is no room for, by map.
    pub fn without_room(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.set_aside.counts()
    }

    /// Entries for which there is no room, and that this has not returned before.
    pub fn newly_set_aside(&mut self) -> Vec<OptionalEntry> {
        self.set_aside.take_new()
    }

    fn write(&mut self, step: &Step) -> Result<()> {
        let Some(entry) = OptionalEntry::of(step) else { return self.execute_step(step) };
        let was_set_aside = self.set_aside.remove(&entry);
        match self.execute_step(step) {
            Err(error) if is_full(&error) => {
                self.set_aside.add(entry, step.clone(), !was_set_aside);
                Ok(())
            }
            result => result,
        }
    }

    fn try_set_aside(&mut self) -> Result<()> {
        self.set_aside.retry(|step| {
            self.tables.execute_step(step)?;
            self.carried_out += 1;
            Ok(())
        })
    }

    fn execute_step(&mut self, step: &Step) -> Result<()> {
        self.tables.execute_step(step)?;
        self.carried_out += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;

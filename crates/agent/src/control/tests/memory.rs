//! Tables in memory whose writes fail, or that are full.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use anyhow::{Result, anyhow};
use lb_common::layout::Pool;
use lb_kernel::BacklogTables;
use lb_plan::{FrontendKey, Scope, SideEntry, Step};
use nix::errno::Errno;

/// Tables in memory; the test keeps another reference.
#[derive(Clone, Default)]
pub struct MemoryTables(pub Arc<Mutex<MemoryState>>);

#[derive(Default)]
pub(crate) struct MemoryState {
    pub frontends: BTreeMap<FrontendKey, u32>,
    pub pools: BTreeMap<u32, Pool>,
    pub slots: BTreeMap<u32, u32>,
    pub backends: BTreeMap<u32, IpAddr>,
    pub broken: bool,
    /// The number of writes that succeed.
    pub breaks_after: Option<usize>,
    pub side_entries: BTreeSet<SideEntry>,
    pub room: Option<usize>,
    pub room_for_details: Option<usize>,
    pub writes: usize,
    pub devices: BTreeMap<u32, String>,
    pub broken_devices: BTreeSet<u32>,
    pub addresses: BTreeSet<IpAddr>,
    pub broken_addresses: bool,
    pub epoch: u32,
    /// Frontends that existed and were removed.
    pub removed: usize,
}

impl BacklogTables for MemoryTables {
    fn execute_step(&mut self, step: &Step) -> Result<()> {
        let mut held = self.0.lock().unwrap();
        if held.broken || held.breaks_after.is_some_and(|most| held.writes >= most) {
            return Err(anyhow!(io::Error::from_raw_os_error(Errno::ENOMEM as i32)));
        }
        held.writes += 1;
        match step.clone() {
            Step::SetFrontend { key, value } => {
                let full = held.room.is_some_and(|room| held.frontends.len() >= room);
                if full && !held.frontends.contains_key(&key) {
                    return Err(anyhow!(io::Error::from_raw_os_error(Errno::E2BIG as i32)));
                }
                held.frontends.insert(key, value.service_port);
            }
            Step::SetSideEntry(side_entry) => {
                // Names have a separate map.
                let counts = |side_entry: &SideEntry| !matches!(side_entry, SideEntry::Name { .. });
                let held_now =
                    held.side_entries.iter().filter(|side_entry| counts(side_entry)).count();
                let full = held.room_for_details.is_some_and(|room| held_now >= room);
                if full && counts(&side_entry) && !held.side_entries.contains(&side_entry) {
                    return Err(anyhow!(io::Error::from_raw_os_error(Errno::ENOSPC as i32)));
                }
                held.side_entries.insert(side_entry);
            }
            Step::RemoveSideEntry(side_entry) => drop(held.side_entries.remove(&side_entry)),
            Step::RemoveFrontend { key } => {
                held.removed += usize::from(held.frontends.remove(&key).is_some());
            }
            Step::SwapPool { index, pool } => drop(held.pools.insert(index, pool)),
            Step::WriteTable { offset, table } => {
                held.slots.extend((offset..).zip(table.slots()));
            }
            Step::SetBackend { index, backend, .. } => {
                held.backends.insert(index, backend.address);
            }
            _ => {}
        }
        Ok(())
    }

    fn change_devices(
        &mut self,
        devices: &BTreeMap<u32, Option<lb_network::Device>>,
    ) -> Result<()> {
        let mut held = self.0.lock().unwrap();
        for (&index, device) in devices {
            if held.broken_devices.contains(&index) {
                return Err(anyhow!(io::Error::from_raw_os_error(Errno::E2BIG as i32)));
            }
            match device {
                Some(device) => held.devices.insert(index, device.name.clone()),
                None => held.devices.remove(&index),
            };
        }
        Ok(())
    }

    fn set_node_addresses(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<()> {
        let mut held = self.0.lock().unwrap();
        if held.broken_addresses {
            return Err(anyhow!(io::Error::from_raw_os_error(Errno::ENOMEM as i32)));
        }
        held.addresses.clone_from(addresses);
        Ok(())
    }

    fn next_epoch(&mut self) {
        self.0.lock().unwrap().epoch += 1;
    }

    fn lease_epoch(&mut self, _: bool) {}

    fn end_epoch_lease(&mut self) {}
}

impl MemoryTables {
    pub(crate) fn break_down(&self, broken: bool) {
        self.0.lock().unwrap().broken = broken;
    }

    /// Writes fail after so many more; `None`: they do not.
    pub(crate) fn break_after(&self, writes: Option<usize>) {
        let mut held = self.0.lock().unwrap();
        held.breaks_after = writes.map(|writes| held.writes + writes);
    }

    pub fn limit(&self, room: usize) {
        self.0.lock().unwrap().room = Some(room);
    }

    pub(crate) fn limit_details(&self, room: usize) {
        self.0.lock().unwrap().room_for_details = Some(room);
    }

    pub fn writes(&self) -> usize {
        self.0.lock().unwrap().writes
    }

    pub fn removed(&self) -> usize {
        self.0.lock().unwrap().removed
    }

    /// The address of each frontend, with those of its backends.
    pub fn led_to(&self) -> BTreeMap<String, Vec<String>> {
        let held = self.0.lock().unwrap();
        let backends = |service_port: u32| {
            let pool = held.pools.get(&Scope::Cluster.pool_index(service_port));
            let Pool { offset, size } = pool.copied().unwrap_or_default();
            let slots = (offset..offset + size).map(|slot| held.slots[&slot]);
            let mut found: Vec<String> =
                slots.map(|index| held.backends[&index].to_string()).collect();
            found.sort();
            found.dedup();
            found
        };
        let frontends = held.frontends.iter();
        frontends.map(|(key, &port)| (key.address.to_string(), backends(port))).collect()
    }
}

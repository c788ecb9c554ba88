//! Interfaces and addresses of this machine that could not be written yet.
//!
//! Invariant: they depend neither on each other nor on steps, so a failed write delays no other. Of
//! several values of the same one only the last is written.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::{Error, Result};
use lb_network::Device;

use super::BacklogTables;

#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    /// By index; `None`: removed.
    devices: BTreeMap<u32, Option<Device>>,
    addresses: Option<BTreeSet<IpAddr>>,
}

impl Unwritten {
    pub fn set_devices(&mut self, changed: BTreeMap<u32, Option<Device>>) {
        self.devices.extend(changed);
    }

    pub fn set_node_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        self.addresses = Some(addresses);
    }

    /// Writes what can be written, and keeps the rest. Fails with the first error.
    pub fn write(&mut self, tables: &mut impl BacklogTables) -> Result<()> {
        let mut errors = Vec::new();
        for (index, device) in std::mem::take(&mut self.devices) {
            let change = BTreeMap::from([(index, device)]);
            if let Err(error) = tables.change_devices(&change) {
                errors.push(error);
                self.devices.extend(change);
            }
        }
        if let Some(addresses) = self.addresses.take()
            && let Err(error) = tables.set_node_addresses(&addresses)
        {
            errors.push(error);
            self.addresses = Some(addresses);
        }
        summary(errors)
    }
}

fn summary(errors: Vec<Error>) -> Result<()> {
    let others = errors.len().saturating_sub(1);
    match errors.into_iter().next() {
        None => Ok(()),
        Some(first) if others == 0 => Err(first),
        Some(first) => Err(first.context(format!("{} writes failed; the first", others + 1))),
    }
}

//! One change of the kernel's tables, and a plan of them.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;

use lb_common::layout::{self, Bitmap, Pool};
use lb_rules::model::{Problem, ServicePortKey};

use super::found::Found;
use super::key::{BackendKey, BackendState, FrontendKey};
use super::side_entry::SideEntry;
use super::sweep::Sweep;
use super::table::Table;

/// One change of the kernel's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    SetBackend {
        index: u32,
        backend: BackendKey,
        state: BackendState,
        generation: u32,
    },
    /// The entry stays, unused, and keeps its generation.
    RetireBackend {
        index: u32,
        family: IpAddr,
        generation: u32,
    },
    /// Writes a pool's table into its region.
    WriteTable {
        offset: u32,
        table: Table,
    },
    SwapPool {
        index: u32,
        pool: Pool,
    },
    SetFrontend {
        key: FrontendKey,
        value: layout::Frontend,
    },
    RemoveFrontend {
        key: FrontendKey,
    },
    SetDestinationBit(Bitmap),
    SetSourceBit(Bitmap),
    ClearSourceBit(Bitmap),
    SetSideEntry(SideEntry),
    RemoveSideEntry(SideEntry),
    /// The last step of a plan: no flow that it would have to end can begin after it.
    /// Boxed, because it is the largest step, and of a plan with hundreds of thousands of steps the only one.
    SweepFlows(Box<Sweep>),
    ResetServiceTraffic {
        index: u32,
    },
    ResetBackendTraffic {
        index: u32,
    },
}

/// The steps from one state of the tables to the next. They are executed in the order of these
/// fields.
#[derive(Debug, Default)]
pub struct Plan {
    /// Entries that nothing refers to yet.
    pub prepare: Vec<Step>,
    pub publish_pools: Vec<Step>,
    pub publish_frontends: Vec<Step>,
    /// Entries of addresses themselves. After their frontends: ports without a frontend are
    /// rejected.
    pub publish_addresses: Vec<Step>,
    /// Entries that nothing refers to any more.
    pub retire: Vec<Step>,
    pub problems: Vec<Problem>,
    /// Service ports that are programmed only in part, for lack of room: to be planned again when
    /// something was removed.
    pub lacking: BTreeSet<ServicePortKey>,
    /// Whether the next plan has room that this one had not.
    pub makes_room: bool,
    pub(super) lack: Lack,
    pub(super) sweep: Sweep,
    /// What the kernel has already; only in the first plan after a start.
    pub(super) found: Found,
    /// The service port that is being planned.
    pub(super) current: Option<ServicePortKey>,
}

/// Tables for which a plan found no room.
#[derive(Debug, Default)]
pub(super) struct Lack {
    /// The size of the smallest one.
    pub(super) least: Option<u32>,
    /// Total number of slots.
    pub(super) slots: u64,
}

impl Lack {
    pub(super) fn add(&mut self, table: u32) {
        self.least = Some(self.least.map_or(table, |least| least.min(table)));
        self.slots += u64::from(table);
    }
}

impl Plan {
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.prepare
            .iter()
            .chain(&self.publish_pools)
            .chain(&self.publish_frontends)
            .chain(&self.publish_addresses)
            .chain(&self.retire)
    }

    pub fn is_empty(&self) -> bool {
        self.steps().next().is_none()
    }

    /// Sets a frontend, or the entry of an address, unless the kernel has it already.
    pub(super) fn set_frontend(&mut self, key: FrontendKey, value: layout::Frontend) {
        if self.found.frontends.get(&key) == Some(&value) {
            return;
        }
        // If this plan sets it again, the last value is compared.
        if let Some(found) = self.found.frontends.get_mut(&key) {
            *found = value;
        }
        let steps =
            if key.port == 0 { &mut self.publish_addresses } else { &mut self.publish_frontends };
        steps.push(Step::SetFrontend { key, value });
    }

    pub(super) fn set_destination_bit(&mut self, bit: Bitmap) {
        self.sweep.bits.remove(&bit);
        if !self.found.destination_bits.contains(&bit) {
            self.prepare.push(Step::SetDestinationBit(bit));
        }
    }

    pub(super) fn problem(&mut self, about: &impl Display, message: String) {
        let service = self.current.as_ref().map(|key| &key.service);
        self.problems.push(Problem {
            object: service.map_or_else(String::new, |service| format!("Service {service}")),
            field: about.to_string(),
            message,
        });
    }

    /// Reports that something of the current service port does not fit.
    pub(super) fn lack(&mut self, about: &impl Display, message: String) {
        self.problem(about, message);
        self.lacking.extend(self.current.clone());
    }
}

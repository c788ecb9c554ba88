//! Executes steps on tables, wherever they are: in the kernel, on the host, or in a test.

use std::net::IpAddr;

use anyhow::Result;
use lb_common::family::{Address4, Address6, Family, V4, V6};
use lb_common::layout::{Backend, Bitmap, Frontend, FrontendKey, Pool};

use super::key;
use super::side_entry::SideEntry;
use super::step::Step;
use super::sweep::Sweep;

/// The tables that steps change. An error leaves the step to be executed again.
pub trait WriteTables: WriteFamily<V4> + WriteFamily<V6> {
    fn write_slots(&mut self, offset: u32, slots: &[u32]) -> Result<()>;
    fn swap_pool(&mut self, index: u32, pool: Pool) -> Result<()>;
    fn set_destination_bit(&mut self, bit: Bitmap);
    fn set_source_bit(&mut self, bit: Bitmap);
    fn clear_source_bit(&mut self, bit: Bitmap);
    fn set_side_entry(&mut self, side_entry: &SideEntry) -> Result<()>;
    /// Succeeds if there is no such entry.
    fn remove_side_entry(&mut self, side_entry: &SideEntry) -> Result<()>;
    fn sweep_flows(&mut self, sweep: &Sweep);
    fn reset_service_traffic(&mut self, index: u32) -> Result<()>;
    fn reset_backend_traffic(&mut self, index: u32) -> Result<()>;
}

/// The tables of one address family.
pub trait WriteFamily<F: Family> {
    fn set_backend(&mut self, index: u32, entry: Backend<F::Address>) -> Result<()>;
    /// Marks the entry as unused. `unused` has the generation that it keeps.
    fn retire_backend(&mut self, index: u32, unused: Backend<F::Address>) -> Result<()>;
    fn set_frontend(&mut self, key: FrontendKey<F>, value: Frontend) -> Result<()>;
    /// Succeeds if there is no such entry.
    fn remove_frontend(&mut self, key: FrontendKey<F>) -> Result<()>;
}

impl Step {
    pub fn execute(&self, tables: &mut impl WriteTables) -> Result<()> {
        match self {
            &Self::SetBackend { index, backend, state, generation } => match backend.address {
                IpAddr::V4(address) => {
                    let entry = backend.entry(Address4::from(address), state, generation);
                    WriteFamily::<V4>::set_backend(tables, index, entry)
                }
                IpAddr::V6(address) => {
                    let entry = backend.entry(Address6::from(address), state, generation);
                    WriteFamily::<V6>::set_backend(tables, index, entry)
                }
            },
            &Self::RetireBackend { index, family, generation } => match family {
                IpAddr::V4(_) => {
                    let unused = Backend { generation, ..Backend::default() };
                    WriteFamily::<V4>::retire_backend(tables, index, unused)
                }
                IpAddr::V6(_) => {
                    let unused = Backend { generation, ..Backend::default() };
                    WriteFamily::<V6>::retire_backend(tables, index, unused)
                }
            },
            Self::WriteTable { offset, table } => tables.write_slots(*offset, &table.slots()),
            &Self::SwapPool { index, pool } => tables.swap_pool(index, pool),
            &Self::SetFrontend { key, value } => match by_family(key) {
                ByFamily::V4(key) => tables.set_frontend(key, value),
                ByFamily::V6(key) => tables.set_frontend(key, value),
            },
            &Self::RemoveFrontend { key } => match by_family(key) {
                ByFamily::V4(key) => tables.remove_frontend(key),
                ByFamily::V6(key) => tables.remove_frontend(key),
            },
            &Self::SetDestinationBit(bit) => {
                tables.set_destination_bit(bit);
                Ok(())
            }
            &Self::SetSourceBit(bit) => {
                tables.set_source_bit(bit);
                Ok(())
            }
            &Self::ClearSourceBit(bit) => {
                tables.clear_source_bit(bit);
                Ok(())
            }
            Self::SetSideEntry(side_entry) => tables.set_side_entry(side_entry),
            Self::RemoveSideEntry(side_entry) => tables.remove_side_entry(side_entry),
            Self::SweepFlows(sweep) => {
                tables.sweep_flows(sweep);
                Ok(())
            }
            &Self::ResetServiceTraffic { index } => tables.reset_service_traffic(index),
            &Self::ResetBackendTraffic { index } => tables.reset_backend_traffic(index),
        }
    }
}

enum ByFamily {
    V4(FrontendKey<V4>),
    V6(FrontendKey<V6>),
}

fn by_family(key: key::FrontendKey) -> ByFamily {
    let key::FrontendKey { address, port, protocol } = key;
    match address {
        IpAddr::V4(address) => ByFamily::V4(FrontendKey::new(address.into(), port, protocol)),
        IpAddr::V6(address) => ByFamily::V6(FrontendKey::new(address.into(), port, protocol)),
    }
}

impl<F: Family> From<FrontendKey<F>> for key::FrontendKey {
    fn from(key: FrontendKey<F>) -> Self {
        Self::new(key.address.into(), key.port, key.protocol)
    }
}

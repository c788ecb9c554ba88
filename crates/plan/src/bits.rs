//! Counts the frontends and backends that need each bit of the prefilters.

use std::collections::HashMap;
use std::net::IpAddr;

use lb_common::family::{V4, V6};
use lb_common::layout::Bitmap;
use lb_rules::model::AddressFamily;

use super::key::BackendKey;
use super::step::{Plan, Step};

#[derive(Default)]
pub struct Bits {
    destinations: HashMap<Bitmap, u32>,
    sources: HashMap<Bitmap, u32>,
}

impl Bits {
    pub(crate) fn add_destination(&mut self, address: IpAddr, plan: &mut Plan) {
        let bit = destination_bit(address);
        if add(&mut self.destinations, bit) {
            plan.set_destination_bit(bit);
        }
    }

    pub(crate) fn remove_destination(&mut self, address: IpAddr, plan: &mut Plan) {
        let bit = destination_bit(address);
        if remove(&mut self.destinations, bit) {
            plan.sweep.clear_bit(bit, &[AddressFamily::of(&address)]);
        }
    }

    pub(crate) fn add_source(&mut self, backend: BackendKey, plan: &mut Plan) {
        let bit = source_bit(backend);
        if add(&mut self.sources, bit) {
            plan.prepare.push(Step::SetSourceBit(bit));
        }
    }

    pub(crate) fn remove_source(&mut self, backend: BackendKey, plan: &mut Plan) {
        let bit = source_bit(backend);
        if remove(&mut self.sources, bit) {
            plan.retire.push(Step::ClearSourceBit(bit));
        }
    }

    /// Makes room for the bits of backends that the kernel already had.
    pub(crate) fn expect_sources(&mut self, adopted: usize) {
        self.sources.reserve(adopted);
    }

    /// Counts a bit that is already set in the kernel.
    pub(crate) fn adopt_source(&mut self, backend: BackendKey) {
        add(&mut self.sources, source_bit(backend));
    }

    pub(crate) fn needs_destination(&self, bit: Bitmap) -> bool {
        self.destinations.contains_key(&bit)
    }

    pub(crate) fn needs_source(&self, bit: Bitmap) -> bool {
        self.sources.contains_key(&bit)
    }
}

/// Returns whether the bit is new.
fn add(counts: &mut HashMap<Bitmap, u32>, bit: Bitmap) -> bool {
    let count = counts.entry(bit).or_default();
    *count += 1;
    *count == 1
}

/// Returns whether the bit is no longer needed.
fn remove(counts: &mut HashMap<Bitmap, u32>, bit: Bitmap) -> bool {
    let Some(count) = counts.get_mut(&bit) else { return false };
    *count -= 1;
    if *count == 0 {
        counts.remove(&bit);
        return true;
    }
    false
}

pub fn destination_bit(address: IpAddr) -> Bitmap {
    match address {
        IpAddr::V4(address) => Bitmap::destination::<V4>(address.into()),
        IpAddr::V6(address) => Bitmap::destination::<V6>(address.into()),
    }
}

pub fn source_bit(backend: BackendKey) -> Bitmap {
    let BackendKey { address, port, protocol } = backend;
    match address {
        IpAddr::V4(address) => Bitmap::source::<V4>(address.into(), port, protocol),
        IpAddr::V6(address) => Bitmap::source::<V6>(address.into(), port, protocol),
    }
}

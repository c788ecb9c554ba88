//! The maps as the data plane's `Tables`.

use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::helpers::bpf_ktime_get_coarse_ns;
use lb_common::datapath::{Direction, FamilyTables, Tables};
use lb_common::family::{Address4, Address6, V4, V6};
use lb_common::layout::{
    Backend, Bitmap, FlowBucket, Frontend, FrontendKey, Pool, Reason, Settings, Ticks, Traffic,
};

use crate::maps::{
    BACKEND_TRAFFIC, BACKENDS4, BACKENDS6, DESTINATIONS, FLOWS4, FLOWS6, FRONTENDS4, FRONTENDS6,
    POOL_SLOTS, POOLS, REASONS, SERVICE_TRAFFIC, SETTINGS, SOURCES,
};

pub struct KernelTables;

impl Tables for KernelTables {
    #[inline(always)]
    fn settings(&self) -> Settings {
        // SAFETY: a live static. Volatile, because the agent sets it after compilation.
        unsafe { core::ptr::read_volatile(&SETTINGS) }
    }

    #[inline(always)]
    fn now(&self) -> Ticks {
        // SAFETY: the helper takes nothing and only reads a clock.
        Ticks::from_nanoseconds(unsafe { bpf_ktime_get_coarse_ns() })
    }

    #[inline(always)]
    fn pool(&self, index: u32) -> Option<Pool> {
        let pool = POOLS.get_ptr(index)?;
        // SAFETY: the map has the entry, and `Pool` is aligned to 8 bytes. One load, because the
        // agent replaces both fields by one store.
        Some(Pool::from_word(unsafe { pool.cast::<u64>().read_volatile() }))
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> Option<u32> {
        // SAFETY: the map has the entry; the agent writes whole aligned words.
        POOL_SLOTS.get_ptr(index).map(|slot| unsafe { slot.read_volatile() })
    }

    #[inline(always)]
    fn count(&self, reason: Reason) {
        if let Some(counter) = REASONS.get_ptr_mut(reason as u32) {
            // SAFETY: this processor's own copy; a program is not interrupted by itself.
            unsafe { *counter += 1 };
        }
    }

    #[inline(always)]
    fn count_packet(&self, service_port: u32, backend: u32, direction: Direction, bytes: u32) {
        with(&SERVICE_TRAFFIC, service_port, |traffic| traffic.add_packet(direction, bytes));
        with(&BACKEND_TRAFFIC, backend, |traffic| traffic.add_packet(direction, bytes));
    }

    #[inline(always)]
    fn count_new_flow(&self, service_port: u32, backend: u32) {
        with(&SERVICE_TRAFFIC, service_port, |traffic| traffic.new_flows += 1);
        with(&BACKEND_TRAFFIC, backend, |traffic| traffic.new_flows += 1);
    }
}

#[inline(always)]
fn with<const N: usize>(
    map: &PerCpuArray<Traffic, N>,
    index: u32,
    change: impl FnOnce(&mut Traffic),
) {
    if let Some(traffic) = map.get_ptr_mut(index) {
        // SAFETY: this processor's own copy; a program is not interrupted by itself.
        change(unsafe { &mut *traffic });
    }
}

/// Both families, from the maps of each. A macro, because statics cannot be reached by type.
macro_rules! family_tables {
    ($family:ty, $address:ty, $frontends:ident, $backends:ident, $flows:ident, $mask:ident) => {
        impl FamilyTables<$family> for KernelTables {
            #[inline(always)]
            fn may_be_destination(&self, address: $address) -> bool {
                let bit = Bitmap::destination::<$family>(address);
                DESTINATIONS.get(bit.word).is_some_and(|word| word & bit.bit != 0)
            }

            #[inline(always)]
            fn may_be_source(&self, address: $address, port: u16, protocol: u8) -> bool {
                let bit = Bitmap::source::<$family>(address, port, protocol);
                SOURCES.get(bit.word).is_some_and(|word| word & bit.bit != 0)
            }

            #[inline(always)]
            fn frontend(&self, key: &FrontendKey<$family>) -> Option<Frontend> {
                // SAFETY: the entry may be replaced while it is copied; a hash map replaces
                // by linking in another element, and frees the old one only after this
                // program has ended.
                unsafe { $frontends.get(key).copied() }
            }

            #[inline(always)]
            fn backend(&self, index: u32) -> Option<Backend<$address>> {
                $backends.get(index).copied()
            }

            #[inline(always)]
            fn flow_mask(&self) -> u32 {
                self.settings().$mask
            }

            #[inline(always)]
            fn flow_bucket(&self, index: u32) -> Option<&FlowBucket<$family>> {
                $flows.get(index)
            }
        }
    };
}

family_tables!(V4, Address4, FRONTENDS4, BACKENDS4, FLOWS4, flow_mask4);
family_tables!(V6, Address6, FRONTENDS6, BACKENDS6, FLOWS6, flow_mask6);

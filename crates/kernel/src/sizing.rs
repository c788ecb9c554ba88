//! Sizes of maps for which no numbers are set: they follow from the node's memory.
//!
//! Invariant: a restart on the same node keeps the sizes, because other sizes cost the flows.

use std::fs;
use std::path::Path;

use aya::maps::MapData;
use lb_common::layout::{BUCKET_ENTRIES, capacity, map};

use super::pins::Pins;
use super::sizes::Sizes;
use crate::settings::MemoryPercent;

/// Memory of the maps of the ordinary sizes on a few processors.
const ORDINARY_BYTES: u64 = 366 << 20;
/// What the agent needs beside the maps when it starts.
const AGENT_BYTES: u64 = 140 << 20;
/// The smallest and the largest sizes are the ordinary ones times these powers of two.
const SMALLEST: i32 = -3;
const LARGEST: i32 = 2;
/// The flows of each family for which the ordinary table is made.
const ORDINARY_FLOWS: u32 = capacity::FLOW_BUCKETS * BUCKET_ENTRIES as u32;

/// The memory that is available for maps, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// The node's memory.
    pub total: u64,
    /// The limit of the agent's cgroup, to which the maps are charged.
    pub limit: Option<u64>,
}

impl AvailableMemory {
    pub fn read() -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = own.lines().find_map(|line| line.strip_prefix("0::/")).and_then(|path| {
            let file = Path::new("/sys/fs/cgroup").join(path).join("memory.max");
            fs::read_to_string(file).ok()?.trim().parse().ok()
        });
        Self { total: total(&meminfo).unwrap_or(0), limit }
    }

    /// What maps may take: a part of the node's memory, and what the agent leaves of the limit.
    fn budget(&self, percent: MemoryPercent) -> f64 {
        let part = self.total as f64 * percent.0 / 100.0;
        self.limit.map_or(part, |limit| part.min(limit.saturating_sub(AGENT_BYTES) as f64))
    }
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// The settings: numbers, and what the others follow from.
#[derive(Clone, Copy, Debug, Default)]
pub struct WantedSizes {
    pub service_ports: Option<u32>,
    pub endpoints: Option<u32>,
    pub flows: Option<u32>,
    pub percent: MemoryPercent,
}

impl WantedSizes {
    /// `existing`: the sizes of the maps that an earlier agent left.
    pub fn resolve(&self, memory: AvailableMemory, existing: Option<Sizes>) -> Sizes {
        let factor = memory.budget(self.percent) / ORDINARY_BYTES as f64;
        let factor = factor.clamp(2f64.powi(SMALLEST), 2f64.powi(LARGEST));
        let number = |wanted: Option<u32>, ordinary: u32, existing: Option<u32>| {
            let kept = existing.filter(|&existing| suits(existing, ordinary, factor));
            wanted.or(kept).unwrap_or_else(|| scale(ordinary, factor))
        };
        let flows = number(self.flows, ORDINARY_FLOWS, existing.map(|sizes| sizes.flows()));
        let room = existing.map(|sizes| sizes.room());
        let service_ports = room.map(|room| room.service_ports);
        let endpoints = room.map(|room| room.backends);
        Sizes::for_flows(flows).with_services(
            number(self.service_ports, capacity::SERVICE_PORTS, service_ports),
            number(self.endpoints, capacity::BACKENDS, endpoints),
        )
    }
}

/// The largest power of two that the budget allows.
fn scale(ordinary: u32, factor: f64) -> u32 {
    let step = factor.log2().floor() as i32;
    if step < 0 { ordinary >> -step } else { ordinary << step }
}

/// Whether existing maps are of use although new ones would have another size: the budget is less
/// than a factor of two away from the budgets for which they would be made.
fn suits(existing: u32, ordinary: u32, factor: f64) -> bool {
    let existing = f64::from(existing) / f64::from(ordinary);
    factor > existing / 2.0 && factor < existing * 4.0
}

/// The sizes of the maps that are pinned; `None`: there are none.
pub fn existing_sizes(pins: &Pins) -> Option<Sizes> {
    let entries =
        |name| MapData::from_pin(pins.map(name)).ok()?.info().ok().map(|i| i.max_entries());
    let flows = entries(map::FLOWS4)?.checked_mul(BUCKET_ENTRIES as u32)?;
    let (service_ports, endpoints) = (entries(map::SERVICE_TRAFFIC)?, entries(map::BACKENDS4)?);
    Some(Sizes::for_flows(flows).with_services(service_ports, endpoints))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn node(total: u64) -> AvailableMemory {
        AvailableMemory { total, limit: None }
    }

    fn automatic(memory: AvailableMemory, existing: Option<Sizes>) -> [u32; 3] {
        numbers(WantedSizes::default().resolve(memory, existing))
    }

    fn numbers(sizes: Sizes) -> [u32; 3] {
        [sizes.room().service_ports, sizes.room().backends, sizes.flows()]
    }

    /// The table of docs/operations.md.
    #[test]
    fn sizes_follow_from_the_memory_of_the_node() {
        for (gibibytes, expected) in [
            (0, [8_192, 16_384, 65_536]),
            (1, [8_192, 16_384, 65_536]),
            (2, [8_192, 16_384, 65_536]),
            (4, [16_384, 32_768, 131_072]),
            (8, [32_768, 65_536, 262_144]),
            (16, [65_536, 131_072, 524_288]),
            (32, [131_072, 262_144, 1_048_576]),
            (64, [262_144, 524_288, 2_097_152]),
            (512, [262_144, 524_288, 2_097_152]),
            (1 << 20, [262_144, 524_288, 2_097_152]),
        ] {
            assert_eq!(automatic(node(gibibytes * GIB), None), expected, "{gibibytes} GiB");
        }
        assert_eq!(automatic(node(16 * GIB), None), numbers(Sizes::default()));
    }

    #[test]
    fn a_limit_of_the_cgroup_leaves_room_for_the_agent() {
        for (mebibytes, flows) in [(64, 65_536), (256, 131_072), (512, 524_288), (4_096, 2_097_152)]
        {
            let memory = AvailableMemory { total: 512 * GIB, limit: Some(mebibytes << 20) };
            assert_eq!(automatic(memory, None)[2], flows, "{mebibytes} MiB");
        }
    }

    #[test]
    fn numbers_that_are_set_are_taken_whatever_exists() {
        let wanted = WantedSizes {
            service_ports: Some(50),
            endpoints: Some(100),
            flows: Some(8_192),
            ..Default::default()
        };
        let sizes = wanted.resolve(node(64 * GIB), Some(Sizes::default()));
        assert_eq!(numbers(sizes), [50, 100, 8_192]);
    }

    #[test]
    fn a_percentage_scales_all_sizes() {
        let wanted = WantedSizes { percent: MemoryPercent(10.0), ..Default::default() };
        assert_eq!(numbers(wanted.resolve(node(4 * GIB), None)), numbers(Sizes::default()));
    }

    /// Ordinary sizes are made for 14.3 to 28.6 GiB.
    #[test]
    fn existing_sizes_stay_until_the_memory_differs_by_a_factor_of_two() {
        let ordinary = Some(Sizes::default());
        for gibibytes in [8, 14, 15, 16, 31, 32, 57] {
            assert_eq!(automatic(node(gibibytes * GIB), ordinary), numbers(Sizes::default()));
        }
        for gibibytes in [2, 7, 62, 512] {
            assert_eq!(
                automatic(node(gibibytes * GIB), ordinary),
                automatic(node(gibibytes * GIB), None),
                "{gibibytes} GiB"
            );
        }
    }

    /// For any memory: what an agent makes, the next one keeps.
    #[test]
    fn a_restart_keeps_the_sizes() {
        for mebibytes in (0..2_000_000).step_by(997) {
            let memory = node(mebibytes << 20);
            let first = WantedSizes::default().resolve(memory, None);
            assert_eq!(WantedSizes::default().resolve(memory, Some(first)), first, "{memory:?}");
        }
    }

    #[test]
    fn the_total_is_read_from_meminfo() {
        let text = "MemTotal:       16384000 kB\nMemFree:         1 kB\n";
        assert_eq!(total(text), Some(16_384_000 << 10));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert_eq!(total("MemTotal: many kB\n"), None);
    }
}

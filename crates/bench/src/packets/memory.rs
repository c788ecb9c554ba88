//! The share of memory access in the cost of many flows: no packet can cost less than loading one
//! cache line.

use std::hint::black_box;
use std::time::Instant;

use crate::figures::Sample;
use anyhow::{Context, Result};
use lb_common::family::{Family, V4, V6};
use lb_common::hash::mix;
use lb_common::layout::{BUCKET_ENTRIES, FlowBucket, FlowEntry};
use lb_kernel::Sizes;
use memmap2::{Advice, MmapMut};

use super::record::CaseRecord;

/// Size of a cache line in bytes.
const LINE: usize = 64;

/// Minimum number of loads per measurement.
const REPEAT: u32 = 200_000;

/// As much memory as a flow table, with a ring through the entries of this number of flows: each
/// entry contains the index of the next one, so that loads cannot overlap.
pub struct MemoryRing {
    name: &'static str,
    flows: u32,
    room: u32,
    area: MmapMut,
    start: u32,
    sample: Sample,
}

pub const fn ring_name(v6: bool) -> &'static str {
    if v6 { "memory.v6" } else { "memory.v4" }
}

impl MemoryRing {
    /// Like a table of one family with this capacity.
    pub fn new(v6: bool, flows: u32, room: u32) -> Result<Self> {
        let like = if v6 { Self::like::<V6> } else { Self::like::<V4> };
        like(ring_name(v6), flows, room)
    }

    fn like<F: Family>(name: &'static str, flows: u32, room: u32) -> Result<Self> {
        let buckets = Sizes::for_flows(room).flow_buckets() as usize;
        let bytes = buckets * size_of::<FlowBucket<F>>();
        let mut area = MmapMut::map_anon(bytes).with_context(|| format!("{bytes} bytes"))?;
        // Small pages, like those of maps. Fails if the kernel has no huge pages.
        let _ = area.advise(Advice::NoHugePage);
        let entries: Vec<u32> = drawn(buckets * BUCKET_ENTRIES, flows as usize)
            .into_iter()
            .map(|entry| line_of::<F>(entry as usize) as u32)
            .collect();
        // All other pages are present, as in a table.
        area.fill(0);
        for (line, next) in entries.iter().zip(entries.iter().cycle().skip(1)) {
            area[*line as usize * LINE..][..4].copy_from_slice(&next.to_ne_bytes());
        }
        Ok(Self { name, flows, room, area, start: entries[0], sample: Sample::default() })
    }

    /// Measures once.
    pub fn measure(&mut self) {
        let steps = REPEAT.max(self.flows);
        self.walk(steps / 4);
        let begin = Instant::now();
        self.walk(steps);
        self.sample.push(begin.elapsed().as_nanos() as f64 / f64::from(steps));
    }

    fn walk(&mut self, steps: u32) {
        let mut line = self.start;
        for _ in 0..steps {
            let word = &self.area[line as usize * LINE..][..4];
            line = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        }
        self.start = black_box(line);
    }

    pub fn record(&self) -> CaseRecord {
        CaseRecord::packet(&self.sample, self.name, self.flows, Some(self.room))
    }
}

/// The number of the cache line in which the flow of an entry starts.
fn line_of<F: Family>(entry: usize) -> usize {
    let (bucket, number) = (entry / BUCKET_ENTRIES, entry % BUCKET_ENTRIES);
    let in_bucket =
        size_of::<FlowBucket<F>>() - (BUCKET_ENTRIES - number) * size_of::<FlowEntry<F>>();
    (bucket * size_of::<FlowBucket<F>>() + in_bucket) / LINE
}

/// This number of different random numbers below `all`.
fn drawn(all: usize, count: usize) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..all as u32).collect();
    for at in 0..count {
        let other = at + mix(at as u64 + 1) as usize % (all - at);
        numbers.swap(at, other);
    }
    numbers.truncate(count);
    numbers
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_ring_goes_through_as_many_lines_as_there_are_flows() -> Result<()> {
        for v6 in [false, true] {
            let memory = MemoryRing::new(v6, 1_000, 8_192)?;
            let mut walked = BTreeSet::new();
            let mut line = memory.start;
            while walked.insert(line) {
                let word = &memory.area[line as usize * LINE..][..4];
                line = u32::from_ne_bytes(word.try_into()?);
            }
            assert_eq!((walked.len(), line), (1_000, memory.start));
        }
        Ok(())
    }

    #[test]
    fn lines_are_those_of_entries() {
        assert_eq!([0, 1, 7, 8].map(line_of::<V4>), [1, 2, 8, 10]);
        assert_eq!([0, 1, 7, 8].map(line_of::<V6>), [1, 3, 15, 18]);
    }
}

//! In-memory allocations for tests of the rules.

use std::collections::BTreeMap;

use super::{AllocatedResource, AllocationRanges, Allocations};

#[derive(Clone)]
pub(crate) struct TestAllocations {
    ranges: AllocationRanges,
    held: BTreeMap<AllocatedResource, String>,
    writer: String,
}

impl TestAllocations {
    pub fn new(cluster_ips: &[&str]) -> Self {
        let cluster_ips = cluster_ips.iter().map(|range| range.parse().expect("a range")).collect();
        let ranges = AllocationRanges { cluster_ips, node_ports: 30000..=32767 };
        Self { ranges, held: BTreeMap::new(), writer: "default/web".to_owned() }
    }

    pub(crate) fn write_as(&mut self, writer: &str) {
        writer.clone_into(&mut self.writer);
    }

    pub(crate) fn held_by(&self, holder: &str) -> Vec<AllocatedResource> {
        let held = self.held.iter().filter(|(_, of)| *of == holder);
        held.map(|(resource, _)| *resource).collect()
    }
}

impl Allocations for TestAllocations {
    fn ranges(&self) -> &AllocationRanges {
        &self.ranges
    }

    fn holder(&self, resource: AllocatedResource) -> Option<String> {
        self.held.get(&resource).cloned()
    }

    fn take(&mut self, resource: AllocatedResource) -> bool {
        *self.held.entry(resource).or_insert_with(|| self.writer.clone()) == self.writer
    }

    fn give_back(&mut self, resource: AllocatedResource) {
        if self.held.get(&resource) == Some(&self.writer) {
            self.held.remove(&resource);
        }
    }
}

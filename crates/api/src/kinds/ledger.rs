//! In-memory allocations for tests of the rules.

use std::collections::BTreeMap;

use super::{Allocations, Ranges, Resource};

#[derive(Clone)]
pub struct Ledger {
    ranges: Ranges,
    held: BTreeMap<Resource, String>,
    writer: String,
}

impl Ledger {
    pub fn new(cluster_ips: &[&str]) -> Self {
        let cluster_ips = cluster_ips.iter().map(|range| range.parse().expect("a range")).collect();
        let ranges = Ranges { cluster_ips, node_ports: 30000..=32767 };
        Self { ranges, held: BTreeMap::new(), writer: "default/web".to_owned() }
    }

    pub fn write_as(&mut self, writer: &str) {
        writer.clone_into(&mut self.writer);
    }

    pub fn held_by(&self, holder: &str) -> Vec<Resource> {
        let held = self.held.iter().filter(|(_, of)| *of == holder);
        held.map(|(resource, _)| *resource).collect()
    }
}

impl Allocations for Ledger {
    fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    fn holder(&self, resource: Resource) -> Option<String> {
        self.held.get(&resource).cloned()
    }

    fn take(&mut self, resource: Resource) -> bool {
        *self.held.entry(resource).or_insert_with(|| self.writer.clone()) == self.writer
    }

    fn give_back(&mut self, resource: Resource) {
        if self.held.get(&resource) == Some(&self.writer) {
            self.held.remove(&resource);
        }
    }
}

//! The kernel's counters, for the metrics. They are read through maps that are opened separately,
//! so that requests for metrics and the agent never wait for each other.

use std::path::Path;

use anyhow::Result;
use lb_common::layout::{NeighbourEvent, Reason, Traffic};
use lb_kernel::{Occupancy, Tables};
use lb_plan::BackendKey;
use lb_status::{Counters, FlowTable};

/// Opens the counters of a data plane.
pub fn open_counters(pin_path: &Path) -> Result<Box<dyn Counters>> {
    Ok(Box::new(KernelCounters(Tables::open(|name| pin_path.join(name))?)))
}

struct KernelCounters(Tables);

impl Counters for KernelCounters {
    fn reasons(&self) -> Result<Vec<(Reason, u64)>> {
        self.0.reasons()
    }

    fn neighbour_events(&self) -> Result<Vec<(NeighbourEvent, u64)>> {
        self.0.neighbour_events()
    }

    fn service_port(&self, index: u32) -> Result<Traffic> {
        self.0.service_traffic(index)
    }

    fn backends(&self) -> Vec<(u32, BackendKey)> {
        self.0.backends().filter_map(|found| Some((found.index, found.backend?.0))).collect()
    }

    fn backend(&self, index: u32) -> Result<Traffic> {
        self.0.backend_traffic(index)
    }

    fn flow_tables(&self) -> Vec<FlowTable> {
        let table = |family, occupancy: Occupancy| FlowTable {
            family,
            by_state: occupancy.by_state().to_vec(),
            capacity: occupancy.capacity,
        };
        vec![table("IPv4", self.0.occupancy4()), table("IPv6", self.0.occupancy6())]
    }
}

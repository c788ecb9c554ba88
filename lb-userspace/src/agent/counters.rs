//! The kernel's counters, for the metrics. They are read through maps that are opened separately,
//! so that requests for metrics and the agent never wait for each other.

use std::path::Path;

use anyhow::Result;
use lb_common::layout::{NeighbourEvent, Reason, Traffic};

use crate::kernel::{Occupancy, Tables};
use crate::plan::BackendKey;
use crate::serve::{Counters, FlowTable};

/// Opens the counters of a data plane.
pub fn open(pin_path: &Path) -> Result<Box<dyn Counters>> {
    Ok(Box::new(Tables::open(|name| pin_path.join(name))?))
}

impl Counters for Tables {
    fn reasons(&self) -> Result<Vec<(Reason, u64)>> {
        Tables::reasons(self)
    }

    fn neighbour_events(&self) -> Result<Vec<(NeighbourEvent, u64)>> {
        Tables::neighbour_events(self)
    }

    fn service_port(&self, index: u32) -> Result<Traffic> {
        self.service_traffic(index)
    }

    fn backends(&self) -> Vec<(u32, BackendKey)> {
        let backends = Tables::backends(self);
        backends.filter_map(|found| Some((found.index, found.backend?.0))).collect()
    }

    fn backend(&self, index: u32) -> Result<Traffic> {
        self.backend_traffic(index)
    }

    fn flow_tables(&self) -> Vec<FlowTable> {
        let table = |family, occupancy: Occupancy| FlowTable {
            family,
            by_state: occupancy.by_state().to_vec(),
            capacity: occupancy.capacity,
        };
        vec![table("IPv4", self.occupancy4()), table("IPv6", self.occupancy6())]
    }
}

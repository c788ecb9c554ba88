//! Sizes of the maps. Three numbers are configured; everything else follows from them.

use lb_common::conntrack::crowded_words;
use lb_common::layout::{BUCKET_ENTRIES, Settings, capacity, map};
use lb_common::maglev;
use lb_plan::Room;

use crate::settings::{MOST_ENDPOINTS, MOST_FLOWS, MOST_SERVICE_PORTS};

/// Slots of Maglev tables for each endpoint: the most that any tables need, and a tenth more. The
/// tenth is for local pools, for tables that are being swapped, and for gaps between tables.
const SLOTS_PER_ENDPOINT: u32 = capacity::SLOTS_PER_BACKEND;
const _: () = assert!(SLOTS_PER_ENDPOINT >= maglev::MOST_SLOTS_PER_BACKEND * 11 / 10);

/// Frontends for each service port: its ClusterIP and a load balancer's address, and the entries of both addresses
/// themselves. Few have them all, which leaves room for NodePorts and more addresses.
const FRONTENDS_PER_SERVICE_PORT: u32 = 4;

/// Configured sizes of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    service_ports: u32,
    endpoints: u32,
    /// Buckets of the flow table of each family: a power of two.
    flow_buckets: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            service_ports: capacity::SERVICE_PORTS,
            endpoints: capacity::BACKENDS,
            flow_buckets: capacity::FLOW_BUCKETS,
        }
    }
}

impl Sizes {
    /// Room for at least this many flows of each family.
    pub fn for_flows(flows: u32) -> Self {
        let buckets = flows.min(MOST_FLOWS).div_ceil(BUCKET_ENTRIES as u32).next_power_of_two();
        Self { flow_buckets: buckets, ..Self::default() }
    }

    /// Room for this many service ports and endpoints of both families together.
    pub fn with_services(self, service_ports: u32, endpoints: u32) -> Self {
        Self {
            service_ports: service_ports.clamp(2, MOST_SERVICE_PORTS),
            endpoints: endpoints.clamp(2, MOST_ENDPOINTS),
            ..self
        }
    }

    pub fn flow_buckets(&self) -> u32 {
        self.flow_buckets
    }

    /// Flows of each family that the tables can hold.
    pub fn flows(&self) -> u32 {
        self.flow_buckets * BUCKET_ENTRIES as u32
    }

    /// Limits for the planner.
    pub fn room(&self) -> Room {
        Room {
            service_ports: self.service_ports,
            backends: self.endpoints,
            pool_slots: self.endpoints * SLOTS_PER_ENDPOINT,
            history: capacity::EARLIER_OWNERS as usize,
        }
    }

    /// Entries of the maps whose size depends on the configuration. `None`: the map has the size
    /// that the object declares.
    pub fn entries(&self, name: &str) -> Option<u32> {
        let Room { service_ports, backends, pool_slots, .. } = self.room();
        match name {
            map::FLOWS4 | map::FLOWS6 => Some(self.flow_buckets),
            map::REPLIES4 | map::REPLIES6 => Some(self.flow_buckets * Settings::REPLY_BUCKETS),
            map::CROWDED4 | map::CROWDED6 | map::CROWDED_LATELY4 | map::CROWDED_LATELY6 => {
                Some(crowded_words(self.flow_buckets))
            }
            map::FRONTENDS4 | map::FRONTENDS6 => Some(self.frontends()),
            map::SERVICE_TRAFFIC | map::SERVICE_NAMES => Some(service_ports),
            // One for each scope.
            map::POOLS => Some(2 * service_ports),
            map::POOL_SLOTS => Some(pool_slots / 2),
            map::BACKENDS4 | map::BACKENDS6 | map::BACKEND_HOPS | map::BACKEND_TRAFFIC => {
                Some(backends)
            }
            map::MEMBERS | map::WEIGHTS => Some(members(backends)),
            map::SOURCE_RANGES4 | map::SOURCE_RANGES6 => Some(service_ports),
            _ => None,
        }
    }

    /// Capacities of the data plane, to compare its usage with.
    pub fn capacities(&self) -> [(&'static str, u32); 9] {
        let Room { service_ports, backends, pool_slots, .. } = self.room();
        [
            ("frontends", self.frontends()),
            ("service_ports", service_ports),
            ("backends", backends),
            ("pool_slots", pool_slots),
            ("members", members(backends)),
            ("source_ranges", service_ports),
            ("targets", capacity::TARGETS),
            ("peers", capacity::PEERS),
            ("earlier_owners", capacity::EARLIER_OWNERS),
        ]
    }

    fn frontends(&self) -> u32 {
        FRONTENDS_PER_SERVICE_PORT * self.service_ports
    }
}

/// Every endpoint may be in both pools.
fn members(backends: u32) -> u32 {
    2 * backends
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The object declares the sizes that an agent without options uses.
    #[test]
    fn the_defaults_are_the_objects_own() {
        let sizes = Sizes::default();
        for (name, entries) in [
            (map::FLOWS4, capacity::FLOW_BUCKETS),
            (map::FRONTENDS4, capacity::FRONTENDS),
            (map::SERVICE_TRAFFIC, capacity::SERVICE_PORTS),
            (map::SERVICE_NAMES, capacity::SERVICE_PORTS),
            (map::POOLS, capacity::POOLS),
            (map::POOL_SLOTS, capacity::POOL_SLOTS / 2),
            (map::BACKENDS6, capacity::BACKENDS),
            (map::MEMBERS, capacity::MEMBERS),
            (map::WEIGHTS, capacity::MEMBERS),
            (map::SOURCE_RANGES6, capacity::SOURCE_RANGES),
        ] {
            assert_eq!(sizes.entries(name), Some(entries), "{name}");
        }
        assert_eq!(sizes.entries(map::IDENTITY), None);
        assert_eq!(Sizes::for_flows(524_288), sizes);
    }

    #[test]
    fn the_promised_endpoints_fit_for_any_number_of_replicas() {
        for endpoints in [1_000, capacity::BACKENDS, 1_000_000] {
            let room = Sizes::default().with_services(MOST_SERVICE_PORTS, endpoints).room();
            for replicas in 1..=1_000 {
                // Index 0 is never a backend.
                let services = (room.backends - 1) / replicas;
                let table = maglev::fitted_size(replicas as usize);
                let spare = room.pool_slots - services * table;
                assert!(spare >= table.min(room.pool_slots / 11), "{endpoints}, {replicas} each");
            }
        }
    }

    /// Sums and products of the largest sizes fit in 32 bits, and mapped arrays in 4 GiB.
    #[test]
    fn the_largest_sizes_are_possible() {
        let largest = Sizes::for_flows(u32::MAX).with_services(u32::MAX, u32::MAX);
        let slots = u64::from(MOST_ENDPOINTS) * u64::from(SLOTS_PER_ENDPOINT);
        assert_eq!(u64::from(largest.room().pool_slots), slots);
        assert!(slots * 4 < 1 << 32);
        assert!(largest.entries(map::FRONTENDS4) > Some(MOST_SERVICE_PORTS));
        assert_eq!(largest.flow_buckets(), 1 << 24);
    }
}

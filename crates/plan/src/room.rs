//! The room in the kernel's tables.

use lb_common::layout::capacity;

/// How users can make more room; continues a sentence that says what is full.
pub const MORE_SERVICE_PORTS: &str = "a larger --max-service-ports makes room";
pub const MORE_ENDPOINTS: &str = "a larger --max-endpoints makes room";

/// Capacities of the kernel's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Index 0 is unused, here and for backends.
    pub service_ports: u32,
    pub backends: u32,
    pub pool_slots: u32,
    /// Slots with earlier owners.
    pub history: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            service_ports: capacity::SERVICE_PORTS,
            backends: capacity::BACKENDS,
            pool_slots: capacity::POOL_SLOTS,
            history: capacity::EARLIER_OWNERS as usize,
        }
    }
}

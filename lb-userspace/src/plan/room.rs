use lb_common::layout::capacity;

/// How a person makes more room, in words that follow what is full.
pub const MORE_SERVICE_PORTS: &str = "a larger --max-service-ports makes room";
pub const MORE_ENDPOINTS: &str = "a larger --max-endpoints makes room";

/// How much of each the kernel's tables hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Index 0, of these and of backends, is nobody's.
    pub service_ports: u32,
    pub backends: u32,
    pub pool_slots: u32,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            service_ports: capacity::SERVICE_PORTS,
            backends: capacity::BACKENDS,
            pool_slots: capacity::POOL_SLOTS,
        }
    }
}

//! Shared by the benchmark's BPF programs and the program that runs them.

/// Bytes at the start of the packet that are restored before every run: all headers, a power of
/// two. Benchmarked packets are at least this long.
pub const HEADERS: usize = 128;

/// The UDP port of the benchmark's sink, which only receives.
pub const SINK_PORT: u16 = 5300;

/// Maximum number of [`BenchEnd`]s.
pub const MAX_ENDS: usize = 1 << 19;

/// What a packet takes from the list of ends: the last four octets of an address, and a port, in
/// host order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BenchEnd {
    pub address: u32,
    pub port: u32,
}

/// The original packet, and how its client varies.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Template {
    pub headers: [u64; HEADERS / 8],
    /// Offset of the last four octets of the address that varies.
    pub address_offset: u32,
    pub port_offset: u32,
    /// Client addresses start here (host order of the last four octets).
    pub first_address: u32,
    /// Number of clients minus 1. The number of clients is a power of two.
    pub client_mask: u32,
    /// Not 0: address and port are those of the list of ends, which has one for each client.
    pub listed: u32,
    /// Length of the packet. If a run changes it, the next one gets the packet as it was.
    pub length: u32,
    /// Not 0: what changes the length moves the packet's start. Otherwise its end.
    pub at_front: u32,
    pub reserved: u32,
}

const _: () = assert!(size_of::<Template>() == HEADERS + 32);

/// Ports per client address.
pub const PORTS: u32 = 1 << 14;
/// The first port of each client address.
pub const FIRST_PORT: u32 = 40_000;

impl Template {
    /// Address (its last four octets) and port of a packet's client, in host order.
    ///
    /// Packets visit all clients before they return to one, in an order that no cache can predict:
    /// an odd factor permutes the numbers below a power of two.
    #[inline(always)]
    pub fn client(&self, number: u32) -> (u32, u16) {
        let client = permuted(number) & self.client_mask;
        let address = self.first_address.wrapping_add(client / PORTS);
        (address, (FIRST_PORT + client % PORTS) as u16)
    }
}

/// A permutation of the numbers below any power of two, of which it is to be reduced.
#[inline(always)]
pub fn permuted(number: u32) -> u32 {
    number.wrapping_mul(0x9e37_79b1)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_client_comes_once_before_any_comes_again() {
        let template = Template {
            headers: [0; HEADERS / 8],
            address_offset: 0,
            port_offset: 0,
            first_address: 0x0a00_0000,
            client_mask: (1 << 16) - 1,
            listed: 0,
            length: 0,
            at_front: 0,
            reserved: 0,
        };
        let clients: HashSet<_> = (0..1 << 16).map(|number| template.client(number)).collect();
        assert_eq!(clients.len(), 1 << 16);
        assert_eq!(template.client(5), template.client(5 + (1 << 16)));
    }
}

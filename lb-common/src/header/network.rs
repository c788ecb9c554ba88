//! What the headers of IPv4 and IPv6 have in common.

use super::{Header, Ipv4, Ipv6};
use crate::address::{Address, Address4, Address6};
use crate::checksum::Delta;
use crate::word::{load, number16, store};

/// An IP header of either family.
pub trait NetworkHeader: Header {
    type Address: Address;

    fn source(&self) -> Self::Address;
    fn destination(&self) -> Self::Address;
    fn set_source(&mut self, address: Self::Address);
    fn set_destination(&mut self, address: Self::Address);

    /// TTL or hop limit: a packet with 1 is not forwarded.
    fn hop_limit(&self) -> u8;

    fn set_hop_limit(&mut self, limit: u8);

    /// Decrements the limit for a packet that is forwarded. It must be above 0.
    #[inline(always)]
    fn decrement_hop_limit(&mut self) {
        self.set_hop_limit(self.hop_limit().wrapping_sub(1));
    }

    /// The length of the packet from this header on, according to the header.
    fn length(&self) -> u32;

    /// The header's own checksum; IPv6 has none.
    fn checksum_mut(&mut self) -> Option<&mut [u8; 2]>;
}

impl NetworkHeader for Ipv4 {
    type Address = Address4;

    #[inline(always)]
    fn source(&self) -> Address4 {
        load(&self.source)
    }

    #[inline(always)]
    fn destination(&self) -> Address4 {
        load(&self.destination)
    }

    #[inline(always)]
    fn set_source(&mut self, address: Address4) {
        store(&mut self.source, address);
    }

    #[inline(always)]
    fn set_destination(&mut self, address: Address4) {
        store(&mut self.destination, address);
    }

    #[inline(always)]
    fn hop_limit(&self) -> u8 {
        self.time_to_live
    }

    #[inline(always)]
    fn set_hop_limit(&mut self, limit: u8) {
        let before = u16::from_be_bytes([self.time_to_live, self.protocol]);
        self.time_to_live = limit;
        let after = u16::from_be_bytes([self.time_to_live, self.protocol]);
        Delta::of_port(before, after).update(&mut self.checksum);
    }

    #[inline(always)]
    fn decrement_hop_limit(&mut self) {
        // The high octet of a word: whatever it was, the checksum changes by the same.
        self.time_to_live = self.time_to_live.wrapping_sub(1);
        Delta::of_port(1 << 8, 0).update(&mut self.checksum);
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        u32::from(number16(&self.total_length))
    }

    #[inline(always)]
    fn checksum_mut(&mut self) -> Option<&mut [u8; 2]> {
        Some(&mut self.checksum)
    }
}

impl NetworkHeader for Ipv6 {
    type Address = Address6;

    #[inline(always)]
    fn source(&self) -> Address6 {
        load(&self.source)
    }

    #[inline(always)]
    fn destination(&self) -> Address6 {
        load(&self.destination)
    }

    #[inline(always)]
    fn set_source(&mut self, address: Address6) {
        store(&mut self.source, address);
    }

    #[inline(always)]
    fn set_destination(&mut self, address: Address6) {
        store(&mut self.destination, address);
    }

    #[inline(always)]
    fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    #[inline(always)]
    fn set_hop_limit(&mut self, limit: u8) {
        self.hop_limit = limit;
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        size_of::<Self>() as u32 + u32::from(number16(&self.payload_length))
    }

    #[inline(always)]
    fn checksum_mut(&mut self) -> Option<&mut [u8; 2]> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::protocol;

    #[test]
    fn a_decremented_limit_has_the_checksum_of_one_that_was_set() {
        let header = |time_to_live, checksum: u16| Ipv4 {
            version_and_length: 0x45,
            traffic_class: 0,
            total_length: [0, 40],
            identification: [0; 2],
            flags_and_offset: [0; 2],
            time_to_live,
            protocol: protocol::TCP,
            checksum: checksum.to_be_bytes(),
            source: [10, 0, 0, 1],
            destination: [10, 0, 0, 2],
        };
        for (limit, checksum) in (1..=u8::MAX).flat_map(|limit| {
            [0, 1, 0xfe, 0xff, 0x100, 0x7fff, 0xfeff, 0xff00, 0xfffe].map(|sum| (limit, sum))
        }) {
            let [mut decremented, mut set] = [header(limit, checksum), header(limit, checksum)];
            decremented.decrement_hop_limit();
            set.set_hop_limit(limit - 1);
            assert_eq!(decremented.time_to_live, set.time_to_live);
            assert_eq!(decremented.checksum, set.checksum, "{limit} {checksum:#x}");
        }
    }
}

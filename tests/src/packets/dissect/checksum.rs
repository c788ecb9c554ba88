//! Actual and expected checksums. `etherparse` computes the sums.

use etherparse::IpNumber;
use etherparse::checksum::Sum16BitWords;

use crate::packets::address::PacketAddresses;

/// The pseudo header's sum for a transport protocol with this number of bytes.
pub fn pseudo_header(
    addresses: PacketAddresses,
    protocol: IpNumber,
    length: usize,
) -> Sum16BitWords {
    let mut sum = Sum16BitWords::new();
    sum = match addresses {
        PacketAddresses::V4(source, destination) => sum.add_4bytes(source).add_4bytes(destination),
        PacketAddresses::V6(source, destination) => {
            sum.add_16bytes(source).add_16bytes(destination)
        }
    };
    // The length has 16 bits over IPv4 and 32 over IPv6: the upper half is zero and adds nothing.
    sum.add_4bytes((length as u32).to_be_bytes()).add_2bytes([0, protocol.0])
}

/// The checksum of these bytes if the field at this even offset were zero.
pub fn compute_checksum(sum: Sum16BitWords, bytes: &[u8], field: usize) -> u16 {
    sum.add_slice(&bytes[..field]).add_slice(&bytes[field + 2..]).ones_complement().to_be()
}

pub fn compare_checksums(found: u16, should_be: u16) -> String {
    if found == should_be {
        format!("checksum 0x{found:04x} [correct]")
    } else if found == 0xffff && should_be == 0 {
        // One's complement has two zeros; receivers accept both.
        format!("checksum 0x{found:04x} [correct, usually 0x0000]")
    } else {
        format!("checksum 0x{found:04x} [WRONG, should be 0x{should_be:04x}]")
    }
}

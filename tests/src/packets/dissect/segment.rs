//! What an IP packet carries, and the verdict about its checksum.

use etherparse::IpNumber;

use super::checksum::{compare_checksums, compute_checksum, pseudo_header};
use crate::packets::address::PacketAddresses;

/// What an IP packet carries.
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    pub addresses: PacketAddresses,
    pub bytes: &'a [u8],
    /// Why there is no verdict about a checksum.
    pub incomplete: Option<&'static str>,
}

impl Segment<'_> {
    /// The verdict about a checksum over the first `length` bytes and the pseudo header.
    pub fn verdict(&self, protocol: IpNumber, length: usize, field: usize, found: u16) -> String {
        match self.incomplete {
            Some(reason) => format!("checksum 0x{found:04x} [not verified: {reason}]"),
            None => {
                let sum = pseudo_header(self.addresses, protocol, length);
                compare_checksums(found, compute_checksum(sum, &self.bytes[..length], field))
            }
        }
    }
}

//! Formats numbers in packets and maps, for all commands.
//!
//! Imports only `model`; `inspect`, `trace` and `drops` import this, and not each other.

use std::net::{IpAddr, Ipv6Addr};

use lb_common::layout::FrontendKind;

use crate::model::Protocol;

/// The flags of TCP, by bit.
pub const TCP_FLAGS: [(&str, u8); 6] =
    [("fin", 0x01), ("syn", 0x02), ("rst", 0x04), ("psh", 0x08), ("ack", 0x10), ("urg", 0x20)];

/// Parses a list of flags: `syn`, `syn,ack`.
pub fn parse_tcp_flags(text: &str) -> Result<u8, String> {
    text.split(',').filter(|name| !name.is_empty()).try_fold(0, |flags, name| {
        let found = TCP_FLAGS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name.trim()));
        let names = TCP_FLAGS.map(|(name, _)| name).join(", ");
        Ok(flags | found.ok_or_else(|| format!("{name:?} is not one of {names}"))?.1)
    })
}

/// The reverse of [`parse_tcp_flags`].
pub fn tcp_flag_names(flags: u8) -> String {
    let set = TCP_FLAGS.iter().filter(|(_, bit)| flags & bit != 0).map(|(name, _)| *name);
    set.collect::<Vec<_>>().join(",")
}

/// The API's name of a transport protocol; `?` for others.
pub fn protocol_name(number: u8) -> &'static str {
    Protocol::of_number(number).map_or("?", Protocol::name)
}

/// Returns `?` for other numbers.
pub fn frontend_kind_name(number: u8) -> &'static str {
    FrontendKind::of_number(number).map_or("?", FrontendKind::name)
}

/// Reads an address of either family in the IPv6 form of maps.
pub fn ip_of_octets(octets: [u8; 16]) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(octets)).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_flags_are_read_as_they_are_written() {
        assert_eq!(parse_tcp_flags("SYN, ack"), Ok(0x12));
        assert_eq!(tcp_flag_names(0x12), "syn,ack");
        assert_eq!(parse_tcp_flags(&tcp_flag_names(0x3f)), Ok(0x3f));
        assert_eq!(
            parse_tcp_flags("syn,fun").unwrap_err(),
            "\"fun\" is not one of fin, syn, rst, psh, ack, urg"
        );
    }

    #[test]
    fn numbers_without_a_name_are_question_marks() {
        assert_eq!((protocol_name(6), protocol_name(0)), ("TCP", "?"));
        assert_eq!((frontend_kind_name(1), frontend_kind_name(255)), ("ClusterIP", "?"));
    }

    #[test]
    fn an_ipv4_address_is_written_without_its_ipv6_form() {
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 1];
        assert_eq!(ip_of_octets(mapped).to_string(), "192.0.2.1");
        assert_eq!(ip_of_octets([0xfd; 16]).to_string(), "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd");
    }
}

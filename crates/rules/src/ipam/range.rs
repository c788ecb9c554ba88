//! Ranges of addresses. An address is a number here: IPv4 as an IPv4-mapped IPv6 address, so that both families have
//! one order.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use crate::model::AddressFamily;

/// From the first to the last address, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    first: u128,
    last: u128,
}

/// Addresses that no Service can have, and what they are.
const EXCLUDED: [(&str, &str); 8] = [
    ("0.0.0.0/8", "addresses of this host"),
    ("127.0.0.0/8", "loopback addresses"),
    ("169.254.0.0/16", "link-local addresses"),
    ("224.0.0.0/4", "multicast addresses"),
    ("255.255.255.255/32", "the broadcast address"),
    ("::/127", "the unspecified or the loopback address"),
    ("fe80::/10", "link-local addresses"),
    ("ff00::/8", "multicast addresses"),
];

pub(crate) fn address_to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

pub(crate) fn number_to_address(number: u128) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(number)).to_canonical()
}

/// Whether some old devices refuse it: they take the last octets 0 and 255 for those of a network or broadcast.
pub(crate) fn ends_in_0_or_255(number: u128) -> bool {
    let address = number_to_address(number);
    address.is_ipv4() && matches!(number & 0xff, 0 | 0xff)
}

impl Range {
    /// Parses `192.0.2.0/24`, `192.0.2.1-192.0.2.9` or `192.0.2.1`. The error continues a sentence that begins with the
    /// text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let range = match text.split_once('-') {
            Some((first, last)) => Self::between(first, last)?,
            None => Self::of_network(text)?,
        };
        for (network, meaning) in EXCLUDED {
            // They are constants, and valid.
            let contains =
                |excluded: Self| excluded.family() == range.family() && excluded.overlaps(&range);
            if Self::of_network(network).is_ok_and(contains) {
                return Err(format!("contains {meaning}"));
            }
        }
        let mapped = Self { first: 0xffff_0000_0000, last: 0xffff_ffff_ffff };
        if range.family() == AddressFamily::V6 && range.overlaps(&mapped) {
            return Err(
                "contains IPv4 addresses in the form of IPv6: write them as IPv4".to_owned()
            );
        }
        Ok(range)
    }

    fn between(first: &str, last: &str) -> Result<Self, String> {
        let parse = |text: &str| {
            let text = text.trim();
            text.parse::<IpAddr>()
                .map_err(|_| format!("is not a range: {text:?} is not an address"))
        };
        let (first, last) = (parse(first)?, parse(last)?);
        if first.is_ipv4() != last.is_ipv4() {
            return Err("is not a range: one end is IPv4 and one IPv6".to_owned());
        }
        let (first, last) = (address_to_number(first), address_to_number(last));
        if first > last {
            return Err("is not a range: the first address is greater than the last".to_owned());
        }
        Ok(Self { first, last })
    }

    fn of_network(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let network = network.map_err(|_| {
            "is neither a network such as 192.0.2.0/24, nor a range such as 192.0.2.1-192.0.2.9, nor an address"
                .to_owned()
        })?;
        Ok(Self {
            first: address_to_number(network.network()),
            last: address_to_number(network.broadcast()),
        })
    }

    pub fn first(&self) -> u128 {
        self.first
    }

    pub fn last(&self) -> u128 {
        self.last
    }

    /// The first and the last address.
    pub fn ends(&self) -> [IpAddr; 2] {
        [number_to_address(self.first), number_to_address(self.last)]
    }

    pub fn contains(&self, number: u128) -> bool {
        (self.first..=self.last).contains(&number)
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    pub fn family(&self) -> AddressFamily {
        AddressFamily::of(&number_to_address(self.first))
    }

    /// The number of its addresses; `avoid_buggy`: without those that [`ends_in_0_or_255`].
    pub fn size(&self, avoid_buggy: bool) -> u128 {
        // All of IPv6 is no valid range.
        let all = self.last - self.first + 1;
        if !avoid_buggy || self.family() == AddressFamily::V6 {
            return all;
        }
        // How many numbers below `end` end with 0 or 255.
        let below = |end: u128| end.div_ceil(256) + end / 256;
        all - (below(self.last + 1) - below(self.first))
    }
}

impl Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => number_to_address(self.first).fmt(f),
            false => {
                write!(f, "{}-{}", number_to_address(self.first), number_to_address(self.last))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_ranges_and_addresses_are_read() {
        for (text, shown, size) in [
            ("192.0.2.0/30", "192.0.2.0-192.0.2.3", 4),
            (" 192.0.2.6/30 ", "192.0.2.4-192.0.2.7", 4),
            ("192.0.2.250 - 192.0.3.3", "192.0.2.250-192.0.3.3", 10),
            ("192.0.2.9", "192.0.2.9", 1),
            ("2001:db8::/126", "2001:db8::-2001:db8::3", 4),
            ("2001:db8::1-2001:db8::1", "2001:db8::1", 1),
            ("::ffff:192.0.2.0/126", "192.0.2.0-192.0.2.3", 4),
            ("2001:db8::/32", "2001:db8::-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", 1 << 96),
        ] {
            let range = Range::parse(text).unwrap();
            assert_eq!((range.to_string().as_str(), range.size(false)), (shown, size), "{text}");
        }
    }

    #[test]
    fn what_is_no_range_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "neither a network"),
            ("192.0.2.0/33", "neither a network"),
            ("192.0.2.9-192.0.2.1", "greater than the last"),
            ("192.0.2.9-2001:db8::1", "one end is IPv4"),
            ("192.0.2.9-", "\"\" is not an address"),
            ("0.0.0.0/0", "addresses of this host"),
            ("::/0", "unspecified"),
            ("127.0.0.1", "loopback"),
            ("223.0.0.0-224.0.0.0", "multicast"),
            ("169.254.1.0/24", "link-local"),
            ("fe80::1", "link-local"),
            ("::1:0:0-::ffff:0:1", "write them as IPv4"),
        ] {
            let error = Range::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn buggy_addresses_are_counted() {
        for (text, expected) in [
            ("192.0.2.0/24", 254),
            ("192.0.2.0", 0),
            ("192.0.2.255", 0),
            ("192.0.2.1-192.0.2.254", 254),
            ("192.0.2.250-192.0.3.3", 8),
            ("192.0.0.0/16", 256 * 254),
            ("2001:db8::/120", 256),
        ] {
            let range = Range::parse(text).unwrap();
            assert_eq!(range.size(true), expected, "{text}");
            let counted =
                (range.first..=range.last).filter(|number| !ends_in_0_or_255(*number)).count();
            assert_eq!(counted as u128, expected, "{text}");
        }
    }
}

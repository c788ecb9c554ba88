//! Devices and addresses as configured.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use glob::Pattern;
use ipnet::IpNet;

/// The configured devices, and the addresses with NodePorts.
#[derive(Clone, Debug, Default)]
pub struct DeviceSettings {
    /// Devices that clients use.
    pub external: Vec<DeviceSelector>,
    /// The host's ends of pods' interfaces.
    pub workload: Vec<DeviceSelector>,
    /// Addresses with NodePorts; empty: the addresses of external devices.
    pub node_ports: Vec<NodePortAddresses>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSelector {
    /// External: devices with a default route. Workload: devices that look like a pod's.
    Auto,
    /// No devices.
    None,
    Name(String),
    /// A shell pattern.
    Pattern(Pattern),
}

impl DeviceSelector {
    /// Whether it selects a device by its name.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Auto | Self::None => false,
            Self::Name(wanted) => wanted == name,
            Self::Pattern(pattern) => pattern.matches(name),
        }
    }
}

impl FromStr for DeviceSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The kernel's rule: up to 15 octets, no slash and no white space.
        let is_odd = |c: char| c == '/' || c.is_whitespace();
        if text.is_empty() || text.contains(is_odd) {
            return Err("no name of a device: it has no slashes and blanks".to_owned());
        }
        match text {
            "auto" => return Ok(Self::Auto),
            "none" => return Ok(Self::None),
            _ => {}
        }
        if text.contains(['*', '?', '[']) {
            let explain = |error| format!("no pattern: {error}; try one such as eth*");
            return Pattern::new(text).map(Self::Pattern).map_err(explain);
        }
        if text.len() > 15 {
            return Err("no name of a device: it is longer than 15 letters".to_owned());
        }
        Ok(Self::Name(text.to_owned()))
    }
}

impl Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Name(name) => name,
            Self::Pattern(pattern) => pattern.as_str(),
        })
    }
}

/// Where processes of the node reach NodePorts, if they may.
pub(crate) const LOOPBACK: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Addresses with NodePorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// This node's address of each family.
    Primary,
    /// The loopback addresses, for processes of the node only.
    Localhost,
    /// All addresses of the node, also the loopback ones.
    All,
    /// The node's addresses within a network.
    Within(IpNet),
    /// An address that no device needs to have: a router may translate it for the node.
    Exactly(IpAddr),
}

impl FromStr for NodePortAddresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let named =
            [("primary", Self::Primary), ("localhost", Self::Localhost), ("all", Self::All)];
        if let Some((_, named)) = named.into_iter().find(|(name, _)| *name == text) {
            return Ok(named);
        }
        let within = || text.parse().map(Self::Within);
        let selected = text.parse().map(Self::Exactly).or_else(|_| within()).map_err(|_| {
            "neither an address range such as 192.0.2.0/24, nor an address, nor `primary`, `localhost` or `all`"
                .to_owned()
        })?;
        let selects_nothing = match selected {
            Self::Exactly(ip) => ip.is_loopback() && !LOOPBACK.contains(&ip),
            Self::Within(range) => {
                range.addr().is_loopback() && !LOOPBACK.iter().any(|ip| range.contains(ip))
            }
            Self::Primary | Self::Localhost | Self::All => false,
        };
        if selects_nothing {
            return Err(
                "of the loopback addresses, only 127.0.0.1 and ::1 can accept NodePort connections"
                    .to_owned(),
            );
        }
        Ok(selected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_patterns_and_auto_are_distinguished() {
        let selected = |text: &str, name: &str| {
            text.parse::<DeviceSelector>().unwrap_or_else(|e| panic!("{text}: {e}")).matches(name)
        };
        for (text, name, expected) in [
            ("eth0", "eth0", true),
            ("eth0", "eth00", false),
            ("eth0.100", "eth0.100", true),
            ("eth0.100", "eth0x100", false),
            ("eth*", "eth12", true),
            ("eth*", "veth1", false),
            ("eth?", "eth0", true),
            ("eth?", "eth10", false),
            ("en[op]*", "enp3s0", true),
            ("en[op]*", "ens3", false),
            ("*", "anything", true),
            ("auto", "auto", false),
        ] {
            assert_eq!(selected(text, name), expected, "{text} {name}");
        }
        assert_eq!("auto".parse(), Ok(DeviceSelector::Auto));
    }

    #[test]
    fn what_can_be_no_device_is_refused() {
        for text in ["", "eth 0", "../eth0", "a-name-of-16-octets", "eth["] {
            assert!(text.parse::<DeviceSelector>().is_err(), "{text}");
        }
    }

    #[test]
    fn nodeport_addresses_are_ranges_addresses_or_names() {
        use NodePortAddresses::{All, Exactly, Localhost, Primary, Within};
        let parse = |text: &str| text.parse::<NodePortAddresses>();
        assert_eq!(parse("primary"), Ok(Primary));
        assert_eq!(parse("localhost"), Ok(Localhost));
        assert_eq!(parse("all "), Ok(All));
        assert_eq!(parse("192.0.2.0/24"), Ok(Within("192.0.2.0/24".parse().unwrap())));
        assert_eq!(parse(" ::/0"), Ok(Within("::/0".parse().unwrap())));
        assert_eq!(parse("192.0.2.1"), Ok(Exactly("192.0.2.1".parse().unwrap())));
        for text in ["", "eth0", "192.0.2.0/33", "192.0.2", "Primary", "loopback"] {
            assert!(parse(text).is_err(), "{text}");
        }
        // Of loopback there are only two, which would be left out of all others without a word.
        for text in ["127.0.0.53", "127.1.0.0/16", "127.0.0.2/31"] {
            assert!(parse(text).unwrap_err().contains("only 127.0.0.1 and ::1"), "{text}");
        }
        for text in ["127.0.0.1", "::1", "127.0.0.0/8", "127.0.0.0/31", "::1/128"] {
            assert!(parse(text).is_ok(), "{text}");
        }
    }
}

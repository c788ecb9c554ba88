//! Which ports SNAT must not use, because this node uses them itself, and how many remain. Pure.
//!
//! A connection from this node's address must not use the port of a socket of this node, of a
//! NodePort, or a port that the kernel may assign to a socket: replies would be ambiguous.

mod port_set;
mod range;

use std::fmt::{self, Display};
use std::ops::RangeInclusive;

use anyhow::{Context, Result, ensure};

pub use port_set::PortSet;
pub use range::SnatRange;

/// With fewer ports the agent warns. Each port serves one connection at a time to each backend on
/// another node.
const FEW_SNAT_PORTS: u32 = 1024;

/// The ports of this node, by use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortsInUse {
    /// The kernel assigns them to sockets that request no port: `net.ipv4.ip_local_port_range`.
    pub ephemeral: PortSet,
    /// `net.ipv4.ip_local_reserved_ports`
    pub reserved: PortSet,
    /// Listening TCP sockets, and bound UDP sockets.
    pub sockets: PortSet,
    pub node_ports: PortSet,
    /// What an earlier agent excluded, until the NodePorts are known.
    pub earlier: PortSet,
}

impl PortsInUse {
    pub fn all(&self) -> PortSet {
        let mut all = PortSet::default();
        [&self.ephemeral, &self.reserved, &self.sockets, &self.node_ports, &self.earlier]
            .into_iter()
            .for_each(|ports| all.add_all(ports));
        all
    }

    /// What remains of the range that SNAT may use.
    pub fn remaining(&self, range: &RangeInclusive<u16>) -> RemainingPorts {
        let within = |ports: &PortSet| ports.count_within(range);
        let total = u32::from(*range.end() - *range.start()) + 1;
        RemainingPorts {
            range: range.clone(),
            ports: total - within(&self.all()),
            ephemeral: within(&self.ephemeral),
            reserved: within(&self.reserved),
            sockets: within(&self.sockets),
            node_ports: within(&self.node_ports),
        }
    }
}

/// How many ports remain, and how many are excluded for each reason. A port may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingPorts {
    pub range: RangeInclusive<u16>,
    pub ports: u32,
    pub ephemeral: u32,
    pub reserved: u32,
    pub sockets: u32,
    pub node_ports: u32,
}

impl RemainingPorts {
    pub fn are_few(&self) -> bool {
        self.ports < FEW_SNAT_PORTS
    }

    /// How to make more ports available.
    pub fn fix(&self) -> String {
        let (first, last) = (self.range.start(), self.range.end());
        let others = self.reserved.max(self.sockets).max(self.node_ports);
        if self.ephemeral > others {
            return format!(
                "Keep the kernel from giving sockets the ports {first}-{last}: sysctl -w \
                 net.ipv4.ip_local_port_range=\"32768 60999\"; or choose ports outside of that range \
                 with --snat-ports"
            );
        }
        "Choose a larger range, or one with fewer ports in use, with --snat-ports".to_owned()
    }
}

impl Display for RemainingPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { range, ports, ephemeral, reserved, sockets, node_ports } = self;
        write!(
            f,
            "{ports} of the ports {}-{} are left for SNAT; excluded: {ephemeral} of \
             ip_local_port_range, {reserved} of ip_local_reserved_ports, {sockets} of sockets, \
             {node_ports} NodePorts",
            range.start(),
            range.end()
        )
    }
}

/// Parses `net.ipv4.ip_local_port_range`: the first and the last port.
pub fn parse_port_range(text: &str) -> Result<RangeInclusive<u16>> {
    let mut words = text.split_whitespace().map(str::parse);
    let (Some(Ok(first)), Some(Ok(last)), None) = (words.next(), words.next(), words.next()) else {
        anyhow::bail!("{text:?} is not two ports");
    };
    ensure!(first <= last, "{text:?} is not a range of ports");
    Ok(first..=last)
}

/// Parses `net.ipv4.ip_local_reserved_ports`: ports and ranges of ports, such as 8080,9000-9100.
pub fn parse_port_list(text: &str) -> Result<PortSet> {
    let mut ports = PortSet::default();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let wrong = || format!("{part:?} is neither a port nor a range of ports");
        let first: u16 = first.trim().parse().with_context(wrong)?;
        let last: u16 = last.trim().parse().with_context(wrong)?;
        ensure!(first <= last, wrong());
        ports.add_range(&(first..=last));
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: RangeInclusive<u16> = 1024..=32764;

    fn in_use(ephemeral: RangeInclusive<u16>) -> PortsInUse {
        let mut ports = PortSet::default();
        ports.add_range(&ephemeral);
        PortsInUse { ephemeral: ports, ..PortsInUse::default() }
    }

    #[test]
    fn the_kernels_range_is_read() {
        assert_eq!(parse_port_range("32768\t60999\n").ok(), Some(32768..=60999));
        assert_eq!(parse_port_range("1024 65535").ok(), Some(1024..=65535));
        for wrong in ["", "1024", "1 2 3", "60999 32768", "1024 65536", "a b"] {
            assert!(parse_port_range(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_kernels_list_is_read() {
        let read = |text| parse_port_list(text).map(|ports| ports.iter().collect::<Vec<_>>());
        assert_eq!(read("\n").ok(), Some(vec![]));
        assert_eq!(read("8080,9000-9002\n").ok(), Some(vec![8080, 9000, 9001, 9002]));
        assert_eq!(read("65535").ok(), Some(vec![65535]));
        for wrong in ["a", "1-", "3-2", "65536"] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn with_the_kernels_defaults_all_ports_remain() {
        let remaining = in_use(32768..=60999).remaining(&DEFAULT);
        assert_eq!(remaining.ports, 31_741);
        assert!(!remaining.are_few());
    }

    #[test]
    fn a_port_that_is_excluded_twice_counts_once() {
        let mut in_use = in_use(32000..=60999);
        in_use.sockets.add(8080);
        in_use.sockets.add(80);
        in_use.reserved.add_range(&(8080..=8081));
        in_use.node_ports.add_range(&(31990..=32010));
        let remaining = in_use.remaining(&DEFAULT);
        assert_eq!(remaining.ports, 31_741 - (32764 - 32000 + 1) - 2 - 10);
        let text = remaining.to_string();
        for part in [
            "30964 of the ports 1024-32764",
            "765 of ip_local_port_range",
            "2 of ip_local_reserved_ports",
            "1 of sockets",
            "21 NodePorts",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_fix_names_the_setting_when_all_ports_are_ephemeral() {
        let remaining = in_use(1024..=65535).remaining(&DEFAULT);
        assert_eq!(remaining.ports, 0);
        assert!(remaining.are_few());
        assert!(remaining.fix().contains("net.ipv4.ip_local_port_range"), "{}", remaining.fix());

        let mut in_use = PortsInUse::default();
        in_use.reserved.add_range(&(1024..=32000));
        let remaining = in_use.remaining(&DEFAULT);
        assert!(remaining.are_few());
        assert!(remaining.fix().starts_with("Choose"), "{}", remaining.fix());
    }
}

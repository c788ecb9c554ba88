//! Which external IPs of Services are served. Whoever may write Services could otherwise take over the traffic of any
//! address that passes the nodes (CVE-2020-8554).

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// A value of the setting `external-ips`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalIpRule {
    All,
    None,
    Within(IpNet),
}

impl FromStr for ExternalIpRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match text {
            "all" => return Ok(Self::All),
            "none" => return Ok(Self::None),
            _ => {}
        }
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let Ok(network) = network else {
            return Err("neither all, nor none, nor a network such as 192.0.2.0/24".to_owned());
        };
        // External IPs in this notation are IPv4 addresses, which no IPv6 network contains.
        match network.addr() {
            IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
                Err("an IPv4-mapped network: write it as an IPv4 network".to_owned())
            }
            _ => Ok(Self::Within(network.trunc())),
        }
    }
}

/// The external IPs that are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExternalIpPolicy {
    #[default]
    All,
    /// Those within these networks.
    Within(Vec<IpNet>),
}

impl ExternalIpPolicy {
    /// `all` together with other values is refused before.
    pub fn of(rules: &[ExternalIpRule]) -> Self {
        if rules == [ExternalIpRule::All] {
            return Self::All;
        }
        let within = rules.iter().filter_map(|rule| match rule {
            ExternalIpRule::Within(network) => Some(*network),
            ExternalIpRule::All | ExternalIpRule::None => None,
        });
        Self::Within(within.collect())
    }

    /// Why an external IP is not served; `None` if it is.
    pub(crate) fn refuse_external_ip(&self, address: IpAddr) -> Option<&'static str> {
        match self {
            Self::All => None,
            Self::Within(networks) if networks.is_empty() => {
                Some("is not served: the setting external-ips of the agents is none")
            }
            Self::Within(networks) => {
                let is_within = networks.iter().any(|network| network.contains(&address));
                (!is_within).then_some(
                    "is not served: it is in no network of the setting external-ips of the agents",
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in ["", "All", "off", "true", "192.0.2.0/33", "web", "::ffff:192.0.2.0/120"] {
            assert!(text.parse::<ExternalIpRule>().is_err(), "{text}");
        }
        let network = |text: &str| ExternalIpRule::Within(text.parse().unwrap());
        for (text, expected) in [
            ("all", ExternalIpRule::All),
            (" none", ExternalIpRule::None),
            ("192.0.2.1", network("192.0.2.1/32")),
            ("192.0.2.1/24", network("192.0.2.0/24")),
            ("2001:db8::/32", network("2001:db8::/32")),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn only_all_alone_admits_everything() {
        use ExternalIpRule::{All, None};
        let outside = IpAddr::from([198, 51, 100, 1]);
        let within = ExternalIpRule::Within("192.0.2.0/24".parse().unwrap());
        assert_eq!(ExternalIpPolicy::of(&[All]).refuse_external_ip(outside), Option::None);
        for rules in [&[][..], &[None], &[within], &[All, None], &[All, within]] {
            assert!(ExternalIpPolicy::of(rules).refuse_external_ip(outside).is_some(), "{rules:?}");
        }
        let inside = IpAddr::from([192, 0, 2, 255]);
        assert_eq!(ExternalIpPolicy::of(&[within, None]).refuse_external_ip(inside), Option::None);
    }
}

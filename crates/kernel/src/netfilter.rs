//! Lists chains of nftables, and of iptables where it uses nftables.

use std::io;

use lb_network::netlink::{Netlink, read_attributes, read_text};
use nix::libc::NLM_F_DUMP;
use nix::sys::socket::SockProtocol;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub family: NetfilterFamily,
    pub table: String,
    pub name: String,
    /// `None`: only other chains call it.
    pub base: Option<Base>,
}

/// Numbers of <https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter.h>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetfilterFamily {
    Inet,
    Ipv4,
    Ipv6,
    Other(u8),
}

impl NetfilterFamily {
    fn new(number: u8) -> Self {
        match number {
            1 => Self::Inet,
            2 => Self::Ipv4,
            10 => Self::Ipv6,
            other => Self::Other(other),
        }
    }

    /// The name in nft's syntax.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ipv4 => "ip",
            Self::Ipv6 => "ip6",
            Self::Other(_) => "other",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// The chain sees the packets that this machine forwards.
    pub forward: bool,
    /// The chain drops packets that no rule accepts.
    pub drops: bool,
}

/// All chains of this network namespace.
pub fn list_chains() -> io::Result<Vec<Chain>> {
    const NFTABLES: u16 = 10;
    /// Of <https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/nf_tables.h>.
    const GET_CHAIN: u16 = 4;
    let mut all = Vec::new();
    let mut netlink = Netlink::open(SockProtocol::NetlinkNetFilter)?;
    // For all families.
    let kind = NFTABLES << 8 | GET_CHAIN;
    netlink.ask(kind, NLM_F_DUMP, &[0; HEADER], |body| all.extend(read_chain(body)))?;
    Ok(all)
}

/// `struct nfgenmsg`; it begins with the family.
const HEADER: usize = 4;

fn read_chain(body: &[u8]) -> Option<Chain> {
    const TABLE: u16 = 1;
    const NAME: u16 = 3;
    const HOOK: u16 = 4;
    const POLICY: u16 = 5;
    const HOOK_NUMBER: u16 = 1;
    const FORWARD: u32 = 2;
    const DROP: u32 = 0;
    let family = NetfilterFamily::new(*body.first()?);
    let body = body.get(HEADER..)?;
    let base = find_attribute(body, HOOK).map(|hook| Base {
        forward: matches!(
            family,
            NetfilterFamily::Inet | NetfilterFamily::Ipv4 | NetfilterFamily::Ipv6
        ) && find_attribute(hook, HOOK_NUMBER).and_then(number) == Some(FORWARD),
        drops: find_attribute(body, POLICY).and_then(number) == Some(DROP),
    });
    let (table, name) =
        (read_text(find_attribute(body, TABLE)?), read_text(find_attribute(body, NAME)?));
    Some(Chain { family, table, name, base })
}

fn find_attribute(body: &[u8], wanted: u16) -> Option<&[u8]> {
    read_attributes(body).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// In network byte order, unlike most of netlink.
fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use lb_network::netlink::{encode_attribute, encode_text_attribute};

    use super::*;

    /// A message about the chain FORWARD of the table filter.
    fn message(family: u8, hook: Option<u32>, policy: u32) -> Vec<u8> {
        let mut body = vec![family, 0, 0, 0];
        body.extend(encode_text_attribute(1, "filter"));
        body.extend(encode_text_attribute(3, "FORWARD"));
        if let Some(hook) = hook {
            body.extend(encode_attribute(4, &encode_attribute(1, &hook.to_be_bytes())));
            body.extend(encode_attribute(5, &policy.to_be_bytes()));
        }
        body
    }

    #[test]
    fn a_base_chain_has_a_hook_and_a_policy() {
        let (forward, input, drop, accept) = (Some(2), Some(1), 0, 1);
        for (family, hook, policy, expected) in [
            (2, forward, drop, Some((true, true))),
            (10, forward, accept, Some((true, false))),
            (1, input, drop, Some((false, true))),
            // A bridge forwards frames.
            (7, forward, drop, Some((false, true))),
            (2, None, accept, None),
        ] {
            let chain = read_chain(&message(family, hook, policy)).expect("a complete message");
            let base = chain.base.map(|base| (base.forward, base.drops));
            assert_eq!(base, expected, "family {family} hook {hook:?} policy {policy}");
        }
    }

    #[test]
    fn a_truncated_message_is_skipped() {
        let whole = message(2, Some(2), 0);
        for length in 0..whole.len() {
            let chain = read_chain(&whole[..length]);
            assert!(chain.is_none_or(|chain| chain.table == "filter"), "{length} bytes");
        }
    }
}

//! The router on the link of an interface: the kernel notes which neighbours are routers, because they send router
//! advertisements.

use std::ffi::CString;
use std::io;
use std::net::Ipv6Addr;

use anyhow::{Context, Result, bail};
use lb_network::netlink::{Netlink, read_attributes, read_u32_at};
use nix::libc::{NLM_F_DUMP, NLM_F_REQUEST, RTM_GETNEIGH};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, SockProtocol};

/// `struct ndmsg`: family, interface, state, flags.
const NDMSG_OCTETS: usize = 12;
const NDA_DST: u16 = 1;
/// `NTF_ROUTER`.
const NTF_ROUTER_BIT: u8 = 0x80;

pub(crate) fn find_interface_index(name: &str) -> Result<u32> {
    let text = CString::new(name).with_context(|| format!("{name:?} is no interface"))?;
    if_nametoindex(text.as_c_str()).with_context(|| format!("there is no interface {name}"))
}

/// The link-local address of the only router there.
pub(crate) fn find_router(name: &str) -> Result<Ipv6Addr> {
    let found = routers(find_interface_index(name)?).context("neighbours can't be read")?;
    match found[..] {
        [router] => Ok(router),
        [] => bail!(
            "no router advertisement has arrived on {name}: the router must send them (unnumbered BGP)"
        ),
        _ => bail!("{} routers are on the link of {name}: name the address of one", found.len()),
    }
}

fn routers(interface: u32) -> io::Result<Vec<Ipv6Addr>> {
    let mut header = [0; NDMSG_OCTETS];
    header[0] = AddressFamily::Inet6 as u8;
    header[4..8].copy_from_slice(&interface.to_ne_bytes());
    let mut found = Vec::new();
    let mut netlink = Netlink::open(SockProtocol::NetlinkRoute)?;
    netlink.ask(RTM_GETNEIGH, NLM_F_REQUEST | NLM_F_DUMP, &header, |body| {
        found.extend(router(body, interface));
    })?;
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The address of a neighbour that is a router on the interface.
fn router(body: &[u8], interface: u32) -> Option<Ipv6Addr> {
    let (header, rest) = body.split_at_checked(NDMSG_OCTETS)?;
    let flags = header[10];
    if read_u32_at(header, 4)? != interface || flags & NTF_ROUTER_BIT == 0 {
        return None;
    }
    let (_, address) = read_attributes(rest).find(|(kind, _)| *kind == NDA_DST)?;
    let address = Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?);
    address.is_unicast_link_local().then_some(address)
}

#[cfg(test)]
mod tests {
    use lb_network::netlink::encode_attribute;

    use super::*;

    #[test]
    fn only_routers_with_link_local_addresses_count() {
        let entry = |interface: u32, flags: u8, address: &str| {
            let mut body = vec![0; NDMSG_OCTETS];
            body[4..8].copy_from_slice(&interface.to_ne_bytes());
            body[10] = flags;
            let address: Ipv6Addr = address.parse().unwrap();
            body.extend(encode_attribute(NDA_DST, &address.octets()));
            router(&body, 7)
        };
        assert_eq!(entry(7, NTF_ROUTER_BIT, "fe80::1"), Some("fe80::1".parse().unwrap()));
        assert_eq!(entry(8, NTF_ROUTER_BIT, "fe80::1"), None);
        assert_eq!(entry(7, 0, "fe80::1"), None);
        assert_eq!(entry(7, NTF_ROUTER_BIT, "2001:db8::1"), None);
        assert_eq!(router(&[0; 5], 7), None);
    }
}

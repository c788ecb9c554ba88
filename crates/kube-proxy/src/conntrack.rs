//! Connection tracking entries of connections whose destination was translated.
//!
//! While such an entry exists, also of a connection that has ended, the kernel drops the first packet of a connection
//! with the same source port to the same endpoint: both have the same replies. NAT would choose another port, but is
//! gone with kube-proxy's chains.
//!
//! <https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/nfnetlink_conntrack.h>

use std::io;

use lb_network::netlink::{Netlink, encode_attribute};
use nix::libc::{EINVAL, NFNL_SUBSYS_CTNETLINK, NLM_F_ACK};
use nix::sys::socket::SockProtocol;

const DELETE: u16 = 2;
const STATUS: u16 = 3;
const STATUS_MASK: u16 = 26;
/// `IPS_DST_NAT`.
const TRANSLATED: u32 = 1 << 5;

/// Removes the entries of both address families.
pub fn remove_translated() -> io::Result<()> {
    let kind = (NFNL_SUBSYS_CTNETLINK as u16) << 8 | DELETE;
    // `struct nfgenmsg`: all families.
    let mut body = vec![0; 4];
    for attribute in [STATUS, STATUS_MASK] {
        body.extend(encode_attribute(attribute, &TRANSLATED.to_be_bytes()));
    }
    let removed =
        Netlink::open(SockProtocol::NetlinkNetFilter)?.ask(kind, NLM_F_ACK, &body, |_| {});
    removed.map_err(|error| match error.raw_os_error() {
        // Of messages for no part of netfilter.
        Some(EINVAL) => io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel's module nf_conntrack_netlink is missing: load it, and repeat the command",
        ),
        _ => error,
    })
}

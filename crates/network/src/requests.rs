//! Reads the present devices, addresses, default routes and neighbours.

use std::io;

use anyhow::Result;
use nix::libc;
use nix::sys::socket::SockProtocol;

use super::dump::request_dump;
use super::message::{
    is_selective_route, is_selective_rule, parse_address, parse_change, parse_default_route,
};
use super::netdev::{self, NetdevFamily};
use super::snapshot::{DefaultRoute, InterfaceAddress, Snapshot};
use crate::netlink::{Netlink, NetlinkMessage};

/// Reads everything. Changes meanwhile are reported to a socket that was opened before.
pub async fn read_snapshot(netdev: Option<NetdevFamily>) -> Result<Snapshot> {
    let mut snapshot = Snapshot::default();
    // The bodies are `struct ifinfomsg`, `ifaddrmsg` and `ndmsg`: all families and devices.
    for (kind, body) in [
        (libc::RTM_GETLINK, &[0; 16][..]),
        (libc::RTM_GETADDR, &[0; 8]),
        (libc::RTM_GETNEIGH, &[0; 12]),
    ] {
        let take = |message: &NetlinkMessage<'_>| parse_change(message.kind, message.body);
        for notice in request_dump(SockProtocol::NetlinkRoute, kind, body, take).await? {
            snapshot.apply(notice);
        }
    }
    for notice in netdev::read_netdev_changes(netdev).await? {
        snapshot.apply(notice);
    }
    RouteFacts::read().await?.put_into(&mut snapshot);
    snapshot.selective_rules = are_rules_selective().await;
    Ok(snapshot)
}

/// What matters of all routes.
pub(crate) struct RouteFacts {
    default: Vec<DefaultRoute>,
    /// Whether one decides by more than the destination.
    selective: bool,
}

impl RouteFacts {
    pub async fn read() -> Result<Self> {
        let mut routes = Self { default: Vec::new(), selective: false };
        for family in [libc::AF_INET, libc::AF_INET6] {
            // `struct rtmsg`: all tables.
            let mut body = [0; 12];
            body[0] = family as u8;
            let take = |message: &NetlinkMessage<'_>| {
                let (default, selective) =
                    (parse_default_route(message.body), is_selective_route(message.body));
                (default.is_some() || selective).then_some((default, selective))
            };
            let found =
                request_dump(SockProtocol::NetlinkRoute, libc::RTM_GETROUTE, &body, take).await?;
            routes.selective |= found.iter().any(|(_, selective)| *selective);
            // A kernel without IPv6 would return the IPv4 routes again.
            let v6 = family == libc::AF_INET6;
            let default = found.into_iter().filter_map(|(default, _)| default);
            routes.default.extend(default.filter(|route| route.v6 == v6));
        }
        Ok(routes)
    }

    pub(crate) fn put_into(self, snapshot: &mut Snapshot) {
        snapshot.default_routes = self.default;
        snapshot.selective_routes = self.selective;
    }
}

/// Whether a rule decides by more than the destination, or the rules cannot be read.
async fn are_rules_selective() -> bool {
    for family in [libc::AF_INET, libc::AF_INET6] {
        // `struct fib_rule_hdr`
        let mut body = [0; 12];
        body[0] = family as u8;
        let take = |message: &NetlinkMessage<'_>| is_selective_rule(message.body).then_some(());
        match request_dump(SockProtocol::NetlinkRoute, libc::RTM_GETRULE, &body, take).await {
            Ok(selective) if selective.is_empty() => {}
            Ok(_) | Err(_) => return true,
        }
    }
    false
}

/// All addresses of this machine, by the indexes of their interfaces.
pub fn read_addresses() -> io::Result<Vec<(u32, InterfaceAddress)>> {
    let mut found = Vec::new();
    let mut netlink = Netlink::open(SockProtocol::NetlinkRoute)?;
    netlink.ask(libc::RTM_GETADDR, libc::NLM_F_DUMP, &[0; 8], |body| {
        found.extend(parse_address(body))
    })?;
    Ok(found)
}

//! The XDP features of drivers, reported by the family `netdev` of generic netlink (Linux 6.3).
//! They may change with a device's settings, and with its programs.

use std::collections::BTreeMap;

use anyhow::Result;
use nix::libc;
use nix::sys::socket::SockProtocol;

use super::dump::request_dump;
use super::snapshot::NetworkChange;
use crate::netlink::{
    NetlinkMessage, read_attributes, read_text, read_u16_at, read_u32_at, read_u64_at,
};

/// Size of `struct genlmsghdr`: command, version, two reserved octets.
const GENERIC_HEADER_OCTETS: usize = 4;

/// <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netdev.h>
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_CMD_DEV_ADD_NTF: u8 = 2;
const NETDEV_CMD_DEV_CHANGE_NTF: u8 = 4;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;

/// The family's numbers, which the kernel assigns at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetdevFamily {
    kind: u16,
    /// The multicast group for changes.
    pub group: u32,
}

/// Finds the family. Kernels without it support redirects, but do not report by which devices.
pub(crate) async fn find_netdev_family() -> Result<Option<NetdevFamily>> {
    let body = [libc::CTRL_CMD_GETFAMILY as u8, 1, 0, 0];
    let kind = libc::GENL_ID_CTRL as u16;
    let found = request_dump(SockProtocol::NetlinkGeneric, kind, &body, |message| {
        parse_netdev_family(message.body)
    });
    Ok(found.await?.into_iter().next())
}

/// Reads the features of all devices.
pub(crate) async fn read_netdev_changes(
    netdev: Option<NetdevFamily>,
) -> Result<Vec<NetworkChange>> {
    let Some(netdev) = netdev else { return Ok(Vec::new()) };
    let body = [NETDEV_CMD_DEV_GET, 1, 0, 0];
    let take =
        |message: &NetlinkMessage<'_>| parse_netdev_change(netdev, message.kind, message.body);
    request_dump(SockProtocol::NetlinkGeneric, netdev.kind, &body, take).await
}

/// The drivers' features by device; `None` if this kernel does not report them (before 6.3).
pub async fn read_xdp_features() -> Result<Option<BTreeMap<u32, XdpFeatures>>> {
    let Some(netdev) = find_netdev_family().await? else { return Ok(None) };
    let body = [NETDEV_CMD_DEV_GET, 1, 0, 0];
    let take = |message: &NetlinkMessage<'_>| parse_features(netdev, message.kind, message.body);
    let features = request_dump(SockProtocol::NetlinkGeneric, netdev.kind, &body, take).await?;
    Ok(Some(features.into_iter().collect()))
}

/// Flags of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures(u64);

impl XdpFeatures {
    /// Whether programs can run, and pass, drop and transmit packets.
    pub fn runs_programs(self) -> bool {
        self.0 & NETDEV_XDP_ACT_BASIC != 0
    }

    /// Whether programs of other devices can redirect packets to it.
    pub fn sends(self) -> bool {
        self.0 & NETDEV_XDP_ACT_NDO_XMIT != 0
    }
}

pub(crate) fn parse_netdev_change(
    netdev: NetdevFamily,
    kind: u16,
    body: &[u8],
) -> Option<NetworkChange> {
    let (device, features) = parse_features(netdev, kind, body)?;
    Some(NetworkChange::Redirect { device, redirect: features.sends() })
}

fn parse_features(netdev: NetdevFamily, kind: u16, body: &[u8]) -> Option<(u32, XdpFeatures)> {
    let command = *body.first()?;
    let redirects =
        matches!(command, NETDEV_CMD_DEV_GET | NETDEV_CMD_DEV_ADD_NTF | NETDEV_CMD_DEV_CHANGE_NTF);
    if kind != netdev.kind || !redirects {
        return None;
    }
    let (mut device, mut features) = (None, 0);
    for (kind, value) in read_attributes(body.get(GENERIC_HEADER_OCTETS..)?) {
        match kind {
            NETDEV_A_DEV_IFINDEX => device = read_u32_at(value, 0),
            NETDEV_A_DEV_XDP_FEATURES => features = read_u64_at(value, 0)?,
            _ => {}
        }
    }
    Some((device?, XdpFeatures(features)))
}

/// Parses the description of the family.
fn parse_netdev_family(body: &[u8]) -> Option<NetdevFamily> {
    let (mut kind, mut group, mut is_it) = (None, None, false);
    for (attribute, value) in read_attributes(body.get(GENERIC_HEADER_OCTETS..)?) {
        match i32::from(attribute) {
            libc::CTRL_ATTR_FAMILY_NAME => is_it = read_text(value) == "netdev",
            libc::CTRL_ATTR_FAMILY_ID => kind = read_u16_at(value, 0),
            libc::CTRL_ATTR_MCAST_GROUPS => {
                group = read_attributes(value).find_map(|(_, value)| management_group(value));
            }
            _ => {}
        }
    }
    is_it.then_some(NetdevFamily { kind: kind?, group: group? })
}

fn management_group(group: &[u8]) -> Option<u32> {
    let find = |wanted| {
        read_attributes(group).find(|&(kind, _)| i32::from(kind) == wanted).map(|(_, value)| value)
    };
    let is_it = find(libc::CTRL_ATTR_MCAST_GRP_NAME).map(read_text)? == "mgmt";
    find(libc::CTRL_ATTR_MCAST_GRP_ID).filter(|_| is_it).and_then(|value| read_u32_at(value, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink;

    fn attribute(kind: i32, value: &[u8]) -> Vec<u8> {
        netlink::encode_attribute(kind as u16, value)
    }

    const NETDEV: NetdevFamily = NetdevFamily { kind: 20, group: 9 };

    #[test]
    fn the_family_is_found_by_its_name() {
        let group = |name: &[u8], id: u32| {
            let id = attribute(libc::CTRL_ATTR_MCAST_GRP_ID, &id.to_ne_bytes());
            [attribute(libc::CTRL_ATTR_MCAST_GRP_NAME, name), id].concat()
        };
        let groups =
            [attribute(1, &group(b"page-pool\0", 8)), attribute(2, &group(b"mgmt\0", 9))].concat();
        let described = |name: &[u8]| {
            let mut body = vec![1, 2, 0, 0];
            body.extend(attribute(libc::CTRL_ATTR_FAMILY_NAME, name));
            body.extend(attribute(libc::CTRL_ATTR_FAMILY_ID, &20u16.to_ne_bytes()));
            body.extend(attribute(libc::CTRL_ATTR_MCAST_GROUPS, &groups));
            body
        };
        assert_eq!(parse_netdev_family(&described(b"netdev\0")), Some(NETDEV));
        assert_eq!(parse_netdev_family(&described(b"nl80211\0")), None);
    }

    #[test]
    fn a_device_reports_whether_xdp_may_redirect_to_it() {
        let message = |command: u8, features: u64| {
            let mut body = vec![command, 1, 0, 0];
            body.extend(attribute(NETDEV_A_DEV_IFINDEX.into(), &7u32.to_ne_bytes()));
            body.extend(attribute(NETDEV_A_DEV_XDP_FEATURES.into(), &features.to_ne_bytes()));
            body
        };
        let redirects = |redirect| Some(NetworkChange::Redirect { device: 7, redirect });
        assert_eq!(
            parse_netdev_change(NETDEV, 20, &message(NETDEV_CMD_DEV_CHANGE_NTF, 0x27)),
            redirects(true)
        );
        assert_eq!(
            parse_netdev_change(NETDEV, 20, &message(NETDEV_CMD_DEV_GET, 0x23)),
            redirects(false)
        );
        assert_eq!(
            parse_netdev_change(NETDEV, 21, &message(NETDEV_CMD_DEV_GET, 0x27)),
            None,
            "of others"
        );
        assert_eq!(parse_netdev_change(NETDEV, 20, &message(3, 0x27)), None, "gone");
    }
}

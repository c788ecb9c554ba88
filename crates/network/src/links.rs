//! The interfaces on which addresses can be announced. Pure.

use std::net::IpAddr;

use ipnet::IpNet;

use super::attachments::Attachments;
use super::snapshot::{LinkFraming, MacAddress, Snapshot};

/// An interface that clients reach this node by, and on which other machines ask for addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncingLink {
    pub index: u32,
    pub name: String,
    pub mac: MacAddress,
    /// The link is up and has a carrier.
    pub running: bool,
    /// On-link prefixes, link-local ones included.
    pub prefixes: Vec<IpNet>,
    /// The interface's own.
    pub addresses: Vec<IpAddr>,
}

impl AnnouncingLink {
    /// Whether machines on the link look for the address there.
    pub fn has_prefix_of(&self, address: IpAddr) -> bool {
        self.prefixes.iter().any(|prefix| prefix.contains(&address))
    }

    /// Whether it is an address of the interface.
    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
}

/// Links to which the programs are attached, with Ethernet frames.
pub(crate) fn list_announcing_links(
    snapshot: &Snapshot,
    attachments: &Attachments,
) -> Vec<AnnouncingLink> {
    let facing = attachments.facing_clients();
    let links = facing.filter_map(|device| snapshot.links.get(&device.index));
    let links = links.filter(|link| link.framing == LinkFraming::Ethernet && !link.loopback);
    links
        .map(|link| {
            let addresses =
                snapshot.addresses_of(link.index).iter().filter(|address| address.subnet);
            let prefixes = addresses
                .filter_map(|address| IpNet::new(address.ip, address.prefix).ok())
                .map(|prefix| prefix.trunc());
            AnnouncingLink {
                index: link.index,
                name: link.name.clone(),
                mac: link.mac,
                running: link.up && link.running,
                prefixes: prefixes.collect(),
                addresses: snapshot.addresses_of(link.index).iter().map(|own| own.ip).collect(),
            }
        })
        .collect()
}

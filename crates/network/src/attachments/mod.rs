//! Decides which programs are attached to which devices. Pure.
//!
//! tc programs are attached to the device that has the addresses and routes. XDP is attached to
//! the lowest device, where frames are as on the wire: the parser handles VLAN tags, and drivers
//! support XDP while the devices above them do not.
//!
//! Tests: `tests.rs`.

mod roles;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use super::selection::{DeviceSelector, DeviceSettings};
use super::snapshot::{BondMode, Link, LinkFraming, LinkKind, Snapshot};

/// The purpose of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceRole {
    /// Clients use it to connect to this node.
    External,
    /// Packets of Services may pass through it, but clients do not normally use it: a second
    /// network card, an overlay.
    Transit,
    /// The host's end of a pod's interface.
    Workload,
}

/// A device that exists. If it is removed and another one is created under its name, that one has
/// another index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceName {
    pub index: u32,
    pub name: String,
}

/// The devices to attach to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachments {
    pub served: BTreeMap<DeviceName, ServedDevice>,
    /// Configured devices that can't be served, and why.
    pub refused: BTreeMap<DeviceName, AttachmentRefusal>,
    /// Configured names without a device.
    pub missing: BTreeSet<String>,
    /// Devices for XDP whose frames may come from this machine: their checksums may be incomplete,
    /// which XDP can't see.
    pub unfinished: BTreeSet<DeviceName>,
    /// Bridges with pods' interfaces among their ports.
    pub pod_bridges: BTreeSet<DeviceName>,
}

/// A device that tc programs are attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedDevice {
    pub role: DeviceRole,
    /// The device's packets have no link-layer header.
    pub raw: bool,
    /// Ingress packets are handled here, and not at another device that they also pass. Handled
    /// twice, a translated packet would look like one that a client sends to a backend directly.
    pub ingress: bool,
    /// The devices whose XDP programs see its ingress packets; none if tc handles all.
    pub xdp: BTreeSet<DeviceName>,
}

/// Why a device can't be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentRefusal {
    Loopback,
    UnknownFraming,
    Port { of: String, kind: &'static str },
    Vrf,
}

impl Display for AttachmentRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("it leads nowhere but to this node itself"),
            Self::UnknownFraming => {
                f.write_str("its packets have link-layer headers other than Ethernet's")
            }
            Self::Port { of, kind } => write!(
                f,
                "it is a port of the {kind} {of}, which has the addresses and routes: name {of}"
            ),
            Self::Vrf => {
                f.write_str("it is a VRF, by which no packet arrives: name the devices in it")
            }
        }
    }
}

impl Attachments {
    pub fn external(&self) -> impl Iterator<Item = &DeviceName> {
        self.with_role(DeviceRole::External)
    }

    /// The external devices; on a node without a default route the transit devices.
    pub fn facing_clients(&self) -> impl Iterator<Item = &DeviceName> {
        let has_external = self.external().next().is_some();
        self.with_role(if has_external { DeviceRole::External } else { DeviceRole::Transit })
    }

    fn with_role(&self, role: DeviceRole) -> impl Iterator<Item = &DeviceName> {
        let matching = self.served.iter().filter(move |(_, served)| served.role == role);
        matching.map(|(device, _)| device)
    }
}

impl From<&Link> for DeviceName {
    fn from(link: &Link) -> Self {
        Self { index: link.index, name: link.name.clone() }
    }
}

/// Decides what to attach to. Under `auto`, an external device remains external without a default
/// route: a flapping route must not interrupt Services.
pub fn plan_attachments(
    snapshot: &Snapshot,
    settings: &DeviceSettings,
    external_before: &BTreeSet<u32>,
) -> Attachments {
    let mut attachments = Attachments::default();
    for link in snapshot.links.values() {
        let Some(role) = roles::assign_role(snapshot, settings, external_before, link) else {
            continue;
        };
        if let Some(refusal) = refusal(snapshot, link, role) {
            attachments.refused.insert(link.into(), refusal);
            continue;
        }
        let raw = link.framing == LinkFraming::Raw;
        let xdp = match role {
            DeviceRole::External if !raw => xdp_devices(snapshot, link),
            _ => BTreeSet::new(),
        };
        let ingress = is_handled_here(snapshot, settings, link, role);
        if role == DeviceRole::Workload {
            attachments.pod_bridges.extend(bridge_of(snapshot, link).map(DeviceName::from));
        }
        attachments.unfinished.extend(unfinished(snapshot, &xdp));
        attachments.served.insert(link.into(), ServedDevice { role, raw, ingress, xdp });
    }
    share_xdp(snapshot, &mut attachments);
    for selector in settings.external.iter().chain(&settings.workload) {
        if let DeviceSelector::Name(name) = selector
            && snapshot.link_named(name).is_none()
        {
            attachments.missing.insert(name.clone());
        }
    }
    attachments
}

fn refusal(snapshot: &Snapshot, link: &Link, role: DeviceRole) -> Option<AttachmentRefusal> {
    if link.loopback {
        return Some(AttachmentRefusal::Loopback);
    }
    if link.kind == LinkKind::Vrf {
        return Some(AttachmentRefusal::Vrf);
    }
    if link.framing == LinkFraming::Unknown {
        return Some(AttachmentRefusal::UnknownFraming);
    }
    let master = snapshot.links.get(&link.master?)?;
    let kind = match (&master.kind, role) {
        // A pod's packets are translated before the bridge sees them. For clients, the bridge has
        // the node's addresses; packets that it only forwards are not handled.
        (LinkKind::Bridge | LinkKind::OpenVSwitch, DeviceRole::Workload) => return None,
        (LinkKind::Bridge, _) => "bridge",
        (LinkKind::OpenVSwitch, _) => "Open vSwitch bridge",
        (LinkKind::Bond { .. }, _) => "bond",
        (LinkKind::Team, _) => "team",
        // A device in a VRF keeps its addresses.
        _ => return None,
    };
    Some(AttachmentRefusal::Port { of: master.name.clone(), kind })
}

/// Whether ingress packets are handled at this device, and not at one below or above it.
fn is_handled_here(
    snapshot: &Snapshot,
    settings: &DeviceSettings,
    link: &Link,
    role: DeviceRole,
) -> bool {
    // Its ingress packets are handled at the device below.
    if link.kind == LinkKind::Child && !link.lower_elsewhere {
        return false;
    }
    // A bridge with a port to a network handles the packets of all its ports.
    role != DeviceRole::Workload
        || !bridge_of(snapshot, link)
            .is_some_and(|bridge| roles::has_network_port(snapshot, settings, bridge))
}

fn bridge_of<'a>(snapshot: &'a Snapshot, port: &Link) -> Option<&'a Link> {
    snapshot.links.get(&port.master?).filter(|master| master.kind == LinkKind::Bridge)
}

/// Uses XDP for transit devices, such as VLANs, whose lower devices have XDP programs anyway.
fn share_xdp(snapshot: &Snapshot, attachments: &mut Attachments) {
    let all: BTreeSet<DeviceName> =
        attachments.served.values().flat_map(|served| served.xdp.iter().cloned()).collect();
    for (device, served) in &mut attachments.served {
        let Some(link) = snapshot.links.get(&device.index) else { continue };
        let below = xdp_devices(snapshot, link);
        if served.role == DeviceRole::Transit && !served.raw && below.is_subset(&all) {
            served.xdp = below;
        }
    }
}

/// The devices at which XDP sees a device's ingress packets.
fn xdp_devices<'a>(snapshot: &'a Snapshot, mut link: &'a Link) -> BTreeSet<DeviceName> {
    /// More than devices are ever stacked. A snapshot of changing devices might contain a cycle.
    const DEPTH: usize = 8;
    for _ in 0..DEPTH {
        match (&link.kind, link.lower.and_then(|lower| snapshot.links.get(&lower))) {
            // VLAN devices have no native XDP.
            (LinkKind::Vlan, Some(lower)) => link = lower,
            _ => break,
        }
    }
    match link.kind {
        LinkKind::Bond { mode, by_vlan } if !bond_has_xdp(mode, by_vlan) => ports(snapshot, link),
        LinkKind::Team => ports(snapshot, link),
        _ => BTreeSet::from([link.into()]),
    }
}

fn unfinished(snapshot: &Snapshot, devices: &BTreeSet<DeviceName>) -> Vec<DeviceName> {
    let is_veth = |device: &&DeviceName| {
        snapshot.links.get(&device.index).is_some_and(|link| link.kind == LinkKind::Veth)
    };
    devices.iter().filter(is_veth).cloned().collect()
}

/// Whether a bond attaches XDP programs to its ports, also to those added later; `bond_xdp_check`
/// of <https://github.com/torvalds/linux/blob/v6.12/drivers/net/bonding/bond_main.c>.
fn bond_has_xdp(mode: BondMode, by_vlan: bool) -> bool {
    match mode {
        BondMode::BalanceRoundRobin | BondMode::ActiveBackup => true,
        BondMode::BalanceXor | BondMode::Ieee8023ad => !by_vlan,
        BondMode::Broadcast | BondMode::BalanceTransmit | BondMode::BalanceAdaptive => false,
    }
}

fn ports(snapshot: &Snapshot, of: &Link) -> BTreeSet<DeviceName> {
    snapshot
        .links
        .values()
        .filter(|link| link.master == Some(of.index))
        .map(DeviceName::from)
        .collect()
}

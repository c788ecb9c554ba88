//! Which programs go to which devices. Pure.
//!
//! tc programs sit on the very device that is served, where addresses and routes are. XDP sits
//! where frames first are as the wire had them: our parser knows VLAN tags, and drivers have XDP
//! that the devices above them don't.
//!
//! Tests: `tests.rs`.

mod roles;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use super::selection::{DeviceSelector, Settings};
use super::snapshot::{BondMode, Framing, Kind, Link, Snapshot};

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Clients reach this node by it.
    External,
    /// Packets of Services may arrive and leave by it, but clients do not use it as a rule: a second
    /// network card, an overlay.
    Transit,
    /// The host's end of a pod's interface.
    Workload,
}

/// A device that is there: another one of the same name has another index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceName {
    pub index: u32,
    pub name: String,
}

/// What to attach to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachments {
    pub served: BTreeMap<DeviceName, Served>,
    /// What was asked for and can't be served, and why.
    pub refused: BTreeMap<DeviceName, Refusal>,
    /// Names that were asked for and no device has.
    pub missing: BTreeSet<String>,
    /// Of the devices for XDP those whose frames may come from this very machine: their checksums
    /// are then left to a device that they never meet, which XDP can't be told.
    pub unfinished: BTreeSet<DeviceName>,
    /// Bridges with pods' interfaces among their ports.
    pub pod_bridges: BTreeSet<DeviceName>,
}

/// A device that tc programs are attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub role: Role,
    /// Its packets have no link-layer header.
    pub raw: bool,
    /// Packets that arrive are handled here, and not at another device that they pass, too. A packet that
    /// is handled twice would look like one that a client sends to a backend directly.
    pub ingress: bool,
    /// The devices whose XDP sees what arrives by it; none if tc handles everything.
    pub xdp: BTreeSet<DeviceName>,
}

/// Why a device can't be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Loopback,
    UnknownFraming,
    Port { of: String, kind: &'static str },
    Vrf,
}

impl Display for Refusal {
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
        self.with_role(Role::External)
    }

    /// The external devices; on a node without a default route the transit devices.
    pub fn facing_clients(&self) -> impl Iterator<Item = &DeviceName> {
        let has_external = self.external().next().is_some();
        self.with_role(if has_external { Role::External } else { Role::Transit })
    }

    fn with_role(&self, role: Role) -> impl Iterator<Item = &DeviceName> {
        let matching = self.served.iter().filter(move |(_, served)| served.role == role);
        matching.map(|(device, _)| device)
    }
}

impl From<&Link> for DeviceName {
    fn from(link: &Link) -> Self {
        Self { index: link.index, name: link.name.clone() }
    }
}

/// Decides what to attach to. What was external and is still there remains so under `auto`,
/// although it carries no default route at the moment: a route that flaps must not end what the
/// device serves.
pub fn plan_attachments(
    snapshot: &Snapshot,
    settings: &Settings,
    external_before: &BTreeSet<u32>,
) -> Attachments {
    let mut attachments = Attachments::default();
    for link in snapshot.links.values() {
        let Some(role) = roles::role(snapshot, settings, external_before, link) else { continue };
        if let Some(refusal) = refusal(snapshot, link, role) {
            attachments.refused.insert(link.into(), refusal);
            continue;
        }
        let raw = link.framing == Framing::Raw;
        let xdp = match role {
            Role::External if !raw => xdp_devices(snapshot, link),
            _ => BTreeSet::new(),
        };
        let ingress = is_handled_here(snapshot, settings, link, role);
        if role == Role::Workload {
            attachments.pod_bridges.extend(bridge_of(snapshot, link).map(DeviceName::from));
        }
        attachments.unfinished.extend(unfinished(snapshot, &xdp));
        attachments.served.insert(link.into(), Served { role, raw, ingress, xdp });
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

fn refusal(snapshot: &Snapshot, link: &Link, role: Role) -> Option<Refusal> {
    if link.loopback {
        return Some(Refusal::Loopback);
    }
    if link.kind == Kind::Vrf {
        return Some(Refusal::Vrf);
    }
    if link.framing == Framing::Unknown {
        return Some(Refusal::UnknownFraming);
    }
    let master = snapshot.links.get(&link.master?)?;
    let kind = match (&master.kind, role) {
        // A pod's packets are translated before the bridge sees them; for clients the node's
        // addresses are on the bridge, and what only passes through it is not ours.
        (Kind::Bridge | Kind::OpenVSwitch, Role::Workload) => return None,
        (Kind::Bridge, _) => "bridge",
        (Kind::OpenVSwitch, _) => "Open vSwitch bridge",
        (Kind::Bond { .. }, _) => "bond",
        (Kind::Team, _) => "team",
        // A device in a VRF keeps its addresses, as one without a master.
        _ => return None,
    };
    Some(Refusal::Port { of: master.name.clone(), kind })
}

/// Whether packets that arrive by a device are handled there, and not before or after.
fn is_handled_here(snapshot: &Snapshot, settings: &Settings, link: &Link, role: Role) -> bool {
    // The device below has handled them.
    if link.kind == Kind::Child && !link.lower_elsewhere {
        return false;
    }
    // A bridge to a network handles what its ports hand to it.
    role != Role::Workload
        || !bridge_of(snapshot, link)
            .is_some_and(|bridge| roles::has_network_port(snapshot, settings, bridge))
}

fn bridge_of<'a>(snapshot: &'a Snapshot, port: &Link) -> Option<&'a Link> {
    snapshot.links.get(&port.master?).filter(|master| master.kind == Kind::Bridge)
}

/// A transit device above others that have XDP anyway, such as a VLAN, has its packets handled there.
fn share_xdp(snapshot: &Snapshot, attachments: &mut Attachments) {
    let all: BTreeSet<DeviceName> =
        attachments.served.values().flat_map(|served| served.xdp.iter().cloned()).collect();
    for (device, served) in &mut attachments.served {
        let Some(link) = snapshot.links.get(&device.index) else { continue };
        let below = xdp_devices(snapshot, link);
        if served.role == Role::Transit && !served.raw && below.is_subset(&all) {
            served.xdp = below;
        }
    }
}

/// Where XDP sees what arrives by a device.
fn xdp_devices<'a>(snapshot: &'a Snapshot, mut link: &'a Link) -> BTreeSet<DeviceName> {
    /// More than devices are ever stacked; a snapshot of changing devices might have a circle.
    const DEPTH: usize = 8;
    for _ in 0..DEPTH {
        match (&link.kind, link.lower.and_then(|lower| snapshot.links.get(&lower))) {
            // VLAN devices have no XDP of their own.
            (Kind::Vlan, Some(lower)) => link = lower,
            _ => break,
        }
    }
    match link.kind {
        Kind::Bond { mode, by_vlan } if !bond_has_xdp(mode, by_vlan) => ports(snapshot, link),
        Kind::Team => ports(snapshot, link),
        _ => BTreeSet::from([link.into()]),
    }
}

fn unfinished(snapshot: &Snapshot, devices: &BTreeSet<DeviceName>) -> Vec<DeviceName> {
    let is_veth = |device: &&DeviceName| {
        snapshot.links.get(&device.index).is_some_and(|link| link.kind == Kind::Veth)
    };
    devices.iter().filter(is_veth).cloned().collect()
}

/// Whether a bond hands XDP programs down to its ports and keeps them there as these change;
/// `bond_xdp_check` of <https://github.com/torvalds/linux/blob/v6.12/drivers/net/bonding/bond_main.c>.
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

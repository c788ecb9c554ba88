//! Which programs go to which devices. Pure.
//!
//! tc programs sit on the very device that is served, where addresses and routes are. XDP sits
//! where frames first are as the wire had them: our parser knows VLAN tags, and drivers have XDP
//! that the devices above them don't.
//!
//! Tests: `tests.rs`.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use super::selection::{DeviceSelector, Settings};
use super::snapshot::{BondMode, Kind, Link, Snapshot};

/// What a device is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Clients reach this node by it.
    External,
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
}

/// A device that tc programs are attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub role: Role,
    /// The devices whose XDP sees what arrives by it; none for workload devices.
    pub xdp: BTreeSet<DeviceName>,
}

/// Why a device can't be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Loopback,
    NoEthernet,
    Port { of: String, kind: &'static str },
    Vrf,
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("it leads nowhere but to this node itself"),
            Self::NoEthernet => {
                f.write_str("its packets have no Ethernet headers, which the data plane reads")
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
        let external = |served: &Served| served.role == Role::External;
        self.served.iter().filter(move |(_, served)| external(served)).map(|(device, _)| device)
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
        // A device that is both is external: it is then served in all its directions, too.
        let role = if is_external(snapshot, settings, external_before, link) {
            Role::External
        } else if is_selected(&settings.workload, link) {
            Role::Workload
        } else {
            continue;
        };
        match refusal(snapshot, link, role) {
            Some(refusal) => {
                attachments.refused.insert(link.into(), refusal);
            }
            None => {
                let xdp = match role {
                    Role::External => xdp_devices(snapshot, link),
                    Role::Workload => BTreeSet::new(),
                };
                attachments.unfinished.extend(unfinished(snapshot, &xdp));
                attachments.served.insert(link.into(), Served { role, xdp });
            }
        }
    }
    for selector in settings.external.iter().chain(&settings.workload) {
        if let DeviceSelector::Name(name) = selector
            && snapshot.link_named(name).is_none()
        {
            attachments.missing.insert(name.clone());
        }
    }
    attachments
}

fn is_external(
    snapshot: &Snapshot,
    settings: &Settings,
    before: &BTreeSet<u32>,
    link: &Link,
) -> bool {
    let carries_default_route =
        || snapshot.default_routes.iter().any(|route| route.devices.contains(&link.index));
    let is_auto = settings.external.contains(&DeviceSelector::Auto)
        && (carries_default_route() || before.contains(&link.index));
    is_auto || is_selected(&settings.external, link)
}

fn is_selected(selectors: &[DeviceSelector], link: &Link) -> bool {
    selectors.iter().any(|selector| match selector {
        // `*` is not meant to be `lo`.
        DeviceSelector::Pattern(_) if link.loopback => false,
        _ => selector.matches(&link.name),
    })
}

fn refusal(snapshot: &Snapshot, link: &Link, role: Role) -> Option<Refusal> {
    if link.loopback {
        return Some(Refusal::Loopback);
    }
    if link.kind == Kind::Vrf {
        return Some(Refusal::Vrf);
    }
    if !link.ethernet {
        return Some(Refusal::NoEthernet);
    }
    let master = snapshot.links.get(&link.master?)?;
    let kind = match (&master.kind, role) {
        // A pod's packets are translated before the bridge sees them; for clients the node's
        // addresses are on the bridge, and what only passes through it is not ours.
        (Kind::Bridge | Kind::OpenVSwitch, Role::Workload) => return None,
        (Kind::Bridge, Role::External) => "bridge",
        (Kind::OpenVSwitch, Role::External) => "Open vSwitch bridge",
        (Kind::Bond { .. }, _) => "bond",
        (Kind::Team, _) => "team",
        // A device in a VRF keeps its addresses, as one without a master.
        (Kind::Veth | Kind::Vlan | Kind::Vrf | Kind::Other, _) => return None,
    };
    Some(Refusal::Port { of: master.name.clone(), kind })
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

//! Recognises the role of each device. Pure.

use std::collections::BTreeSet;

use super::DeviceRole;
use crate::selection::{DeviceSelector, DeviceSettings};
use crate::snapshot::{Link, LinkFraming, LinkKind, Snapshot};

/// The role of a device; `None` if it is not served.
pub(crate) fn assign_role(
    snapshot: &Snapshot,
    settings: &DeviceSettings,
    external_before: &BTreeSet<u32>,
    link: &Link,
) -> Option<DeviceRole> {
    // A device that is both is external: those have programs in all directions.
    if is_external(snapshot, settings, external_before, link) {
        return Some(DeviceRole::External);
    }
    if is_workload(snapshot, settings, link) {
        return Some(DeviceRole::Workload);
    }
    let is_auto = settings.external.contains(&DeviceSelector::Auto);
    (is_auto && is_transit(snapshot, settings, link)).then_some(DeviceRole::Transit)
}

fn is_external(
    snapshot: &Snapshot,
    settings: &DeviceSettings,
    before: &BTreeSet<u32>,
    link: &Link,
) -> bool {
    let carries_default_route =
        || snapshot.default_routes.iter().any(|route| route.devices.contains(&link.index));
    let is_auto = settings.external.contains(&DeviceSelector::Auto)
        && (carries_default_route() || before.contains(&link.index));
    is_auto || is_selected(&settings.external, link)
}

fn is_workload(snapshot: &Snapshot, settings: &DeviceSettings, link: &Link) -> bool {
    let is_auto = settings.workload.contains(&DeviceSelector::Auto);
    is_auto && looks_like_pod(snapshot, link) || is_selected(&settings.workload, link)
}

fn is_selected(selectors: &[DeviceSelector], link: &Link) -> bool {
    selectors.iter().any(|selector| match selector {
        // `*` does not match `lo`.
        DeviceSelector::Pattern(_) if link.loopback => false,
        _ => selector.matches(&link.name),
    })
}

/// Whether a device is the host's end of a pod's or a virtual machine's interface. The host's end
/// has no address, or one without a subnet: a veth with a subnet is a link to a network, as in a
/// node that is itself a container.
fn looks_like_pod(snapshot: &Snapshot, link: &Link) -> bool {
    let is_end = match link.kind {
        LinkKind::Veth => link.lower_elsewhere,
        LinkKind::Tap => true,
        _ => false,
    };
    is_end && !snapshot.addresses_of(link.index).iter().any(|address| address.is_of_network())
}

/// Whether packets of Services may pass through a device that clients do not use: a second
/// network card, an overlay, a VLAN, a bridge with a port to a network.
fn is_transit(snapshot: &Snapshot, settings: &DeviceSettings, link: &Link) -> bool {
    if link.loopback || !link.up || link.framing == LinkFraming::Unknown {
        return false;
    }
    let is_port = link
        .master
        .and_then(|master| snapshot.links.get(&master))
        .is_some_and(|master| master.kind.has_ports());
    if is_port {
        return false;
    }
    match link.kind {
        LinkKind::Dummy | LinkKind::Vrf => false,
        LinkKind::Bridge => has_network_port(snapshot, settings, link),
        // Both ends are in this namespace, or the pod's end has not been moved yet.
        LinkKind::Veth | LinkKind::Tap => {
            snapshot.addresses_of(link.index).iter().any(|address| address.is_of_network())
        }
        _ => true,
    }
}

/// Whether a bridge connects this node to a network. If all ports are pods', packets are
/// translated at the ports.
pub(crate) fn has_network_port(
    snapshot: &Snapshot,
    settings: &DeviceSettings,
    bridge: &Link,
) -> bool {
    let ports = snapshot.links.values().filter(|link| link.master == Some(bridge.index));
    ports.into_iter().any(|port| {
        !looks_like_pod(snapshot, port)
            && !is_selected(&settings.workload, port)
            && !has_lost_peer(port)
    })
}

/// Whether a veth's other end no longer exists. When a pod is removed, the kernel reports the host's end so, still as
/// a port, before it is removed, too.
fn has_lost_peer(link: &Link) -> bool {
    link.kind == LinkKind::Veth && link.lower.is_none() && !link.lower_elsewhere
}

//! Attaches the programs to devices. Attachments outlive the agent; the next agent replaces their
//! programs atomically, so that no packet passes unhandled.
//!
//! They are pinned links; in tc, where the kernel has no such links, filters that are recorded
//! beside the pins.

pub mod cgroup;
mod clsact;
mod filters;
mod links;
mod tc;
mod xdp;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use super::announce;
use super::data_plane::DataPlane;
use super::hook::{Direction, Hook, HookPoint, Slot};
use super::pins::{Pins, remove_link, unescaped};
use crate::settings::{TcMode, XdpMode};

pub use cgroup::{cgroup_root, resolve_cgroup};
pub(super) use clsact::{filter_program, filters_of_others};
pub use links::Links;
pub(super) use tc::has_tcx;

use links::link_pin;

/// The configured ways to attach programs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modes {
    pub xdp: XdpMode,
    pub tc: TcMode,
}

impl Links<'_> {
    /// Returns `None` if the device does not support XDP: tc must handle all packets then.
    pub fn attach(
        &mut self,
        data_plane: &mut DataPlane,
        device: &str,
        point: HookPoint,
        modes: Modes,
    ) -> Result<Option<Hook>> {
        match point.slot() {
            Slot::Xdp => self.attach_xdp(data_plane.xdp()?, device, modes.xdp),
            Slot::Tc(direction) => {
                let program = data_plane.classifier(point)?;
                self.attach_tc(program, device, direction, modes.tc).map(Some)
            }
        }
    }

    /// Detaches a program from a device. Also for a removed device: another one may get its name.
    pub fn detach(&self, device: &str, point: HookPoint) -> Result<()> {
        let slot = point.slot();
        for &hook in slot.links() {
            remove_link(&self.pins.link(&link_pin(device, hook)))?;
        }
        match slot {
            Slot::Tc(direction) => clsact::remove_filter(self.pins, device, direction),
            Slot::Xdp => Ok(()),
        }
    }

    /// Detaches the programs of an earlier agent that are not wanted.
    pub fn detach_others(&self, wanted: &BTreeSet<(String, HookPoint)>) -> Result<()> {
        let pin_names = |(device, point): &(String, HookPoint)| {
            point.slot().links().iter().map(|&hook| link_pin(device, hook)).collect::<Vec<_>>()
        };
        let ours: BTreeSet<String> = wanted.iter().flat_map(pin_names).collect();
        for (link, path) in self.pins.links()? {
            if !ours.contains(&link) && !cgroup::is_pin(&link) {
                remove_link(&path)?;
                tracing::info!(%link, "detached program of the previous agent");
            }
        }
        for (device, direction) in clsact::noted_filters(self.pins)? {
            let is_ours = |(name, point): &(String, HookPoint)| {
                *name == device && point.slot() == Slot::Tc(direction)
            };
            if !wanted.iter().any(is_ours) {
                clsact::remove_filter(self.pins, &device, direction)?;
                let name = direction.name();
                tracing::info!(
                    %device,
                    direction = %name,
                    "detached tc filter of the previous agent"
                );
            }
        }
        Ok(())
    }
}

/// The names of a data plane's links and filters.
pub fn list_attached(pins: &Pins) -> Result<Vec<String>> {
    let mut attached: Vec<String> = pins.links()?.into_iter().map(|(link, _)| link).collect();
    let noted = clsact::noted_filters(pins)?;
    let stray =
        clsact::find_stray_filters(pins.path())?.into_iter().filter(|found| !noted.contains(found));
    attached.extend(noted.iter().cloned().chain(stray).map(|filter| name_of(&filter)));
    Ok(attached)
}

/// Detaches and removes everything of a data plane; returns what was attached. Filters are looked
/// for in the current network namespace.
pub fn remove_data_plane(pins: Pins) -> Result<Vec<String>> {
    let mut removed: Vec<String> = pins.links()?.into_iter().map(|(link, _)| link).collect();
    for (device, direction) in clsact::noted_filters(&pins)? {
        clsact::remove_filter(&pins, &device, direction)?;
        removed.push(name_of(&(device, direction)));
    }
    removed.extend(remove_stray_filters(pins.path())?);
    // In the current network namespace, like the filters. A map that can't be read is removed all the same.
    if let Err(error) = announce::leave_groups(&pins) {
        let error = format!("{error:#}");
        tracing::warn!(error, "multicast groups of announced addresses not left");
    }
    pins.remove()?;
    Ok(removed)
}

/// Removes the filters of a data plane whose pins were removed by hand.
pub fn remove_stray_filters(pin_path: &Path) -> Result<Vec<String>> {
    let stray = clsact::find_stray_filters(pin_path)?;
    for (device, direction) in &stray {
        clsact::remove_stray_filter(pin_path, device, *direction)?;
    }
    Ok(stray.iter().map(name_of).collect())
}

/// Filters that are not recorded beside the pins.
pub fn list_stray_filters(pin_path: &Path) -> Result<Vec<String>> {
    Ok(clsact::find_stray_filters(pin_path)?.iter().map(name_of).collect())
}

fn name_of((device, direction): &(String, Direction)) -> String {
    format!("{device}-{}", direction.name())
}

/// The device and the hook of a pinned link, from its name.
pub(super) fn pinned_as(name: &str) -> Option<(String, Hook)> {
    let hooks = [Hook::XdpNative, Hook::TcxIngress, Hook::TcxEgress];
    hooks.into_iter().find_map(|hook| {
        let device = name.strip_suffix(&link_pin("", hook))?;
        (!device.is_empty()).then(|| (unescaped(device), hook))
    })
}

/// The hook of a recorded filter.
pub(super) fn noted_as(note: &str) -> Option<Hook> {
    let direction = Direction::ALL.into_iter().find(|direction| direction.name() == note)?;
    Some(clsact::clsact_hook(direction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_pin_has_device_and_hook() {
        let hooks = [Hook::XdpNative, Hook::TcxIngress, Hook::TcxEgress];
        for device in ["eth0", "bond0.100", "a-ingress", "br-xdp-native"] {
            for hook in hooks {
                assert_eq!(pinned_as(&link_pin(device, hook)), Some((device.to_owned(), hook)));
            }
        }
        assert_eq!(pinned_as("cgroup-connect4"), None);
        assert_eq!(pinned_as("-ingress"), None);
        assert_eq!(noted_as("egress"), Some(Hook::ClsactEgress));
        assert_eq!(noted_as("qdisc"), None);
    }
}

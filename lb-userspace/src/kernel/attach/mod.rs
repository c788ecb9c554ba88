//! Attaches the programs to devices. Attachments outlive the agent; the next agent replaces their
//! programs atomically, so that no packet passes unhandled.
//!
//! They are pinned links; in tc, where the kernel has no such links, filters that are recorded
//! beside the pins.

pub mod cgroup;
mod filters;
mod tc;
mod xdp;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use aya::programs::ProgramError;
use aya::programs::links::{FdLink, LinkError, PinnedLink};
use nix::net::if_::if_nametoindex;

use super::hook::{Direction, Hook, HookPoint, Slot};
use super::link::{self, remove_link};
use super::object::DataPlane;
use super::pins::{Pins, escaped, unescaped};
use crate::settings::{TcMode, XdpMode};

pub use cgroup::root as cgroup_root;
pub(super) use tc::{filter_program, filters_of_others, has_tcx};

/// The configured ways to attach programs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modes {
    pub xdp: XdpMode,
    pub tc: TcMode,
}

/// An attachment that did not exist before.
enum Fresh {
    /// Name of the pin.
    Link(String),
    Filter(String, Direction),
}

/// The attachments of the programs. New attachments that are not kept are detached on drop, so
/// that a failed start leaves none of them.
pub struct Links<'a> {
    pins: &'a Pins,
    fresh: Vec<Fresh>,
    kept: bool,
}

impl<'a> Links<'a> {
    pub fn new(pins: &'a Pins) -> Self {
        Self { pins, fresh: Vec::new(), kept: false }
    }

    /// Makes the attachments outlive the agent.
    pub fn keep(mut self) {
        self.kept = true;
    }

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

    /// Also for a removed device: another one may get its name.
    pub fn detach(&self, device: &str, point: HookPoint) -> Result<()> {
        let slot = point.slot();
        for &hook in slot.links() {
            remove_link(&self.pins.link(&pin(device, hook)))?;
        }
        match slot {
            Slot::Tc(direction) => tc::remove_filter(self.pins, device, direction),
            Slot::Xdp => Ok(()),
        }
    }

    /// Detaches the programs of an earlier agent that are not wanted.
    pub fn detach_others(&self, wanted: &BTreeSet<(String, HookPoint)>) -> Result<()> {
        let pin_names = |(device, point): &(String, HookPoint)| {
            point.slot().links().iter().map(|&hook| pin(device, hook)).collect::<Vec<_>>()
        };
        let ours: BTreeSet<String> = wanted.iter().flat_map(pin_names).collect();
        for (link, path) in self.pins.links()? {
            if !ours.contains(&link) && !cgroup::is_pin(&link) {
                remove_link(&path)?;
                tracing::info!(%link, "detached program of the previous agent");
            }
        }
        for (device, direction) in noted_filters(self.pins)? {
            let is_ours = |(name, point): &(String, HookPoint)| {
                *name == device && point.slot() == Slot::Tc(direction)
            };
            if !wanted.iter().any(is_ours) {
                tc::remove_filter(self.pins, &device, direction)?;
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

    fn pinned(&self, name: &str) -> Result<Option<PinnedLink>> {
        match PinnedLink::from_pin(self.pins.link(name)) {
            Ok(link) => Ok(Some(link)),
            Err(LinkError::SyscallError(error))
                if error.io_error.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(None)
            }
            Err(error) => {
                Err(anyhow!(error).context(format!("the pinned link {name} is unusable")))
            }
        }
    }

    /// Whether a pinned link already attaches this program to this device.
    fn leads_to(&self, name: &str, device: &str, program: u32) -> Result<bool> {
        let Some(link) = link::PinnedLink::open(&self.pins.link(name))? else { return Ok(false) };
        // The link of a removed device has index 0; another device may have its name.
        let index = if_nametoindex(device).unwrap_or_default();
        Ok(index != 0 && link.device()? == index && link.program()? == program)
    }

    /// Removes a link whose device was removed and perhaps replaced by one of the same name.
    fn discard(&self, name: &str, error: &ProgramError) -> Result<()> {
        let error = format!("{error:#}");
        tracing::info!(link = %name, error, "pinned link lost its interface; attaching again");
        remove_link(&self.pins.link(name))
    }

    fn pin(&mut self, link: FdLink, name: String) -> Result<()> {
        link.pin(self.pins.link(&name))
            .with_context(|| format!("the link {name} can't be pinned"))?;
        self.fresh.push(Fresh::Link(name));
        Ok(())
    }
}

impl Drop for Links<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for fresh in &self.fresh {
            let removed = match fresh {
                Fresh::Link(name) => remove_link(&self.pins.link(name)),
                Fresh::Filter(device, direction) => {
                    tc::remove_filter(self.pins, device, *direction)
                }
            };
            if let Err(error) = removed {
                tracing::error!(error = format!("{error:#}"), "program not detached");
            }
        }
    }
}

/// The names of a data plane's links and filters.
pub fn attached(pins: &Pins) -> Result<Vec<String>> {
    let mut attached: Vec<String> = pins.links()?.into_iter().map(|(link, _)| link).collect();
    let noted = noted_filters(pins)?;
    let stray = tc::stray_filters(pins.path())?.into_iter().filter(|found| !noted.contains(found));
    attached.extend(noted.iter().cloned().chain(stray).map(|filter| name_of(&filter)));
    Ok(attached)
}

/// Detaches and removes everything of a data plane; returns what was attached. Filters are looked
/// for in the current network namespace.
pub fn remove(pins: Pins) -> Result<Vec<String>> {
    let mut removed: Vec<String> = pins.links()?.into_iter().map(|(link, _)| link).collect();
    for (device, direction) in noted_filters(&pins)? {
        tc::remove_filter(&pins, &device, direction)?;
        removed.push(name_of(&(device, direction)));
    }
    removed.extend(remove_stray_filters(pins.path())?);
    pins.remove()?;
    Ok(removed)
}

/// Removes the filters of a data plane whose pins were removed by hand.
pub fn remove_stray_filters(pin_path: &Path) -> Result<Vec<String>> {
    let stray = tc::stray_filters(pin_path)?;
    for (device, direction) in &stray {
        tc::remove_stray_filter(pin_path, device, *direction)?;
    }
    Ok(stray.iter().map(name_of).collect())
}

/// Filters that are not recorded beside the pins.
pub fn stray_filters(pin_path: &Path) -> Result<Vec<String>> {
    Ok(tc::stray_filters(pin_path)?.iter().map(name_of).collect())
}

fn name_of((device, direction): &(String, Direction)) -> String {
    format!("{device}-{}", direction.name())
}

fn noted_filters(pins: &Pins) -> Result<Vec<(String, Direction)>> {
    let mut noted = Vec::new();
    for device in pins.devices_with_filters()? {
        let there = |direction: &Direction| pins.has_filter(&device, direction.name());
        let directions = Direction::ALL.into_iter().filter(there);
        noted.extend(directions.map(|direction| (device.clone(), direction)));
    }
    Ok(noted)
}

/// Whether another owner's program is attached; the kernel reports it by two errors.
fn is_busy(error: &ProgramError) -> bool {
    use nix::libc::{EBUSY, EEXIST};
    let ProgramError::SyscallError(error) = error else { return false };
    error.io_error.raw_os_error().is_some_and(|code| code == EBUSY || code == EEXIST)
}

fn explain(error: ProgramError, device: &str, hook: Hook) -> anyhow::Error {
    let context = if is_busy(&error) {
        format!(
            "another program holds {hook} on {device}; `bpftool net show dev {device}` names it.\n\
             Detach it first: `ip link set dev {device} xdp off`, or stop whoever attached it; or \
             leave it, and serve without XDP: --xdp-mode off"
        )
    } else {
        format!("{hook} can't be attached to {device}")
    };
    anyhow!(error).context(context)
}

fn not_a_link(error: LinkError) -> anyhow::Error {
    anyhow!(error).context(
        "the kernel gave no link for the attachment, so it can't be pinned; \
         Millrace needs a kernel with BPF links for XDP (5.9)",
    )
}

/// The pin's name contains the hook, which can't be read from the link.
fn pin(device: &str, hook: Hook) -> String {
    let suffix = match hook {
        Hook::XdpNative => "xdp-native",
        Hook::XdpGeneric => "xdp-generic",
        Hook::TcxIngress | Hook::ClsactIngress => Direction::Ingress.name(),
        Hook::TcxEgress | Hook::ClsactEgress => Direction::Egress.name(),
    };
    format!("{}-{suffix}", escaped(device))
}

/// The device and the hook of a pinned link, from its name.
pub(super) fn pinned_as(name: &str) -> Option<(String, Hook)> {
    let hooks = [Hook::XdpNative, Hook::XdpGeneric, Hook::TcxIngress, Hook::TcxEgress];
    hooks.into_iter().find_map(|hook| {
        let device = name.strip_suffix(&pin("", hook))?;
        (!device.is_empty()).then(|| (unescaped(device), hook))
    })
}

/// The hook of a recorded filter.
pub(super) fn noted_as(note: &str) -> Option<Hook> {
    let direction = Direction::ALL.into_iter().find(|direction| direction.name() == note)?;
    Some(tc::clsact_hook(direction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_pin_has_device_and_hook() {
        let hooks = [Hook::XdpNative, Hook::XdpGeneric, Hook::TcxIngress, Hook::TcxEgress];
        for device in ["eth0", "bond0.100", "a-ingress", "br-xdp-native"] {
            for hook in hooks {
                assert_eq!(pinned_as(&pin(device, hook)), Some((device.to_owned(), hook)));
            }
        }
        assert_eq!(pinned_as("cgroup-connect4"), None);
        assert_eq!(pinned_as("-ingress"), None);
        assert_eq!(noted_as("egress"), Some(Hook::ClsactEgress));
        assert_eq!(noted_as("qdisc"), None);
    }
}

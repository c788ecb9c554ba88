//! Attaching the programs to devices, by links that are pinned: they outlive the agent, and the
//! next one replaces their program in one step, without a packet between.

pub mod cgroup;

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use anyhow::{Context, Result, anyhow};
use aya::programs::links::{FdLink, LinkError, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::xdp::XdpLink;
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType, Xdp};
use clap::ValueEnum;

use super::object::DataPlane;
use super::pins::{Pins, remove_pin};

pub use cgroup::root as cgroup_root;

/// Where XDP runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum XdpMode {
    /// In the driver if it can, else in the stack
    #[default]
    Auto,
    /// In the driver only
    Native,
    /// In the stack only: slower, works on every device
    Generic,
}

/// Where a program of ours sits on a device. In this order they are attached: answers are never
/// translated later than their questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// tc, what leaves by the device.
    Out,
    /// tc, what pods send.
    WorkloadIn,
    /// tc, what XDP has left to it.
    ExternalDeferred,
    /// XDP, what arrives from clients.
    ExternalIn,
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    XdpNative,
    XdpGeneric,
    TcxIngress,
    TcxEgress,
}

impl Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::XdpNative => "native XDP",
            Self::XdpGeneric => "generic XDP",
            Self::TcxIngress => "tcx ingress",
            Self::TcxEgress => "tcx egress",
        })
    }
}

impl Place {
    /// The hooks it may be attached by.
    fn hooks(self) -> &'static [Hook] {
        match self {
            Self::Out => &[Hook::TcxEgress],
            Self::WorkloadIn | Self::ExternalDeferred => &[Hook::TcxIngress],
            Self::ExternalIn => &[Hook::XdpNative, Hook::XdpGeneric],
        }
    }
}

/// The links of our programs to devices. What is attached anew through this and not kept is
/// detached again when it is dropped, so that a start that fails leaves nothing half-attached.
pub struct Links<'a> {
    pins: &'a Pins,
    fresh: Vec<String>,
    kept: bool,
}

impl<'a> Links<'a> {
    pub fn new(pins: &'a Pins) -> Self {
        Self { pins, fresh: Vec::new(), kept: false }
    }

    /// From here on the attachments stay, whatever becomes of the agent.
    pub fn keep(mut self) {
        self.kept = true;
    }

    pub fn attach(
        &mut self,
        data_plane: &mut DataPlane,
        device: &str,
        place: Place,
        mode: XdpMode,
    ) -> Result<Hook> {
        match place {
            Place::Out => self.attach_tc(data_plane.out()?, device, Hook::TcxEgress),
            Place::WorkloadIn => {
                self.attach_tc(data_plane.workload_in()?, device, Hook::TcxIngress)
            }
            Place::ExternalDeferred => {
                self.attach_tc(data_plane.external_deferred()?, device, Hook::TcxIngress)
            }
            Place::ExternalIn => self.attach_xdp(data_plane.external_in()?, device, mode),
        }
    }

    /// Also of a device that is gone: its name may come back with another one.
    pub fn detach(&self, device: &str, place: Place) -> Result<()> {
        place.hooks().iter().try_for_each(|&hook| remove_pin(&self.pins.link(&pin(device, hook))))
    }

    /// Detaches what an earlier agent attached and this one is not to.
    pub fn detach_others(&self, wanted: &BTreeSet<(String, Place)>) -> Result<()> {
        let pin_names = |(device, place): &(String, Place)| {
            place.hooks().iter().map(|&hook| pin(device, hook)).collect::<Vec<_>>()
        };
        let ours: BTreeSet<String> = wanted.iter().flat_map(pin_names).collect();
        for (link, path) in self.pins.links()? {
            if !ours.contains(&link) && !cgroup::is_pin(&link) {
                remove_pin(&path)?;
                tracing::info!("detached {link}, which an earlier agent had attached");
            }
        }
        Ok(())
    }

    fn attach_xdp(&mut self, program: &mut Xdp, device: &str, mode: XdpMode) -> Result<Hook> {
        let wanted: &[Hook] = match mode {
            XdpMode::Auto => &[Hook::XdpNative, Hook::XdpGeneric],
            XdpMode::Native => &[Hook::XdpNative],
            XdpMode::Generic => &[Hook::XdpGeneric],
        };
        for hook in [Hook::XdpNative, Hook::XdpGeneric] {
            let name = pin(device, hook);
            let Some(old) = self.pinned(&name)? else { continue };
            if !wanted.contains(&hook) {
                remove_pin(&self.pins.link(&name))?;
                continue;
            }
            match program.attach_to_link(XdpLink::try_from(FdLink::from(old))?) {
                Ok(id) => {
                    // The pin holds the link; this process need not.
                    drop(program.take_link(id)?);
                    return Ok(hook);
                }
                Err(error) => self.discard(&name, &error)?,
            }
        }
        let mut refusal = None;
        for &hook in wanted {
            let mode = match hook {
                Hook::XdpNative => aya::programs::XdpMode::Driver,
                _ => aya::programs::XdpMode::Skb,
            };
            match program.attach(device, mode) {
                Ok(id) => {
                    let link: FdLink = program.take_link(id)?.try_into().map_err(not_a_link)?;
                    self.pin(link, pin(device, hook))?;
                    return Ok(hook);
                }
                Err(error) => {
                    let busy = is_busy(&error);
                    let error = explain(error, device, hook);
                    if busy {
                        return Err(error);
                    }
                    tracing::info!("{error:#}");
                    refusal = Some(error);
                }
            }
        }
        Err(refusal.unwrap_or_else(|| anyhow!("no XDP mode was tried on {device}")))
    }

    fn attach_tc(
        &mut self,
        program: &mut SchedClassifier,
        device: &str,
        hook: Hook,
    ) -> Result<Hook> {
        let name = pin(device, hook);
        if let Some(old) = self.pinned(&name)? {
            match program.attach_to_link(SchedClassifierLink::try_from(FdLink::from(old))?) {
                Ok(id) => {
                    drop(program.take_link(id)?);
                    return Ok(hook);
                }
                Err(error) => self.discard(&name, &error)?,
            }
        }
        let direction = match hook {
            Hook::TcxIngress => TcAttachType::Ingress,
            _ => TcAttachType::Egress,
        };
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        let link = program
            .attach_with_options(device, direction, options)
            .map_err(|error| explain(error, device, hook))?;
        let link: FdLink = program.take_link(link)?.try_into().map_err(not_a_link)?;
        self.pin(link, name)?;
        Ok(hook)
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

    /// A link whose device is gone, perhaps replaced by another of the same name.
    fn discard(&self, name: &str, error: &ProgramError) -> Result<()> {
        tracing::info!("the pinned link {name} leads nowhere any more ({error}): attaching anew");
        remove_pin(&self.pins.link(name))
    }

    fn pin(&mut self, link: FdLink, name: String) -> Result<()> {
        link.pin(self.pins.link(&name))
            .with_context(|| format!("the link {name} can't be pinned"))?;
        self.fresh.push(name);
        Ok(())
    }
}

impl Drop for Links<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for name in &self.fresh {
            if let Err(error) = remove_pin(&self.pins.link(name)) {
                tracing::error!("{error:#}");
            }
        }
    }
}

/// Whether somebody else's program is in the place; the kernel says it in two ways.
fn is_busy(error: &ProgramError) -> bool {
    use nix::libc::{EBUSY, EEXIST};
    let ProgramError::SyscallError(error) = error else { return false };
    error.io_error.raw_os_error().is_some_and(|code| code == EBUSY || code == EEXIST)
}

fn explain(error: ProgramError, device: &str, hook: Hook) -> anyhow::Error {
    let context = if is_busy(&error) {
        format!(
            "another program holds {hook} on {device}; `bpftool net show dev {device}` names it.\n\
             Detach it first: `ip link set dev {device} xdp off`, or stop whoever attached it"
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

/// The hook stands in the pin's name: a link doesn't tell it. A dot, as VLAN devices have one in
/// their names, is not allowed in a BPF filesystem.
fn pin(device: &str, hook: Hook) -> String {
    let suffix = match hook {
        Hook::XdpNative => "xdp-native",
        Hook::XdpGeneric => "xdp-generic",
        Hook::TcxIngress => "ingress",
        Hook::TcxEgress => "egress",
    };
    format!("{}-{suffix}", device.replace('.', "%2E"))
}

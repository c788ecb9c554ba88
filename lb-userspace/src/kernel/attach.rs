//! Attaching the programs to devices, by links that are pinned: they outlive the agent, and the
//! next one replaces their program in one step, without a packet between.

use std::fmt::{self, Display};

use anyhow::{Context, Result, anyhow, bail};
use aya::programs::links::{FdLink, LinkError, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::xdp::XdpLink;
use aya::programs::{LinkOrder, ProgramError, TcAttachType};
use clap::ValueEnum;
use nix::net::if_::{if_nameindex, if_nametoindex};

use super::object::DataPlane;
use super::pins::{Pins, remove_pin};

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

/// The place of a device where a program sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    XdpNative,
    XdpGeneric,
    Tcx,
}

impl Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::XdpNative => "native XDP",
            Self::XdpGeneric => "generic XDP",
            Self::Tcx => "tcx",
        })
    }
}

/// What was attached to one device.
#[derive(Debug)]
pub struct Attached {
    pub device: String,
    pub ingress: Hook,
    pub egress: Hook,
}

/// The devices' attachments, until they are dropped: then what this agent attached anew and
/// has not kept is detached again, so that a start that fails leaves nothing half-attached.
pub struct Attachments<'a> {
    pins: &'a Pins,
    fresh: Vec<String>,
    kept: bool,
}

impl<'a> Attachments<'a> {
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
        mode: XdpMode,
    ) -> Result<Attached> {
        if if_nametoindex(device).is_err() {
            bail!("there is no device {device} here.\nKnown devices: {}", devices().join(", "));
        }
        // Egress first: an answer is never translated before its question was.
        let egress = self.attach_egress(data_plane, device)?;
        let ingress = self.attach_ingress(data_plane, device, mode)?;
        Ok(Attached { device: device.to_owned(), ingress, egress })
    }

    /// Detaches from the devices that an earlier agent served and this one is not to.
    pub fn detach_others(&self, devices: &[String]) -> Result<()> {
        let ours = |link: &str| {
            devices.iter().any(|device| {
                let hooks = [Hook::XdpNative, Hook::XdpGeneric];
                link == egress_pin(device)
                    || hooks.iter().any(|&hook| link == ingress_pin(device, hook))
            })
        };
        for (link, path) in self.pins.links()? {
            if !ours(&link) {
                remove_pin(&path)?;
                tracing::info!("detached {link}, which an earlier agent had attached");
            }
        }
        Ok(())
    }

    fn attach_ingress(
        &mut self,
        data_plane: &mut DataPlane,
        device: &str,
        mode: XdpMode,
    ) -> Result<Hook> {
        let program = data_plane.external_in()?;
        let wanted: &[Hook] = match mode {
            XdpMode::Auto => &[Hook::XdpNative, Hook::XdpGeneric],
            XdpMode::Native => &[Hook::XdpNative],
            XdpMode::Generic => &[Hook::XdpGeneric],
        };
        for hook in [Hook::XdpNative, Hook::XdpGeneric] {
            let name = ingress_pin(device, hook);
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
                    self.pin(link, ingress_pin(device, hook))?;
                    return Ok(hook);
                }
                Err(error) => {
                    let busy = is_busy(&error);
                    let error = explain(error, device, &hook.to_string());
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

    fn attach_egress(&mut self, data_plane: &mut DataPlane, device: &str) -> Result<Hook> {
        let name = egress_pin(device);
        let program = data_plane.external_out()?;
        if let Some(old) = self.pinned(&name)? {
            match program.attach_to_link(SchedClassifierLink::try_from(FdLink::from(old))?) {
                Ok(id) => {
                    drop(program.take_link(id)?);
                    return Ok(Hook::Tcx);
                }
                Err(error) => self.discard(&name, &error)?,
            }
        }
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        let link = program
            .attach_with_options(device, TcAttachType::Egress, options)
            .map_err(|error| explain(error, device, "tcx"))?;
        let link: FdLink = program.take_link(link)?.try_into().map_err(not_a_link)?;
        self.pin(link, name)?;
        Ok(Hook::Tcx)
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

impl Drop for Attachments<'_> {
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

fn explain(error: ProgramError, device: &str, what: &str) -> anyhow::Error {
    let context = if is_busy(&error) {
        format!(
            "another program holds {what} on {device}; `bpftool net show dev {device}` names it.\n\
             Detach it first: `ip link set dev {device} xdp off`, or stop whoever attached it"
        )
    } else {
        format!("{what} can't be attached to {device}")
    };
    anyhow!(error).context(context)
}

fn not_a_link(error: LinkError) -> anyhow::Error {
    anyhow!(error).context(
        "the kernel gave no link for the attachment, so it can't be pinned; \
         Millrace needs a kernel with BPF links for XDP (5.9)",
    )
}

/// The mode stands in the pin's name: a link doesn't tell it.
fn ingress_pin(device: &str, hook: Hook) -> String {
    match hook {
        Hook::XdpGeneric => format!("{device}-xdp-generic"),
        _ => format!("{device}-xdp-native"),
    }
}

fn egress_pin(device: &str) -> String {
    format!("{device}-egress")
}

/// The devices of this network namespace; /sys/class/net may be another's.
fn devices() -> Vec<String> {
    let mut names: Vec<String> = if_nameindex()
        .into_iter()
        .flat_map(|all| {
            all.iter().map(|i| i.name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        })
        .collect();
    names.sort();
    names
}

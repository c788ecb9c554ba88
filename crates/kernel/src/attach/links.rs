//! The pinned links of programs, and the rollback of a failed start.

use anyhow::{Context, Result, anyhow};
use aya::programs::ProgramError;
use aya::programs::links::{FdLink, LinkError, PinnedLink};
use nix::net::if_::if_nametoindex;

use super::clsact;
use crate::hook::{Direction, Hook};
use crate::link;
use crate::pins::{Pins, escaped, remove_link};

/// An attachment that did not exist before.
pub enum Fresh {
    /// Name of the pin.
    Link(String),
    Filter(String, Direction),
}

/// The attachments of the programs. New attachments that are not kept are detached on drop, so
/// that a failed start leaves none of them.
pub struct Links<'a> {
    pub(super) pins: &'a Pins,
    pub(super) fresh: Vec<Fresh>,
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

    pub(super) fn pinned(&self, name: &str) -> Result<Option<PinnedLink>> {
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
    pub(super) fn leads_to(&self, name: &str, device: &str, program: u32) -> Result<bool> {
        let Some(link) = link::PinnedLink::open(&self.pins.link(name))? else { return Ok(false) };
        // The link of a removed device has index 0; another device may have its name.
        let index = if_nametoindex(device).unwrap_or_default();
        Ok(index != 0 && link.device()? == index && link.program()? == program)
    }

    /// Removes a link whose device was removed and perhaps replaced by one of the same name.
    pub(super) fn discard(&self, name: &str, error: &ProgramError) -> Result<()> {
        let error = format!("{error:#}");
        tracing::info!(link = %name, error, "pinned link lost its interface; attaching again");
        remove_link(&self.pins.link(name))
    }

    pub(super) fn pin(&mut self, link: FdLink, name: String) -> Result<()> {
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
                    clsact::remove_filter(self.pins, device, *direction)
                }
            };
            if let Err(error) = removed {
                tracing::error!(error = format!("{error:#}"), "program not detached");
            }
        }
    }
}

/// Whether another owner's program is attached; the kernel reports it by two errors.
pub(crate) fn is_busy(error: &ProgramError) -> bool {
    use nix::libc::{EBUSY, EEXIST};
    let ProgramError::SyscallError(error) = error else { return false };
    error.io_error.raw_os_error().is_some_and(|code| code == EBUSY || code == EEXIST)
}

pub fn explain_attach_error(error: ProgramError, device: &str, hook: Hook) -> anyhow::Error {
    let context = if is_busy(&error) {
        format!(
            "another program holds {hook} on {device}; `bpftool net show dev {device}` names it.\n\
             Detach it first: `ip link set dev {device} xdp off`, or stop the program that attached it; or \
             leave it, and serve without XDP: --xdp-mode off"
        )
    } else {
        format!("{hook} can't be attached to {device}")
    };
    anyhow!(error).context(context)
}

pub(crate) fn not_a_link(error: LinkError) -> anyhow::Error {
    anyhow!(error).context(
        "the kernel returned no BPF link for the attachment, so it can't be pinned; \
         Millrace needs a kernel with BPF links for XDP (5.9)",
    )
}

/// The pin's name contains the hook, which can't be read from the link.
pub fn link_pin(device: &str, hook: Hook) -> String {
    let suffix = match hook {
        Hook::XdpNative => "xdp-native",
        Hook::TcxIngress | Hook::ClsactIngress => Direction::Ingress.name(),
        Hook::TcxEgress | Hook::ClsactEgress => Direction::Egress.name(),
    };
    format!("{}-{suffix}", escaped(device))
}

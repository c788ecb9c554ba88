//! Attaches to tc: by tcx, whose links can be pinned, and on kernels without it (before Linux 6.6)
//! by filters of a clsact qdisc.

use std::os::fd::AsFd;

use anyhow::{Context, Result, anyhow};
use aya::programs::links::FdLink;
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use nix::libc::EINVAL;
use nix::net::if_::if_nametoindex;

use super::clsact::{clsact_hook, open_filters, remove_filter};
use super::links::{Fresh, Links, explain_attach_error, link_pin, not_a_link};
use crate::hook::{Direction, Hook};
use crate::pins::remove_link;
use crate::settings::TcMode;

impl TcMode {
    /// The mode for this kernel; never `Auto`.
    pub fn resolve(self) -> Result<Self> {
        match self {
            Self::Auto if has_tcx()? => Ok(Self::Tcx),
            Self::Auto => {
                tracing::info!("kernel has no tcx (added in Linux 6.6); using clsact filters");
                Ok(Self::Clsact)
            }
            asked_for => Ok(asked_for),
        }
    }
}

/// Queries the loopback device, which every network namespace has. A kernel without tcx rejects
/// the query.
pub(crate) fn has_tcx() -> Result<bool> {
    match SchedClassifier::query_tcx("lo", TcAttachType::Ingress) {
        Ok(_) => Ok(true),
        Err(ProgramError::SyscallError(error)) => Ok(error.io_error.raw_os_error() != Some(EINVAL)),
        Err(error) => Err(anyhow!(error).context("cannot determine whether the kernel has tcx")),
    }
}

impl Links<'_> {
    /// Attaches by one mode, and then detaches the program that an earlier agent attached by the
    /// other. A packet in between is translated by the first program and passed by the second.
    pub(super) fn attach_tc(
        &mut self,
        program: &mut SchedClassifier,
        device: &str,
        direction: Direction,
        mode: TcMode,
    ) -> Result<Hook> {
        match mode {
            TcMode::Clsact => {
                let hook = clsact_hook(direction);
                self.attach_filter(program, device, direction)
                    .with_context(|| format!("{hook} can't be attached to {device}"))?;
                remove_link(&self.pins.link(&link_pin(device, tcx_hook(direction))))?;
                Ok(hook)
            }
            TcMode::Tcx | TcMode::Auto => {
                let hook = tcx_hook(direction);
                self.attach_tcx(program, device, direction, hook)?;
                remove_filter(self.pins, device, direction)?;
                Ok(hook)
            }
        }
    }

    fn attach_tcx(
        &mut self,
        program: &mut SchedClassifier,
        device: &str,
        direction: Direction,
        hook: Hook,
    ) -> Result<()> {
        let name = link_pin(device, hook);
        if let Some(old) = self.pinned(&name)? {
            if self.leads_to(&name, device, program.info()?.id())? {
                return Ok(());
            }
            match program.attach_to_link(SchedClassifierLink::try_from(FdLink::from(old))?) {
                Ok(id) => {
                    // The pin keeps the link.
                    drop(program.take_link(id)?);
                    return Ok(());
                }
                Err(error) => self.discard(&name, &error)?,
            }
        }
        let direction = match direction {
            Direction::Ingress => TcAttachType::Ingress,
            Direction::Egress => TcAttachType::Egress,
        };
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        let link = program
            .attach_with_options(device, direction, options)
            .map_err(|error| explain_attach_error(error, device, hook))?;
        let link: FdLink = program.take_link(link)?.try_into().map_err(not_a_link)?;
        self.pin(link, name)
    }

    fn attach_filter(
        &mut self,
        program: &SchedClassifier,
        device: &str,
        direction: Direction,
    ) -> Result<()> {
        let index = if_nametoindex(device)?;
        let mut filters = open_filters(self.pins)?;
        if filters.ensure_qdisc(index, device)? {
            self.pins.note_qdisc(device)?;
        }
        // Recorded first: a record without a filter is harmless, a filter without a record would
        // never be removed.
        self.pins.note_filter(device, direction.name())?;
        if filters.program(index, direction)? == Some(program.info()?.id()) {
            return Ok(());
        }
        if filters.set(index, direction, program.fd()?.as_fd())? {
            self.fresh.push(Fresh::Filter(device.to_owned(), direction));
        }
        Ok(())
    }
}

pub(crate) fn tcx_hook(direction: Direction) -> Hook {
    match direction {
        Direction::Ingress => Hook::TcxIngress,
        Direction::Egress => Hook::TcxEgress,
    }
}

//! Attaches to XDP.

use anyhow::Result;
use aya::programs::Xdp;
use aya::programs::links::FdLink;
use aya::programs::xdp::{XdpLink, XdpMode as Attach};

use super::links::{Links, explain_attach_error, is_busy, link_pin, not_a_link};
use crate::hook::Hook;
use crate::settings::XdpMode;

impl Links<'_> {
    /// Attaches in native mode. In generic mode frames may have been merged, and checksums may be left
    /// to a device: XDP can't see either; tc can, and is as fast. Returns `None` if the device does
    /// not support XDP, which is not an error.
    pub(super) fn attach_xdp(
        &mut self,
        program: &mut Xdp,
        device: &str,
        mode: XdpMode,
    ) -> Result<Option<Hook>> {
        if mode == XdpMode::Off {
            return Ok(None);
        }
        let hook = Hook::XdpNative;
        let name = link_pin(device, hook);
        if let Some(old) = self.pinned(&name)? {
            if self.leads_to(&name, device, program.info()?.id())? {
                return Ok(Some(hook));
            }
            match program.attach_to_link(XdpLink::try_from(FdLink::from(old))?) {
                Ok(id) => {
                    // The pin holds the link; this process need not.
                    drop(program.take_link(id)?);
                    return Ok(Some(hook));
                }
                Err(error) => self.discard(&name, &error)?,
            }
        }
        match program.attach(device, Attach::Driver) {
            Ok(id) => {
                let link: FdLink = program.take_link(id)?.try_into().map_err(not_a_link)?;
                self.pin(link, name)?;
                Ok(Some(hook))
            }
            Err(error) => {
                let busy = is_busy(&error);
                let refusal = explain_attach_error(error, device, hook);
                // A mode that was configured has no fallback.
                if busy || mode != XdpMode::Auto {
                    return Err(refusal);
                }
                tracing::info!(%device, reason = format!("{refusal:#}"), "XDP program not attached");
                Ok(None)
            }
        }
    }
}

//! Attaching to XDP.

use anyhow::Result;
use aya::programs::Xdp;
use aya::programs::links::FdLink;
use aya::programs::xdp::{XdpLink, XdpMode as Attach};

use super::{Hook, Links, XdpMode, explain, is_busy, not_a_link, pin};
use crate::kernel::pins::remove_pin;

impl XdpMode {
    /// The hooks that are tried, in this order.
    fn hooks(self) -> &'static [Hook] {
        match self {
            Self::Auto => &[Hook::XdpNative, Hook::XdpGeneric],
            Self::Native => &[Hook::XdpNative],
            Self::Generic => &[Hook::XdpGeneric],
            Self::Off => &[],
        }
    }
}

impl Links<'_> {
    /// `None`: this device takes no XDP, and need not.
    pub(super) fn attach_xdp(
        &mut self,
        program: &mut Xdp,
        device: &str,
        mode: XdpMode,
    ) -> Result<Option<Hook>> {
        let wanted = mode.hooks();
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
                    return Ok(Some(hook));
                }
                Err(error) => self.discard(&name, &error)?,
            }
        }
        let mut refusal = None;
        for &hook in wanted {
            let attach = if hook == Hook::XdpNative { Attach::Driver } else { Attach::Skb };
            match program.attach(device, attach) {
                Ok(id) => {
                    let link: FdLink = program.take_link(id)?.try_into().map_err(not_a_link)?;
                    self.pin(link, pin(device, hook))?;
                    return Ok(Some(hook));
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
        match (refusal, mode) {
            // What was asked for by name is not replaced by something else.
            (Some(refusal), XdpMode::Native | XdpMode::Generic) => Err(refusal),
            _ => Ok(None),
        }
    }
}

//! Asks the kernel for all objects of a kind.

use std::io;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::SockProtocol;

use super::socket::NetlinkSocket;
use crate::netlink::{NetlinkMessage, encode_request, read_u32_at, split_messages};

/// Attempts to read a dump that changes interrupt.
const DUMP_ATTEMPTS: usize = 10;

/// Requests a dump; returns the results of `take`.
pub(crate) async fn request_dump<T>(
    protocol: SockProtocol,
    kind: u16,
    body: &[u8],
    take: impl Fn(&NetlinkMessage<'_>) -> Option<T>,
) -> Result<Vec<T>> {
    for sequence in 1..=DUMP_ATTEMPTS as u32 {
        if let Some(found) = request_dump_once(protocol, kind, sequence, body, &take).await? {
            return Ok(found);
        }
    }
    bail!("this machine's network changes faster than it can be read")
}

/// Returns `None` if something changed meanwhile, so that the dump may have gaps.
async fn request_dump_once<T>(
    protocol: SockProtocol,
    kind: u16,
    sequence: u32,
    body: &[u8],
    take: &impl Fn(&NetlinkMessage<'_>) -> Option<T>,
) -> Result<Option<Vec<T>>> {
    let mut socket = NetlinkSocket::for_requests(protocol)?;
    socket
        .send(&encode_request(kind, libc::NLM_F_DUMP, sequence, body))
        .context("the kernel can't be asked")?;
    let (mut found, mut whole) = (Vec::new(), true);
    loop {
        let datagram = socket.receive().await.context("the kernel does not respond")?;
        for message in split_messages(&datagram) {
            let message = message?;
            whole &= message.flags & libc::NLM_F_DUMP_INTR as u16 == 0;
            match i32::from(message.kind) {
                libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                    parse_acknowledgement(&message)
                        .context("the kernel does not report its network configuration")?;
                    return Ok(whole.then_some(found));
                }
                _ => found.extend(take(&message)),
            }
        }
    }
}

/// The result at the end of a dump.
fn parse_acknowledgement(message: &NetlinkMessage<'_>) -> io::Result<()> {
    // Both begin with 0 or a negative error number; a missing number means success.
    let code = read_u32_at(message.body, 0).unwrap_or(0) as i32;
    match code {
        0 => Ok(()),
        // There is no routing table yet.
        code if code == -(Errno::ENOENT as i32) => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

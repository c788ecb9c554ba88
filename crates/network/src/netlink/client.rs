//! Sends requests to the kernel over netlink, and waits for the replies.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc::{NLMSG_DONE, NLMSG_ERROR};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvfrom, send, socket,
};

use super::wire::{align_netlink, encode_request, split_messages};
use crate::bytes::read_u32_at;

pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub fn open(protocol: SockProtocol) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request, and reads all messages of the reply. The flags must make the reply end:
    /// NLM_F_DUMP or NLM_F_ACK.
    pub fn ask(
        &mut self,
        kind: u16,
        flags: i32,
        body: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = encode_request(kind, flags, self.sequence, body);
        send(self.socket.as_raw_fd(), &request, MsgFlags::empty())?;

        let mut buffer = vec![0; 1 << 16];
        loop {
            for message in split_messages(self.receive(&mut buffer)?) {
                let message = message?;
                if message.sequence != self.sequence {
                    continue;
                }
                match i32::from(message.kind) {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return parse_error(message.body),
                    _ => each(message.body),
                }
            }
        }
    }

    /// Sends requests (kind, flags, body) as one datagram. Waits for the first error, or for an
    /// acknowledgement. At least one request must have NLM_F_ACK.
    pub fn ask_together(&mut self, requests: &[(u16, i32, Vec<u8>)]) -> io::Result<()> {
        let first = self.sequence.wrapping_add(1);
        let mut datagram = Vec::new();
        for (kind, flags, body) in requests {
            self.sequence = self.sequence.wrapping_add(1);
            datagram.extend(encode_request(*kind, *flags, self.sequence, body));
            datagram.resize(align_netlink(datagram.len()), 0);
        }
        send(self.socket.as_raw_fd(), &datagram, MsgFlags::empty())?;

        let mut buffer = vec![0; 1 << 16];
        loop {
            for message in split_messages(self.receive(&mut buffer)?) {
                let message = message?;
                let number = message.sequence.wrapping_sub(first) as usize;
                if number < requests.len() && i32::from(message.kind) == NLMSG_ERROR {
                    return parse_error(message.body);
                }
            }
        }
    }

    /// The next datagram of the kernel. Any process may send to this socket; what others sent is
    /// skipped.
    fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        loop {
            let (length, sender) = recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), buffer)?;
            if sender.is_some_and(|sender| sender.pid() == 0) {
                return Ok(&buffer[..length]);
            }
        }
    }
}

/// An acknowledgement is error 0.
fn parse_error(body: &[u8]) -> io::Result<()> {
    match read_u32_at(body, 0).map(|code| code as i32) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

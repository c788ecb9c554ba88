//! Asking the kernel over netlink, and waiting for the answer.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc::{NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

/// `struct nlmsghdr`: length, type, flags, sequence, port.
const HEADER: usize = 16;

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

    /// Sends a request and reads all messages that answer it. The flags must bring an end to
    /// them: NLM_F_DUMP or NLM_F_ACK.
    pub fn ask(
        &mut self,
        kind: u16,
        flags: i32,
        body: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(((NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
        send(self.socket.as_raw_fd(), &message, MsgFlags::empty())?;

        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let mut rest = &buffer[..length];
            while let Some((kind, sequence, body, after)) = split(rest) {
                rest = after;
                if sequence != self.sequence {
                    continue;
                }
                match i32::from(kind) {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return error_of(body),
                    _ => each(body),
                }
            }
        }
    }
}

/// The first message: type, sequence, body, and what comes after it.
fn split(bytes: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let length = u32_at(bytes, 0)? as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let sequence = u32_at(bytes, 8)?;
    let body = bytes.get(HEADER..length)?;
    // Messages are aligned to four bytes.
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, sequence, body, after))
}

/// An acknowledgement is error 0.
fn error_of(body: &[u8]) -> io::Result<()> {
    match u32_at(body, 0).map(|code| code as i32) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// An attribute, filled up to where the next one may begin.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    /// Length and kind.
    const HEADER: usize = 4;
    let mut bytes = Vec::with_capacity(HEADER + value.len() + 3);
    bytes.extend(((HEADER + value.len()) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An attribute that is a text, which ends with a zero.
pub fn text_attribute(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_cut_off_is_none() {
        let mut message = 20u32.to_ne_bytes().to_vec();
        message.extend([0; 12]);
        assert!(split(&message).is_none());
        message.extend([0; 4]);
        let (kind, sequence, body, after) = split(&message).expect("it is whole");
        assert_eq!((kind, sequence, body, after), (0, 0, &[0; 4][..], &[][..]));
    }

    #[test]
    fn attributes_say_their_length_and_are_filled_up() {
        let bytes = [7u16.to_ne_bytes(), 1u16.to_ne_bytes()].concat();
        assert_eq!(text_attribute(1, "ab"), [&bytes[..], &b"ab\0\0"[..]].concat());
    }
}

//! Encodes and decodes netlink messages and attributes. Pure.
//!
//! <https://docs.kernel.org/userspace-api/netlink/intro.html>

use std::io;

use nix::libc;

use crate::bytes::{u16_at, u32_at};

/// `struct nlmsghdr`: length, type, flags, sequence, port.
const MESSAGE_HEADER: usize = 16;
/// `struct nlattr`: length and type.
const ATTRIBUTE_HEADER: usize = 4;

/// One message of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub body: &'a [u8],
}

/// The messages of a datagram. A truncated one is an error, and the last item.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = io::Result<Message<'_>>> {
    std::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        let message = first_message(datagram);
        let length =
            message.as_ref().map_or(datagram.len(), |m| align(MESSAGE_HEADER + m.body.len()));
        datagram = datagram.get(length..).unwrap_or_default();
        Some(message.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof)))
    })
}

fn first_message(datagram: &[u8]) -> Option<Message<'_>> {
    Some(Message {
        body: datagram.get(MESSAGE_HEADER..u32_at(datagram, 0)? as usize)?,
        kind: u16_at(datagram, 4)?,
        flags: u16_at(datagram, 6)?,
        sequence: u32_at(datagram, 8)?,
    })
}

/// A request. NLM_F_REQUEST is added to its flags.
pub fn request(kind: u16, flags: i32, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = MESSAGE_HEADER + body.len();
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    // The sender's port; 0: the kernel fills it in.
    message.extend(0u32.to_ne_bytes());
    message.extend(body);
    message
}

/// Kinds and values, up to the first truncated attribute.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        // The two highest bits are flags about the value's encoding.
        let kind = u16_at(bytes, 2)? & libc::NLA_TYPE_MASK as u16;
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(align(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// An attribute, padded to where the next one may begin.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = ATTRIBUTE_HEADER + value.len();
    let mut bytes = Vec::with_capacity(align(length));
    bytes.extend((length as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(align(length), 0);
    bytes
}

/// An attribute with a zero-terminated string.
pub fn text_attribute(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

/// The string in an attribute's value, without the terminating zero.
pub fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// Messages and attributes are aligned to four octets.
pub fn align(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split_and_a_truncated_one_is_an_error() {
        let mut datagram = request(18, libc::NLM_F_DUMP, 7, &[1, 2, 3, 4, 5]);
        datagram.resize(align(datagram.len()), 0);
        datagram.extend(request(22, libc::NLM_F_ACK, 8, &[6]));
        let found: Vec<_> = messages(&datagram).map(Result::unwrap).collect();
        let fields: Vec<_> = found.iter().map(|m| (m.kind, m.flags, m.sequence, m.body)).collect();
        assert_eq!(fields, [(18, 0x301, 7, &[1, 2, 3, 4, 5][..]), (22, 0x5, 8, &[6])]);

        for length in 1..datagram.len() {
            // The first ends at 21, the second begins at 24.
            let whole = messages(&datagram[..length]).all(|message| message.is_ok());
            assert_eq!(whole, (21..=24).contains(&length), "{length}");
        }
    }

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let bytes = [7u16.to_ne_bytes(), 1u16.to_ne_bytes()].concat();
        assert_eq!(text_attribute(1, "ab"), [&bytes[..], &b"ab\0\0"[..]].concat());

        let nested = 2 | libc::NLA_F_NESTED as u16;
        let bytes = [text_attribute(1, "ab"), attribute(nested, &[1, 2, 3, 4])].concat();
        let found: Vec<_> = attributes(&bytes).collect();
        assert_eq!(found, [(1, &b"ab\0"[..]), (2, &[1, 2, 3, 4])]);
        assert_eq!(text(found[0].1), "ab");
        assert_eq!(attributes(&bytes[..bytes.len() - 1]).count(), 1);
    }
}

//! Encodes and decodes netlink messages and attributes. Pure.
//!
//! <https://docs.kernel.org/userspace-api/netlink/intro.html>

use std::io;

use nix::libc;

use crate::bytes::{read_u16_at, read_u32_at};

/// `struct nlmsghdr`: length, type, flags, sequence, port.
const MESSAGE_HEADER_OCTETS: usize = 16;
/// `struct nlattr`: length and type.
const ATTRIBUTE_HEADER_OCTETS: usize = 4;

/// One message of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub struct NetlinkMessage<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub body: &'a [u8],
}

/// The messages of a datagram. A truncated one is an error, and the last item.
pub fn split_messages(mut datagram: &[u8]) -> impl Iterator<Item = io::Result<NetlinkMessage<'_>>> {
    std::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        let message = first_message(datagram);
        let length = message
            .as_ref()
            .map_or(datagram.len(), |m| align_netlink(MESSAGE_HEADER_OCTETS + m.body.len()));
        datagram = datagram.get(length..).unwrap_or_default();
        Some(message.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof)))
    })
}

fn first_message(datagram: &[u8]) -> Option<NetlinkMessage<'_>> {
    Some(NetlinkMessage {
        body: datagram.get(MESSAGE_HEADER_OCTETS..read_u32_at(datagram, 0)? as usize)?,
        kind: read_u16_at(datagram, 4)?,
        flags: read_u16_at(datagram, 6)?,
        sequence: read_u32_at(datagram, 8)?,
    })
}

/// A request. NLM_F_REQUEST is added to its flags.
pub fn encode_request(kind: u16, flags: i32, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = MESSAGE_HEADER_OCTETS + body.len();
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
pub fn read_attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(read_u16_at(bytes, 0)?);
        // The two highest bits are flags about the value's encoding.
        let kind = read_u16_at(bytes, 2)? & libc::NLA_TYPE_MASK as u16;
        let value = bytes.get(ATTRIBUTE_HEADER_OCTETS..length)?;
        bytes = bytes.get(align_netlink(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// An attribute, padded to where the next one may begin.
pub fn encode_attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = ATTRIBUTE_HEADER_OCTETS + value.len();
    let mut bytes = Vec::with_capacity(align_netlink(length));
    bytes.extend((length as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(align_netlink(length), 0);
    bytes
}

/// An attribute with a zero-terminated string.
pub fn encode_text_attribute(kind: u16, text: &str) -> Vec<u8> {
    encode_attribute(kind, &[text.as_bytes(), &[0]].concat())
}

/// The string in an attribute's value, without the terminating zero.
pub fn read_text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// Messages and attributes are aligned to four octets.
pub fn align_netlink(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split_and_a_truncated_one_is_an_error() {
        let mut datagram = encode_request(18, libc::NLM_F_DUMP, 7, &[1, 2, 3, 4, 5]);
        datagram.resize(align_netlink(datagram.len()), 0);
        datagram.extend(encode_request(22, libc::NLM_F_ACK, 8, &[6]));
        let found: Vec<_> = split_messages(&datagram).map(Result::unwrap).collect();
        let fields: Vec<_> = found.iter().map(|m| (m.kind, m.flags, m.sequence, m.body)).collect();
        assert_eq!(fields, [(18, 0x301, 7, &[1, 2, 3, 4, 5][..]), (22, 0x5, 8, &[6])]);

        for length in 1..datagram.len() {
            // The first ends at 21, the second begins at 24.
            let whole = split_messages(&datagram[..length]).all(|message| message.is_ok());
            assert_eq!(whole, (21..=24).contains(&length), "{length}");
        }
    }

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let bytes = [7u16.to_ne_bytes(), 1u16.to_ne_bytes()].concat();
        assert_eq!(encode_text_attribute(1, "ab"), [&bytes[..], &b"ab\0\0"[..]].concat());

        let nested = 2 | libc::NLA_F_NESTED as u16;
        let bytes =
            [encode_text_attribute(1, "ab"), encode_attribute(nested, &[1, 2, 3, 4])].concat();
        let found: Vec<_> = read_attributes(&bytes).collect();
        assert_eq!(found, [(1, &b"ab\0"[..]), (2, &[1, 2, 3, 4])]);
        assert_eq!(read_text(found[0].1), "ab");
        assert_eq!(read_attributes(&bytes[..bytes.len() - 1]).count(), 1);
    }
}

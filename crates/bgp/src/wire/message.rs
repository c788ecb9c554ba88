//! Where a received message ends, and what kind it is.

use super::header::{HEADER_OCTETS, MARKER, MAX_MESSAGE_OCTETS, MessageKind};
use super::notification::{Notification, Reason};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramedMessage<'a> {
    pub kind: MessageKind,
    pub body: &'a [u8],
}

impl FramedMessage<'_> {
    /// With the header.
    pub fn length(&self) -> usize {
        HEADER_OCTETS + self.body.len()
    }
}

/// The first message of a stream. `None`: more octets are needed.
///
/// The error is what to send to the peer. It is final, as the position of the next message is unknown.
pub fn parse_first_message(octets: &[u8]) -> Result<Option<FramedMessage<'_>>, Notification> {
    let Some((header, _)) = octets.split_first_chunk::<HEADER_OCTETS>() else { return Ok(None) };
    if header[..16] != MARKER {
        return Err(Notification::new(Reason::NotSynchronized));
    }
    let length = &header[16..18];
    let octet = header[18];
    let bad_length = || Notification::new(Reason::BadMessageLength).with(length);
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    if !(HEADER_OCTETS..=MAX_MESSAGE_OCTETS).contains(&length) {
        return Err(bad_length());
    }
    let Some(kind) = MessageKind::ALL.into_iter().find(|kind| kind.octet() == octet) else {
        return Err(Notification::new(Reason::BadMessageType).with(&[octet]));
    };
    if !kind.lengths().contains(&length) {
        return Err(bad_length());
    }
    Ok(octets.get(HEADER_OCTETS..length).map(|body| FramedMessage { kind, body }))
}

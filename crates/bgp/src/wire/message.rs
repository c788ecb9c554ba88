//! Where a message ends, and what kind it is (RFC 4271, section 4.1).

use super::notification::{Notification, Reason};

/// The longest message without RFC 8654, which is not announced.
pub const MAX_MESSAGE_OCTETS: usize = 4096;

const MARKER: [u8; 16] = [0xff; 16];
pub(super) const HEADER_OCTETS: usize = 19;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    Open,
    Update,
    Notification,
    Keepalive,
    RouteRefresh,
}

impl MessageKind {
    const ALL: [Self; 5] =
        [Self::Open, Self::Update, Self::Notification, Self::Keepalive, Self::RouteRefresh];

    pub fn octet(self) -> u8 {
        self as u8 + 1
    }

    /// The lengths that such a message may have, with its header.
    fn lengths(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Open => 29..=MAX_MESSAGE_OCTETS,
            Self::Update | Self::RouteRefresh => 23..=MAX_MESSAGE_OCTETS,
            Self::Notification => 21..=MAX_MESSAGE_OCTETS,
            Self::Keepalive => HEADER_OCTETS..=HEADER_OCTETS,
        }
    }
}

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

/// Appends a message whose body `write` appends.
pub(super) fn append_message(
    out: &mut Vec<u8>,
    kind: MessageKind,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.extend(MARKER);
    out.extend([0, 0, kind.octet()]);
    write(out);
    let length = out.len() - start;
    debug_assert!(kind.lengths().contains(&length), "{kind:?} of {length} octets");
    out[start + 16..start + 18].copy_from_slice(&(length as u16).to_be_bytes());
}

pub fn append_keepalive(out: &mut Vec<u8>) {
    append_message(out, MessageKind::Keepalive, |_| ());
}

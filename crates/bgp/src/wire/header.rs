//! The header of a message (RFC 4271, section 4.1).

/// The longest message without RFC 8654, which is not announced.
pub const MAX_MESSAGE_OCTETS: usize = 4096;

pub(super) const MARKER: [u8; 16] = [0xff; 16];
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
    pub(super) const ALL: [Self; 5] =
        [Self::Open, Self::Update, Self::Notification, Self::Keepalive, Self::RouteRefresh];

    pub fn octet(self) -> u8 {
        self as u8 + 1
    }

    /// The lengths that such a message may have, with its header.
    pub(super) fn lengths(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Open => 29..=MAX_MESSAGE_OCTETS,
            Self::Update | Self::RouteRefresh => 23..=MAX_MESSAGE_OCTETS,
            Self::Notification => 21..=MAX_MESSAGE_OCTETS,
            Self::Keepalive => HEADER_OCTETS..=HEADER_OCTETS,
        }
    }
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

//! Where a message ends, and what kind it is (RFC 4271, section 4.1).

use super::notification::{Notification, Reason};

/// The longest message without RFC 8654, which is not announced.
pub const MOST_OCTETS: usize = 4096;

const MARKER: [u8; 16] = [0xff; 16];
pub(super) const HEADER: usize = 19;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Open,
    Update,
    Notification,
    Keepalive,
    RouteRefresh,
}

impl Kind {
    const ALL: [Self; 5] =
        [Self::Open, Self::Update, Self::Notification, Self::Keepalive, Self::RouteRefresh];

    pub fn octet(self) -> u8 {
        self as u8 + 1
    }

    /// The lengths that such a message may have, with its header.
    fn lengths(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Open => 29..=MOST_OCTETS,
            Self::Update | Self::RouteRefresh => 23..=MOST_OCTETS,
            Self::Notification => 21..=MOST_OCTETS,
            Self::Keepalive => HEADER..=HEADER,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: Kind,
    pub body: &'a [u8],
}

impl Message<'_> {
    /// With the header.
    pub fn length(&self) -> usize {
        HEADER + self.body.len()
    }
}

/// The first message of a stream. `None`: more octets are needed.
///
/// The error is what to send to the peer. It is final, as the position of the next message is unknown.
pub fn first(octets: &[u8]) -> Result<Option<Message<'_>>, Notification> {
    let Some((header, _)) = octets.split_first_chunk::<HEADER>() else { return Ok(None) };
    if header[..16] != MARKER {
        return Err(Notification::new(Reason::NotSynchronized));
    }
    let length = &header[16..18];
    let octet = header[18];
    let bad_length = || Notification::new(Reason::BadMessageLength).with(length);
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    if !(HEADER..=MOST_OCTETS).contains(&length) {
        return Err(bad_length());
    }
    let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.octet() == octet) else {
        return Err(Notification::new(Reason::BadMessageType).with(&[octet]));
    };
    if !kind.lengths().contains(&length) {
        return Err(bad_length());
    }
    Ok(octets.get(HEADER..length).map(|body| Message { kind, body }))
}

/// Appends a message whose body `write` appends.
pub(super) fn append(out: &mut Vec<u8>, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(MARKER);
    out.extend([0, 0, kind.octet()]);
    write(out);
    let length = out.len() - start;
    debug_assert!(kind.lengths().contains(&length), "{kind:?} of {length} octets");
    out[start + 16..start + 18].copy_from_slice(&(length as u16).to_be_bytes());
}

pub fn keepalive(out: &mut Vec<u8>) {
    append(out, Kind::Keepalive, |_| ());
}

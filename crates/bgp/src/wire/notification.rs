//! NOTIFICATION messages: why a session ends.

use std::fmt::{self, Write};

use super::header::{MessageKind, append_message};

macro_rules! reasons {
    ($($name:ident = $code:literal / $subcode:literal, $text:literal;)*) => {
        /// Codes and subcodes of RFC 4271, 4486, 6608, 7313, 9003, 9384 and 9687.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason {
            $($name,)*
        }

        impl Reason {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub fn code(self) -> u8 {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            pub fn subcode(self) -> u8 {
                match self {
                    $(Self::$name => $subcode,)*
                }
            }

            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    NotSynchronized = 1 / 1, "connection not synchronized";
    BadMessageLength = 1 / 2, "bad message length";
    BadMessageType = 1 / 3, "bad message type";
    MalformedOpen = 2 / 0, "malformed OPEN";
    UnsupportedVersion = 2 / 1, "unsupported version number";
    BadPeerAs = 2 / 2, "bad peer AS";
    BadIdentifier = 2 / 3, "bad BGP identifier";
    UnsupportedParameter = 2 / 4, "unsupported optional parameter";
    UnacceptableHoldTime = 2 / 6, "unacceptable hold time";
    UnsupportedCapability = 2 / 7, "unsupported capability";
    RoleMismatch = 2 / 11, "role mismatch";
    MalformedAttributes = 3 / 1, "malformed attribute list";
    UnknownAttribute = 3 / 2, "unrecognized well-known attribute";
    MissingAttribute = 3 / 3, "missing well-known attribute";
    AttributeFlags = 3 / 4, "attribute flags error";
    AttributeLength = 3 / 5, "attribute length error";
    InvalidOrigin = 3 / 6, "invalid ORIGIN attribute";
    InvalidNextHop = 3 / 8, "invalid NEXT_HOP attribute";
    OptionalAttribute = 3 / 9, "optional attribute error";
    InvalidNetwork = 3 / 10, "invalid network field";
    MalformedAsPath = 3 / 11, "malformed AS_PATH";
    HoldTimerExpired = 4 / 0, "hold timer expired";
    UnexpectedMessage = 5 / 0, "unexpected message";
    UnexpectedInOpenSent = 5 / 1, "unexpected message in state OpenSent";
    UnexpectedInOpenConfirm = 5 / 2, "unexpected message in state OpenConfirm";
    UnexpectedInEstablished = 5 / 3, "unexpected message in state Established";
    MaximumPrefixes = 6 / 1, "maximum number of prefixes reached";
    AdministrativeShutdown = 6 / 2, "administrative shutdown";
    PeerDeconfigured = 6 / 3, "peer de-configured";
    AdministrativeReset = 6 / 4, "administrative reset";
    ConnectionRejected = 6 / 5, "connection rejected";
    ConfigurationChange = 6 / 6, "other configuration change";
    ConnectionCollision = 6 / 7, "connection collision resolution";
    OutOfResources = 6 / 8, "out of resources";
    HardReset = 6 / 9, "hard reset";
    BfdDown = 6 / 10, "BFD down";
    InvalidRefreshLength = 7 / 1, "invalid ROUTE-REFRESH length";
    SendHoldTimerExpired = 8 / 0, "send hold timer expired";
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    pub code: u8,
    pub subcode: u8,
    pub data: Vec<u8>,
}

impl Notification {
    pub fn new(reason: Reason) -> Self {
        Self { code: reason.code(), subcode: reason.subcode(), data: Vec::new() }
    }

    /// With data that shows the fault.
    pub fn with(self, data: &[u8]) -> Self {
        Self { data: data.to_vec(), ..self }
    }

    /// With a text for the peer's operator (RFC 9003). It is cut after 255 octets.
    pub fn saying(self, text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(255)];
        let mut data = vec![text.len() as u8];
        data.extend(text.as_bytes());
        Self { data, ..self }
    }

    /// `None` if the codes are not known.
    pub fn reason(&self) -> Option<Reason> {
        let is = |reason: &Reason| (reason.code(), reason.subcode()) == (self.code, self.subcode);
        Reason::ALL.iter().copied().find(is)
    }

    /// The text that the peer's operator sent.
    fn said(&self) -> Option<&str> {
        let has_text = [Reason::AdministrativeShutdown, Reason::AdministrativeReset];
        let reason = self.reason().filter(|reason| has_text.contains(reason));
        let (length, text) = reason.and(self.data.split_first())?;
        std::str::from_utf8(text.get(..usize::from(*length))?).ok().filter(|text| !text.is_empty())
    }

    /// A body too short for both codes was refused with its header.
    pub fn parse(body: &[u8]) -> Self {
        let octet = |index| body.get(index).copied().unwrap_or(0);
        Self { code: octet(0), subcode: octet(1), data: body.get(2..).unwrap_or(&[]).to_vec() }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        append_message(out, MessageKind::Notification, |out| {
            out.extend([self.code, self.subcode]);
            // What shows a fault is never longer, except if a caller repeats a whole message.
            out.extend(&self.data[..self.data.len().min(1024)]);
        });
    }
}

/// For logs and tables: one line, without control characters.
impl fmt::Display for Notification {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self.reason() {
            Some(reason) => formatter.write_str(reason.text())?,
            None => write!(formatter, "error {}/{}", self.code, self.subcode)?,
        }
        if let Some(text) = self.said() {
            formatter.write_str(": ")?;
            for character in text.chars() {
                match character.is_control() {
                    true => write!(formatter, "{}", character.escape_default())?,
                    false => formatter.write_char(character)?,
                }
            }
        }
        Ok(())
    }
}

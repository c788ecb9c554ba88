//! A router of few words, for tests of a speaker: it says what it must, and tests decide the rest.

use std::collections::BTreeSet;
use std::io::{self, Error, Read, Write};
use std::net::Ipv4Addr;

use lb_bgp::Family;
use lb_bgp::wire::{Capabilities, MessageKind, OpenMessage, append_keepalive, message};

/// A connection with a speaker, over any stream.
pub struct RawRouter<S> {
    pub stream: S,
    buffer: Vec<u8>,
}

/// OPEN, and the KEEPALIVE that confirms the speaker's. With a hold time of 0 no more are needed.
pub fn open_and_keepalive(autonomous_system: u32) -> Vec<u8> {
    let open = OpenMessage {
        autonomous_system,
        hold_time: 0,
        identifier: Ipv4Addr::new(192, 0, 2, 1),
        capabilities: Capabilities {
            families: Family::ALL.into(),
            four_octet_as: true,
            ..Capabilities::default()
        },
    };
    let mut octets = Vec::new();
    open.encode(&mut octets);
    append_keepalive(&mut octets);
    octets
}

/// Applies an UPDATE to the prefixes that a router holds: those of IPv4, of 32 bits, as the speaker
/// writes them.
pub fn apply_update(body: &[u8], held: &mut BTreeSet<[u8; 5]>) {
    let length = |at: usize| usize::from(u16::from_be_bytes([body[at], body[at + 1]]));
    let withdrawn = length(0);
    for prefix in body[2..2 + withdrawn].as_chunks().0 {
        held.remove(prefix);
    }
    let attributes = length(2 + withdrawn);
    for prefix in body[4 + withdrawn + attributes..].as_chunks().0 {
        held.insert(*prefix);
    }
}

impl<S: Read + Write> RawRouter<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// Makes a session of the connection.
    pub fn establish(&mut self, autonomous_system: u32) -> io::Result<()> {
        self.stream.write_all(&open_and_keepalive(autonomous_system))?;
        self.next(MessageKind::Keepalive).map(drop)
    }

    /// Reads up to a message of this kind, whose body is returned.
    pub fn next(&mut self, kind: MessageKind) -> io::Result<Vec<u8>> {
        loop {
            let found = message::parse_first_message(&self.buffer)
                .map_err(|wrong| Error::other(format!("the speaker's message: {wrong:?}")))?;
            if let Some(first) = found {
                let (found, body, length) = (first.kind, first.body.to_vec(), first.length());
                self.buffer.drain(..length);
                if found == kind {
                    return Ok(body);
                }
                if found == MessageKind::Notification {
                    return Err(Error::other(format!("{body:?} instead of {kind:?}")));
                }
                continue;
            }
            let mut buffer = [0; 4096];
            let length = self.stream.read(&mut buffer)?;
            if length == 0 {
                return Err(Error::other(format!("the connection ended before {kind:?}")));
            }
            self.buffer.extend(&buffer[..length]);
        }
    }
}

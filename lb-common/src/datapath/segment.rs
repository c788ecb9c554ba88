//! What a packet says about its flow: addresses, ports, and where they stand.

use crate::branchless::is_zero;
use crate::conntrack::Signal;
use crate::family::{Address, Family};
use crate::header::{Tcp, protocol};
use crate::verifier::hide;

/// More than the offset of any header that the data plane reads; a power of two.
pub const OFFSETS: usize = 1 << 14;

/// Where the transport header is.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    pub network: usize,
    pub transport: usize,
    pub protocol: u8,
}

impl Headers {
    #[inline(always)]
    pub fn is_tcp(&self) -> bool {
        self.protocol == protocol::TCP
    }

    #[inline(always)]
    pub fn is_sctp(&self) -> bool {
        self.protocol == protocol::SCTP
    }

    /// Whether the protocol is connectionless.
    #[inline(always)]
    pub fn is_datagram(&self) -> bool {
        self.protocol == protocol::UDP
    }
}

/// Addresses, ports and signal of a packet as received.
#[derive(Clone, Copy, Debug)]
pub struct Segment<F: Family> {
    pub headers: Headers,
    pub source: F::Address,
    pub destination: F::Address,
    pub source_port: u16,
    pub destination_port: u16,
    pub signal: Signal,
}

impl<F: Family> Segment<F> {
    /// Hides what follows from the protocol. Otherwise the verifier follows the rest of the program
    /// once for each protocol.
    #[inline(always)]
    pub fn blur(self) -> Self {
        let unknown = self.source.words()[0] as u32;
        let hide = |number: u32| hide(number, unknown);
        let Signal { flags, sequence, acknowledgement } = self.signal;
        Self {
            headers: Headers {
                protocol: hide(u32::from(self.headers.protocol)) as u8,
                ..self.headers
            },
            signal: Signal {
                flags: hide(u32::from(flags)) as u8,
                sequence: hide(sequence),
                acknowledgement: hide(acknowledgement),
            },
            ..self
        }
    }

    /// Whether the packet opens a connection.
    #[inline(always)]
    pub fn opens(&self) -> bool {
        // Datagrams have no flags.
        self.signal.opens()
    }

    /// 1 if the packet opens a connection or is a datagram, else 0; without branches.
    #[inline(always)]
    pub fn may_begin(&self) -> u64 {
        let flags = u64::from(self.signal.flags & (Tcp::SYN | Tcp::ACK));
        let protocol = u64::from(self.headers.protocol);
        is_zero(flags ^ u64::from(Tcp::SYN)) | is_zero(protocol ^ u64::from(protocol::UDP))
    }
}

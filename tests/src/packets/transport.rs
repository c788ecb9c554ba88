//! Modifiers for single transport protocols.

use etherparse::TcpHeader;

use super::Packet;
use super::description::Transport;

/// TCP. Each method for flags sets exactly these flags.
impl Packet {
    pub fn syn(&self) -> Self {
        self.tcp(|tcp| set_flags(tcp, "S"))
    }

    pub fn syn_ack(&self) -> Self {
        self.tcp(|tcp| set_flags(tcp, "SA"))
    }

    pub fn ack(&self) -> Self {
        self.tcp(|tcp| set_flags(tcp, "A"))
    }

    pub fn psh_ack(&self) -> Self {
        self.tcp(|tcp| set_flags(tcp, "PA"))
    }

    pub fn fin_ack(&self) -> Self {
        self.tcp(|tcp| set_flags(tcp, "FA"))
    }

    pub fn rst(&self) -> Self {
        self.tcp(|tcp| set_flags(tcp, "R"))
    }

    pub fn rst_ack(&self) -> Self {
        self.tcp(|tcp| set_flags(tcp, "RA"))
    }

    /// Any flags, by tcpdump's letters: S, A, F, R, P, U, E, W.
    pub fn flags(&self, letters: &str) -> Self {
        self.tcp(|tcp| set_flags(tcp, letters))
    }

    /// The sequence number.
    pub fn seq(&self, number: u32) -> Self {
        self.tcp(|tcp| tcp.sequence_number = number)
    }

    /// The acknowledgment number. [`Packet::ack`] sets the flag.
    pub fn ack_number(&self, number: u32) -> Self {
        self.tcp(|tcp| tcp.acknowledgment_number = number)
    }

    pub fn window(&self, size: u16) -> Self {
        self.tcp(|tcp| tcp.window_size = size)
    }

    /// Encoded TCP options, padded with zeros to a multiple of 4 bytes.
    pub fn tcp_options(&self, options: &[u8]) -> Self {
        self.tcp(|tcp| tcp.set_options_raw(options).expect("TCP options are 40 bytes at most"))
    }

    /// The option with the maximum segment size.
    pub fn mss(&self, size: u16) -> Self {
        let [high, low] = size.to_be_bytes();
        self.tcp_options(&[2, 4, high, low])
    }

    fn tcp(&self, change: impl FnOnce(&mut TcpHeader)) -> Self {
        self.change_ip(|ip| match &mut ip.transport {
            Transport::Tcp(tcp) => change(tcp),
            _ => panic!("this is not TCP"),
        })
    }
}

fn set_flags(tcp: &mut TcpHeader, letters: &str) {
    let has = |letter| letters.contains(letter);
    (tcp.syn, tcp.ack, tcp.fin, tcp.rst) = (has('S'), has('A'), has('F'), has('R'));
    (tcp.psh, tcp.urg, tcp.ece, tcp.cwr) = (has('P'), has('U'), has('E'), has('W'));
}

/// UDP.
impl Packet {
    /// Zero instead of the checksum: allowed over IPv4, malformed over IPv6.
    pub fn no_checksum(&self) -> Self {
        self.change_ip(|ip| match &mut ip.transport {
            Transport::Udp { checksum, .. } => *checksum = false,
            _ => panic!("only UDP can do without a checksum"),
        })
    }
}

/// SCTP.
impl Packet {
    pub fn verification_tag(&self, number: u32) -> Self {
        self.change_ip(|ip| match &mut ip.transport {
            Transport::Sctp { tag, .. } => *tag = number,
            _ => panic!("this is not SCTP"),
        })
    }

    /// The type of the only chunk, if there is no payload.
    pub fn chunk(&self, kind: u8) -> Self {
        self.change_ip(|ip| match &mut ip.transport {
            Transport::Sctp { chunk, .. } => *chunk = kind,
            _ => panic!("this is not SCTP"),
        })
    }
}

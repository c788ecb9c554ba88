//! Conversions of text such as `"203.0.113.10:80"` or `"02:00:00:00:00:01"`.
//!
//! They panic: a typing error in a table of cases should stop the test at the error.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// One end of a packet. Without a port, a modifier keeps the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    pub port: Option<u16>,
}

impl From<&str> for Endpoint {
    fn from(text: &str) -> Self {
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return socket.into();
        }
        match text.parse::<IpAddr>() {
            Ok(address) => address.into(),
            Err(_) => panic!("{text:?} is neither an address nor address:port"),
        }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(socket: SocketAddr) -> Self {
        Self { address: socket.ip(), port: Some(socket.port()) }
    }
}

impl From<IpAddr> for Endpoint {
    fn from(address: IpAddr) -> Self {
        Self { address, port: None }
    }
}

impl From<Ipv4Addr> for Endpoint {
    fn from(address: Ipv4Addr) -> Self {
        IpAddr::from(address).into()
    }
}

impl From<Ipv6Addr> for Endpoint {
    fn from(address: Ipv6Addr) -> Self {
        IpAddr::from(address).into()
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl From<[u8; 6]> for Mac {
    fn from(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }
}

impl From<&str> for Mac {
    fn from(text: &str) -> Self {
        let bytes: Option<Vec<u8>> =
            text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
        match bytes.and_then(|bytes| bytes.try_into().ok()) {
            Some(bytes) => Self(bytes),
            None => panic!("{text:?} is not an Ethernet address"),
        }
    }
}

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Source and destination of an IP packet: always of one family.
#[derive(Clone, Copy, Debug)]
pub enum PacketAddresses {
    V4([u8; 4], [u8; 4]),
    V6([u8; 16], [u8; 16]),
}

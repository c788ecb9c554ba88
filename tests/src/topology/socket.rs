//! Sockets of a host in this process. None of them waits forever.

use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Host;
use super::server::socket_address;

const LIMIT: Duration = Duration::from_secs(5);

impl Host {
    /// A connection from here, on which reading and writing fail after 5 seconds.
    pub fn tcp_connect(&self, to: &str) -> Result<TcpStream> {
        let address = socket_address(to)?;
        self.enter(|| {
            let stream = TcpStream::connect_timeout(&address, LIMIT)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.set_write_timeout(Some(LIMIT))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
        .with_context(|| format!("{} can't connect to {to}", self.name()))
    }

    /// A socket on an address of this host, or `0.0.0.0:0`. Receiving fails after 5 seconds.
    pub fn udp_socket(&self, bind: &str) -> Result<UdpSocket> {
        let address = socket_address(bind)?;
        self.enter(|| {
            let socket = UdpSocket::bind(address)?;
            socket.set_read_timeout(Some(LIMIT))?;
            Ok(socket)
        })
        .with_context(|| format!("{} can't bind {bind}", self.name()))
    }
}

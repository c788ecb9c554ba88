//! Sockets of a host in this process, with time limits.

use std::net::{TcpStream, UdpSocket};

use anyhow::{Context, Result};

use super::server::socket_address;
use super::{Host, SOON};

impl Host {
    /// Connects from this host. Reads and writes have a time limit.
    pub fn tcp_connect(&self, to: &str) -> Result<TcpStream> {
        let address = socket_address(to)?;
        self.enter(|| {
            let stream = TcpStream::connect_timeout(&address, SOON)?;
            stream.set_read_timeout(Some(SOON))?;
            stream.set_write_timeout(Some(SOON))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
        .with_context(|| format!("{} can't connect to {to}", self.name()))
    }

    /// Binds a socket to an address of this host, or `0.0.0.0:0`. Receiving has a time limit.
    pub fn udp_socket(&self, bind: &str) -> Result<UdpSocket> {
        let address = socket_address(bind)?;
        self.enter(|| {
            let socket = UdpSocket::bind(address)?;
            socket.set_read_timeout(Some(SOON))?;
            Ok(socket)
        })
        .with_context(|| format!("{} can't bind {bind}", self.name()))
    }
}

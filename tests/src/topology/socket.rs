//! Sockets of a host in this process. None of them waits forever.

use std::net::{TcpStream, UdpSocket};

use anyhow::{Context, Result};

use super::server::socket_address;
use super::{Host, SOON};

impl Host {
    /// A connection from here, on which reading and writing fail in the end if nothing comes.
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

    /// A socket on an address of this host, or `0.0.0.0:0`. Receiving fails in the end if nothing comes.
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

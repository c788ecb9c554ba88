//! The servers of a crowd: each has an address of its own, and one thread has all their sockets.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};

use super::reset_on_close;
use crate::worlds::topology::Host;

/// Each replies to each octet with its address.
pub struct Servers {
    runtime: Runtime,
    running: BTreeMap<Ipv4Addr, JoinHandle<()>>,
    port: u16,
}

impl Servers {
    pub fn new(port: u16) -> Result<Self> {
        Ok(Self { runtime: super::one_thread(None)?, running: BTreeMap::new(), port })
    }

    /// Starts a server at an address of a host.
    pub fn start(&mut self, host: &Host, address: Ipv4Addr) -> Result<()> {
        let port = self.port;
        let listener = host
            .enter(|| Ok(TcpListener::bind((address, port))?))
            .with_context(|| format!("{} can't listen on {address}", host.name()))?;
        listener.set_nonblocking(true)?;
        let entered = self.runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        drop(entered);
        let serve = async move {
            let mut connections = JoinSet::new();
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    connections.spawn(reply(stream, address));
                }
                while connections.try_join_next().is_some() {}
            }
        };
        self.running.insert(address, self.runtime.spawn(serve));
        Ok(())
    }

    /// Ends a server: its connections are reset.
    pub fn end(&mut self, address: Ipv4Addr) {
        if let Some(task) = self.running.remove(&address) {
            task.abort();
        }
    }
}

/// Until the client ends the connection, or there is an error, which the client notices.
async fn reply(mut stream: TcpStream, address: Ipv4Addr) {
    reset_on_close(&stream);
    let mut buffer = [0; 64];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&address.octets().repeat(length)).await.is_err() {
            break;
        }
    }
}

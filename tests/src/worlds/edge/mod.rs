//! `millrace ingress` on a host of its own, with manifests, and servers that return what reached them.

mod client;
mod server;

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::manifests::Service;
use crate::programs::agent::program;
use crate::worlds::topology::{Host, Process, SOON, Topology, wait_until};

pub use client::{Kept, Response, WebSocket};

pub const HTTP: u16 = 80;
pub const HTTPS: u16 = 443;
/// The port of the servers.
const SERVERS: u16 = 8080;

/// A host with a proxy. Clients and servers are on the same host.
pub struct Edge {
    pub host: Host,
    proxy: Process,
    /// Proxies that others have taken over from.
    old: Vec<Process>,
    manifests: PathBuf,
    // Dropped last.
    pub topology: Topology,
}

impl Edge {
    /// Starts a server for each name, and the proxy with manifests; `services` has those for the servers.
    pub fn start(name: &str, servers: &[&str], manifests: &str) -> Result<Self> {
        let topology = Topology::new(name)?;
        let host = topology.host("edge")?;
        for (number, server) in servers.iter().enumerate() {
            let address = edge_address_of(number);
            host.address("lo", &format!("{address}/32"))?;
            server::start_server(&host, (address, SERVERS).into(), server)?;
        }
        let manifests = topology.write_manifests(manifests)?;
        let proxy = spawn(&host, &topology, &manifests)?;
        let mut edge = Self { host, proxy, old: Vec::new(), manifests, topology };
        edge.wait_until_ready()?;
        Ok(edge)
    }

    /// Replaces all manifests at once.
    pub fn apply(&self, manifests: &str) -> Result<()> {
        let new = self.manifests.with_extension("new");
        fs::write(&new, manifests)?;
        fs::rename(&new, &self.manifests).context("the manifests can't be replaced")
    }

    /// Starts a second proxy, which takes over from the first one. The first keeps its WebSockets.
    pub fn upgrade(&mut self) -> Result<()> {
        let new = spawn(&self.host, &self.topology, &self.manifests)?;
        self.old.push(std::mem::replace(&mut self.proxy, new));
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        self.proxy.wait_for_output("serving ingresses", SOON)
    }

    /// Ends the proxy; returns its log.
    pub fn end(mut self) -> Result<String> {
        self.proxy.signal(Signal::SIGTERM)?;
        self.proxy.wait(SOON)?;
        Ok(self.proxy.output())
    }

    pub fn log(&self) -> String {
        self.proxy.output()
    }

    /// Sends a GET request over a new connection.
    pub fn get(&self, host: &str, path: &str) -> Result<Response> {
        client::send_request(&self.host, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n"))
    }

    /// Waits until a request reaches this server.
    pub fn wait_for(&self, host: &str, path: &str, server: &str) -> Result<()> {
        let reaches = || self.get(host, path).is_ok_and(|response| response.server() == server);
        wait_until(&format!("{host}{path} reaches {server}"), SOON, reaches)
    }

    pub fn websocket(&self, host: &str, path: &str) -> Result<WebSocket> {
        WebSocket::open(&self.host, host, path)
    }
}

fn spawn(host: &Host, topology: &Topology, manifests: &PathBuf) -> Result<Process> {
    let mut command = host.command(program()?);
    command.args([
        "ingress",
        "--node-name",
        "node",
        "--access-log",
        "off",
        "--shutdown-grace",
        "3600",
        "--manifests",
    ]);
    command.arg(manifests);
    command.args([
        format!("--http-bind-address=[::]:{HTTP}"),
        format!("--https-bind-address=[::]:{HTTPS}"),
    ]);
    command
        .arg(format!("--control-socket={}", topology.directory().join("ingress.sock").display()));
    host.spawn(&mut command)
}

/// The address of a server, by its position.
pub fn edge_address_of(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, 1, 10 + u8::try_from(number).unwrap_or(u8::MAX))
}

/// A Service with these servers as endpoints, by their positions.
pub fn edge_service(name: &str, servers: &[usize]) -> Service {
    let addresses: Vec<String> =
        servers.iter().map(|&number| edge_address_of(number).to_string()).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    Service::new(name, &["None"]).tcp(80, SERVERS).here(&addresses)
}

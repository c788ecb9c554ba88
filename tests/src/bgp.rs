//! What an agent says about its BGP peers, and a router for tests of a speaker.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use lb_bgp::Family;
use lb_bgp::wire::{Capabilities, Kind, Open, keepalive, message};
use serde_json::Value;

use crate::agent::program;
use crate::topology::{Host, SOON, wait_until};

pub struct Speaker {
    node: Host,
    pins: PathBuf,
}

impl Speaker {
    /// The agent on a node with these pins.
    pub fn of(node: &Host, pins: PathBuf) -> Self {
        Self { node: node.clone(), pins }
    }

    /// The output of a command of millrace.
    pub fn show(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.node.command(program()?);
        command.args(arguments).arg("--pin-path").arg(&self.pins);
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    fn list(&self, what: &str) -> Result<Vec<Value>> {
        Ok(serde_json::from_str(&self.show(&[what, "-o", "json"])?)?)
    }

    pub fn peers(&self) -> Result<Vec<Value>> {
        self.list("bgp")
    }

    /// Waits until there are so many peers, and something holds for all.
    pub fn wait_for_peers(
        &self,
        what: &str,
        number: usize,
        so: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        self.wait("bgp", what, number, so)
    }

    /// The same for sessions of BFD.
    pub fn wait_for_paths(
        &self,
        what: &str,
        number: usize,
        so: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        self.wait("bfd", what, number, so)
    }

    fn wait(
        &self,
        list: &str,
        what: &str,
        number: usize,
        so: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let mut last = Vec::new();
        let waited = wait_until(what, SOON, || {
            last = self.list(list).unwrap_or_default();
            last.len() == number && last.iter().all(&so)
        });
        waited.with_context(|| format!("{last:#?}"))
    }
}

pub fn is_established(peer: &Value) -> bool {
    peer["state"] == "Established" && peer["complete"] == true
}

/// Whether the kernel answers a router that BFD sees.
pub fn is_answered(session: &Value) -> bool {
    session["state"] == "up" && session["inKernel"] == true
}

/// OPEN, and the KEEPALIVE that confirms the speaker's. With a hold time of 0 no more are needed.
pub fn open(autonomous_system: u32) -> Vec<u8> {
    let open = Open {
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
    keepalive(&mut octets);
    octets
}

/// A router of few words: a connection with a speaker.
pub struct RawRouter {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl RawRouter {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// Makes a session of the connection.
    pub fn establish(&mut self, autonomous_system: u32) -> Result<()> {
        self.stream.write_all(&open(autonomous_system))?;
        self.next(Kind::Keepalive).map(drop)
    }

    /// Reads up to a message of this kind, whose body is returned.
    pub fn next(&mut self, kind: Kind) -> Result<Vec<u8>> {
        loop {
            let found = message::first(&self.buffer).ok().context("the speaker's message")?;
            if let Some(first) = found {
                let (found, body, length) = (first.kind, first.body.to_vec(), first.length());
                self.buffer.drain(..length);
                if found == kind {
                    return Ok(body);
                }
                ensure!(found != Kind::Notification, "{body:?} instead of {kind:?}");
                continue;
            }
            let mut buffer = [0; 4096];
            let length = self.stream.read(&mut buffer)?;
            ensure!(length > 0, "the connection ended before {kind:?}");
            self.buffer.extend(&buffer[..length]);
        }
    }
}

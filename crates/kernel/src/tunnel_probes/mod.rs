//! Probes other nodes in a thread, and tells the data plane which of them take packets out of
//! tunnels.
//!
//! A probe is a datagram to the port of tunnels, with the cluster's key. The other node's data plane
//! returns it, without its agent. Replies wait in the socket until the next tick, so that they wake
//! nothing.

mod probes;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aya::maps::{HashMap, MapData, MapError};
use lb_common::header::{GUE, KeyedGue};
use lb_common::layout::{Peer, TunnelPeer, map};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;

use crate::pins::Pins;
use crate::plain::Plain;
use crate::privileges::Privileges;
use crate::removal::ignore_missing;

use probes::{Probe, Probes};

/// How often replies are read, and probes sent.
const TICK: Duration = Duration::from_secs(1);
/// How often the nodes are read, in ticks.
const READ_NODES: u32 = 5;
/// Room for the replies of one tick.
const RECEIVE_BUFFER: usize = 1 << 20;

type Peers = HashMap<MapData, Plain<Peer>, u32>;

/// Receives how many nodes take packets out of tunnels, and how many do not.
pub(crate) type PublishResults = Box<dyn FnMut(usize, usize) + Send>;

/// Probes nodes in a thread; ends with the agent.
pub struct TunnelProbes(Sender<u64>);

impl TunnelProbes {
    pub fn follow(pins: &Pins, publish: PublishResults) -> Result<Self> {
        let (sender, keys) = channel();
        let (nodes, found) = (pins.hash_map(map::PEERS)?, pins.hash_map(map::TUNNEL_PEERS)?);
        let written = known(&found)?;
        let mut prober = Prober {
            probes: Probes::new(written.clone()),
            written,
            nodes,
            found,
            sockets: [false, true].map(|v6| socket(v6).ok()),
            started: Instant::now(),
            key: 0,
            publish,
            complained: String::new(),
        };
        thread::Builder::new().name("tunnel probes".into()).spawn(move || {
            if let Err(error) = Privileges::AGENT.once_attached() {
                tracing::warn!(error = format!("{error:#}"), "capabilities not dropped");
            }
            prober.run(&keys);
        })?;
        Ok(Self(sender))
    }

    /// Sets the key that probes carry; 0: nothing is probed. Returns at once.
    pub fn set_key(&self, key: u64) {
        // Fails only if the thread has panicked, which has been reported.
        let _ = self.0.send(key);
    }
}

struct Prober {
    probes: Probes,
    /// What the map contains.
    written: BTreeMap<IpAddr, bool>,
    nodes: Peers,
    found: Peers,
    sockets: [Option<UdpSocket>; 2],
    started: Instant,
    key: u64,
    publish: PublishResults,
    complained: String,
}

impl Prober {
    fn run(&mut self, keys: &Receiver<u64>) {
        for tick in 0_u32.. {
            match keys.recv_timeout(TICK) {
                Ok(key) => self.key = key,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Err(error) = self.tick(tick % READ_NODES == 0) {
                let error = format!("{error:#}");
                if error != self.complained {
                    tracing::warn!(error, "nodes not probed for tunnels");
                }
                self.complained = error;
            }
        }
    }

    fn tick(&mut self, read_nodes: bool) -> Result<()> {
        let now = self.started.elapsed();
        self.receive(now);
        if self.key == 0 {
            self.probes = Probes::default();
        } else {
            if read_nodes || self.probes.is_empty() {
                let mut nodes = addresses(&self.nodes)?;
                nodes.retain(|node| !is_own(*node));
                self.probes.set_nodes(&nodes);
            }
            for probe in self.probes.due(now, random) {
                self.send(probe);
            }
        }
        self.write()
    }

    /// A lost probe is repeated, so errors of single ones do not matter.
    fn send(&self, probe: Probe) {
        if let Some(socket) = &self.sockets[usize::from(probe.node.is_ipv6())] {
            let _ = socket.send_to(&message(self.key, probe.number), (probe.node, GUE));
        }
    }

    fn receive(&mut self, now: Duration) {
        let mut buffer = [0; LENGTH + 1];
        for socket in self.sockets.iter().flatten() {
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if let Some((number, returns)) = read_reply(&buffer[..length])
                    && from.port() == GUE
                {
                    self.probes.returned(now, Probe { node: from.ip(), number }, returns);
                }
            }
        }
    }

    fn write(&mut self) -> Result<()> {
        let wanted = self.probes.decapsulating();
        for (&node, &returns) in &wanted {
            let before = self.written.get(&node);
            if before == Some(&returns) {
                continue;
            }
            let value = if returns { TunnelPeer::RETURNS } else { TunnelPeer::DECAPSULATES };
            self.found.insert(Plain(Peer::from(node)), value, 0).with_context(|| {
                format!("node {node} can't be written to {}", map::TUNNEL_PEERS)
            })?;
            if before.is_none() {
                tracing::info!(%node, "tunnels lead to node");
            }
        }
        for &node in self.written.keys().filter(|node| !wanted.contains_key(node)) {
            ignore_missing(self.found.remove(&Plain(Peer::from(node)))).with_context(|| {
                format!("node {node} can't be removed from {}", map::TUNNEL_PEERS)
            })?;
            tracing::info!(%node, "no tunnels lead to node any more");
        }
        (self.publish)(wanted.len(), self.probes.len() - wanted.len());
        self.written = wanted;
        Ok(())
    }
}

/// Length of a probe: the GUE header with the key, the number, and room for what the node does
/// beside returning probes.
const LENGTH: usize = size_of::<KeyedGue>() + size_of::<u64>() + size_of::<u16>();

fn message(key: u64, number: u64) -> [u8; LENGTH] {
    let mut message = [0; LENGTH];
    message[0] = KeyedGue::MESSAGE;
    message[1] = KeyedGue::PROBE;
    message[4..12].copy_from_slice(&key.to_be_bytes());
    message[12..20].copy_from_slice(&number.to_be_bytes());
    message
}

/// The number of a returned probe, and whether its node returns packets of unknown connections.
/// Older nodes return a probe without writing what they do.
fn read_reply(message: &[u8]) -> Option<(u64, bool)> {
    let message: &[u8; LENGTH] = message.try_into().ok()?;
    let [.., a, b, c, d, e, f, g, h, i, j] = *message;
    let is_reply = message[..4] == [KeyedGue::MESSAGE, KeyedGue::PROBE_REPLY, 0, 0];
    let returns = u32::from(u16::from_be_bytes([i, j])) >= TunnelPeer::RETURNS;
    is_reply.then_some((u64::from_be_bytes([a, b, c, d, e, f, g, h]), returns))
}

fn socket(v6: bool) -> io::Result<UdpSocket> {
    let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    // Otherwise a large cluster's replies may be lost, and are asked for again.
    let _ = setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER);
    Ok(socket)
}

/// Whether an address is this machine's: only those can be bound.
pub fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}

/// Unpredictable, so that only the node that got a probe can return it.
fn random() -> u64 {
    let mut number = [0; 8];
    // Fails only where there is no entropy source at all.
    let _ = getrandom::fill(&mut number);
    u64::from_ne_bytes(number)
}

/// What an earlier agent has written.
fn known(peers: &Peers) -> Result<BTreeMap<IpAddr, bool>> {
    let node = |entry: Result<(Plain<Peer>, u32), MapError>| {
        let (Plain(peer), value) = entry?;
        Ok((peer.ip(), value >= TunnelPeer::RETURNS))
    };
    peers.iter().map(node).collect()
}

fn addresses(peers: &Peers) -> Result<BTreeSet<IpAddr>> {
    let address = |key: Result<Plain<Peer>, MapError>| {
        let Plain(peer) = key?;
        Ok(peer.ip())
    };
    peers.keys().map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_returned_probes_are_replies() {
        let probe = message(0x0102_0304_0506_0708, 9);
        assert_eq!(probe, [0x22, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0]);
        assert_eq!(read_reply(&probe), None, "an echo proves nothing");
        let mut reply = probe;
        reply[1] = 2;
        assert_eq!(read_reply(&reply), Some((9, false)));
        assert_eq!(read_reply(&reply[..21]), None);
        assert_eq!(read_reply(&[&reply[..], &[0]].concat()), None);
        reply[21] = 2;
        assert_eq!(read_reply(&reply), Some((9, true)));
    }

    #[test]
    fn own_addresses_are_recognized() {
        assert!(is_own([127, 0, 0, 1].into()));
        assert!(!is_own([192, 0, 2, 1].into()));
    }
}

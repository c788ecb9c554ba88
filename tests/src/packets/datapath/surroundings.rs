//! The devices and neighbours of the data plane: a namespace for the kernel, and equal tables for
//! the host.

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;

use anyhow::Result;
use lb_common::host::Exit;
use lb_network::Device;

use crate::packets::{CLIENT_MAC, Mac, NODE_MAC};
use crate::worlds::topology::{Host, Topology};

/// The ingress device.
pub const OUTSIDE: u32 = 10;
/// The device to other nodes.
pub const INSIDE: u32 = 20;
/// Another device to other nodes.
pub const ASIDE: u32 = 30;

/// A device that is not in the data plane's tables.
pub const UNKNOWN: u32 = 40;

const DEVICES: [u32; 4] = [OUTSIDE, INSIDE, ASIDE, UNKNOWN];

/// A device's entry: its addresses, 192.0.2.1 and 2001:db8::1 for the first one, and that XDP can
/// redirect to it.
pub fn device(index: u32) -> Device {
    let last = index / 10;
    Device {
        name: name(index).into(),
        v4: format!("192.0.{}.1", last + 1).parse().ok(),
        v6: format!("2001:db8:{}::1", last - 1).parse().ok(),
        mtu: 1500,
        mac: mac(index).0,
        // Backends reply through the same interface, to the sender of the request.
        macs_above: if index == OUTSIDE { [CLIENT_MAC.0].into() } else { BTreeSet::new() },
        redirect: true,
        transmit: true,
    }
}

/// The link-layer address of a device. Packets are addressed to that of the ingress device.
pub fn mac(device: u32) -> Mac {
    if device == OUTSIDE { NODE_MAC } else { Mac([2, 0, 0, 0, 0, device as u8]) }
}

fn name(index: u32) -> &'static str {
    match index {
        OUTSIDE => "ext0",
        INSIDE => "lan0",
        ASIDE => "lan1",
        _ => "lan2",
    }
}

/// A route through a device to a neighbour with this link-layer address.
pub fn neighbour(device: u32, mac: Mac) -> Exit {
    Exit { device, neighbour: Some(mac.0), mtu: 1500 }
}

/// An exit through a device whose neighbour is unresolved.
pub fn unknown_neighbour(device: u32) -> Exit {
    Exit { device, neighbour: None, mtu: 1500 }
}

/// A namespace with these devices, without neighbours.
pub struct Surroundings {
    pub host: Host,
    exits: BTreeSet<IpAddr>,
}

impl Surroundings {
    pub fn new(topology: &Topology) -> Result<Self> {
        let host = topology.router("node")?;
        let mut commands = Vec::new();
        for index in DEVICES {
            let (name, mac) = (name(index), mac(index));
            commands.push(format!(
                "link add {name} index {index} address {mac} type veth peer name {name}-far"
            ));
            commands.push(format!("link set {name}-far up"));
            commands.push(format!("link set {name} up"));
            let Device { v4, v6, .. } = device(index);
            commands.extend(v4.map(|address| format!("address add {address}/32 dev {name}")));
            // Addresses can't be used during duplicate address detection.
            commands
                .extend(v6.map(|address| format!("address add {address}/128 dev {name} nodad")));
        }
        host.ip_batch(&commands)?;
        Ok(Self { host, exits: BTreeSet::new() })
    }

    pub fn set_exits(&mut self, exits: &[(IpAddr, Exit)]) -> Result<()> {
        self.exits.extend(exits.iter().map(|(to, _)| *to));
        let commands = exits.iter().flat_map(|(to, exit)| {
            let Exit { device, neighbour, mtu } = *exit;
            let device = name(device);
            let permanent = neighbour
                .map(Mac)
                .map(|mac| format!("neigh replace {to} lladdr {mac} dev {device} nud permanent"));
            let route = format!("route replace {to} dev {device} mtu lock {mtu}");
            [forget_neighbours(*to), route].into_iter().chain(permanent)
        });
        self.host.ip_batch(&commands.collect::<Vec<_>>())
    }

    pub fn remove_exit(&mut self, to: IpAddr) -> Result<()> {
        self.exits.remove(&to);
        self.host.ip_batch(&removal(to))
    }

    /// Removes all routes and neighbours.
    pub fn reset(&mut self) -> Result<()> {
        let exits = mem::take(&mut self.exits).into_iter();
        self.host.ip_batch(&exits.flat_map(removal).collect::<Vec<_>>())
    }
}

/// The command of `ip` that removes the neighbours with this address.
fn forget_neighbours(to: IpAddr) -> String {
    format!("neigh flush to {to} nud permanent")
}

/// The commands that remove the route to an address and the neighbours with it.
fn removal(to: IpAddr) -> [String; 2] {
    [forget_neighbours(to), format!("route del {to}")]
}

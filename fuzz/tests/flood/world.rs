//! A node with its tables, Services, and a clock that only the test advances.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use fuzz::TableChange;
use lb_common::datapath::Verdict;
use lb_common::header::protocol::{TCP, UDP};
use lb_common::host::{self, EntryPoint, Exit, HostFrame, HostTables, Routes};
use lb_common::layout::{
    Backend, Device, FlowState, Forwarding, Frontend, FrontendKind, Pool, Ticks,
};

use fuzz::wire::{Ipv4End, Packet};

/// Where a Service's backends are, and how packets get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// On this node. Replies leave through the external interface.
    Local,
    /// On another node, with SNAT. Replies arrive from the network.
    Snat,
    /// On another node, through a tunnel. Replies don't pass through this node.
    Tunnel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    pub path: Path,
    pub protocol: u8,
}

pub const SERVICES: [Service; 6] = [
    Service { path: Path::Local, protocol: TCP },
    Service { path: Path::Snat, protocol: TCP },
    Service { path: Path::Tunnel, protocol: TCP },
    Service { path: Path::Local, protocol: UDP },
    Service { path: Path::Snat, protocol: UDP },
    Service { path: Path::Tunnel, protocol: UDP },
];

/// Backends of each Service. So few that all their SNAT ports together are fewer than the entries
/// of the flow table.
pub const BACKENDS: usize = 4;
const POOL_SLOTS: u32 = 251;
const NODE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const INTERFACE: u32 = 2;
const GATEWAY: Exit = Exit { device: INTERFACE, neighbour: Some([2, 0, 0, 0, 0, 9]), mtu: 1500 };
/// In nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

impl Service {
    fn number(self) -> u8 {
        let number = SERVICES.iter().position(|service| *service == self);
        number.expect("one of SERVICES") as u8
    }

    pub fn frontend(self) -> Ipv4End {
        let port = if self.protocol == TCP { 80 } else { 53 };
        Ipv4End::new([203, 0, 113, 10 + self.number()], port)
    }

    pub fn backend(self, number: usize) -> Ipv4End {
        Ipv4End::new([10, 244, self.number(), 1 + number as u8], 8080)
    }

    pub fn is_backend(self, end: Ipv4End) -> bool {
        (0..BACKENDS).any(|number| self.backend(number) == end)
    }

    /// The node of a tunnelled Service's backend.
    pub fn node_of(self, backend: Ipv4End) -> Ipv4Addr {
        let [.., host] = backend.address.octets();
        Ipv4Addr::new(10, 0, 1, host)
    }
}

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodFate {
    /// Passed to the stack or sent, with these contents.
    Delivered(Packet),
    /// Sent through a tunnel to this node.
    Tunnelled(Packet, Ipv4Addr),
    /// Dropped, or unreadable.
    Lost(Verdict),
}

pub struct World {
    pub tables: HostTables,
    frame: HostFrame,
    /// Nanoseconds since the start.
    pub now: u64,
    /// Stages of the last packet.
    pub stages: u32,
}

impl World {
    pub fn new(buckets: u32, snat_ports: u16) -> Self {
        let mut tables = HostTables::new(buckets, 0x5eed);
        tables.settings.snat_port_count = snat_ports;
        let device = Device {
            address4: NODE.into(),
            mtu: 1500,
            link_address: [2, 0, 0, 0, 0, 1],
            flags: Device::TRANSMIT | Device::REDIRECT,
            ..Device::default()
        };
        tables.devices.insert(INTERFACE, device);
        let mut routes = HashMap::new();
        let mut changes = vec![TableChange::Destination(NODE.into())];
        for service in SERVICES {
            changes.extend(service_changes(service));
            for backend in (0..BACKENDS).map(|number| service.backend(number)) {
                routes.insert(IpAddr::V4(backend.address), GATEWAY);
                routes.insert(IpAddr::V4(service.node_of(backend)), GATEWAY);
            }
        }
        changes.iter().for_each(|change| change.apply(&mut tables));
        let routes = Routes(Rc::new(routes));
        let frame = HostFrame { device: INTERFACE, routes, ..HostFrame::new(Vec::new()) };
        let mut world = Self { tables, frame, now: 0, stages: 0 };
        world.advance(0);
        world
    }

    /// The address of this node, as the source of flows with SNAT.
    pub fn own_end() -> Ipv4End {
        Ipv4End { address: NODE, port: 0 }
    }

    pub fn advance(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        // Far enough from zero for flows last seen before the start.
        const BEGINNING: u64 = 1 << 52;
        self.tables.now.set(Ticks::from_nanoseconds(BEGINNING + self.now));
    }

    /// A client's packet arrives from the network.
    pub fn request(&mut self, packet: &Packet) -> FloodFate {
        self.run(EntryPoint::Ingress, packet)
    }

    /// A backend's packet reaches the hook that replies of its Service pass through.
    pub fn reply(&mut self, service: Service, packet: &Packet, client: Ipv4End) -> FloodFate {
        let entry = match service.path {
            Path::Local => EntryPoint::Egress,
            Path::Snat => EntryPoint::Ingress,
            Path::Tunnel => panic!("these replies do not come here"),
        };
        // A route only during the run: a flood has millions of clients.
        let client = IpAddr::V4(client.address);
        self.routes().insert(client, GATEWAY);
        let fate = self.run(entry, packet);
        self.routes().remove(&client);
        fate
    }

    fn routes(&mut self) -> &mut HashMap<IpAddr, Exit> {
        Rc::get_mut(&mut self.frame.routes.0).expect("nothing else holds the routes")
    }

    fn run(&mut self, entry: EntryPoint, packet: &Packet) -> FloodFate {
        packet.write(&mut self.frame.bytes);
        let mut stages = 0;
        let verdict = host::run(entry, &mut self.frame, &self.tables, |_, _| stages += 1);
        self.stages = stages;
        let bytes = &self.frame.bytes;
        let read = match verdict {
            Verdict::Pass | Verdict::Decline | Verdict::Transmit | Verdict::Redirect => {
                let plain = Packet::read(bytes).map(FloodFate::Delivered);
                let tunnelled = || Packet::read_tunnelled(bytes);
                plain.or_else(|| {
                    tunnelled().map(|(packet, node)| FloodFate::Tunnelled(packet, node))
                })
            }
            _ => None,
        };
        read.unwrap_or(FloodFate::Lost(verdict))
    }

    /// State and client of every flow.
    pub fn flows(&self) -> impl Iterator<Item = (FlowState, Ipv4Addr)> + '_ {
        let entries = self.tables.v4.flows.iter().flat_map(|bucket| bucket.entries());
        entries.map(|(state, _, flow)| (state, flow.client.octets.into()))
    }

    pub fn capacity(&self) -> usize {
        self.tables.v4.flows.len() * lb_common::layout::BUCKET_ENTRIES
    }
}

fn service_changes(service: Service) -> Vec<TableChange> {
    let number = u32::from(service.number());
    let end = |Ipv4End { address, port }, protocol| fuzz::TransportAddress {
        address: address.into(),
        port,
        protocol,
    };
    let mut changes = Vec::new();
    let mut indexes = Vec::new();
    for backend in 0..BACKENDS {
        let index = 1 + number * BACKENDS as u32 + backend as u32;
        indexes.push(index);
        let address = service.backend(backend);
        let (flags, node) = match service.path {
            Path::Local => (Backend::<()>::LOCAL, None),
            Path::Snat => (0, None),
            Path::Tunnel => (0, Some(IpAddr::V4(service.node_of(address)))),
        };
        let end = end(address, service.protocol);
        changes.push(TableChange::Backend { index, end, flags, generation: 1, node });
        changes.push(TableChange::Source(end));
    }
    let (pool, offset) = (1 + number, (1 + number) * POOL_SLOTS);
    let slots = indexes.into_iter().cycle().take(POOL_SLOTS as usize).collect();
    changes.push(TableChange::Slots { offset, slots });
    changes.push(TableChange::Pool { index: pool, pool: Pool { offset, size: POOL_SLOTS } });
    let forwarding = match service.path {
        Path::Tunnel => Forwarding::Ipip,
        Path::Local | Path::Snat => Forwarding::Masquerade,
    };
    let frontend = Frontend {
        service_port: 1 + number,
        cluster_pool: pool,
        local_pool: pool,
        populated: 1,
        forwarding: forwarding as u8,
        ..Frontend::of_address(FrontendKind::LoadBalancer)
    };
    let frontend_end = service.frontend();
    changes.push(TableChange::Destination(frontend_end.address.into()));
    let key = end(frontend_end, service.protocol);
    changes.push(TableChange::Frontend { key, value: Some(frontend) });
    changes
}

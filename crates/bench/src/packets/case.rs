//! The cases: a hook, a Service, and how the packets relate to the flow table.

use std::net::{IpAddr, SocketAddr};

use ::tests::packets::datapath::surroundings::{INSIDE, OUTSIDE};
use ::tests::packets::datapath::{Fate, Hook, Service, service};
use ::tests::packets::{CLIENT_MAC, Mac};
use lb_common::bench::{FIRST_PORT, PORTS};
use lb_common::layout::{Forwarding, Reason, Settings, Traffic};

const BACKENDS: u32 = 100;

pub(crate) const CLIENT_PORT: u16 = FIRST_PORT as u16;

/// The next hop to backends on other nodes.
pub const ROUTER_MAC: Mac = Mac([2, 0, 0, 0, 0, 0xee]);

/// How a packet relates to the flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    Established,
    /// From an unknown client. New flows fill the entries that established flows leave free, and then
    /// replace each other, as in a flood.
    New,
    /// From an unknown client, in a table with room: flows find entries that are free, or whose flows have expired.
    Fresh,
    /// From a backend on another node to an SNAT port.
    Reply,
    /// A reply to an SNAT port, on a node that has had more flows than its reply index has entries: all are of
    /// flows that are gone.
    AgedReply,
    /// Not addressed to a Service.
    None,
    /// From a client whose flow gets no entry: all are protected.
    Untracked,
    /// From an unknown client, as in a flood of SYNs, while all entries are protected.
    Flood,
    /// A later fragment of a datagram whose first was seen.
    Fragment,
    /// An ICMP error from the path to the client about a backend's packet.
    Error,
    /// Of an established connection, through a tunnel from another node.
    Delivered(Forwarding),
}

/// Where the backends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backends {
    /// On this node: requests continue to the stack, and replies leave through it.
    Local,
    /// On other nodes: both directions are translated with SNAT and sent from the hook.
    Remote,
    /// One on another node, to which all SNAT ports are in use, or have been.
    PortsInUse,
    /// On another node, behind a tunnel; replies do not pass this node.
    Tunnelled(Forwarding),
    /// There are none. Packets are dropped, and very few are rejected, because of the rate limit.
    Nowhere,
}

/// What the Service requires of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPolicy {
    None,
    /// Clients stay with their backend.
    Affinity,
    /// Clients must be in ranges of addresses.
    Ranges,
}

/// The addresses and ports of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub client: SocketAddr,
    pub backend: SocketAddr,
    pub snat: SocketAddr,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub hook: Hook,
    pub v6: bool,
    pub udp: bool,
    pub policy: ClientPolicy,
    pub backends: Backends,
    pub kind: PacketKind,
}

const TUNNELS: [Forwarding; 2] = [Forwarding::Ipip, Forwarding::Gue];

/// The cases of one family for this number of live flows.
pub fn cases_of_family(flows: u32, v6: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for udp in [false, true] {
        let case = Case::established(v6, udp);
        cases.push(case);
        cases.push(Case { kind: PacketKind::New, ..case });
        cases.push(Case { hook: Hook::Reverse, ..case });
    }
    let case = Case::established(v6, false);
    cases.push(Case { kind: PacketKind::Fresh, ..case });
    let sticky = Case { policy: ClientPolicy::Affinity, ..case };
    cases.push(sticky);
    cases.push(Case { kind: PacketKind::New, ..sticky });
    for hook in [Hook::Forward, Hook::Stack] {
        for kind in [
            PacketKind::Established,
            PacketKind::New,
            PacketKind::Fresh,
            PacketKind::Reply,
            PacketKind::AgedReply,
        ] {
            cases.push(Case { hook, kind, backends: Backends::Remote, ..case });
        }
    }
    for tunnel in TUNNELS {
        let sent = Case { backends: Backends::Tunnelled(tunnel), ..case };
        cases.extend([sent, Case { kind: PacketKind::Delivered(tunnel), ..case }]);
    }
    if flows == 1 {
        for hook in [Hook::Forward, Hook::AfterXdp, Hook::Reverse] {
            cases.push(Case { hook, kind: PacketKind::None, ..case });
        }
        cases.extend(rare(case));
    }
    cases
}

/// Cases that do not depend on the number of flows.
fn rare(case: Case) -> impl Iterator<Item = Case> {
    let datagram = Case { udp: true, ..case };
    let new = Case { kind: PacketKind::New, ..case };
    [
        Case { backends: Backends::PortsInUse, ..new },
        Case { backends: Backends::PortsInUse, kind: PacketKind::Fresh, ..case },
        Case { policy: ClientPolicy::Ranges, ..new },
        Case { backends: Backends::Tunnelled(Forwarding::Gue), ..new },
        Case { backends: Backends::Nowhere, ..new },
        Case { kind: PacketKind::Untracked, ..case },
        Case { kind: PacketKind::Flood, ..case },
        Case { kind: PacketKind::Flood, backends: Backends::Remote, ..case },
        Case { kind: PacketKind::Fragment, ..datagram },
        Case { kind: PacketKind::Error, ..case },
    ]
    .into_iter()
}

impl Case {
    /// Packets of established connections, handled by XDP.
    pub fn established(v6: bool, udp: bool) -> Self {
        Self {
            hook: Hook::Forward,
            v6,
            udp,
            policy: ClientPolicy::None,
            backends: Backends::Local,
            kind: PacketKind::Established,
        }
    }

    pub fn name(&self) -> String {
        let hook = match self.hook {
            Hook::Forward => "xdp",
            Hook::AfterXdp => "deferred",
            Hook::Stack | Hook::Workload | Hook::Reverse | Hook::Process => "tc",
        };
        let family = if self.v6 { "v6" } else { "v4" };
        let protocol = if self.udp { "udp" } else { "tcp" };
        let service = match (self.policy, self.backends, self.kind) {
            (ClientPolicy::Affinity, ..) => ".affinity",
            (ClientPolicy::Ranges, ..) => ".ranges",
            (_, Backends::Remote, _) => ".snat",
            (_, Backends::PortsInUse, _) => ".ports",
            (_, Backends::Tunnelled(tunnel), _) | (_, _, PacketKind::Delivered(tunnel)) => {
                match tunnel {
                    Forwarding::Ipip => ".ipip",
                    _ => ".gue",
                }
            }
            (_, Backends::Local | Backends::Nowhere, _) => "",
        };
        let kind = match self.kind {
            PacketKind::None => return format!("{hook}.{family}.none"),
            PacketKind::New if self.backends == Backends::Nowhere => "rejected",
            PacketKind::New => "new",
            PacketKind::Fresh => "fresh",
            PacketKind::Reply => "reply",
            PacketKind::AgedReply => "aged.reply",
            PacketKind::Established => "established",
            PacketKind::Untracked => "untracked",
            PacketKind::Flood => "flood",
            PacketKind::Fragment => "fragment",
            PacketKind::Error => "error",
            PacketKind::Delivered(_) => "delivered",
        };
        format!("{hook}.{family}.{protocol}{service}.{kind}")
    }

    pub fn describe(&self, flows: u32) -> String {
        format!("{} with {flows} flows", self.name())
    }

    pub fn service(&self) -> Service {
        let protocol = if self.udp { "UDP" } else { "TCP" };
        let backends = self.backends();
        let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
        let cluster = self.end("10.96.0.10", "fd00:10:96::a", 80);
        let service = service(&format!("{cluster}/{protocol}"));
        let service = match self.backends {
            Backends::Local | Backends::Nowhere => service.backends(&backends),
            Backends::Remote | Backends::PortsInUse => service.remote_backends(&backends),
            Backends::Tunnelled(tunnel) => {
                service.remote_backends(&backends).on_node(&self.other_node()).forwarding(tunnel)
            }
        };
        let service = match self.kind {
            PacketKind::Delivered(tunnel) => service.forwarding(tunnel),
            _ => service,
        };
        match self.policy {
            ClientPolicy::None => service,
            ClientPolicy::Affinity => service.affinity(10_800),
            ClientPolicy::Ranges => service.load_balancer(&self.frontend()).source_ranges(&[
                "192.0.2.0/24",
                "100.64.0.0/10",
                "16.0.0.0/8",
                "2001:db8:99::/48",
                "2001:db8:64::/48",
                "2001:db8:16::/48",
            ]),
        }
    }

    /// The addresses to which packets leave from the hook, and through which device.
    pub fn exits(&self, flows: u32) -> Vec<(IpAddr, u32, Mac)> {
        let address = |end: String| end.parse::<SocketAddr>().expect("an end of a case").ip();
        match self.backends {
            Backends::Local | Backends::Nowhere => Vec::new(),
            Backends::Tunnelled(_) => {
                vec![(parse(&self.other_node()), INSIDE, ROUTER_MAC)]
            }
            Backends::Remote | Backends::PortsInUse => {
                let backends = self.backends().into_iter();
                let clients = (0..flows.div_ceil(PORTS)).map(|number| {
                    let client = self.end(
                        &format!("100.64.0.{number}"),
                        &format!("2001:db8:64::{number:x}"),
                        CLIENT_PORT,
                    );
                    (address(client), OUTSIDE, CLIENT_MAC)
                });
                backends
                    .map(|backend| (address(backend), INSIDE, ROUTER_MAC))
                    .chain(clients)
                    .collect()
            }
        }
    }

    /// Whether flows are established before the measurement.
    pub(crate) fn has_flows(&self) -> bool {
        let fills =
            matches!(self.kind, PacketKind::None | PacketKind::Untracked | PacketKind::Flood);
        !fills && self.backends != Backends::Nowhere
    }

    /// The least capacity of the table: eight times as many entries as the case has flows, also those of SNAT ports
    /// that are in use.
    pub(crate) fn least_room(&self) -> u32 {
        match self.backends {
            Backends::PortsInUse => (8 * u32::from(Settings::SNAT_PORT_COUNT)).next_power_of_two(),
            _ => 0,
        }
    }

    /// Whether packets are encapsulated.
    pub fn is_tunnelled(&self) -> bool {
        matches!(self.backends, Backends::Tunnelled(_))
    }

    /// Whether packets are rejected, as far as the rate limit allows.
    pub fn is_limited(&self) -> bool {
        self.backends == Backends::Nowhere
    }

    /// Whether the packets are from backends on other nodes.
    pub fn is_reply(&self) -> bool {
        matches!(self.kind, PacketKind::Reply | PacketKind::AgedReply)
    }

    /// Whether no flow can get an entry of the table.
    pub fn is_full(&self) -> bool {
        matches!(self.kind, PacketKind::Untracked | PacketKind::Flood)
    }

    /// Whether the measured packets come from clients.
    pub fn is_request(&self) -> bool {
        match self.hook {
            Hook::Forward | Hook::Stack => !(self.is_reply() || self.kind == PacketKind::Error),
            _ => false,
        }
    }

    /// The possible fates of the measured packets.
    pub fn fates(&self) -> &'static [Fate] {
        match (self.backends, self.kind) {
            (Backends::Remote, PacketKind::Flood) => &[Fate::Dropped],
            (Backends::Local, _) => &[Fate::Passed, Fate::Deferred],
            (Backends::Remote | Backends::PortsInUse | Backends::Tunnelled(_), _) => {
                &[Fate::Sent, Fate::Transmitted]
            }
            (Backends::Nowhere, _) => &[Fate::Dropped, Fate::Transmitted],
        }
    }

    /// The reason for which every packet is counted.
    pub fn reason(&self) -> Option<Reason> {
        match (self.backends, self.kind) {
            (Backends::Nowhere, _) => Some(Reason::NoBackend),
            (Backends::Remote, PacketKind::Flood) => Some(Reason::FlowTableFull),
            (_, PacketKind::Untracked | PacketKind::Flood) => Some(Reason::Untracked),
            _ => None,
        }
    }

    /// The expected increase of the service port's counters. Bytes are not compared.
    pub(crate) fn expected_rise(&self, packets: u64) -> Traffic {
        let is_dropped = self.fates().contains(&Fate::Dropped);
        let (forward_packets, reverse_packets, new_flows) = match (self.kind, self.is_request()) {
            (PacketKind::None | PacketKind::Error, _) => (0, 0, 0),
            _ if is_dropped => (0, 0, 0),
            (PacketKind::New | PacketKind::Fresh, _) => (packets, 0, packets),
            (_, true) => (packets, 0, 0),
            (_, false) => (0, packets, 0),
        };
        Traffic { forward_packets, reverse_packets, new_flows, ..Traffic::default() }
    }

    /// The address of another node, the other end of tunnels.
    pub fn other_node(&self) -> String {
        (if self.v6 { "2001:db8:77::1" } else { "192.0.77.1" }).to_owned()
    }

    pub fn frontend(&self) -> String {
        match self.policy {
            ClientPolicy::Ranges => self.end("203.0.113.10", "2001:db8:113::a", 80),
            _ => self.end("10.96.0.10", "fd00:10:96::a", 80),
        }
    }

    /// All replies of local backends come from one, because the wrapper varies only the client. The
    /// backend does not affect how replies are handled. Tunnelled packets name one backend, too.
    pub fn backends(&self) -> Vec<String> {
        let count = match (self.backends, self.kind) {
            (Backends::Nowhere, _) => 0,
            (Backends::PortsInUse, _) | (_, PacketKind::Delivered(_) | PacketKind::Error) => 1,
            _ if self.is_reply() || self.is_request() => BACKENDS,
            _ => 1,
        };
        (1..=count)
            .map(|n| self.end(&format!("10.244.1.{n}"), &format!("fd00:10:244::{n}"), 8080))
            .collect()
    }

    pub fn end(&self, v4: &str, v6: &str, port: u16) -> String {
        if self.v6 { format!("[{v6}]:{port}") } else { format!("{v4}:{port}") }
    }
}

fn parse(address: &str) -> IpAddr {
    address.parse().expect("an address of a case")
}

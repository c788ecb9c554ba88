//! The cases: packets, the program that handles them, and their Service.

use std::net::{IpAddr, SocketAddr};

use lb_common::bench::{FIRST_PORT, PORTS, Template};
use lb_common::layout::Traffic;
use tests::datapath::surroundings::{INSIDE, OUTSIDE, mac};
use tests::datapath::{Fate, Hook, Service, service};
use tests::generator::{Side, template, template_of_list};
use tests::packet::{CLIENT_MAC, Mac, Packet, tcp, udp};

const BACKENDS: u32 = 100;

/// More clients than a measurement has packets, so each packet opens a new flow.
const ENDLESS: u32 = 1 << 28;

const HOP_LIMIT: u8 = 64;

const CLIENT_PORT: u16 = FIRST_PORT as u16;

/// The next hop to backends on other nodes.
pub const ROUTER_MAC: Mac = Mac([2, 0, 0, 0, 0, 0xee]);

/// How a packet relates to the flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Established,
    /// From an unknown client. New flows fill the entries that established flows leave free, and then
    /// replace each other, as in a flood.
    New,
    /// From a backend on another node to an SNAT port.
    Reply,
    /// Not addressed to a Service.
    None,
}

/// Where the backends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backends {
    /// On this node: requests continue to the stack, and replies leave through it.
    Local,
    /// On other nodes: both directions are translated with SNAT and sent from the hook.
    Remote,
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
    /// Whether the Service has session affinity.
    pub affinity: bool,
    pub backends: Backends,
    pub kind: Kind,
}

/// The cases of one family for this number of live flows.
pub fn cases(flows: u32, v6: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for udp in [false, true] {
        let case = Case::established(v6, udp);
        cases.push(case);
        cases.push(Case { kind: Kind::New, ..case });
        cases.push(Case { hook: Hook::Reverse, ..case });
    }
    let sticky = Case { affinity: true, ..Case::established(v6, false) };
    cases.push(sticky);
    cases.push(Case { kind: Kind::New, ..sticky });
    for hook in [Hook::Forward, Hook::Stack] {
        for kind in [Kind::Established, Kind::New, Kind::Reply] {
            let case = Case::established(v6, false);
            cases.push(Case { hook, kind, backends: Backends::Remote, ..case });
        }
    }
    if flows == 1 {
        for hook in [Hook::Forward, Hook::AfterXdp, Hook::Reverse] {
            let case = Case::established(v6, false);
            cases.push(Case { hook, kind: Kind::None, ..case });
        }
    }
    cases
}

impl Case {
    /// Packets of established connections, handled by XDP.
    pub fn established(v6: bool, udp: bool) -> Self {
        Self {
            hook: Hook::Forward,
            v6,
            udp,
            affinity: false,
            backends: Backends::Local,
            kind: Kind::Established,
        }
    }

    pub fn name(&self) -> String {
        let hook = match self.hook {
            Hook::Forward => "xdp",
            Hook::AfterXdp => "deferred",
            Hook::Stack | Hook::Workload | Hook::Reverse => "tc",
        };
        let family = if self.v6 { "v6" } else { "v4" };
        let protocol = match (self.udp, self.affinity, self.backends) {
            (true, _, _) => "udp",
            (false, true, _) => "tcp.affinity",
            (false, false, Backends::Local) => "tcp",
            (false, false, Backends::Remote) => "tcp.snat",
        };
        match self.kind {
            Kind::None => format!("{hook}.{family}.none"),
            Kind::New => format!("{hook}.{family}.{protocol}.new"),
            Kind::Reply => format!("{hook}.{family}.{protocol}.reply"),
            Kind::Established => format!("{hook}.{family}.{protocol}.established"),
        }
    }

    pub fn describe(&self, flows: u32) -> String {
        format!("{} with {flows} flows", self.name())
    }

    pub fn service(&self) -> Service {
        let protocol = if self.udp { "UDP" } else { "TCP" };
        let backends = self.backends();
        let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
        let service = service(&format!("{}/{protocol}", self.frontend()));
        let service = match self.backends {
            Backends::Local => service.backends(&backends),
            Backends::Remote => service.remote_backends(&backends),
        };
        if self.affinity { service.affinity(10_800) } else { service }
    }

    /// The addresses to which packets leave from the hook, and through which device.
    pub fn exits(&self, flows: u32) -> Vec<(IpAddr, u32, Mac)> {
        if self.backends == Backends::Local {
            return Vec::new();
        }
        let backends = self.backends().into_iter().map(|backend| (backend, INSIDE, ROUTER_MAC));
        let clients = (0..flows.div_ceil(PORTS)).map(|number| {
            let client = self.end(
                &format!("100.64.0.{number}"),
                &format!("2001:db8:64::{number:x}"),
                CLIENT_PORT,
            );
            (client, OUTSIDE, CLIENT_MAC)
        });
        let address = |end: &str| end.parse::<SocketAddr>().expect("an end of a case").ip();
        backends.chain(clients).map(|(end, device, mac)| (address(&end), device, mac)).collect()
    }

    /// The first measured packet, and how it varies. `some`: any flow.
    pub fn template(&self, flows: u32, some: Option<Ends>) -> (Packet, Template) {
        let packet = match self.kind {
            Kind::New => {
                let fresh = self.request_of(self.end("16.0.0.0", "2001:db8:16::", CLIENT_PORT));
                if self.udp { fresh } else { fresh.syn() }
            }
            Kind::Established | Kind::Reply | Kind::None => self.packet(some),
        };
        let template = match (self.kind, self.is_request()) {
            (Kind::Reply, _) => template_of_list(&packet, flows),
            (Kind::New, _) => template(&packet, Side::Source, ENDLESS),
            (_, true) => template(&packet, Side::Source, flows),
            (_, false) => template(&packet, Side::Destination, flows),
        };
        (packet, template)
    }

    /// A packet of an established connection.
    pub fn request(&self) -> Packet {
        self.request_of(self.end("100.64.0.0", "2001:db8:64::", CLIENT_PORT))
    }

    /// A backend's reply to it, if the backend knows the client's address.
    pub fn answer(&self) -> Packet {
        let answer = self.request().reversed();
        match self.kind {
            Kind::None => answer,
            _ => answer.from(self.backends()[0].as_str()),
        }
    }

    /// Whether the measured packets come from clients.
    fn is_request(&self) -> bool {
        match self.hook {
            Hook::Forward | Hook::Stack => self.kind != Kind::Reply,
            Hook::AfterXdp | Hook::Workload | Hook::Reverse => false,
        }
    }

    /// A packet of an established connection as the program gets it.
    fn packet(&self, some: Option<Ends>) -> Packet {
        match (self.kind, some) {
            (Kind::Reply, Some(ends)) => self.answer().from(ends.backend).to(ends.snat),
            _ if self.is_request() => self.request(),
            _ => self.answer(),
        }
    }

    /// A packet before the program, and all possible results.
    pub fn expected(&self, flow: Option<Ends>) -> (Packet, Vec<Packet>) {
        let packet = match (self.is_request(), flow) {
            (true, Some(flow)) => self.request().from(flow.client),
            _ => self.packet(flow),
        };
        let expected = match (self.kind, self.backends, flow) {
            (Kind::None, ..) => vec![packet.clone()],
            (Kind::Reply, _, Some(flow)) => {
                let client = packet.from(self.frontend().as_str()).to(flow.client);
                vec![client.macs(mac(OUTSIDE), CLIENT_MAC).ttl(HOP_LIMIT - 1)]
            }
            (_, Backends::Remote, Some(flow)) => {
                let backend = packet.from(flow.snat).to(flow.backend);
                vec![backend.macs(mac(INSIDE), ROUTER_MAC).ttl(HOP_LIMIT - 1)]
            }
            _ if self.is_request() => {
                self.backends().iter().map(|backend| packet.to(backend.as_str())).collect()
            }
            _ => vec![packet.from(self.frontend().as_str())],
        };
        (packet, expected)
    }

    /// Whether the packet's fate is the intended one.
    pub fn intends(&self, fate: Fate) -> bool {
        match self.backends {
            Backends::Local => matches!(fate, Fate::Passed | Fate::Deferred),
            Backends::Remote => matches!(fate, Fate::Sent | Fate::Transmitted),
        }
    }

    /// The expected increase of the service port's counters. Bytes are not compared.
    pub fn expected_rise(&self, packets: u64) -> Traffic {
        let (forward_packets, reverse_packets, new_flows) = match (self.kind, self.is_request()) {
            (Kind::None, _) => (0, 0, 0),
            (Kind::New, _) => (packets, 0, packets),
            (_, true) => (packets, 0, 0),
            (_, false) => (0, packets, 0),
        };
        Traffic { forward_packets, reverse_packets, new_flows, ..Traffic::default() }
    }

    fn request_of(&self, client: String) -> Packet {
        let to = match self.kind {
            Kind::None => self.end("192.0.2.99", "2001:db8::99", 80),
            _ => self.frontend(),
        };
        let packet = if self.udp {
            udp(client.as_str(), to.as_str())
        } else {
            tcp(client.as_str(), to.as_str()).ack()
        };
        packet.ttl(HOP_LIMIT).payload(&[b'x'; 100])
    }

    fn frontend(&self) -> String {
        self.end("10.96.0.10", "fd00:10:96::a", 80)
    }

    /// All replies of local backends come from one, because the wrapper varies only the client. The
    /// backend does not affect how replies are handled.
    fn backends(&self) -> Vec<String> {
        let count = if self.is_request() || self.kind == Kind::Reply { BACKENDS } else { 1 };
        (1..=count)
            .map(|n| self.end(&format!("10.244.1.{n}"), &format!("fd00:10:244::{n}"), 8080))
            .collect()
    }

    fn end(&self, v4: &str, v6: &str, port: u16) -> String {
        if self.v6 { format!("[{v6}]:{port}") } else { format!("{v4}:{port}") }
    }
}

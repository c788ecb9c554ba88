//! The cases: packets, the program that handles them, and their Service.

use lb_common::bench::FIRST_PORT;
use lb_common::layout::Traffic;
use tests::datapath::{Hook, Service, service};
use tests::packet::{Packet, tcp, udp};

use super::wrapper::Side;

const BACKENDS: u32 = 100;

/// More clients than a measurement has packets, so each packet opens a new flow.
const ENDLESS: u32 = 1 << 28;

const CLIENT_PORT: u16 = FIRST_PORT as u16;

/// How a packet relates to the flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Established,
    /// From an unknown client. New flows fill the entries that established flows leave free, and then
    /// replace each other, as in a flood.
    New,
    /// Not addressed to a Service.
    None,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub hook: Hook,
    pub v6: bool,
    pub udp: bool,
    /// Whether the Service has session affinity.
    pub affinity: bool,
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
        Self { hook: Hook::Forward, v6, udp, affinity: false, kind: Kind::Established }
    }

    pub fn name(&self) -> String {
        let hook = match self.hook {
            Hook::Forward => "xdp",
            Hook::AfterXdp => "deferred",
            Hook::Stack | Hook::Workload | Hook::Reverse => "tc",
        };
        let family = if self.v6 { "v6" } else { "v4" };
        let protocol = match (self.udp, self.affinity) {
            (true, _) => "udp",
            (false, false) => "tcp",
            (false, true) => "tcp.affinity",
        };
        match self.kind {
            Kind::None => format!("{hook}.{family}.none"),
            Kind::New => format!("{hook}.{family}.{protocol}.new"),
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
        let service = service(&format!("{}/{protocol}", self.frontend())).backends(&backends);
        if self.affinity { service.affinity(10_800) } else { service }
    }

    /// The measured packet, the side of its client, and the number of clients.
    pub fn first_packet(&self, flows: u32) -> (Packet, Side, u32) {
        match (self.hook, self.kind) {
            (Hook::Forward, Kind::New) => {
                let fresh = self.request_of(self.end("16.0.0.0", "2001:db8:16::", CLIENT_PORT));
                (if self.udp { fresh } else { fresh.syn() }, Side::Source, ENDLESS)
            }
            (Hook::Forward, _) => (self.request(), Side::Source, flows),
            (Hook::Stack | Hook::AfterXdp | Hook::Workload | Hook::Reverse, _) => {
                (self.answer(), Side::Destination, flows)
            }
        }
    }

    /// A packet of an established connection.
    pub fn request(&self) -> Packet {
        self.request_of(self.end("100.64.0.0", "2001:db8:64::", CLIENT_PORT))
    }

    pub fn answer(&self) -> Packet {
        let answer = self.request().reversed();
        match self.kind {
            Kind::None => answer,
            _ => answer.from(self.backends()[0].as_str()),
        }
    }

    /// A packet before the program, and all possible results.
    pub fn expected(&self) -> (Packet, Vec<Packet>) {
        let packet = match self.hook {
            Hook::Forward => self.request(),
            Hook::Stack | Hook::AfterXdp | Hook::Workload | Hook::Reverse => self.answer(),
        };
        let expected = match (self.hook, self.kind) {
            (_, Kind::None) => vec![packet.clone()],
            (Hook::Forward, _) => {
                self.backends().iter().map(|backend| packet.to(backend.as_str())).collect()
            }
            (Hook::Stack | Hook::AfterXdp | Hook::Workload | Hook::Reverse, _) => {
                vec![packet.from(self.frontend().as_str())]
            }
        };
        (packet, expected)
    }

    /// The expected increase of the service port's counters. Bytes are not compared.
    pub fn expected_rise(&self, packets: u64) -> Traffic {
        let (forward_packets, reverse_packets, new_flows) = match (self.hook, self.kind) {
            (_, Kind::None) => (0, 0, 0),
            (Hook::Forward, Kind::New) => (packets, 0, packets),
            (Hook::Forward, Kind::Established) => (packets, 0, 0),
            (Hook::Stack | Hook::AfterXdp | Hook::Workload | Hook::Reverse, _) => (0, packets, 0),
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
        packet.payload(&[b'x'; 100])
    }

    fn frontend(&self) -> String {
        self.end("10.96.0.10", "fd00:10:96::a", 80)
    }

    /// All replies come from one backend, because the wrapper varies only the client. The backend does
    /// not affect how replies are handled.
    fn backends(&self) -> Vec<String> {
        let count = if self.hook == Hook::Forward { BACKENDS } else { 1 };
        (1..=count)
            .map(|n| self.end(&format!("10.244.1.{n}"), &format!("fd00:10:244::{n}"), 8080))
            .collect()
    }

    fn end(&self, v4: &str, v6: &str, port: u16) -> String {
        if self.v6 { format!("[{v6}]:{port}") } else { format!("{v4}:{port}") }
    }
}

//! The addresses of the cases, in both families.

use crate::packets::datapath::{Service, service};
use crate::packets::{Packet, sctp, tcp, udp};

#[derive(Debug)]
pub struct Ends {
    client: &'static str,
    cluster: &'static str,
    load_balancer: &'static str,
    pub node: &'static str,
    pub elsewhere: &'static str,
    pods: &'static str,
    /// The prefix of other clients' addresses.
    pub clients: &'static str,
    v6: bool,
}

pub static V4: Ends = Ends {
    client: "198.51.100.7",
    cluster: "10.96.0.10",
    load_balancer: "203.0.113.10",
    node: "192.0.2.1",
    elsewhere: "192.0.2.99",
    pods: "10.244.1.",
    clients: "198.51.100.20",
    v6: false,
};

pub static V6: Ends = Ends {
    client: "2001:db8:51::7",
    cluster: "fd00:10:96::a",
    load_balancer: "2001:db8:113::10",
    node: "2001:db8::1",
    elsewhere: "2001:db8::99",
    pods: "fd00:10:244:1::",
    clients: "2001:db8:51::20",
    v6: true,
};

impl Ends {
    /// These ends with one of several other nodes; the first one is `elsewhere`.
    pub fn beside(&self, node: usize) -> Self {
        let (v4, v6) = (
            ["192.0.2.99", "192.0.2.98", "192.0.2.97", "192.0.2.96", "192.0.2.95"],
            ["2001:db8::99", "2001:db8::98", "2001:db8::97", "2001:db8::96", "2001:db8::95"],
        );
        let nodes = if self.v6 { v6 } else { v4 };
        Self { elsewhere: nodes[node], ..*self }
    }

    pub fn end(&self, address: &str, port: u16) -> String {
        if self.v6 { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
    }

    pub fn client(&self, port: u16) -> String {
        self.end(self.client, port)
    }

    pub fn cluster(&self, port: u16) -> String {
        self.end(self.cluster, port)
    }

    pub fn cluster_address(&self) -> &'static str {
        self.cluster
    }

    pub fn load_balancer(&self, port: u16) -> String {
        self.end(self.load_balancer, port)
    }

    /// Addresses and ports of this number of backends.
    pub fn backends(&self, count: u16) -> Vec<String> {
        (1..=count).map(|n| self.end(&format!("{}{n}", self.pods), 8080)).collect()
    }

    /// A service port on port 80 of the ClusterIP with this number of backends.
    pub fn web(&self, backends: u16) -> Service {
        self.service(80, "TCP", backends)
    }

    pub fn dns(&self, backends: u16) -> Service {
        self.service(53, "UDP", backends)
    }

    pub fn service(&self, port: u16, protocol: &str, backends: u16) -> Service {
        let backends = self.backends(backends);
        let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
        service(&format!("{}/{protocol}", self.cluster(port))).backends(&backends)
    }

    pub fn diameter(&self, backends: u16) -> Service {
        self.service(3868, "SCTP", backends)
    }

    /// A TCP packet of a client to the Service.
    pub fn to_web(&self, client_port: u16) -> Packet {
        tcp(self.client(client_port).as_str(), self.cluster(80).as_str())
    }

    pub fn to_dns(&self, client_port: u16) -> Packet {
        udp(self.client(client_port).as_str(), self.cluster(53).as_str()).payload(b"question")
    }

    /// An SCTP packet of a client to the Service, with an INIT chunk.
    pub fn to_diameter(&self, client_port: u16) -> Packet {
        sctp(self.client(client_port).as_str(), self.cluster(3868).as_str()).verification_tag(7)
    }

    pub fn is_v6(&self) -> bool {
        self.v6
    }
}

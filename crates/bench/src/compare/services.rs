//! The Services of every contender: one that is measured, and others.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde_json::{Value, json};

/// The address to which clients connect.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
/// The range of Pod addresses in kube-proxy's rules. The client is outside of it.
pub(crate) const POD_RANGE: &str = "10.128.0.0/9";
/// The addresses of the backends, and the response of their web servers.
pub const BACKENDS: [(Ipv4Addr, &str); 2] =
    [(Ipv4Addr::new(10, 0, 0, 2), "web-a"), (Ipv4Addr::new(10, 0, 0, 3), "web-b")];

/// Number of endpoints of each other Service.
const OTHERS_ENDPOINTS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ComparedProtocol {
    Tcp,
    Udp,
}

impl ComparedProtocol {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// A port of the measured Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeasuredPort {
    Web,
    Stream,
    Datagram,
}

impl MeasuredPort {
    pub const ALL: [Self; 3] = [Self::Web, Self::Stream, Self::Datagram];

    pub fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Stream => "stream",
            Self::Datagram => "datagram",
        }
    }

    pub fn port(self) -> u16 {
        match self {
            Self::Web => 80,
            Self::Stream => 5201,
            Self::Datagram => 53,
        }
    }

    pub(crate) fn target_port(self) -> u16 {
        match self {
            Self::Web => 8080,
            Self::Stream => 5201,
            Self::Datagram => lb_common::bench::SINK_PORT,
        }
    }

    pub fn protocol(self) -> ComparedProtocol {
        match self {
            Self::Web | Self::Stream => ComparedProtocol::Tcp,
            Self::Datagram => ComparedProtocol::Udp,
        }
    }

    fn node_port(self) -> u16 {
        match self {
            Self::Web => 30080,
            Self::Stream => 30521,
            Self::Datagram => 30053,
        }
    }

    /// The web port has both backends. Ports whose clients open related connections have one.
    pub fn backends(self) -> Vec<SocketAddrV4> {
        let number = if self == Self::Web { BACKENDS.len() } else { 1 };
        let port = self.target_port();
        BACKENDS[..number].iter().map(|(address, _)| SocketAddrV4::new(*address, port)).collect()
    }
}

/// A port of a Service.
#[derive(Clone, Debug)]
pub struct ServicePort {
    /// A unique number.
    pub number: u32,
    pub service: String,
    pub name: &'static str,
    pub protocol: ComparedProtocol,
    pub cluster_address: Ipv4Addr,
    pub port: u16,
    /// The frontends for external clients.
    pub outside: Option<Outside>,
    pub endpoints: Vec<SocketAddrV4>,
}

#[derive(Clone, Copy, Debug)]
pub struct Outside {
    pub measured: MeasuredPort,
    pub address: Ipv4Addr,
    pub node_port: u16,
}

impl ServicePort {
    fn measured(measured: MeasuredPort) -> Self {
        let outside = Outside { measured, address: ADDRESS, node_port: measured.node_port() };
        Self {
            number: measured as u32,
            service: "measured".to_owned(),
            name: measured.name(),
            protocol: measured.protocol(),
            cluster_address: Ipv4Addr::new(10, 96, 0, 10),
            port: measured.port(),
            outside: Some(outside),
            endpoints: measured.backends(),
        }
    }

    /// Another Service, to which no client connects.
    fn other(number: u32) -> Self {
        let after = |first: [u8; 4], by: u32| Ipv4Addr::from(u32::from_be_bytes(first) + by);
        let endpoint = |endpoint| {
            SocketAddrV4::new(after([10, 128, 0, 1], number * OTHERS_ENDPOINTS + endpoint), 8080)
        };
        Self {
            number: number + MeasuredPort::ALL.len() as u32,
            service: format!("other-{number}"),
            name: "http",
            protocol: ComparedProtocol::Tcp,
            cluster_address: after([10, 97, 0, 1], number),
            port: 80,
            outside: None,
            endpoints: (0..OTHERS_ENDPOINTS).map(endpoint).collect(),
        }
    }
}

/// The ports of this number of Services. The measured Service is in the middle, because its position
/// matters to rules that are searched linearly.
pub fn compared_services(number: u32) -> Vec<ServicePort> {
    let others = number.saturating_sub(1);
    let before = (0..others / 2).map(ServicePort::other);
    let measured = MeasuredPort::ALL.map(ServicePort::measured);
    before.chain(measured).chain((others / 2..others).map(ServicePort::other)).collect()
}

/// The objects of the API, one JSON document per line.
pub fn service_manifests(ports: &[ServicePort]) -> String {
    let mut documents = Vec::new();
    for service in ports.chunk_by(|one, other| one.service == other.service) {
        documents.push(service_object(service));
        documents.extend(service.iter().map(compared_slice));
    }
    documents.iter().map(|document| format!("---\n{document}\n")).collect()
}

fn service_object(ports: &[ServicePort]) -> Value {
    let port_objects: Vec<Value> = ports
        .iter()
        .map(|port| {
            let mut object = json!({
                "name": port.name, "port": port.port,
                "protocol": port.protocol.name().to_uppercase(),
            });
            if let Some(outside) = port.outside {
                object["nodePort"] = outside.node_port.into();
            }
            object
        })
        .collect();
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": ports[0].service},
        "spec": {
            "type": "ClusterIP", "clusterIP": ports[0].cluster_address.to_string(),
            "ports": port_objects
        }
    });
    if let Some(outside) = ports[0].outside {
        object["spec"]["type"] = "LoadBalancer".into();
        object["status"] =
            json!({"loadBalancer": {"ingress": [{"ip": outside.address.to_string()}]}});
    }
    object
}

fn compared_slice(port: &ServicePort) -> Value {
    let endpoints: Vec<Value> = port
        .endpoints
        .iter()
        .map(|end| json!({"addresses": [end.ip().to_string()], "nodeName": "other"}))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("{}-{}", port.service, port.name),
            "labels": {"kubernetes.io/service-name": port.service}
        },
        "ports": [{
            "name": port.name, "protocol": port.protocol.name().to_uppercase(),
            "port": port.endpoints[0].port()
        }],
        "endpoints": endpoints
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn there_are_as_many_as_asked_for_and_none_twice() {
        for number in [1, 2, 1_000] {
            let ports = compared_services(number);
            let names: HashSet<&str> = ports.iter().map(|port| port.service.as_str()).collect();
            assert_eq!(names.len(), number as usize);
            let numbers: HashSet<u32> = ports.iter().map(|port| port.number).collect();
            assert_eq!(numbers.len(), ports.len());
            let manifests = service_manifests(&ports);
            assert_eq!(manifests.matches("\"kind\":\"Service\"").count(), number as usize);
        }
    }

    #[test]
    fn the_measured_one_is_in_the_middle() {
        let ports = compared_services(1_001);
        let at = ports.iter().position(|port| port.outside.is_some());
        assert_eq!(at, Some(500));
    }
}

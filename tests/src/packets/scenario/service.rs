//! Random Services.

use lb_common::layout::FrontendKind;
use lb_rules::model::Frontend;
use proptest::prelude::*;

use crate::packets::datapath::Service;
use crate::packets::datapath::cases::{Ends, V4, V6};

/// Number of backends from which those of Services are chosen.
pub const BACKENDS: u16 = 3;
pub const NODE_PORT: u16 = 30080;
/// The addresses of both families.
pub const ENDS: [&Ends; 2] = [&V4, &V6];

/// One of a few service ports, some without backends, some with policy `Local`.
pub fn any_service() -> impl Strategy<Value = Service> {
    with_backends(0, true)
}

/// A service port that has a backend for every client.
pub fn any_serving_service() -> impl Strategy<Value = Service> {
    with_backends(1, false)
}

fn with_backends(fewest: usize, local: bool) -> impl Strategy<Value = Service> {
    let shape = (0..ENDS.len(), prop::sample::select(vec![(80, "TCP"), (53, "UDP")]));
    let members = move || prop::sample::subsequence(vec![0, 1, 2], fewest..=3);
    let often = || prop::bool::weighted(0.8);
    let options = (often(), often(), any::<bool>(), any::<bool>());
    (shape, members(), members(), options).prop_map(
        move |((family, (port, protocol)), cluster, on_node, options)| {
            let at = ENDS[family];
            let (load_balancer, node_port, external_ip, policy_local) = options;
            let all = at.backends(BACKENDS);
            let pick = |members: &[usize]| -> Vec<String> {
                members.iter().map(|&member| all[member].clone()).collect()
            };
            let mut service = at.service(port, protocol, 0).backends(&texts(&pick(&cluster)));
            if load_balancer {
                service = service.load_balancer(&at.load_balancer(port)).assigned();
            }
            if node_port {
                service = service.node_port(NODE_PORT);
            }
            if external_ip {
                service = with_external_ip(service, at, port);
            }
            if policy_local && local {
                service = service.external_local().local_backends(&texts(&pick(&on_node)));
            }
            service
        },
    )
}

/// Adds an external address that is the node's own: it takes precedence over the NodePort.
fn with_external_ip(mut service: Service, at: &Ends, port: u16) -> Service {
    let address = at.node.parse().expect("an address of the node");
    service.port.frontends.insert(Frontend { address, port, kind: FrontendKind::ExternalIp });
    service
}

fn texts(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

/// All frontends, and some addresses that are none.
pub fn any_frontends(at: &Ends) -> Vec<String> {
    let mut all = vec![at.end(at.node, NODE_PORT), at.end(at.elsewhere, NODE_PORT)];
    for port in [80, 53, 81] {
        all.extend([at.cluster(port), at.load_balancer(port), at.end(at.node, port)]);
    }
    all
}

//! How clients' packets get to backends on other nodes: under an address of this node's, or through
//! a tunnel to the backend's node, which answers for itself.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use lb_common::layout::Forwarding;

use super::fields::Fields;
use super::types::{NodeContext, Problem, ServiceName, ServicePort};

/// On a Service: its own way, whatever the agent's.
pub const FORWARDING: &str = "millrace.io/forwarding";

const NAMES: [(&str, Forwarding); 3] =
    [("masquerade", Forwarding::Masquerade), ("ipip", Forwarding::Ipip), ("gue", Forwarding::Gue)];

pub fn name(forwarding: Forwarding) -> &'static str {
    NAMES.iter().find(|(_, named)| *named == forwarding).map_or("", |(name, _)| name)
}

/// By the name that the annotation and the agent's option have.
pub fn named(name: &str) -> Option<Forwarding> {
    NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, forwarding)| forwarding)
}

pub fn read(service: &Service, node: &NodeContext, fields: &mut Fields<'_>) -> Forwarding {
    let annotations = service.metadata.annotations.as_ref();
    let Some(name) = annotations.and_then(|annotations| annotations.get(FORWARDING)) else {
        return node.forwarding;
    };
    named(name).unwrap_or_else(|| {
        let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        let message = format!("{name:?} is none of {}; as if it was not given", known.join(", "));
        fields.problem(&format!("metadata.annotations[{FORWARDING}]"), message);
        node.forwarding
    })
}

/// The backends whose nodes' addresses are not known: they are reached by masquerade.
pub fn unreachable(service_port: &ServicePort, name: &ServiceName) -> Option<Problem> {
    if service_port.forwarding == Forwarding::Masquerade {
        return None;
    }
    let far = service_port.cluster.iter().filter(|backend| !backend.local);
    let unknown: BTreeSet<String> =
        far.filter(|backend| backend.node.is_none()).map(ToString::to_string).collect();
    let (first, more) = (unknown.first()?, unknown.len() - 1);
    let others = if more == 0 { String::new() } else { format!(" and {more} more") };
    Some(Problem {
        object: format!("Service {name}"),
        field: format!("metadata.annotations[{FORWARDING}]"),
        message: format!(
            "no address of the node of {first}{others} is known, so no tunnel leads there: \
             reached under this node's address instead. Endpoints need a nodeName, and its Node an \
             InternalIP of their family"
        ),
    })
}

//! How clients' packets reach backends on other nodes: with an address of this node as their
//! source, or through a tunnel to the backend's node, which replies to clients directly.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use lb_common::layout::Forwarding;

use super::fields::{Fields, find_annotation};
use super::node_context::NodeContext;
use super::types::{Problem, ServiceName, ServicePort};

/// Annotation of a Service, which overrides the agent's option.
pub const FORWARDING: &str = "millrace.io/forwarding";

const NAMES: [(&str, Forwarding); 4] = [
    ("auto", Forwarding::Auto),
    ("masquerade", Forwarding::Masquerade),
    ("ipip", Forwarding::Ipip),
    ("gue", Forwarding::Gue),
];

pub fn forwarding_name(forwarding: Forwarding) -> &'static str {
    NAMES.iter().find(|(_, named)| *named == forwarding).map_or("", |(name, _)| name)
}

/// By the name in the annotation and in the agent's option.
pub fn forwarding_named(name: &str) -> Option<Forwarding> {
    NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, forwarding)| forwarding)
}

/// Whether packets for a Service may leave through tunnels. This requires the addresses of all
/// nodes.
pub fn is_tunnelled(service: &Service, default: Forwarding) -> bool {
    find_annotation(&service.metadata, FORWARDING).and_then(forwarding_named).unwrap_or(default)
        != Forwarding::Masquerade
}

pub(crate) fn read_forwarding(
    service: &Service,
    node: &NodeContext,
    fields: &mut Fields<'_>,
) -> Forwarding {
    match wanted(service, node, fields) {
        // Without a key, every host that can send from a node's address could send packets with
        // any client's address.
        Forwarding::Auto if !node.has_tunnel_key => Forwarding::Masquerade,
        wanted => wanted,
    }
}

fn wanted(service: &Service, node: &NodeContext, fields: &mut Fields<'_>) -> Forwarding {
    let Some(name) = find_annotation(&service.metadata, FORWARDING) else { return node.forwarding };
    forwarding_named(name).unwrap_or_else(|| {
        let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        let message = format!("{name:?} is not one of {}; ignored", known.join(", "));
        fields.problem(&format!("metadata.annotations[{FORWARDING}]"), message);
        node.forwarding
    })
}

/// Reports backends on nodes whose addresses are not known: these are reached by masquerade.
pub(crate) fn report_unreachable(
    service_port: &ServicePort,
    name: &ServiceName,
) -> Option<Problem> {
    if matches!(service_port.forwarding, Forwarding::Masquerade | Forwarding::Auto) {
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
            "the address of the node of {first}{others} is unknown, so packets there are masqueraded \
             instead of tunnelled. Endpoints need a nodeName, and its Node an InternalIP of their \
             family"
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_annotation_overrides_the_default_and_an_invalid_one_is_ignored() {
        use Forwarding::{Gue, Masquerade};
        for (annotation, default, tunnelled) in [
            (None, Masquerade, false),
            (None, Gue, true),
            (Some("ipip"), Masquerade, true),
            (Some("masquerade"), Gue, false),
            (Some("wrong"), Masquerade, false),
            (Some("wrong"), Gue, true),
        ] {
            let annotations = annotation.map(|name| json!({FORWARDING: name}));
            let service = json!({"metadata": {"name": "web", "annotations": annotations}});
            let service = serde_json::from_value(service).unwrap();
            assert_eq!(is_tunnelled(&service, default), tunnelled, "{annotation:?} {default:?}");
        }
    }
}

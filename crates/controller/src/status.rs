//! What is written to the status of a Service or pool. Pure.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, PortStatus, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lb_rules::ipam::{AssignmentOutcome, AssignmentReason, PortOutcome};
use lb_rules::kinds::service::{CONDITION, NODE_PORTS_CONDITION};
use lb_rules::model::PortGrant;
use serde_json::{Value, json};

/// Millrace's condition of a Service.
pub(crate) fn find_condition(service: &Service) -> Option<&Condition> {
    let conditions = service.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == CONDITION)
}

fn load_balancer_ingress(service: &Service) -> &[LoadBalancerIngress] {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default()
}

/// Whether the addresses in the status are these. API servers before 1.30 may not store the mode.
fn has_assigned_addresses(service: &Service, outcome: &AssignmentOutcome) -> bool {
    let points = load_balancer_ingress(service);
    let wanted = build_ingress(outcome);
    points.len() == wanted.len()
        && points.iter().zip(&wanted).all(|(point, wanted)| {
            let address = |point: &LoadBalancerIngress| point.ip.as_deref()?.parse::<IpAddr>().ok();
            let ports = point.ports.as_deref().unwrap_or_default();
            point.hostname.is_none()
                && address(point) == address(wanted)
                && (point.ip_mode.is_none() || point.ip_mode == wanted.ip_mode)
                && ports == wanted.ports.as_deref().unwrap_or_default()
        })
}

/// The entries of a status. Of an address of a node they name the ports, and only that node serves it: others send
/// packets there.
pub(crate) fn build_ingress(outcome: &AssignmentOutcome) -> Vec<LoadBalancerIngress> {
    let ports: Vec<PortStatus> = outcome.ports.iter().map(port_status).collect();
    let mode = if ports.is_empty() { "VIP" } else { "Proxy" };
    let entry = |address: &IpAddr| LoadBalancerIngress {
        ip: Some(address.to_string()),
        ip_mode: Some(mode.to_owned()),
        ports: (!ports.is_empty()).then(|| ports.clone()),
        ..LoadBalancerIngress::default()
    };
    outcome.addresses.iter().map(entry).collect()
}

fn port_status(port: &PortOutcome) -> PortStatus {
    PortStatus {
        // Values of others than Kubernetes have a prefix.
        error: port.refused.map(|reason| format!("millrace.io/{}", reason.name())),
        port: port.port.into(),
        protocol: port.protocol.name().to_owned(),
    }
}

/// The status of the condition.
fn condition_status(outcome: &AssignmentOutcome) -> &'static str {
    if outcome.reason == AssignmentReason::Assigned { "True" } else { "False" }
}

fn has_condition(condition: Option<&Condition>, outcome: &AssignmentOutcome) -> bool {
    condition.is_some_and(|condition| {
        condition.status == condition_status(outcome)
            && condition.reason == outcome.reason.name()
            && condition.message == outcome.message
    })
}

/// The patch that makes the status say what has become of the Service; `None` if it does.
pub(crate) fn build_status_patch(
    service: &Service,
    outcome: &AssignmentOutcome,
    now: Timestamp,
) -> Option<Value> {
    let condition = find_condition(service);
    if has_assigned_addresses(service, outcome)
        && has_condition(condition, outcome)
        && PortGrant::of(service) == outcome.grant
    {
        return None;
    }
    let status = condition_status(outcome);
    let since = condition.filter(|condition| condition.status == status);
    let since = since.map_or(Time(now), |condition| condition.last_transition_time.clone());
    let points = build_ingress(outcome);
    let mut conditions = vec![json!({
        "type": CONDITION, "status": status, "reason": outcome.reason.name(),
        "message": outcome.message, "lastTransitionTime": since
    })];
    conditions.extend(build_grant_patch(service, outcome.grant.as_ref(), now));
    Some(json!({
        "metadata": build_precondition(service),
        "status": {"loadBalancer": {"ingress": points}, "conditions": conditions}
    }))
}

/// The part of a patch that makes the condition name the ports that a Service has on nodes.
fn build_grant_patch(
    service: &Service,
    grant: Option<&PortGrant>,
    now: Timestamp,
) -> Option<Value> {
    let known = service.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let known = known.into_iter().find(|condition| condition.type_ == NODE_PORTS_CONDITION);
    let since = known.map_or(Time(now), |condition| condition.last_transition_time.clone());
    match grant {
        Some(grant) => Some(json!({
            "type": NODE_PORTS_CONDITION, "status": "True", "reason": "Lent",
            "message": grant.to_string(), "lastTransitionTime": since
        })),
        None => known.map(|_| json!({"$patch": "delete", "type": NODE_PORTS_CONDITION})),
    }
}

/// The patch that removes what this controller has written to a Service that is not its own any more.
pub(crate) fn build_release_patch(service: &Service) -> Option<Value> {
    let condition = find_condition(service)?;
    let mut conditions = vec![json!({"$patch": "delete", "type": CONDITION})];
    let now = condition.last_transition_time.0;
    conditions.extend(build_grant_patch(service, None, now));
    Some(json!({
        "metadata": build_precondition(service),
        "status": {"loadBalancer": {"ingress": null}, "conditions": conditions}
    }))
}

/// The server refuses the patch if the Service is another one, or has changed since.
fn build_precondition(service: &Service) -> Value {
    let metadata = &service.metadata;
    let mut precondition = json!({});
    if let Some(uid) = &metadata.uid {
        precondition["uid"] = uid.as_str().into();
    }
    if let Some(version) = &metadata.resource_version {
        precondition["resourceVersion"] = version.as_str().into();
    }
    precondition
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lb_rules::model::Protocol;

    use super::*;

    fn service(status: Value) -> Service {
        let metadata = json!({"name": "web", "uid": "1", "resourceVersion": "7"});
        serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
    }

    fn outcome(addresses: &[&str], reason: AssignmentReason) -> AssignmentOutcome {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let message = "why".to_owned();
        AssignmentOutcome { addresses, ports: Vec::new(), grant: None, reason, message, outside: 0 }
    }

    fn written(status: &str, reason: &str, points: Value) -> Service {
        service(json!({
            "loadBalancer": {"ingress": points},
            "conditions": [{
                "type": CONDITION, "status": status, "reason": reason, "message": "why",
                "lastTransitionTime": "2026-01-01T00:00:00Z"
            }]
        }))
    }

    #[test]
    fn only_what_differs_is_written() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let assigned = outcome(&["192.0.2.1"], AssignmentReason::Assigned);
        let patch_of = |service: &Service, outcome| build_status_patch(service, outcome, now);
        let new = patch_of(&service(json!({})), &assigned).unwrap();
        assert_eq!(new["metadata"], json!({"uid": "1", "resourceVersion": "7"}));
        assert_eq!(
            new["status"]["loadBalancer"]["ingress"],
            json!([{"ip": "192.0.2.1", "ipMode": "VIP"}])
        );
        assert_eq!(new["status"]["conditions"][0]["lastTransitionTime"], "2027-01-15T08:00:00Z");
        for points in [json!([{"ip": "192.0.2.1", "ipMode": "VIP"}]), json!([{"ip": "192.0.2.1"}])]
        {
            assert_eq!(patch_of(&written("True", "Assigned", points), &assigned), None);
        }
        for points in [
            json!([]),
            json!([{"ip": "192.0.2.2"}]),
            json!([{"ip": "192.0.2.1", "ipMode": "Proxy"}]),
            json!([{"ip": "192.0.2.1"}, {"hostname": "a"}]),
        ] {
            assert!(patch_of(&written("True", "Assigned", points), &assigned).is_some());
        }
        // The time of the transition stays while the status of the condition does.
        let exhausted = outcome(&[], AssignmentReason::PoolExhausted);
        let still = patch_of(&written("False", "NoPool", json!([])), &exhausted).unwrap();
        assert_eq!(still["status"]["conditions"][0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert_eq!(still["status"]["loadBalancer"]["ingress"], json!([]));
    }

    /// So that agents serve only these, and other nodes send packets there.
    #[test]
    fn an_address_of_a_node_names_its_ports() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let port = |port, refused| PortOutcome { protocol: Protocol::Tcp, port, refused };
        let mut lent = outcome(&["192.0.2.7"], AssignmentReason::PortNotAllowed);
        lent.ports = vec![port(443, None), port(22, Some(AssignmentReason::PortNotAllowed))];
        let ports = BTreeSet::from([(Protocol::Tcp, 443)]);
        lent.grant = Some(PortGrant { pool: "edge".to_owned(), ports });
        let patch = build_status_patch(&service(json!({})), &lent, now).unwrap();
        let points = json!([{"ip": "192.0.2.7", "ipMode": "Proxy", "ports": [
            {"port": 443, "protocol": "TCP"},
            {"port": 22, "protocol": "TCP", "error": "millrace.io/PortNotAllowed"}
        ]}]);
        assert_eq!(patch["status"]["loadBalancer"]["ingress"], points);
        let mut written = written("False", "PortNotAllowed", points);
        assert!(build_status_patch(&written, &lent, now).is_some(), "agents read the condition");
        let status = written.status.as_mut().unwrap();
        let added = patch["status"]["conditions"][1].clone();
        assert_eq!(added["message"], "edge TCP/443");
        status.conditions.as_mut().unwrap().push(serde_json::from_value(added).unwrap());
        assert_eq!(build_status_patch(&written, &lent, now), None);
        let removal =
            build_status_patch(&written, &outcome(&[], AssignmentReason::NoPool), now).unwrap();
        assert_eq!(removal["status"]["conditions"][1]["$patch"], "delete");
        assert_eq!(
            build_release_patch(&written).unwrap()["status"]["conditions"][1]["$patch"],
            "delete"
        );
        lent.ports[0].refused = Some(AssignmentReason::SharingConflict);
        assert!(build_status_patch(&written, &lent, now).is_some(), "another Service has it now");
    }

    #[test]
    fn only_what_was_written_is_removed() {
        let points = json!([{"ip": "192.0.2.1"}]);
        assert_eq!(
            build_release_patch(&service(json!({"loadBalancer": {"ingress": points}}))),
            None
        );
        let removal = build_release_patch(&written("True", "Assigned", points)).unwrap();
        assert_eq!(removal["status"]["loadBalancer"]["ingress"], Value::Null);
        assert_eq!(removal["status"]["conditions"][0]["$patch"], "delete");
    }
}

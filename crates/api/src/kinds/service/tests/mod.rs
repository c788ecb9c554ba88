//! Compares defaults, allocations and messages with those of a cluster's API server.

mod random;
mod wrong;

use serde_json::{Value, json};

use super::super::ledger::TestAllocations;
use super::super::{AllocatedResource, KindRules, Subresource};
use super::Service;

const ONE_RANGE: &[&str] = &["10.96.0.0/24"];
const TWO_RANGES: &[&str] = &["10.96.0.0/24", "fd00::/112"];

fn service(spec: Value) -> Value {
    json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "4f1b" },
        "spec": spec,
    })
}

/// The steps of a write: defaults, preparation, validation, allocation.
fn write(
    ledger: &mut TestAllocations,
    spec: Value,
    old: Option<&Value>,
) -> Result<Value, Vec<String>> {
    write_to(ledger, service(spec), old, Subresource::None)
}

fn write_to(
    ledger: &mut TestAllocations,
    mut service: Value,
    old: Option<&Value>,
    subresource: Subresource,
) -> Result<Value, Vec<String>> {
    Service.set_defaults(&mut service);
    Service.prepare(&mut service, old, subresource);
    let violations = Service.validate(&service, old);
    if !violations.is_empty() {
        return Err(violations.iter().map(ToString::to_string).collect());
    }
    Service.allocate(&mut service, old, ledger).map_err(|violation| vec![violation.to_string()])?;
    Ok(service)
}

fn create(ranges: &[&str], spec: Value) -> Result<Value, Vec<String>> {
    write(&mut TestAllocations::new(ranges), spec, None)
}

#[test]
fn an_external_name_has_no_internal_policy() {
    let spec = json!({
        "type": "ExternalName", "externalName": "a.example.com", "internalTrafficPolicy": "Local",
    });
    let created = create(ONE_RANGE, spec).expect("valid");
    assert!(created["spec"]["internalTrafficPolicy"].is_null(), "{created}");
}

#[test]
fn defaults_are_those_of_a_server() {
    let created =
        create(ONE_RANGE, json!({ "ports": [{ "port": 80 }], "clusterIP": "10.96.0.10" }));
    assert_eq!(
        created.expect("valid")["spec"],
        json!({
            "clusterIP": "10.96.0.10",
            "clusterIPs": ["10.96.0.10"],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{ "port": 80, "protocol": "TCP", "targetPort": 80 }],
            "sessionAffinity": "None",
            "type": "ClusterIP",
        })
    );
}

#[test]
fn a_load_balancer_has_node_ports_and_a_policy() {
    let mut ledger = TestAllocations::new(ONE_RANGE);
    let spec = json!({
        "type": "LoadBalancer",
        "sessionAffinity": "ClientIP",
        "externalTrafficPolicy": "Local",
        "ports": [
            { "name": "tcp", "port": 53 },
            { "name": "udp", "port": 53, "protocol": "UDP" },
        ],
    });
    let created = write(&mut ledger, spec, None).expect("valid");
    let spec = &created["spec"];
    assert_eq!(spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10800);
    assert_eq!(spec["allocateLoadBalancerNodePorts"], true);
    assert_eq!(
        spec["ports"][0]["nodePort"], spec["ports"][1]["nodePort"],
        "one for both protocols"
    );
    assert_ne!(spec["healthCheckNodePort"], spec["ports"][0]["nodePort"]);
    assert!(spec["healthCheckNodePort"].as_i64().expect("a port") >= 30000);
    assert_eq!(ledger.held_by("default/web").len(), 3);
}

#[test]
fn names_are_labels() {
    let mut service = service(json!({ "ports": [{ "port": 80 }] }));
    Service.set_defaults(&mut service);
    service["metadata"]["name"] = json!("1web");
    assert!(Service.validate(&service, None).is_empty());
    service["metadata"]["name"] = json!("we.b");
    let violations = Service.validate(&service, None);
    let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert_eq!(violations, ["metadata.name: Invalid value: \"we.b\": must not contain dots"]);
    assert!(Service.validate(&service, Some(&service)).is_empty(), "stored ones are left alone");
}

#[test]
fn ambiguous_addresses_are_refused_unless_they_are_stored() {
    let lists = [
        ("externalIPs", "010.0.0.1", "must not have leading 0s"),
        ("externalIPs", "::ffff:10.0.0.1", "must not be an IPv4-mapped IPv6 address"),
        (
            "loadBalancerSourceRanges",
            "10.0.0.1/8",
            "must not have bits set beyond the prefix length",
        ),
    ];
    for (list, address, expected) in lists {
        let mut service = service(json!({
            "type": "LoadBalancer", "ports": [{ "port": 80 }], list: [address],
        }));
        Service.set_defaults(&mut service);
        let violations = Service.validate(&service, None);
        assert!(violations.len() == 1 && violations[0].detail == expected, "{violations:?}");
        assert!(Service.validate(&service, Some(&service)).is_empty(), "{address}");
    }
}

#[test]
fn fields_that_will_go_are_warned_of() {
    let of = |spec: Value| Service.warnings(&service(spec), None);
    assert_eq!(
        of(json!({ "externalIPs": ["192.0.2.1"], "ports": [{ "port": 80 }] })),
        ["spec.externalIPs is deprecated and may no longer be implemented in some clusters"]
    );
    assert_eq!(
        of(json!({ "trafficDistribution": "PreferClose", "ports": [{ "port": 80 }] })),
        ["spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\""]
    );
}

#[test]
fn families_follow_from_fields_and_ranges() {
    let cases: Vec<(&str, &[&str], Value, Value)> = vec![
        ("nothing said", TWO_RANGES, json!({}), json!(["SingleStack", ["IPv4"]])),
        (
            "preferred",
            TWO_RANGES,
            json!({ "ipFamilyPolicy": "PreferDualStack" }),
            json!(["PreferDualStack", ["IPv4", "IPv6"]]),
        ),
        (
            "preferred, but there is one",
            ONE_RANGE,
            json!({ "ipFamilyPolicy": "PreferDualStack" }),
            json!(["PreferDualStack", ["IPv4"]]),
        ),
        (
            "the other one first",
            TWO_RANGES,
            json!({ "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"] }),
            json!(["RequireDualStack", ["IPv6", "IPv4"]]),
        ),
        (
            "by address",
            TWO_RANGES,
            json!({ "clusterIP": "fd00::5" }),
            json!(["SingleStack", ["IPv6"]]),
        ),
        (
            "headless",
            TWO_RANGES,
            json!({ "clusterIP": "None", "selector": { "app": "web" } }),
            json!(["SingleStack", ["IPv4"]]),
        ),
        (
            "headless without selector",
            ONE_RANGE,
            json!({ "clusterIP": "None" }),
            json!(["RequireDualStack", ["IPv4", "IPv6"]]),
        ),
    ];
    for (name, ranges, mut spec, expected) in cases {
        spec["ports"] = json!([{ "port": 80 }]);
        let created = create(ranges, spec).expect(name);
        let spec = &created["spec"];
        assert_eq!(json!([spec["ipFamilyPolicy"], spec["ipFamilies"]]), expected, "{name}");
        if spec["clusterIP"] != "None" {
            let count = |field: &str| spec[field].as_array().map(Vec::len);
            assert_eq!(count("clusterIPs"), count("ipFamilies"), "{name}");
        }
    }
}

#[test]
fn allocated_values_may_be_omitted() {
    let mut ledger = TestAllocations::new(TWO_RANGES);
    let spec = || {
        json!({
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "ipFamilyPolicy": "PreferDualStack",
            "ports": [{ "name": "a", "port": 80 }, { "name": "b", "port": 81 }],
        })
    };
    let created = write(&mut ledger, spec(), None).expect("valid");
    let held = ledger.held_by("default/web");
    let updated = write(&mut ledger, spec(), Some(&created)).expect("valid");
    assert_eq!(updated["spec"], created["spec"]);
    assert_eq!(ledger.held_by("default/web"), held);
}

#[test]
fn a_change_of_type_wipes_what_no_longer_applies() {
    let mut ledger = TestAllocations::new(ONE_RANGE);
    let spec = json!({
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "loadBalancerClass": "example.com/a",
        "ports": [{ "port": 80 }],
    });
    let mut balancer = write(&mut ledger, spec, None).expect("valid");
    balancer["status"] =
        json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1", "ipMode": "VIP" }] } });
    assert_eq!(ledger.held_by("default/web").len(), 3);

    let mut sent = balancer.clone();
    sent["spec"]["type"] = json!("ClusterIP");
    let internal = write_to(&mut ledger, sent, Some(&balancer), Subresource::None).expect("valid");
    for field in [
        "healthCheckNodePort",
        "allocateLoadBalancerNodePorts",
        "loadBalancerClass",
        "externalTrafficPolicy",
    ] {
        assert_eq!(internal["spec"].get(field), None, "{field}");
    }
    assert_eq!(internal["spec"]["ports"][0].get("nodePort"), None);
    assert_eq!(internal["status"], json!({ "loadBalancer": {} }));
    assert_eq!(internal["spec"]["clusterIP"], balancer["spec"]["clusterIP"]);
    assert_eq!(ledger.held_by("default/web").len(), 1, "the node ports are free again");

    let mut sent = internal.clone();
    sent["spec"]["type"] = json!("ExternalName");
    sent["spec"]["externalName"] = json!("example.com");
    let external = write_to(&mut ledger, sent, Some(&internal), Subresource::None).expect("valid");
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert_eq!(external["spec"].get(field), None, "{field}");
    }
    assert!(ledger.held_by("default/web").is_empty());
}

#[test]
fn addresses_do_not_change() {
    let mut ledger = TestAllocations::new(TWO_RANGES);
    let two = json!({ "ipFamilyPolicy": "RequireDualStack", "ports": [{ "port": 80 }] });
    let stored = write(&mut ledger, two, None).expect("valid");
    let second = stored["spec"]["clusterIPs"][1].clone();

    let mut sent = stored.clone();
    sent["spec"]["clusterIP"] = json!("10.96.0.200");
    assert_eq!(
        write_to(&mut ledger, sent, Some(&stored), Subresource::None).expect_err("changed"),
        ["spec.clusterIPs[0]: Invalid value: [\"10.96.0.200\"]: may not change once set"]
    );

    let mut sent = stored.clone();
    sent["spec"]["clusterIPs"] = json!([stored["spec"]["clusterIP"]]);
    assert_eq!(
        write_to(&mut ledger, sent, Some(&stored), Subresource::None).expect_err("reduced"),
        [
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary cluster IP"
        ]
    );

    let mut sent = stored.clone();
    sent["spec"]["ipFamilyPolicy"] = json!("SingleStack");
    let one = write_to(&mut ledger, sent, Some(&stored), Subresource::None).expect("valid");
    assert_eq!(one["spec"]["ipFamilies"], json!(["IPv4"]));
    assert_eq!(one["spec"]["clusterIPs"], json!([stored["spec"]["clusterIP"]]));
    let held = ledger.held_by("default/web");
    assert_eq!(held.len(), 1, "{second} is free again: {held:?}");

    let mut sent = one.clone();
    sent["spec"]["ipFamilyPolicy"] = json!("PreferDualStack");
    let again = write_to(&mut ledger, sent, Some(&one), Subresource::None).expect("valid");
    assert_eq!(again["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(again["spec"]["clusterIPs"][0], stored["spec"]["clusterIP"]);
}

#[test]
fn resources_of_another_service_are_refused() {
    let mut ledger = TestAllocations::new(ONE_RANGE);
    let spec = || {
        json!({
            "type": "NodePort",
            "clusterIP": "10.96.0.7",
            "ports": [{ "port": 80, "nodePort": 30007 }],
        })
    };
    let first = write(&mut ledger, spec(), None).expect("valid");
    ledger.write_as("default/other");
    assert_eq!(
        write(&mut ledger, spec(), None).expect_err("taken"),
        [
            "spec.clusterIPs: Invalid value: [\"10.96.0.7\"]: failed to allocate IP 10.96.0.7: provided IP is already allocated"
        ]
    );
    let mut other = spec();
    other["clusterIP"] = json!("10.96.0.8");
    assert_eq!(
        write(&mut ledger, other.clone(), None).expect_err("taken"),
        ["spec.ports[0].nodePort: Invalid value: 30007: provided port is already allocated"]
    );

    ledger.write_as("default/web");
    Service.release(&first, &mut ledger);
    assert!(ledger.held_by("default/web").is_empty());
    ledger.write_as("default/other");
    write(&mut ledger, other, None).expect("free again");
    assert!(ledger.held_by("default/other").contains(&AllocatedResource::NodePort(30007)));
}

#[test]
fn stored_allocations_are_kept_under_other_ranges() {
    let spec = json!({
        "type": "NodePort",
        "ipFamilyPolicy": "RequireDualStack",
        "ports": [{ "port": 80, "nodePort": 30007 }],
    });
    let stored = write(&mut TestAllocations::new(TWO_RANGES), spec, None).expect("valid");
    let mut ledger = TestAllocations::new(&["10.97.0.0/24"]);
    let violations = Service.reclaim(&stored, &mut ledger);
    assert_eq!(violations.len(), 2, "both addresses lie in no range now: {violations:?}");
    assert_eq!(ledger.held_by("default/web").len(), 3);

    ledger.write_as("default/other");
    let violations = Service.reclaim(&stored, &mut ledger);
    assert_eq!(violations.len(), 3);
    assert!(violations[2].to_string().ends_with("30007: provided port is already allocated"));
    assert!(ledger.held_by("default/other").is_empty());
}

#[test]
fn status_and_spec_are_written_apart() {
    let mut ledger = TestAllocations::new(ONE_RANGE);
    let spec = json!({ "type": "LoadBalancer", "ports": [{ "port": 80 }] });
    let stored = write(&mut ledger, spec, None).expect("valid");
    let mut sent = stored.clone();
    sent["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } });
    sent["spec"]["ports"][0]["port"] = json!(81);

    let spec_only =
        write_to(&mut ledger, sent.clone(), Some(&stored), Subresource::None).expect("valid");
    assert_eq!(spec_only["status"], stored["status"]);
    assert_eq!(spec_only["spec"]["ports"][0]["port"], 81);

    let status_only =
        write_to(&mut ledger, sent, Some(&stored), Subresource::Status).expect("valid");
    assert_eq!(status_only["spec"], stored["spec"]);
    assert_eq!(status_only["status"]["loadBalancer"]["ingress"][0]["ipMode"], "VIP");
}

#[test]
fn rows_are_those_of_kubectl() {
    let now = "2026-01-02T03:04:05Z".parse().expect("a time");
    let cases = [
        (
            json!({ "type": "ClusterIP", "clusterIPs": ["10.96.0.1"], "ports": [{ "port": 443, "protocol": "TCP" }] }),
            json!(["web", "ClusterIP", "10.96.0.1", "<none>", "443/TCP", "65s", "<none>"]),
        ),
        (
            json!({
                "type": "LoadBalancer",
                "clusterIPs": ["10.96.0.1"],
                "ports": [
                    { "port": 80, "nodePort": 30080, "protocol": "TCP" },
                    { "port": 53, "nodePort": 30053, "protocol": "UDP" },
                ],
                "selector": { "tier": "front", "app": "web" },
            }),
            json!([
                "web",
                "LoadBalancer",
                "10.96.0.1",
                "<pending>",
                "80:30080/TCP,53:30053/UDP",
                "65s",
                "app=web,tier=front"
            ]),
        ),
        (
            json!({ "type": "ClusterIP", "clusterIPs": ["None"] }),
            json!(["web", "ClusterIP", "None", "<none>", "<none>", "65s", "<none>"]),
        ),
        (
            json!({ "type": "ExternalName", "externalName": "example.com" }),
            json!(["web", "ExternalName", "<none>", "example.com", "<none>", "65s", "<none>"]),
        ),
    ];
    for (spec, expected) in cases {
        let mut service = service(spec);
        service["metadata"]["creationTimestamp"] = json!("2026-01-02T03:03:00Z");
        assert_eq!(Value::from(Service.row(&service, now)), expected);
    }
}

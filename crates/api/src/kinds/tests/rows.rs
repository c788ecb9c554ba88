//! The cells of a table that kubectl prints.

use serde_json::json;

use super::row;

#[test]
fn rows_are_those_of_kubectl() {
    let cases = [
        (
            "v1",
            "Endpoints",
            json!({ "subsets": [
                { "addresses": [{ "ip": "10.0.0.1" }, { "ip": "10.0.0.2" }], "ports": [{ "port": 80 }, { "port": 81 }] },
                { "addresses": [{ "ip": "fd00::1" }], "ports": [{ "port": 80 }] },
            ] }),
            json!(["web", "10.0.0.1:80,10.0.0.2:80,10.0.0.1:81 + 2 more...", "65s"]),
        ),
        ("v1", "Endpoints", json!({}), json!(["web", "<none>", "65s"])),
        (
            "v1",
            "ConfigMap",
            json!({ "data": { "a": "1", "b": "" }, "binaryData": { "c": "" } }),
            json!(["web", 3, "65s"]),
        ),
        ("v1", "ServiceAccount", json!({ "secrets": [{ "name": "a" }] }), json!(["web", 1, "65s"])),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({
                "addressType": "IPv4",
                "ports": [{ "name": "http", "port": 80 }, { "name": "any" }, { "name": "" }],
                "endpoints": [{ "addresses": ["10.0.0.1"] }, { "addresses": ["10.0.0.2"] }],
            }),
            json!(["web", "IPv4", "80,any,*", "10.0.0.1,10.0.0.2", "65s"]),
        ),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({ "addressType": "IPv6" }),
            json!(["web", "IPv6", "<unset>", "<unset>", "65s"]),
        ),
        (
            "networking.k8s.io/v1",
            "Ingress",
            json!({
                "spec": {
                    "ingressClassName": "front",
                    "rules": [{ "host": "a" }, { "host": "b" }, { "host": "c" }, { "host": "d" }],
                    "tls": [{ "hosts": ["a"] }],
                },
                "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } },
            }),
            json!(["web", "front", "a,b,c + 1 more...", "192.0.2.1", "80, 443", "65s"]),
        ),
        (
            "networking.k8s.io/v1",
            "Ingress",
            json!({ "spec": { "rules": [{}] } }),
            json!(["web", "<none>", "*", "", "80", "65s"]),
        ),
        (
            "networking.k8s.io/v1",
            "IngressClass",
            json!({ "spec": { "controller": "a.b/c", "parameters": { "apiGroup": "k.io", "kind": "P", "name": "x" } } }),
            json!(["web", "a.b/c", "P.k.io/x", "65s"]),
        ),
        (
            "v1",
            "Namespace",
            json!({ "status": { "phase": "Active" } }),
            json!(["web", "Active", "65s"]),
        ),
        (
            "v1",
            "Node",
            json!({
                "metadata": { "labels": { "node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge" } },
                "spec": { "unschedulable": true },
                "status": {
                    "conditions": [{ "type": "Ready", "status": "True" }],
                    "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
                    "nodeInfo": { "kubeletVersion": "v1.33.0", "kernelVersion": "6.18" },
                },
            }),
            json!([
                "web",
                "Ready,SchedulingDisabled",
                "edge,worker",
                "65s",
                "v1.33.0",
                "10.0.0.1",
                "<none>",
                "<unknown>",
                "6.18",
                "<unknown>"
            ]),
        ),
        (
            "v1",
            "Secret",
            json!({ "type": "Opaque", "data": { "a": "", "b": "" } }),
            json!(["web", "Opaque", 2, "65s"]),
        ),
        (
            "coordination.k8s.io/v1",
            "Lease",
            json!({ "spec": { "holderIdentity": "me" } }),
            json!(["web", "me", "65s"]),
        ),
        (
            "v1",
            "Event",
            json!({
                "type": "Warning", "reason": "Failed", "message": " no luck\n", "count": 3,
                "involvedObject": { "kind": "Service", "name": "web" },
                "source": { "component": "agent", "host": "here" },
                "firstTimestamp": "2026-01-02T02:04:05Z", "lastTimestamp": "2026-01-02T03:04:00Z",
            }),
            json!([
                "5s",
                "Warning",
                "Failed",
                "service/web",
                "",
                "agent, here",
                "no luck",
                "60m",
                3,
                "web"
            ]),
        ),
        (
            "events.k8s.io/v1",
            "Event",
            json!({
                "type": "Normal", "reason": "Done", "note": "fine", "eventTime": "2026-01-02T03:04:00.000000Z",
                "regarding": { "kind": "Node", "name": "here" },
                "reportingController": "agent", "reportingInstance": "agent-1",
                "series": { "count": 7, "lastObservedTime": "2026-01-02T03:04:03.000000Z" },
            }),
            json!([
                "2s",
                "Normal",
                "Done",
                "node/here",
                "",
                "agent, agent-1",
                "fine",
                "5s",
                7,
                "web"
            ]),
        ),
    ];
    for (api_version, kind, object, expected) in cases {
        assert_eq!(row(api_version, kind, object), expected, "{kind}");
    }
}

//! Messages about fields that violate rules.

use serde_json::{Value, json};

use super::violations;

#[test]
fn violations_read_like_an_api_servers() {
    let slice = |endpoints: Value| json!({ "addressType": "IPv4", "endpoints": endpoints });
    let many: Vec<Value> = vec![json!({ "addresses": ["10.0.0.1"] }); 1001];
    let ports: Vec<Value> =
        (0..20_001).map(|index| json!({ "name": format!("p{index}") })).collect();
    let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
    let path = |path: Value| json!({ "spec": { "rules": [{ "http": { "paths": [path] } }] } });
    let networks = |networks: Value| json!({ "spec": { "podCIDRs": networks } });
    let strategy = |strategy: &str| json!({ "spec": { "strategy": strategy } });
    let cases = vec![
        (
            "v1",
            "Node",
            networks(json!(["10.0.0.0/24", "10.0.1.0/24"])),
            "spec.podCIDRs: Invalid value: [\"10.0.0.0/24\",\"10.0.1.0/24\"]: may specify no more than one CIDR for each IP family",
        ),
        (
            "v1",
            "Node",
            networks(json!(["fd00::/64", "fd01::/64"])),
            "spec.podCIDRs: Invalid value: [\"fd00::/64\",\"fd01::/64\"]: may specify no more than one CIDR for each IP family",
        ),
        (
            "coordination.k8s.io/v1",
            "Lease",
            strategy("Youngest"),
            "spec.strategy: Unsupported value: \"Youngest\": supported values: \"OldestEmulationVersion\"",
        ),
        (
            "coordination.k8s.io/v1",
            "Lease",
            json!({ "spec": { "preferredHolder": "a" } }),
            "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined",
        ),
        ("discovery.k8s.io/v1", "EndpointSlice", json!({}), "addressType: Required value"),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({ "addressType": "IP" }),
            "addressType: Unsupported value: \"IP\": supported values: \"FQDN\", \"IPv4\", \"IPv6\"",
        ),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            slice(json!(many)),
            "endpoints: Too many: 1001: must have at most 1000 items",
        ),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({ "addressType": "IPv4", "ports": ports }),
            "ports: Too many: 20001: must have at most 20000 items",
        ),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            slice(json!([{ "addresses": [] }])),
            "endpoints[0].addresses: Required value: must contain at least 1 address",
        ),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            slice(json!([{ "addresses": ["fd00::1"] }])),
            "endpoints[0].addresses: Invalid value: \"fd00::1\": must be an IPv4 address",
        ),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            slice(json!([{ "addresses": ["x"] }])),
            "endpoints[0].addresses[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({ "addressType": "IPv6", "endpoints": [{ "addresses": ["fd00:0::1"] }] }),
            "endpoints[0].addresses[0]: Invalid value: \"fd00:0::1\": must be in canonical form (\"fd00::1\")",
        ),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            slice(json!([{ "addresses": ["127.0.0.1"] }])),
            "endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({ "addressType": "IPv4", "ports": [{ "port": 80 }, { "port": 81 }] }),
            "ports[1].name: Duplicate value: \"\"",
        ),
        (
            "v1",
            "Endpoints",
            json!({ "subsets": [{ "ports": [{ "port": 80 }] }] }),
            "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`",
        ),
        (
            "v1",
            "Endpoints",
            json!({ "subsets": [{ "addresses": [{ "ip": "10.0.0.1" }], "ports": [{ "port": 0 }] }] }),
            "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
        (
            "networking.k8s.io/v1",
            "Ingress",
            json!({ "spec": {} }),
            "spec: Invalid value: []: either `defaultBackend` or `rules` must be specified",
        ),
        (
            "networking.k8s.io/v1",
            "Ingress",
            path(json!({ "path": "/", "backend": backend })),
            "spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified",
        ),
        (
            "networking.k8s.io/v1",
            "Ingress",
            path(json!({ "path": "a", "pathType": "Prefix", "backend": backend })),
            "spec.rules[0].http.paths[0].path: Invalid value: \"a\": must be an absolute path",
        ),
        (
            "networking.k8s.io/v1",
            "Ingress",
            path(
                json!({ "path": "/", "pathType": "Exact", "backend": { "service": { "name": "web", "port": {} } } }),
            ),
            "spec.rules[0].http.paths[0].backend: Required value: port name or number is required",
        ),
        (
            "v1",
            "Secret",
            json!({ "type": "kubernetes.io/tls", "stringData": { "tls.crt": "x" } }),
            "data[tls.key]: Required value",
        ),
        (
            "coordination.k8s.io/v1",
            "Lease",
            json!({ "spec": { "leaseDurationSeconds": 0 } }),
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            "v1",
            "Event",
            json!({ "involvedObject": { "namespace": "other" } }),
            "involvedObject.namespace: Invalid value: \"other\": does not match event.namespace",
        ),
    ];
    for (api_version, kind, object, expected) in cases {
        assert_eq!(violations(api_version, kind, object), [expected], "{kind}");
    }
}

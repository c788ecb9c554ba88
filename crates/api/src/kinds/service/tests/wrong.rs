//! Messages for invalid Services, a row for each mistake.

use serde_json::{Value, json};

use super::{ONE_RANGE, create};

#[test]
fn invalid_services_get_the_messages_of_an_api_server() {
    let port = || json!([{ "port": 80 }]);
    let cases: Vec<(&str, Value, &str)> = vec![
        ("no ports", json!({}), "spec.ports: Required value"),
        (
            "port 0",
            json!({ "ports": [{ "port": 0, "targetPort": 80 }] }),
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
        (
            "a target port that is too large",
            json!({ "ports": [{ "port": 80, "targetPort": 65536 }] }),
            "spec.ports[0].targetPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
        ),
        (
            "a target port's name",
            json!({ "ports": [{ "port": 80, "targetPort": "http--x" }] }),
            "spec.ports[0].targetPort: Invalid value: \"http--x\": must not contain consecutive hyphens",
        ),
        (
            "a protocol",
            json!({ "ports": [{ "port": 80, "protocol": "ICMP" }] }),
            "spec.ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ),
        (
            "no name for one of two ports",
            json!({ "ports": [{ "port": 80, "name": "a" }, { "port": 81 }] }),
            "spec.ports[1].name: Required value",
        ),
        (
            "one name twice",
            json!({ "ports": [{ "port": 80, "name": "a" }, { "port": 81, "name": "a" }] }),
            "spec.ports[1].name: Duplicate value: \"a\"",
        ),
        (
            "one port twice",
            json!({ "ports": [{ "port": 80, "name": "a" }, { "port": 80, "name": "b" }] }),
            "spec.ports[1]: Duplicate value: {\"port\":80,\"protocol\":\"TCP\"}",
        ),
        (
            "a type",
            json!({ "type": "Foo", "ports": port() }),
            "spec.type: Unsupported value: \"Foo\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
        ),
        (
            "a node port of a ClusterIP",
            json!({ "ports": [{ "port": 80, "nodePort": 30080 }] }),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            "a node port out of range",
            json!({ "type": "NodePort", "ports": [{ "port": 80, "nodePort": 80 }] }),
            "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767",
        ),
        (
            "an affinity",
            json!({ "sessionAffinity": "Cookie", "ports": port() }),
            "spec.sessionAffinity: Unsupported value: \"Cookie\": supported values: \"ClientIP\", \"None\"",
        ),
        (
            "an affinity that lasts too long",
            json!({
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 86401 } },
                "ports": port(),
            }),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less than 86400",
        ),
        (
            "a policy without an outside",
            json!({ "externalTrafficPolicy": "Local", "ports": port() }),
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
        ),
        (
            "a policy",
            json!({ "type": "NodePort", "externalTrafficPolicy": "Foo", "ports": port() }),
            "spec.externalTrafficPolicy: Unsupported value: \"Foo\": supported values: \"Cluster\", \"Local\"",
        ),
        (
            "a health check that does not apply",
            json!({ "type": "LoadBalancer", "healthCheckNodePort": 30000, "ports": port() }),
            "spec.healthCheckNodePort: Invalid value: 30000: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ),
        (
            "source ranges of a ClusterIP",
            json!({ "loadBalancerSourceRanges": ["10.0.0.0/8"], "ports": port() }),
            "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            "a source range",
            json!({ "type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0"], "ports": port() }),
            "spec.LoadBalancerSourceRanges[0]: Invalid value: \"10.0.0.0\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        ),
        (
            "an external address",
            json!({ "externalIPs": ["127.0.0.1"], "ports": port() }),
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ),
        (
            "a headless NodePort",
            json!({ "type": "NodePort", "clusterIP": "None", "ports": port() }),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
        (
            "an address",
            json!({ "clusterIP": "10.96.0", "ports": port() }),
            "spec.clusterIPs[0]: Invalid value: \"10.96.0\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            "an address out of range",
            json!({ "clusterIP": "10.97.0.1", "ports": port() }),
            "spec.clusterIPs: Invalid value: [\"10.97.0.1\"]: failed to allocate IP 10.97.0.1: provided IP is not in the valid range. The range of valid IPs is 10.96.0.0/24",
        ),
        (
            "a family without a range",
            json!({ "ipFamilies": ["IPv6"], "ports": port() }),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            "two families of one",
            json!({ "ipFamilyPolicy": "RequireDualStack", "ports": port() }),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            "an ExternalName without a name",
            json!({ "type": "ExternalName" }),
            "spec.externalName: Required value",
        ),
        (
            "a class of a ClusterIP",
            json!({ "loadBalancerClass": "example.com/a", "ports": port() }),
            "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            "the node agent's port",
            json!({ "type": "LoadBalancer", "ports": [{ "port": 10250 }] }),
            "spec.ports[0]: Invalid value: 10250: may not expose port 10250 externally since it is used by kubelet",
        ),
        (
            "a distribution",
            json!({ "trafficDistribution": "Foo", "ports": port() }),
            "spec.trafficDistribution: Unsupported value: \"Foo\": supported values: \"PreferClose\", \"PreferSameNode\", \"PreferSameZone\"",
        ),
    ];
    for (name, spec, expected) in cases {
        let violations = create(ONE_RANGE, spec).expect_err(name);
        assert_eq!(violations, [expected], "{name}");
    }
}

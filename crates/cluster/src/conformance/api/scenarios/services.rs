//! Services: all types, what is refused, and changes.

use serde_json::{Value, json};

use super::steps::ComparedPart::Nothing;
use super::steps::{SERVICES, Step, delete, get, merge, post, put};

fn create(name: &'static str, service: &str, spec: Value) -> Step {
    post(name, SERVICES, json!({"metadata": {"name": service}, "spec": spec}))
}

/// Services of all types, and changes between types.
pub fn types() -> Vec<Step> {
    let path = |service: &str| format!("{SERVICES}/{service}");
    let address = |last: u8| format!("10.96.8.{last}");
    let change = |name: &'static str, service: &str, spec: Value| {
        merge(name, path(service), json!({"spec": spec}))
    };
    vec![
        create("ClusterIP", "a", json!({"clusterIP": address(1), "ports": [{"port": 80}]})),
        create("its address again", "b", json!({"clusterIP": address(1), "ports": [{"port": 80}]})),
        create(
            "an address outside",
            "b",
            json!({"clusterIP": "192.0.2.1", "ports": [{"port": 80}]}),
        ),
        create("a broken address", "b", json!({"clusterIP": "x", "ports": [{"port": 80}]})),
        create(
            "the network's address",
            "b",
            json!({"clusterIP": "10.96.0.0", "ports": [{"port": 80}]}),
        ),
        create("headless", "headless", json!({"clusterIP": "None"})),
        create(
            "headless with ports",
            "headless-2",
            json!({"clusterIP": "None", "ports": [{"port": 80}], "publishNotReadyAddresses": true}),
        ),
        create(
            "NodePort",
            "node-port",
            json!({"type": "NodePort", "clusterIP": address(2), "ports": [{"port": 80, "nodePort": 31080}]}),
        ),
        create(
            "its node port again",
            "b",
            json!({"type": "NodePort", "clusterIP": address(9), "ports": [{"port": 80, "nodePort": 31080}]}),
        ),
        create(
            "its node port by UDP",
            "udp",
            json!({"type": "NodePort", "clusterIP": address(9), "ports": [{"port": 80, "protocol": "UDP", "nodePort": 31080}]}),
        ),
        create(
            "a node port outside",
            "b",
            json!({"type": "NodePort", "clusterIP": address(10), "ports": [{"port": 80, "nodePort": 80}]}),
        ),
        create(
            "LoadBalancer",
            "balancer",
            json!({
                "type": "LoadBalancer", "clusterIP": address(3), "ports": [{"name": "a", "port": 80, "nodePort": 31081}, {"name": "b", "port": 53, "protocol": "UDP", "nodePort": 31082}],
                "loadBalancerSourceRanges": ["192.0.2.0/24"], "loadBalancerIP": "192.0.2.7", "externalIPs": ["198.51.100.1"],
            }),
        ),
        create(
            "LoadBalancer without node ports",
            "balancer-2",
            json!({"type": "LoadBalancer", "clusterIP": address(4), "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}], "loadBalancerClass": "example.com/a"}),
        ),
        create(
            "LoadBalancer with Local",
            "local",
            json!({"type": "LoadBalancer", "clusterIP": address(5), "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local", "ports": [{"port": 80, "nodePort": 31083}], "healthCheckNodePort": 31084}),
        ),
        create(
            "ExternalName",
            "external",
            json!({"type": "ExternalName", "externalName": "www.example.com"}),
        ),
        create(
            "affinity",
            "affinity",
            json!({"clusterIP": address(6), "sessionAffinity": "ClientIP", "ports": [{"port": 80}]}),
        ),
        create(
            "affinity with a timeout",
            "affinity-2",
            json!({"clusterIP": address(7), "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}, "ports": [{"port": 80, "appProtocol": "kubernetes.io/h2c"}]}),
        ),
        create(
            "two families",
            "dual",
            json!({"ipFamilyPolicy": "RequireDualStack", "clusterIPs": [address(8), "fd00:10:96::8"], "ports": [{"port": 80}]}),
        ),
        create(
            "two families, the second first",
            "dual-2",
            json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"], "clusterIPs": ["fd00:10:96::9", "10.96.8.20"], "ports": [{"port": 80}]}),
        ),
        create(
            "IPv6",
            "six",
            json!({"ipFamilies": ["IPv6"], "clusterIP": "fd00:10:96::a", "ports": [{"port": 80}]}),
        ),
        create(
            "distribution",
            "distribution",
            json!({"clusterIP": address(11), "trafficDistribution": "PreferSameZone", "ports": [{"port": 80}]}),
        ),
        create(
            "SCTP",
            "sctp",
            json!({"clusterIP": address(12), "ports": [{"port": 80, "protocol": "SCTP"}]}),
        ),
        create(
            "one port of two protocols",
            "both",
            json!({"clusterIP": address(13), "ports": [{"name": "a", "port": 53, "protocol": "UDP"}, {"name": "b", "port": 53}]}),
        ),
        get("the list", SERVICES),
        change(
            "ClusterIP to NodePort",
            "a",
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 31090}]}),
        ),
        change("NodePort to LoadBalancer", "a", json!({"type": "LoadBalancer"})),
        change("LoadBalancer to ClusterIP", "a", json!({"type": "ClusterIP"})),
        change(
            "ClusterIP to ExternalName",
            "a",
            json!({"type": "ExternalName", "externalName": "a.example.com"}),
        ),
        change(
            "ExternalName to ClusterIP",
            "a",
            json!({"type": "ClusterIP", "clusterIP": address(1)}),
        ),
        change(
            "one family to two",
            "six",
            json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"], "clusterIPs": ["fd00:10:96::a", "10.96.8.30"]}),
        ),
        change("two families to one", "six", json!({"ipFamilyPolicy": "SingleStack"})),
        change(
            "two families to one by clearing",
            "dual",
            json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"], "clusterIPs": [address(8)]}),
        ),
        change("Local to Cluster", "local", json!({"externalTrafficPolicy": "Cluster"})),
        change("no affinity", "affinity", json!({"sessionAffinity": "None"})),
        change("another port", "node-port", json!({"ports": [{"port": 81, "nodePort": 31080}]})),
        put(
            "replace without an address",
            path("a"),
            json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 81}]}}),
        ),
        put(
            "replace without node ports",
            path("node-port"),
            json!({"metadata": {"name": "node-port"}, "spec": {"type": "NodePort", "ports": [{"port": 81}]}}),
        ),
        put(
            "PUT creates",
            path("made"),
            json!({"metadata": {"name": "made"}, "spec": {"clusterIP": address(14), "ports": [{"port": 80}]}}),
        ),
        post(
            "a dry run",
            format!("{SERVICES}?dryRun=All"),
            json!({"metadata": {"name": "dry"}, "spec": {"clusterIP": address(15), "ports": [{"port": 80}]}}),
        ),
        delete("delete one", path("balancer")),
        create(
            "its address is free again",
            "again",
            json!({"clusterIP": address(3), "ports": [{"port": 80}]}),
        ),
        get("the list at the end", SERVICES),
        get("all namespaces", "/api/v1/services").compare(Nothing),
    ]
}

/// Services that are refused, and with which messages.
pub fn invalid() -> Vec<Step> {
    let wrong = |name: &'static str, mut spec: Value| {
        if spec.get("ports").is_none() && spec["type"] != "ExternalName" {
            spec["ports"] = json!([{"port": 80}]);
        }
        post(name, SERVICES, json!({"metadata": {"name": "wrong"}, "spec": spec}))
    };
    let ports = |name: &'static str, ports: Value| wrong(name, json!({"ports": ports}));
    vec![
        ports("no ports", json!([])),
        ports("port 0", json!([{"port": 0}])),
        ports("a high port", json!([{"port": 65536}])),
        ports("a negative port", json!([{"port": -1}])),
        ports("a port beyond 32 bits", json!([{"port": 4_294_967_296_u64}])),
        ports("a broken port", json!([{"port": 1.5}])),
        ports("a target port 0", json!([{"port": 80, "targetPort": 0}])),
        ports("a high target port", json!([{"port": 80, "targetPort": 70000}])),
        ports("a broken target port", json!([{"port": 80, "targetPort": "a_b"}])),
        ports("a long target port", json!([{"port": 80, "targetPort": "abcdefghijklmnopq"}])),
        ports("a protocol in lower case", json!([{"port": 80, "protocol": "tcp"}])),
        ports("two ports without names", json!([{"port": 80}, {"port": 81}])),
        ports(
            "two ports with one name",
            json!([{"name": "a", "port": 80}, {"name": "a", "port": 81}]),
        ),
        ports("a port twice", json!([{"name": "a", "port": 80}, {"name": "b", "port": 80}])),
        ports("a broken name", json!([{"name": "A_b", "port": 80}])),
        ports("a broken application protocol", json!([{"port": 80, "appProtocol": "a b"}])),
        wrong("an unknown type", json!({"type": "Some"})),
        wrong("an unknown affinity", json!({"sessionAffinity": "Some"})),
        wrong(
            "a timeout without affinity",
            json!({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}}),
        ),
        wrong(
            "a timeout of 0",
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}}),
        ),
        wrong(
            "a long timeout",
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}}}),
        ),
        wrong(
            "an unknown external policy",
            json!({"type": "NodePort", "externalTrafficPolicy": "Some"}),
        ),
        wrong("an external policy of ClusterIP", json!({"externalTrafficPolicy": "Local"})),
        wrong("an unknown internal policy", json!({"internalTrafficPolicy": "Some"})),
        wrong(
            "a health port without Local",
            json!({"type": "LoadBalancer", "healthCheckNodePort": 31000}),
        ),
        wrong("a class of ClusterIP", json!({"loadBalancerClass": "example.com/a"})),
        wrong("a broken class", json!({"type": "LoadBalancer", "loadBalancerClass": "a b"})),
        wrong("source ranges of ClusterIP", json!({"loadBalancerSourceRanges": ["192.0.2.0/24"]})),
        wrong(
            "broken source ranges",
            json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["192.0.2.0", "x"]}),
        ),
        wrong("node ports of ClusterIP", json!({"ports": [{"port": 80, "nodePort": 31000}]})),
        wrong("no node ports for ClusterIP", json!({"allocateLoadBalancerNodePorts": false})),
        wrong(
            "broken external addresses",
            json!({"externalIPs": ["x", "127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "::"]}),
        ),
        wrong("too many families", json!({"ipFamilies": ["IPv4", "IPv4"]})),
        wrong("an unknown family", json!({"ipFamilies": ["IPv5"]})),
        wrong(
            "two families by a single policy",
            json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4", "IPv6"]}),
        ),
        wrong("an unknown family policy", json!({"ipFamilyPolicy": "Some"})),
        wrong(
            "families unlike addresses",
            json!({"ipFamilies": ["IPv6"], "clusterIP": "10.96.9.9"}),
        ),
        wrong(
            "addresses of one family",
            json!({"ipFamilyPolicy": "RequireDualStack", "clusterIPs": ["10.96.9.9", "10.96.9.10"]}),
        ),
        wrong(
            "first address unlike the address",
            json!({"clusterIP": "10.96.9.9", "clusterIPs": ["10.96.9.10"]}),
        ),
        wrong("ExternalName without a name", json!({"type": "ExternalName"})),
        wrong(
            "ExternalName with an address",
            json!({"type": "ExternalName", "externalName": "192.0.2.1", "clusterIP": "10.96.9.9"}),
        ),
        wrong(
            "ExternalName with a broken name",
            json!({"type": "ExternalName", "externalName": "a_b"}),
        ),
        wrong(
            "ExternalName without an address",
            json!({"type": "ExternalName", "externalName": "a.example.com", "clusterIP": "None"}),
        ),
        wrong("headless NodePort", json!({"type": "NodePort", "clusterIP": "None"})),
        wrong("headless LoadBalancer", json!({"type": "LoadBalancer", "clusterIP": "None"})),
        wrong("an unknown distribution", json!({"trafficDistribution": "Some"})),
        wrong("a broken selector", json!({"selector": {"a b": "c"}})),
        wrong("a selector of a number", json!({"selector": {"a": 1}})),
        wrong(
            "a broken load balancer address",
            json!({"type": "LoadBalancer", "loadBalancerIP": "x"}),
        ),
        wrong(
            "many errors",
            json!({"type": "Some", "sessionAffinity": "Some", "ports": [{"port": 0, "protocol": "x"}], "externalIPs": ["x"], "selector": {"": ""}}),
        ),
        post("no specification", SERVICES, json!({"metadata": {"name": "wrong"}})),
        post(
            "a digit first",
            SERVICES,
            json!({"metadata": {"name": "1a"}, "spec": {"clusterIP": "10.96.9.20", "ports": [{"port": 80}]}}),
        ),
        post(
            "a long name",
            SERVICES,
            json!({"metadata": {"name": "a".repeat(64)}, "spec": {"ports": [{"port": 80}]}}),
        ),
        post(
            "broken topology annotation",
            SERVICES,
            json!({"metadata": {"name": "wrong", "annotations": {"service.kubernetes.io/topology-mode": "x"}}, "spec": {"clusterIP": "10.96.9.21", "ports": [{"port": 80}]}}),
        ),
        get("nothing was created", SERVICES),
    ]
}

/// Changes, most of which are refused.
pub fn changes() -> Vec<Step> {
    let change = |name: &'static str, spec: Value| {
        merge(name, format!("{SERVICES}/one"), json!({"spec": spec}))
    };
    vec![
        post(
            "create",
            SERVICES,
            json!({"metadata": {"name": "one"}, "spec": {"type": "LoadBalancer", "loadBalancerClass": "example.com/a", "clusterIP": "10.96.9.1", "ports": [{"port": 80, "nodePort": 31070}]}}),
        ),
        change("another address", json!({"clusterIP": "10.96.9.2"})),
        change("other addresses", json!({"clusterIPs": ["10.96.9.2"]})),
        change("both addresses", json!({"clusterIP": "10.96.9.2", "clusterIPs": ["10.96.9.2"]})),
        change("no address", json!({"clusterIP": null, "clusterIPs": null})),
        change("headless", json!({"clusterIP": "None"})),
        change("another class", json!({"loadBalancerClass": "example.com/b"})),
        change("no class", json!({"loadBalancerClass": null})),
        change("another family", json!({"ipFamilies": ["IPv6"]})),
        change(
            "another type without the class",
            json!({"type": "NodePort", "loadBalancerClass": null}),
        ),
        change("a class for another type", json!({"loadBalancerClass": "example.com/a"})),
        change("no ports", json!({"ports": []})),
        change(
            "a taken node port",
            json!({"ports": [{"port": 80, "nodePort": 31070}, {"name": "b", "port": 81, "nodePort": 31070}]}),
        ),
        merge("its own name", format!("{SERVICES}/one"), json!({"metadata": {"name": "two"}})),
        merge(
            "its creation",
            format!("{SERVICES}/one"),
            json!({"metadata": {"creationTimestamp": null, "uid": null}}),
        ),
        get("the result", format!("{SERVICES}/one")),
    ]
}

//! Objects and changes that are refused, and with which messages.

use serde_json::{Value, json};

use super::steps::ComparedPart::Nothing;
use super::steps::{INGRESSES, SLICES, Step, delete, get, merge, post};

pub fn slices() -> Vec<Step> {
    let slice = |name: &'static str, fields: Value| {
        let mut object =
            json!({"metadata": {"name": "one"}, "addressType": "IPv4", "endpoints": []});
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
            object.extend(fields);
        }
        post(name, SLICES, object)
    };
    let endpoint =
        |name: &'static str, endpoint: Value| slice(name, json!({"endpoints": [endpoint]}));
    let endpoints = "/api/v1/namespaces/compared/endpoints";
    vec![
        slice("no address type", json!({"addressType": null})),
        slice("an unknown address type", json!({"addressType": "IPv5"})),
        slice("no endpoints", json!({"endpoints": null, "metadata": {"name": "none"}})),
        endpoint("no address", json!({"addresses": []})),
        endpoint("a broken address", json!({"addresses": ["x"]})),
        endpoint("an address of the other family", json!({"addresses": ["fd00::1"]})),
        endpoint(
            "addresses of the machine itself",
            json!({"addresses": ["127.0.0.1", "169.254.1.1", "0.0.0.0", "224.0.0.1"]}),
        ),
        endpoint("a broken node name", json!({"addresses": ["192.0.2.1"], "nodeName": "A_b"})),
        endpoint("a broken host name", json!({"addresses": ["192.0.2.1"], "hostname": "a.b"})),
        endpoint(
            "a broken hint",
            json!({"addresses": ["192.0.2.1"], "hints": {"forZones": [{"name": "a b"}, {"name": ""}]}}),
        ),
        endpoint(
            "old topology",
            json!({"addresses": ["192.0.2.1"], "deprecatedTopology": {"a b": "c"}}),
        ),
        slice("two ports without names", json!({"ports": [{"port": 80}, {"port": 81}]})),
        slice(
            "a broken port",
            json!({"ports": [{"port": 0, "name": "A_b", "protocol": "x", "appProtocol": "a b"}]}),
        ),
        slice(
            "too many ports",
            json!({"ports": (0..20_001).map(|port| json!({"name": format!("p{port}")})).collect::<Vec<_>>()}),
        ),
        slice(
            "too many endpoints",
            json!({"endpoints": (0..1_001).map(|_| json!({"addresses": ["192.0.2.1"]})).collect::<Vec<_>>()}),
        ),
        slice(
            "domain names",
            json!({"metadata": {"name": "names"}, "addressType": "FQDN", "endpoints": [{"addresses": ["www.example.com"]}, {"addresses": ["A_b"]}]}),
        ),
        slice(
            "a valid one",
            json!({
                "metadata": {"name": "one", "labels": {"kubernetes.io/service-name": "web"}}, "ports": [{"port": 80}],
                "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": true}, "nodeName": "n1", "zone": "z1", "hints": {"forZones": [{"name": "z1"}]}, "targetRef": {"kind": "Pod", "name": "p"}}],
            }),
        ),
        slice("the same name", json!({})),
        merge("another address type", format!("{SLICES}/one"), json!({"addressType": "IPv6"})),
        merge("no addresses", format!("{SLICES}/one"), json!({"endpoints": [{"addresses": null}]})),
        get("the slice", format!("{SLICES}/one")),
        post(
            "Endpoints",
            endpoints,
            json!({"metadata": {"name": "a"}, "subsets": [{"addresses": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}], "notReadyAddresses": [{"ip": "192.0.2.3"}], "ports": [{"port": 80}]}]}),
        ),
        post(
            "Endpoints of two subsets",
            endpoints,
            json!({"metadata": {"name": "b"}, "subsets": [
                {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"name": "x", "port": 80}]},
                {"addresses": [{"ip": "192.0.2.2"}], "ports": [{"name": "x", "port": 80}]},
                {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"name": "y", "port": 81}]},
            ]}),
        ),
        post(
            "broken Endpoints",
            endpoints,
            json!({"metadata": {"name": "c"}, "subsets": [{"addresses": [{"ip": "x"}, {"ip": "127.0.0.1", "nodeName": "A_b"}], "ports": [{"port": 0}, {"port": 1}]}, {}]}),
        ),
        merge(
            "another node of an address",
            format!("{endpoints}/a"),
            json!({"subsets": [{"addresses": [{"ip": "192.0.2.1", "nodeName": "n2"}], "ports": [{"port": 80}]}]}),
        ),
    ]
}

pub fn ingresses() -> Vec<Step> {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let ingress = |name: &'static str, object: &str, spec: Value| {
        post(name, INGRESSES, json!({"metadata": {"name": object}, "spec": spec}))
    };
    let path = |name: &'static str, path: Value| {
        ingress(name, "wrong", json!({"rules": [{"http": {"paths": [path]}}]}))
    };
    let wrong = |name: &'static str, spec: Value| ingress(name, "wrong", spec);
    let classes = "/apis/networking.k8s.io/v1/ingressclasses";
    vec![
        wrong("nothing", json!({})),
        path("no path type", json!({"path": "/", "backend": backend})),
        path("an unknown path type", json!({"path": "/", "pathType": "Some", "backend": backend})),
        path("no path", json!({"pathType": "Prefix", "backend": backend})),
        path("a relative path", json!({"path": "a", "pathType": "Exact", "backend": backend})),
        path(
            "a path with dots",
            json!({"path": "/a/../b//c/%2f", "pathType": "Prefix", "backend": backend}),
        ),
        path(
            "an implementation's path",
            json!({"path": "/a(.*)", "pathType": "ImplementationSpecific", "backend": backend}),
        ),
        path("no backend", json!({"path": "/", "pathType": "Exact", "backend": {}})),
        path(
            "a backend without a port",
            json!({"path": "/", "pathType": "Exact", "backend": {"service": {"name": "web"}}}),
        ),
        path(
            "a backend with two ports",
            json!({"path": "/", "pathType": "Exact", "backend": {"service": {"name": "web", "port": {"number": 80, "name": "http"}}}}),
        ),
        path(
            "a backend of a broken name",
            json!({"path": "/", "pathType": "Exact", "backend": {"service": {"name": "A_b", "port": {"number": 0}}}}),
        ),
        path(
            "both backends",
            json!({"path": "/", "pathType": "Exact", "backend": {"service": backend["service"], "resource": {"kind": "A", "name": "b"}}}),
        ),
        wrong("no paths", json!({"rules": [{"http": {"paths": []}}]})),
        wrong(
            "broken hosts",
            json!({"rules": [{"host": "192.0.2.1"}, {"host": "a_b"}, {"host": "*.*.com"}, {"host": "a:80"}]}),
        ),
        wrong("a broken class", json!({"ingressClassName": "A b", "defaultBackend": backend})),
        wrong(
            "broken TLS",
            json!({"defaultBackend": backend, "tls": [{"hosts": ["a_b"], "secretName": "A b"}]}),
        ),
        post(
            "both classes",
            INGRESSES,
            json!({"metadata": {"name": "wrong", "annotations": {"kubernetes.io/ingress.class": "a"}}, "spec": {"ingressClassName": "a", "defaultBackend": backend}}),
        ),
        post(
            "the old annotation",
            INGRESSES,
            json!({"metadata": {"name": "old", "annotations": {"kubernetes.io/ingress.class": "a"}}, "spec": {"defaultBackend": backend}}),
        ),
        ingress(
            "a valid one",
            "one",
            json!({
                "defaultBackend": backend, "tls": [{"hosts": ["a.example.com"], "secretName": "a"}],
                "rules": [{"host": "a.example.com", "http": {"paths": [{"path": "/a", "pathType": "Prefix", "backend": backend}]}}, {"host": "*.example.com"}],
            }),
        ),
        merge(
            "a status",
            format!("{INGRESSES}/one/status"),
            json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ports": [{"port": 80, "protocol": "TCP", "error": "a b"}]}]}}}),
        ),
        merge(
            "another class",
            format!("{INGRESSES}/one"),
            json!({"spec": {"ingressClassName": "other"}}),
        ),
        get("the result", format!("{INGRESSES}/one")),
        post(
            "a class",
            classes,
            json!({"metadata": {"name": "compared"}, "spec": {"controller": "example.com/a", "parameters": {"kind": "A", "name": "b"}}}),
        ),
        post(
            "a broken class object",
            classes,
            json!({"metadata": {"name": "wrong"}, "spec": {"controller": "a b", "parameters": {"kind": "", "name": "", "scope": "Some"}}}),
        ),
        merge(
            "another controller",
            format!("{classes}/compared"),
            json!({"spec": {"controller": "example.com/b"}}),
        ),
        merge(
            "the default class",
            format!("{classes}/compared"),
            json!({"metadata": {"annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}}}),
        ),
        ingress("of the default class", "default", json!({"defaultBackend": backend})),
        delete("the class", format!("{classes}/compared")),
    ]
}

pub fn others() -> Vec<Step> {
    let compared = |plural: &str| format!("/api/v1/namespaces/compared/{plural}");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/compared/leases";
    let events = "/apis/events.k8s.io/v1/namespaces/compared/events";
    let ranges = "/apis/test.example.com/v1alpha1/ranges";
    let range = |name: &'static str, spec: Value| {
        post(
            name,
            ranges,
            json!({"apiVersion": "test.example.com/v1alpha1", "kind": "Range", "metadata": {"name": "one"}, "spec": spec}),
        )
    };
    vec![
        post(
            "a Secret",
            compared("secrets"),
            json!({"metadata": {"name": "a"}, "stringData": {"a": "b"}, "data": {"c": "eA=="}}),
        ),
        post(
            "a Secret of TLS without a key",
            compared("secrets"),
            json!({"metadata": {"name": "b"}, "type": "kubernetes.io/tls", "data": {"tls.crt": "eA=="}}),
        ),
        post(
            "a Secret of basic authentication",
            compared("secrets"),
            json!({"metadata": {"name": "b"}, "type": "kubernetes.io/basic-auth"}),
        ),
        post(
            "a Secret of SSH",
            compared("secrets"),
            json!({"metadata": {"name": "b"}, "type": "kubernetes.io/ssh-auth"}),
        ),
        post(
            "a Secret of a registry",
            compared("secrets"),
            json!({"metadata": {"name": "b"}, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "eA=="}}),
        ),
        post(
            "a Secret of a token",
            compared("secrets"),
            json!({"metadata": {"name": "b"}, "type": "kubernetes.io/service-account-token"}),
        ),
        post(
            "a Secret of broken data",
            compared("secrets"),
            json!({"metadata": {"name": "b"}, "data": {"a": "!"}}),
        ),
        merge(
            "another type of a Secret",
            format!("{}/a", compared("secrets")),
            json!({"type": "other"}),
        ),
        post(
            "a ServiceAccount",
            compared("serviceaccounts"),
            json!({"metadata": {"name": "a"}, "secrets": [{"name": "a"}], "automountServiceAccountToken": false}),
        ),
        post(
            "a Lease",
            leases,
            json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.000000Z"}}),
        ),
        post(
            "a broken Lease",
            leases,
            json!({"metadata": {"name": "b"}, "spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}}),
        ),
        post(
            "a Lease with a broken time",
            leases,
            json!({"metadata": {"name": "b"}, "spec": {"renewTime": "yesterday"}}),
        ),
        merge(
            "a Lease's time",
            format!("{leases}/a"),
            json!({"spec": {"renewTime": "2026-01-02T03:04:06.123456Z"}}),
        ),
        post(
            "an Event",
            events,
            json!({
                "metadata": {"name": "a"}, "regarding": {"kind": "Service", "namespace": "compared", "name": "x"}, "reason": "A", "type": "Normal", "action": "a",
                "eventTime": "2026-01-02T03:04:05.000000Z", "reportingController": "example.com/c", "reportingInstance": "d", "note": "text",
            }),
        ),
        get("the Event by the old kind", format!("{}/a", compared("events"))),
        post(
            "a broken Event",
            events,
            json!({"metadata": {"name": "b"}, "regarding": {"namespace": "compared"}}),
        ),
        post(
            "an old Event",
            compared("events"),
            json!({"metadata": {"name": "c"}, "involvedObject": {"kind": "Service", "namespace": "compared"}, "reason": "B", "message": "text", "type": "Warning", "count": 2}),
        ),
        post(
            "an old Event of another namespace",
            compared("events"),
            json!({"metadata": {"name": "d"}, "involvedObject": {"namespace": "default"}}),
        ),
        post(
            "a Node",
            "/api/v1/nodes",
            json!({"metadata": {"name": "compared"}, "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "taints": [{"key": "a", "effect": "NoSchedule"}]}}),
        ),
        post(
            "a broken Node",
            "/api/v1/nodes",
            json!({"metadata": {"name": "wrong"}, "spec": {"podCIDR": "x", "taints": [{"key": "a b", "effect": "Some"}]}}),
        ),
        merge(
            "a Node's address",
            "/api/v1/nodes/compared/status",
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}),
        ),
        merge(
            "another range of a Node",
            "/api/v1/nodes/compared",
            json!({"spec": {"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24"]}}),
        ),
        delete("the Node", "/api/v1/nodes/compared"),
        range("a declared object", json!({"first": 1, "last": 2})),
        range("a declared object again", json!({"first": 1, "last": 2})),
        merge("a rule in CEL", format!("{ranges}/one"), json!({"spec": {"first": 9}})),
        merge(
            "a number that is too large",
            format!("{ranges}/one"),
            json!({"spec": {"last": 70000}}),
        ),
        merge("a text for a number", format!("{ranges}/one"), json!({"spec": {"last": "x"}})),
        merge("an unknown mode", format!("{ranges}/one"), json!({"spec": {"mode": "Some"}})),
        merge(
            "a set with a duplicate",
            format!("{ranges}/one"),
            json!({"spec": {"names": ["a", "a"]}}),
        ),
        merge(
            "a long and a broken name",
            format!("{ranges}/one"),
            json!({"spec": {"names": ["abcdefghi", "A"]}}),
        ),
        merge(
            "too many names",
            format!("{ranges}/one"),
            json!({"spec": {"names": ["a", "b", "c", "d", "e"]}}),
        ),
        merge(
            "a map with a duplicate",
            format!("{ranges}/one"),
            json!({"spec": {"peers": [{"name": "a"}, {"name": "a"}]}}),
        ),
        merge(
            "a peer without a name",
            format!("{ranges}/one"),
            json!({"spec": {"peers": [{"weight": 1}]}}),
        ),
        merge(
            "a broken address",
            format!("{ranges}/one"),
            json!({"spec": {"peers": [{"name": "a", "address": "x"}]}}),
        ),
        merge("an unknown field", format!("{ranges}/one"), json!({"spec": {"unknown": 1}})),
        merge("a required field", format!("{ranges}/one"), json!({"spec": {"first": null}})),
        merge(
            "a status",
            format!("{ranges}/one/status"),
            json!({"status": {"taken": 1, "conditions": [{"type": "Ready", "status": "True", "reason": "A", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}),
        ),
        get("the declared object", format!("{ranges}/one")),
        delete("the declared object's end", format!("{ranges}/one")),
        post(
            "a review of oneself",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
        )
        .compare(Nothing),
    ]
}

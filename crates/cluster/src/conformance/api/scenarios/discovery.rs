//! What a server says about itself, and paths that do not exist.

use super::steps::ComparedPart::{Status, WhatEmbeddedSays};
use super::steps::{Step, get, request};

const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

pub fn steps() -> Vec<Step> {
    let reduced = [
        ("the root", "/"),
        ("versions", "/api"),
        ("groups", "/apis"),
        ("core", "/api/v1"),
        ("group discovery", "/apis/discovery.k8s.io"),
        ("discovery", "/apis/discovery.k8s.io/v1"),
        ("networking", "/apis/networking.k8s.io/v1"),
        ("coordination", "/apis/coordination.k8s.io/v1"),
        ("events", "/apis/events.k8s.io/v1"),
        ("declared kinds", "/apis/test.example.com/v1alpha1"),
        ("the group of declared kinds", "/apis/test.example.com"),
        ("the third OpenAPI", "/openapi/v3"),
    ];
    let mut steps: Vec<_> =
        reduced.into_iter().map(|(name, path)| get(name, path).compare(WhatEmbeddedSays)).collect();
    for (name, path) in [("aggregated core", "/api"), ("aggregated groups", "/apis")] {
        steps.push(get(name, path).accept(AGGREGATED).compare(WhatEmbeddedSays));
    }
    let same = [
        ("health", "/healthz"),
        ("liveness", "/livez"),
        ("readiness", "/readyz"),
        ("a check of its own", "/livez/ping"),
        ("a path with a slash at the end", "/api/v1/"),
        ("no such path", "/nothing"),
        ("no such version", "/api/v2"),
        ("no such group", "/apis/none.example.com"),
        ("no such group and version", "/apis/none.example.com/v1"),
        ("no such version of a group", "/apis/networking.k8s.io/v7"),
        ("no such kind", "/api/v1/nothings"),
        ("no such kind in a namespace", "/api/v1/namespaces/default/nothings"),
        ("no such kind of a group", "/apis/networking.k8s.io/v1/namespaces/default/nothings"),
        ("an object of no such kind", "/api/v1/namespaces/default/nothings/one"),
        ("a kind in another case", "/api/v1/namespaces/default/Services"),
        ("a namespace for a kind without", "/api/v1/namespaces/default/nodes"),
        ("no namespace for an object in one", "/api/v1/services/one"),
        ("another subresource", "/api/v1/namespaces/default/services/one/nothing"),
        ("too long a path", "/api/v1/namespaces/default/services/one/status/more"),
    ];
    steps.extend(same.map(|(name, path)| get(name, path)));
    for (name, path) in [
        ("version", "/version"),
        ("all of OpenAPI 2", "/openapi/v2"),
        ("OpenAPI 3 of core", "/openapi/v3/api/v1"),
        ("OpenAPI 3 of a group", "/openapi/v3/apis/networking.k8s.io/v1"),
        ("OpenAPI 3 of nothing", "/openapi/v3/apis/none.example.com/v1"),
        ("metrics", "/metrics"),
        ("verbose readiness", "/readyz?verbose"),
    ] {
        steps.push(get(name, path).compare(Status));
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        steps.push(request(method, method, "/api/v1"));
        steps.push(request(method, method, "/version").compare(Status));
        steps.push(request(method, method, "/healthz").compare(Status));
    }
    steps.push(
        request("HEAD of a list", "HEAD", "/api/v1/namespaces/default/services").compare(Status),
    );
    steps
        .push(request("OPTIONS", "OPTIONS", "/api/v1/namespaces/default/services").compare(Status));
    steps.push(
        request("an unknown method", "BREW", "/api/v1/namespaces/default/services").compare(Status),
    );
    steps
}

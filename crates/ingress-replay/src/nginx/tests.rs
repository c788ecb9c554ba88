//! Servers and locations as ingress-nginx makes them.

use serde_json::{Value, json};

use super::*;

fn backend(service: &str) -> Value {
    json!({"service": {"name": service, "port": {"name": "http"}}})
}

fn ingress(name: &str, age: u32, annotations: &[(&str, &str)], spec: &Value) -> Ingress {
    let annotations: BTreeMap<String, &str> =
        annotations.iter().map(|(name, value)| (format!("{NGINX}{name}"), *value)).collect();
    serde_json::from_value(json!({
        "metadata": {"namespace": "n", "name": name, "annotations": annotations,
            "creationTimestamp": format!("2026-01-{age:02}T00:00:00Z")},
        "spec": spec
    }))
    .unwrap()
}

/// Rules as host, type, path and Service.
fn rules(rules: &[(&str, &str, &str, &str)]) -> Value {
    let rules = rules.iter().map(|(host, kind, path, service)| {
        json!({"host": host, "http": {"paths": [
            {"path": path, "pathType": kind, "backend": backend(service)}]}})
    });
    json!({"rules": rules.collect::<Vec<_>>()})
}

fn expect(ingresses: &[Ingress], cases: &[(&str, &str, &str)]) {
    let site = Site::new(ingresses);
    for (host, path, expected) in cases {
        let found = site.find(host, path.as_bytes()).unwrap();
        let actual = match found.outcome {
            RequestHandling::Location(location) => {
                &*location.backend.as_ref().unwrap().service.name
            }
            RequestHandling::SlashAppended => "301",
            RequestHandling::NotFound => "404",
            RequestHandling::Unknown => "unknown",
        };
        assert_eq!(actual, *expected, "{host}{path}");
    }
}

const PREFIX: &str = "Prefix";
const OWN: &str = "ImplementationSpecific";

#[test]
fn the_longest_prefix_by_elements() {
    let spec = rules(&[
        ("a", PREFIX, "/a", "a"),
        ("a", OWN, "/a/b/", "b"),
        ("a", "Exact", "/a/c", "exact"),
        ("a", PREFIX, "/a/c", "c"),
    ]);
    expect(
        &[ingress("i", 1, &[], &spec)],
        &[
            ("a", "/", "404"),
            ("a", "/a", "a"),
            ("a", "/ab", "404"),
            ("a", "/A", "404"),
            ("a", "/a/b", "301"),
            ("a", "/a/b/c", "b"),
            ("a", "/a/c", "exact"),
            ("a", "/a/c/", "c"),
            ("b", "/a", "404"),
        ],
    );
}

#[test]
fn one_expression_makes_all_paths_of_a_host_expressions() {
    let plain = rules(&[
        ("a", "Exact", "/exact", "exact"),
        ("a", PREFIX, "/pre", "prefix"),
        ("b", PREFIX, "/pre", "b"),
    ]);
    let expression = rules(&[("a", OWN, "/x|/unanchored", "x"), ("a", OWN, "/v[0-9]+$", "v")]);
    expect(
        &[
            ingress("plain", 1, &[], &plain),
            ingress("regex", 2, &[("use-regex", "true")], &expression),
        ],
        &[
            ("a", "/EXACTLY", "exact"),
            ("a", "/prefix", "prefix"),
            ("a", "/v1", "v"),
            ("a", "/v1/", "404"),
            ("a", "/pre/unanchored", "x"),
            ("b", "/prefix", "404"),
        ],
    );
    let rewrite = |target| {
        ingress("i", 1, &[("rewrite-target", target)], &rules(&[("a", PREFIX, "/a", "a")]))
    };
    expect(&[rewrite("/")], &[("a", "/ab", "a")]);
    let pcre = rules(&[("a", OWN, "/(?!a)", "pcre"), ("a", OWN, "/longest", "l")]);
    expect(
        &[ingress("i", 1, &[("use-regex", "true")], &pcre)],
        &[("a", "/longest", "l"), ("a", "/a", "unknown")],
    );
}

#[test]
fn the_oldest_has_a_path_and_the_first_of_a_host_its_default() {
    let with_default = |spec: Value, service| {
        let mut spec = spec;
        spec["defaultBackend"] = backend(service);
        spec
    };
    let path = |service| rules(&[("a", PREFIX, "/a", service)]);
    expect(
        &[
            ingress("young", 3, &[], &with_default(path("young"), "young-default")),
            ingress("old", 2, &[], &with_default(path("old"), "old-default")),
            ingress("rest", 4, &[], &with_default(json!({}), "rest")),
            ingress("rest2", 5, &[], &with_default(json!({}), "rest2")),
        ],
        &[("a", "/a", "old"), ("a", "/b", "old-default"), ("b", "/", "rest")],
    );
    // Of equal age, the greatest name.
    let (a, b) = (ingress("a", 1, &[], &path("a")), ingress("b", 1, &[], &path("b")));
    expect(&[a, b], &[("a", "/a", "b")]);
}

#[test]
fn hosts_by_name_alias_and_wildcard() {
    let aliases = [("server-alias", "alias, *.many, other")];
    expect(
        &[
            ingress("a", 1, &aliases, &rules(&[("a", PREFIX, "/", "a")])),
            ingress("w", 2, &[], &rules(&[("*.W", PREFIX, "/", "w")])),
            ingress("other", 3, &[], &rules(&[("other", PREFIX, "/", "other")])),
            ingress("any", 4, &[], &rules(&[("", PREFIX, "/", "any")])),
        ],
        &[
            ("alias", "/", "a"),
            ("x.y.many", "/", "a"),
            ("many", "/", "any"),
            ("x.w", "/", "w"),
            ("x.y.w", "/", "any"),
            ("x y.w", "/", "any"),
            ("other", "/", "other"),
            ("", "/", "any"),
        ],
    );
}

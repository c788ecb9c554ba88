//! Objects that are as large and as bad as an API server accepts: their authors are tenants.

use lb_http::Action;
use lb_rules::model::{Kind, Object};
use serde_json::{Map, Value, json};

use super::world::{World, settings};

/// About as many as fit into an object.
const MANY: usize = 5000;

fn read(kind: Kind, value: Value) -> Object {
    Object::read(kind, value).unwrap()
}

fn ingress(name: &str, annotations: Value, paths: Vec<Value>) -> Object {
    let rules = json!([{"host": "a.example.org", "http": {"paths": paths}}]);
    read(
        Kind::Ingress,
        json!({
            "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
            "spec": {"rules": rules}
        }),
    )
}

fn path(text: &str, path_type: &str) -> Value {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    json!({"path": text, "pathType": path_type, "backend": backend})
}

fn service() -> Object {
    let metadata = json!({"name": "web", "namespace": "shop"});
    read(Kind::Service, json!({"metadata": metadata, "spec": {"ports": [{"port": 80}]}}))
}

fn settled(ingresses: Vec<Object>) -> World {
    let mut world = World::new(settings(""));
    world.model.apply(service());
    ingresses.into_iter().for_each(|ingress| world.model.apply(ingress));
    world.settle();
    world
}

/// Joining each of many paths with each other would take minutes.
#[test]
fn many_paths_of_a_canary_join_many_paths() {
    let paths = || (0..MANY).map(|n| path(&format!("/{n}"), "Prefix")).collect();
    let canary = json!({"ingress.millrace.io/canary": "true"});
    let world = settled(vec![ingress("a", json!({}), paths()), ingress("b", canary, paths())]);
    let rules = world.hosts.values().next().unwrap();
    assert_eq!(rules.len(), MANY);
    assert!(rules.iter().all(|(_, route)| route.canaries.len() == 1));
}

/// Each request of the path asks all of them.
#[test]
fn a_path_has_a_limited_number_of_canaries() {
    let canary = json!({
        "ingress.millrace.io/canary": "true",
        "ingress.millrace.io/canary-by-header": "X-Canary",
        "ingress.millrace.io/canary-by-header-pattern": "a|b"
    });
    let root = || vec![path("/", "Prefix")];
    let mut ingresses = vec![ingress("main", json!({}), root())];
    ingresses.extend((0..100).map(|n| ingress(&format!("c{n:03}"), canary.clone(), root())));
    let world = settled(ingresses);
    let (_, route) = &world.hosts.values().next().unwrap()[0];
    assert_eq!(route.canaries.len(), 16);
    let problems = world.problems.values().flatten().map(ToString::to_string);
    let refused = problems.filter(|problem| problem.contains("has 16 canaries already"));
    assert_eq!(refused.count(), 100 - 16);
}

#[test]
fn an_expression_for_a_header_that_costs_too_much_is_refused() {
    let canary = json!({
        "ingress.millrace.io/canary": "true",
        "ingress.millrace.io/canary-by-header": "X-Canary",
        "ingress.millrace.io/canary-by-header-pattern": "1[01]{2000}[a-z]"
    });
    let world = settled(vec![ingress("c", canary, vec![path("/", "Prefix")])]);
    let problems: Vec<String> =
        world.problems.values().flatten().map(ToString::to_string).collect();
    assert!(problems.iter().any(|problem| problem.contains("too large")), "{problems:?}");
}

/// One tenant's Secrets must not take the room of others'.
#[test]
fn secrets_that_are_watched_by_name_are_shared_out() {
    let mut world = World::new(settings(""));
    let of = |namespace: &str, name: &str, annotations: Value, tls: Value| {
        read(
            Kind::Ingress,
            json!({
                "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
                "spec": {"tls": tls, "rules": [{"host": format!("{name}.{namespace}.example.org")}]}
            }),
        )
    };
    let users = |name: &str| json!({"ingress.millrace.io/auth-secret": name});
    // Certificates, most of which are known, as of cert-manager.
    for number in 0..300 {
        let tls = json!([{"hosts": [format!("{number}.example.org")], "secretName": format!("t{number}")}]);
        world.model.apply(of("shop", &format!("i{number}"), json!({}), tls));
        if number % 100 != 0 {
            let metadata = json!({"name": format!("t{number}"), "namespace": "shop"});
            let secret = json!({"metadata": metadata, "type": "kubernetes.io/tls"});
            world.model.apply(read(Kind::Secret, secret));
        }
    }
    world.model.apply(of("tools", "a", users("users"), json!([])));
    world.settle();
    let secrets = world.model.secrets();
    assert_eq!(secrets.watched.len(), 3 + 1);
    assert!(secrets.left_out.is_empty());

    // A tenant names as many as it likes; they need not exist.
    let tls: Vec<Value> = (0..300)
        .map(|n| json!({"hosts": ["h.example.net"], "secretName": format!("s{n}")}))
        .collect();
    world.model.apply(of("aaa", "a", json!({}), tls.into()));
    for number in 0..300 {
        let name = format!("u{number:03}");
        world.model.apply(of("aaa", &name, users(&name), json!([])));
    }
    world.settle();
    let secrets = world.model.secrets();
    assert_eq!(secrets.watched.len(), 256);
    assert!(secrets.watched.iter().any(|secret| secret.namespace == "tools"));
    assert!(secrets.left_out.iter().all(|secret| secret.namespace != "tools"));

    // A certificate that arrives needs no watch of its own any more.
    let metadata = json!({"name": "t0", "namespace": "shop"});
    let secret = json!({"metadata": metadata, "type": "kubernetes.io/tls"});
    world.model.apply(read(Kind::Secret, secret));
    world.settle();
    let t0 = |secrets: &std::collections::BTreeSet<lb_rules::model::ObjectRef>| {
        secrets.iter().any(|secret| secret.name == "t0")
    };
    let secrets = world.model.secrets();
    assert!(!t0(&secrets.watched) && !t0(&secrets.left_out));
}

#[test]
fn expressions_are_limited_in_number() {
    let paths = (0..MANY).map(|n| path(&format!("/{n}(a|b)*"), "ImplementationSpecific")).collect();
    let regex = json!({"ingress.millrace.io/use-regex": "true"});
    let world = settled(vec![ingress("a", regex, paths)]);
    assert!(world.hosts.values().next().unwrap().len() < 1000);
}

#[test]
fn problems_are_limited_in_number_and_length() {
    let mut annotations = Map::new();
    for number in 0..MANY {
        let key = format!("nginx.ingress.kubernetes.io/proxy-body-siz{number}");
        annotations.insert(key, "x".into());
    }
    let long = "x".repeat(100_000);
    annotations.insert("nginx.ingress.kubernetes.io/limit-rps".to_owned(), long.clone().into());
    annotations.insert("nginx.ingress.kubernetes.io/server-alias".to_owned(), long.into());
    let paths = (0..MANY).map(|n| path(&format!("no-slash-{n}"), "Exact")).collect();
    let world = settled(vec![ingress("a", annotations.into(), paths)]);
    let problems: Vec<_> = world.problems.values().flatten().collect();
    assert_eq!(problems.len(), 33);
    assert!(problems.iter().all(|problem| problem.to_string().len() < 1000), "{problems:?}");
}

#[test]
fn a_host_has_a_limited_number_of_aliases() {
    let aliases: Vec<String> = (0..1000).map(|n| format!("{n}.example.org")).collect();
    let annotations = json!({"ingress.millrace.io/server-alias": aliases.join(",")});
    let paths = (0..MANY).map(|n| path(&format!("/{n}"), "Prefix")).collect();
    let world = settled(vec![ingress("a", annotations, paths)]);
    assert_eq!(world.hosts.len(), 1);
    assert_eq!(world.problems.len(), 1);
}

/// What a host no longer compares, it would no longer deny.
#[test]
fn an_ingress_whose_denied_locations_are_too_many_closes() {
    let mut world = World::new(settings("# settings: allow-snippet-annotations"));
    world.model.apply(service());
    for n in 0..9 {
        let locations: String =
            (0..32).map(|m| format!("location /{n}/{m}/ {{ deny all; }}\n")).collect();
        let snippet = json!({"nginx.ingress.kubernetes.io/server-snippet": locations});
        world.model.apply(ingress(
            &format!("i{n}"),
            snippet,
            vec![path(&format!("/{n}"), "Prefix")],
        ));
    }
    world.settle();
    let rules = world.hosts.values().next().unwrap();
    let closed = rules.iter().filter(|(path, route)| {
        let is_closed = matches!(&route.action, Action::Respond { status, .. } if *status == 503);
        assert!(!is_closed || path.text() == "/8", "{path}");
        is_closed
    });
    assert_eq!(closed.count(), 1);
    let mut problems = world.problems.values().flatten().map(ToString::to_string);
    assert!(
        problems.any(|problem| problem.contains("i8: metadata") && problem.contains("too many"))
    );
}

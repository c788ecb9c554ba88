//! Objects that are as large and as bad as an API server accepts: their authors are tenants.

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

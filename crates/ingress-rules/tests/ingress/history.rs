//! The one thing that depends on the past: the last good certificate.

use lb_http::HostPattern;
use lb_proxy::HostTls;
use lb_rules::model::{Kind, Object, ObjectRef};
use serde_json::json;

use super::world::{Pairs, World, settings};

fn secret(certificate: &str, key: &str) -> Object {
    let value = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "shop"},
        "type": "kubernetes.io/tls", "stringData": {"tls.crt": certificate, "tls.key": key}
    });
    Object::read(Kind::Secret, value).unwrap()
}

fn ingress() -> Object {
    let value = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": "a", "namespace": "shop"},
        "spec": {
            "rules": [{"host": "a.example.org"}],
            "tls": [{"hosts": ["a.example.org"], "secretName": "a"}]
        }
    });
    Object::read(Kind::Ingress, value).unwrap()
}

#[test]
fn the_last_good_certificate_is_used_until_its_secret_is_deleted() {
    let pairs = Pairs::default();
    let (first, first_key) = pairs.get("a.example.org");
    let (second, second_key) = pairs.get("a.example.org www.example.org");
    let mut world = World::new(settings(""));
    let host = HostPattern::parse("a.example.org").unwrap();
    let names = |world: &World| match world.tls.get(&host).map(|tls| &**tls) {
        Some(HostTls::Terminate { certificate, .. }) => certificate.names.clone(),
        _ => Vec::new(),
    };
    world.model.apply(ingress());
    world.model.apply(secret(&first, &first_key));
    world.settle();
    assert_eq!(names(&world), ["a.example.org"]);
    assert!(world.problems.is_empty());

    // Half of a rotation: the new certificate with the old key.
    world.model.apply(secret(&second, &first_key));
    world.settle();
    assert_eq!(names(&world), ["a.example.org"]);
    let problem = world.problems.values().flatten().next().unwrap().to_string();
    assert!(problem.ends_with("Its last valid certificate stays in use"), "{problem}");

    world.model.apply(secret(&second, &second_key));
    world.settle();
    assert_eq!(names(&world), ["a.example.org", "www.example.org"]);
    assert!(world.problems.is_empty());

    world.model.apply(secret("", ""));
    world.settle();
    let secret = ObjectRef::new(Kind::Secret, Some("shop"), Some("a"));
    // All of its type are watched.
    assert!(world.model.secrets().watched.is_empty());
    world.model.delete(&secret);
    world.settle();
    assert!(world.model.secrets().watched.iter().eq([&secret]));
    assert!(names(&world).is_empty());
    assert_eq!(world.problems.len(), 1);
}

//! The rules of Ingress, one file each: `ingress/*.txt`.
//!
//! A file contains manifests, the line `--- expect`, and the result: the rules of each host in the order of
//! precedence, upstreams with their endpoints, TLS hosts with the names of their certificates, and problems. Of a
//! policy, only what differs from the default is listed, once for each Ingress.
//!
//! - The proxy's node is `node-a`.
//! - `# request: http://a.example.org/x` adds the rule that this request takes to the result.
//! - `# settings: allow-shared-hosts, default-certificate=infra/default` sets what an operator decides; see `settings`.
//! - Without an IngressClass, Ingresses without a class are served.
//! - In Secrets, `$certificate(a.example.org)` and `$key(a.example.org)` stand for a pair, and `$authority` for a
//!   certificate authority.
//!
//! Every file is also applied in reverse order, settled after each object: the result must be the same.
//!
//! `UPDATE_EXPECT=1` writes the actual results; review them.

// All of this is tests.
#![allow(clippy::unwrap_used)]

#[path = "../../../rules/tests/cases/mod.rs"]
mod cases;
mod history;
mod hostile;
mod invalid_values;
mod order;
mod world;

use std::fmt::Write;

use lb_http::IngressTable;
use world::{Pairs, World, objects, settings};

#[test]
fn every_rule_of_ingress_holds() {
    let pairs = Pairs::default();
    cases::check("ingress", |name, manifests| meaning(&pairs, name, manifests));
}

fn meaning(pairs: &Pairs, name: &str, manifests: &str) -> String {
    let objects = objects(name, &pairs.fill(manifests));
    let mut world = World::new(settings(manifests));
    for object in &objects {
        world.model.apply(object.clone());
    }
    world.settle();
    let meant = world.to_string() + &requests(&world, manifests);

    let mut reverse = World::new(settings(manifests));
    for object in objects.iter().rev() {
        reverse.model.apply(object.clone());
        reverse.settle();
    }
    let in_reverse = reverse.to_string() + &requests(&reverse, manifests);
    assert_eq!(in_reverse, meant, "{name}: the order of objects matters");
    for object in &objects {
        reverse.model.delete(&object.reference());
        reverse.settle();
    }
    let mut empty = World::new(settings(manifests));
    empty.settle();
    assert_eq!(reverse.to_string(), empty.to_string(), "{name}: something is left");
    meant
}

/// The rule for each request, found in the proxy's table.
fn requests(world: &World, manifests: &str) -> String {
    let mut table = IngressTable::new(settings(manifests).slashes);
    for (host, rules) in &world.hosts {
        table.set_host(host.clone(), rules.clone());
    }
    let mut text = String::new();
    for url in manifests.lines().filter_map(|line| line.strip_prefix("# request: http://")) {
        let (host, path) = url.split_once('/').unwrap();
        let host = lb_http::host::normalize_host(host).unwrap();
        let path = format!("/{path}");
        let found = match lb_http::path::normalize_path(&path) {
            Err(why) => format!("400 ({why})"),
            Ok(path) => table.find(Some(&host), &path).map_or("404".to_owned(), |found| {
                format!("{} {} {}", found.host, found.path, world::described(found.route))
            }),
        };
        writeln!(text, "request {url} -> {found}").unwrap();
    }
    text
}

//! The rules of Ingress, one file each: `ingress/*.txt`.
//!
//! A file contains manifests, the line `--- expect`, and the result: the rules of each host in the order of
//! precedence, upstreams with their endpoints, TLS hosts with the names of their certificates, and problems. Of a
//! policy, only what differs from the default is listed, once for each Ingress.
//!
//! - The proxy's node is `node-a`.
//! - `# request: http://a.example.org/x` adds the rule that this request takes to the result.
//! - `# settings: share-hosts, default-certificate=infra/default` sets what an operator decides; see `settings`.
//! - Without an IngressClass, Ingresses without a class are served.
//! - In Secrets, `$certificate(a.example.org)` and `$key(a.example.org)` stand for a pair, and `$authority` for a
//!   certificate authority.
//!
//! Every file is also applied in reverse order, settled after each object: the result must be the same.
//!
//! `UPDATE_EXPECT=1` writes the actual results; review them.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod history;
mod hostile;
mod order;
mod scale;
mod world;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use lb_http::Table;
use world::{Pairs, World, objects, settings};

const EXPECT: &str = "--- expect\n";

#[test]
fn every_rule_of_ingress_holds() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let pairs = Pairs::default();
    let mut failures = String::new();
    for file in files() {
        let name = file.file_stem().unwrap().to_string_lossy();
        let text = fs::read_to_string(&file).unwrap();
        let (manifests, expected) = text.split_once(EXPECT).unwrap_or((&text, ""));
        let objects = objects(&name, &pairs.fill(manifests));
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

        if update {
            fs::write(&file, format!("{manifests}{EXPECT}{meant}")).unwrap();
        } else if meant != expected {
            write!(failures, "\n{name}:\n{}", difference(expected, &meant)).unwrap();
        }
    }
    assert!(failures.is_empty(), "(-: expected, +: is)\n{failures}");
}

/// The rule for each request, found in the proxy's table.
fn requests(world: &World, manifests: &str) -> String {
    let mut table = Table::default();
    for (host, rules) in &world.hosts {
        table.set_host(host.clone(), rules.clone());
    }
    let mut text = String::new();
    for url in manifests.lines().filter_map(|line| line.strip_prefix("# request: http://")) {
        let (host, path) = url.split_once('/').unwrap();
        let host = lb_http::host::normalize(host).unwrap();
        let path = format!("/{path}");
        let found = match lb_http::path::normalize(&path) {
            Err(why) => format!("400 ({why})"),
            Ok(path) => table.find(Some(&host), &path).map_or("404".to_owned(), |found| {
                format!("{} {} {}", found.host, found.path, world::described(found.route))
            }),
        };
        writeln!(text, "request {url} -> {found}").unwrap();
    }
    text
}

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ingress");
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The differing lines, without equal lines at both ends.
fn difference(expected: &str, meant: &str) -> String {
    let (mut old, mut new): (Vec<&str>, Vec<&str>) =
        (expected.lines().collect(), meant.lines().collect());
    while !old.is_empty() && old.last() == new.last() {
        old.pop();
        new.pop();
    }
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let old = old[same..].iter().map(|line| format!("- {line}\n"));
    old.chain(new[same..].iter().map(|line| format!("+ {line}\n"))).collect()
}

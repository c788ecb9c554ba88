//! The imports between the agent's modules: without cycles, and in the direction of the data flow.

// All of this is tests.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// By top-level module, the modules that its files import from `crate::`.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn imports() -> Imports {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut imports = Imports::new();
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !["lib", "main"].contains(&module.as_str()) {
            let own = imports.entry(module.clone()).or_default();
            collect(&path, own);
            own.remove(&module);
        }
    }
    imports
}

fn collect(path: &Path, imports: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), imports);
        }
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    for rest in text.split("crate::").skip(1) {
        let name = rest.split(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap();
        if !name.is_empty() {
            imports.insert(name.to_owned());
        }
    }
}

/// Finds a cycle of imports.
fn find_circle(imports: &Imports) -> Option<Vec<&str>> {
    fn visit<'a>(
        module: &'a str,
        imports: &'a Imports,
        path: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> bool {
        if path.contains(&module) {
            path.push(module);
            return true;
        }
        if !done.insert(module) {
            return false;
        }
        path.push(module);
        let mut next = imports.get(module).into_iter().flatten();
        if next.any(|next| visit(next, imports, path, done)) {
            return true;
        }
        path.pop();
        false
    }
    let mut done = BTreeSet::new();
    imports.keys().find_map(|module| {
        let mut path = Vec::new();
        visit(module, imports, &mut path, &mut done).then_some(path)
    })
}

#[test]
fn modules_import_each_other_in_no_circle() {
    let imports = imports();
    assert!(imports["agent"].contains("kernel"), "imports were not found: {imports:?}");
    if let Some(circle) = find_circle(&imports) {
        panic!("{}", circle.join(" -> "));
    }
}

#[test]
fn no_module_imports_what_is_above_it() {
    let imports = imports();
    let forbidden = [
        ("model", &["source", "store", "plan", "kernel", "serve", "config", "agent"][..]),
        ("plan", &["source", "store", "kernel", "serve", "config", "agent", "ingress"]),
        ("kernel", &["source", "store", "serve", "config", "agent"]),
        ("network", &["source", "store", "plan", "kernel", "serve", "config", "agent"]),
        (
            "announce",
            &["model", "source", "store", "plan", "kernel", "network", "serve", "config", "agent"],
        ),
        ("notices", &["source", "store", "plan", "kernel", "serve", "config", "agent"]),
        ("serve", &["source", "store", "kernel", "config", "agent"]),
        ("config", &["source", "store", "plan", "kernel", "serve", "agent"]),
        ("settings", &["model", "plan", "kernel", "network", "serve", "config", "agent"]),
    ];
    for (module, above) in forbidden {
        for name in above {
            assert!(!imports[module].contains(*name), "{module} imports {name}");
        }
    }
}

/// It is pure: of the agent's modules it uses the model alone.
#[test]
fn the_rules_of_ingress_import_only_the_model() {
    let mut imports = BTreeSet::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ingress/model"), &mut imports);
    assert_eq!(imports, BTreeSet::from(["model".to_owned()]));
}

#[test]
fn the_assignment_of_addresses_imports_only_what_is_pure() {
    let imports = imports();
    assert_eq!(imports["ipam"], ["kinds", "model"].map(str::to_owned).into());
    assert!(imports["kinds"].is_empty(), "{:?}", imports["kinds"]);
}

#[test]
fn a_circle_is_found() {
    let imports = |pairs: &[(&str, &str)]| {
        let mut imports = Imports::new();
        for (from, to) in pairs {
            imports.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        imports
    };
    let circle = imports(&[("a", "b"), ("b", "c"), ("c", "b"), ("a", "d")]);
    assert_eq!(find_circle(&circle), Some(vec!["a", "b", "c", "b"]));
    let none = imports(&[("a", "b"), ("a", "c"), ("b", "c")]);
    assert_eq!(find_circle(&none), None);
}

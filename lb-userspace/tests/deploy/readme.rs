//! The chart's README: its table of values follows from `values.yaml`, where each value has its
//! description above it.

use std::fmt::Write;
use std::{env, fs};

use serde_json::Value;

use super::deploy;

const HEAD: &str = "\
# Millrace

Runs Millrace on every node, in place of kube-proxy; with `agent.enabled=false` only what else is enabled. `cargo xtask image`
writes a copy of this chart that has the tag of the image:

```console
$ helm install millrace target/image/deploy/helm/millrace --namespace kube-system \\
    --set image.registry=registry.example.com --set config.api-servers=https://10.0.0.1:6443
```

`docs/install.md` has the whole path. The objects' names do not contain the release's
name, because a node can run only one agent.

## Values

This table is generated from `values.yaml`.

| value | default | description |
| --- | --- | --- |
";

/// The dotted path of a value, and the comment above it.
struct Described {
    path: String,
    description: String,
}

/// All keys that have a comment directly above them, in their order. Keys of maps are indented
/// by two spaces, as in all of `values.yaml`.
fn described(text: &str) -> Vec<Described> {
    let (mut path, mut comment, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for line in text.lines() {
        let content = line.trim_start();
        if let Some(words) = content.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        let key = content.split_once(':').filter(|_| !content.starts_with('-'));
        if let Some((key, _)) = key {
            path.truncate((line.len() - content.len()) / 2);
            path.push(key);
            if !comment.is_empty() {
                found.push(Described { path: path.join("."), description: comment.join(" ") });
            }
        }
        comment.clear();
    }
    found
}

fn at<'a>(values: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(values, |value, key| &value[key])
}

/// The paths of all values: maps that have descriptions for their keys are not values themselves.
fn leaves(values: &Value, path: &str, described: &[Described], found: &mut Vec<String>) {
    let within = |other: &Described| other.path.starts_with(&format!("{path}."));
    match values {
        Value::Object(map) if path.is_empty() || described.iter().any(within) => {
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                leaves(value, &path, described, found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

fn page(text: &str) -> String {
    let values: Value = serde_norway::from_str(text).unwrap();
    let mut page = HEAD.to_owned();
    for Described { path, description } in described(text) {
        let default = at(&values, &path);
        let _ = writeln!(page, "| `{path}` | `{default}` | {description} |");
    }
    page
}

#[test]
fn the_readme_of_the_chart_follows_from_its_values() {
    let text = fs::read_to_string(deploy("helm/millrace/values.yaml")).unwrap();
    let path = deploy("helm/millrace/README.md");
    let page = page(&text);
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == page,
        "deploy/helm/millrace/README.md is stale; regenerate it:\n\
         UPDATE_EXPECT=1 cargo test -p lb-userspace --test deploy readme"
    );
}

#[test]
fn every_value_of_the_chart_has_a_description() {
    let text = fs::read_to_string(deploy("helm/millrace/values.yaml")).unwrap();
    let values: Value = serde_norway::from_str(&text).unwrap();
    let described = described(&text);
    let mut paths = Vec::new();
    leaves(&values, "", &described, &mut paths);
    assert!(paths.len() > 20, "{paths:?}");
    let missing: Vec<_> =
        paths.iter().filter(|path| described.iter().all(|d| d.path != **path)).collect();
    assert!(missing.is_empty(), "values without a comment above them: {missing:?}");
}

#[test]
fn the_comment_directly_above_a_key_describes_it() {
    let text = "# About the file.\n\n# A map.\na:\n  # One\n  # value.\n  b: 1\n  c: 2\n";
    let found: Vec<_> = described(text).into_iter().map(|d| (d.path, d.description)).collect();
    let expected = [("a", "A map."), ("a.b", "One value.")];
    assert_eq!(found, expected.map(|(path, words)| (path.to_owned(), words.to_owned())));
}

//! Compares `fields.txt` with the published protobuf descriptors of Kubernetes.
//!
//! The crate `k8s-pb` is generated from them. Its source is read as text: it is a dependency for no
//! target, so cargo downloads it and never compiles it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::fields::{SchemaMessage, all_messages};

/// Name and type of each field of a message, by number.
type PublishedFields = BTreeMap<u32, (String, String)>;

/// Fields that are newer than the crate. Their numbers were compared with the `generated.proto` of
/// Kubernetes 1.37.
const NEWER: &[&str] = &[
    "io.k8s.api.core.v1.NodePodPreemptionPolicy.disableResizePreemption",
    "io.k8s.api.core.v1.NodeSpec.podPreemptionPolicy",
];

fn published_directory() -> PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata failed: {error}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "k8s-pb").unwrap();
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    manifest.parent().unwrap().join("src")
}

/// The messages in a module of the crate, by plain name.
fn read_published(path: &Path) -> BTreeMap<String, PublishedFields> {
    let text = fs::read_to_string(path).unwrap_or_else(|_| panic!("{} is missing", path.display()));
    let mut messages: BTreeMap<String, PublishedFields> = BTreeMap::new();
    let (mut current, mut number) = (String::new(), None);
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("pub struct ") {
            current = plain(rest.split([' ', '{', ';']).next().unwrap());
            messages.entry(current.clone()).or_default();
        } else if line.starts_with("#[prost(") {
            let tag = line.split("tag = \"").nth(1).and_then(|rest| rest.split('"').next());
            number = tag.and_then(|tag| tag.parse().ok());
        } else if let (Some(rest), Some(tag)) = (line.strip_prefix("pub "), number) {
            let (name, type_) = rest.split_once(':').unwrap();
            // A long type continues in the next lines.
            let mut type_ = type_.to_owned();
            while !type_.ends_with(',') {
                type_.push_str(lines.next().unwrap());
            }
            let fields = messages.get_mut(&current).unwrap();
            fields.insert(tag, (plain(name), type_));
            number = None;
        }
    }
    messages
}

/// A name without the spelling of Rust: `r#type` is `type`, `cluster_i_ps` is `clusterips`,
/// `IngressTls` is `ingresstls`.
fn plain(name: &str) -> String {
    name.trim_start_matches("r#").replace('_', "").to_lowercase()
}

/// `io.k8s.api.core.v1.Service` is `Service` in `api/core/v1/mod.rs`.
fn module_of<'a>(source: &Path, definition: &'a str) -> (PathBuf, &'a str) {
    let (module, name) = definition.rsplit_once('.').unwrap();
    let module = module.trim_start_matches("io.k8s.").replace('.', "/");
    (source.join(module).join("mod.rs"), name)
}

#[test]
fn numbers_of_fields_are_those_of_the_published_descriptors() {
    let source = published_directory();
    let mut files: BTreeMap<PathBuf, BTreeMap<String, PublishedFields>> = BTreeMap::new();
    let (mut compared, mut wrong, mut newer) = (0, Vec::new(), BTreeSet::new());
    for (definition, message) in all_messages() {
        let (file, name) = module_of(&source, definition);
        let published = files.entry(file.clone()).or_insert_with(|| read_published(&file));
        let known = published.get(&plain(name)).cloned().unwrap_or_default();
        compared +=
            compare_published(definition, message, &known, published, &mut wrong, &mut newer);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(newer, NEWER.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>());
    assert!(compared > 300, "only {compared} fields were compared");
}

/// Returns how many fields were compared.
fn compare_published(
    definition: &str,
    message: &SchemaMessage,
    known: &PublishedFields,
    published: &BTreeMap<String, PublishedFields>,
    wrong: &mut Vec<String>,
    newer: &mut BTreeSet<String>,
) -> usize {
    let mut compared = 0;
    for (field, facts) in &message.fields {
        let at = known.get(&facts.number);
        // `2.1` is field 1 of the message in field 2, which Go embeds.
        let actual = match (facts.embedded, at) {
            (Some(inner), Some((_, type_))) => {
                let name = type_.trim_end_matches(['>', ',']).rsplit(['<', ':']).next().unwrap();
                published.get(&plain(name)).and_then(|fields| fields.get(&inner))
            }
            (_, at) => at,
        };
        match actual {
            Some((name, _)) if *name == plain(field) => compared += 1,
            Some((name, _)) => {
                wrong.push(format!("{definition}: field {} is {name}, not {field}", facts.number));
            }
            None if known.values().any(|(name, _)| *name == plain(field)) => {
                wrong
                    .push(format!("{definition}.{field} has another number than {}", facts.number));
            }
            None => {
                newer.insert(format!("{definition}.{field}"));
            }
        }
    }
    compared
}

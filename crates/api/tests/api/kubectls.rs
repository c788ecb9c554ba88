//! Finds the installed kubectls.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The oldest and the newest kubectl by version, of those on the PATH and files beside them such as `kubectl.1.27`; all
/// of them if `MILLRACE_TESTS_ALL` is set, as by `cargo xtask test --all`, or expected results are written. If there is
/// none, it prints that. CI must have some.
pub fn kubectls() -> &'static BTreeMap<String, PathBuf> {
    static FOUND: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();
    FOUND.get_or_init(find)
}

fn find() -> BTreeMap<String, PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = env::split_paths(&path).collect();
    let linked = directories.iter().filter_map(|directory| {
        Some(fs::canonicalize(directory.join("kubectl")).ok()?.parent()?.to_owned())
    });
    let linked: Vec<PathBuf> = linked.collect();
    directories.extend(linked);
    let mut found = BTreeMap::new();
    for directory in directories {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if (name == "kubectl" || name.starts_with("kubectl.1."))
                && let Some(version) = version(&entry.path())
            {
                found.insert(version, entry.path());
            }
        }
    }
    assert!(
        !found.is_empty() || env::var_os("CI").is_none(),
        "there is no kubectl; CI has to have one"
    );
    if found.is_empty() {
        eprintln!("there is no kubectl on the PATH: nothing is tested by it");
    }
    if ["MILLRACE_TESTS_ALL", "UPDATE_EXPECT"].iter().all(|name| env::var_os(name).is_none()) {
        let ends = [found.keys().next().cloned(), found.keys().next_back().cloned()];
        found.retain(|version, _| ends.contains(&Some(version.clone())));
    }
    found
}

/// `v1.27`. `None` if the program is not kubectl, or only a wrapper.
fn version(program: &Path) -> Option<String> {
    let output = Command::new(program).args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let version = version["clientVersion"]["gitVersion"].as_str()?;
    if version.contains("dispatcher") {
        return None;
    }
    let mut parts = version.split('.');
    Some(format!("{}.{}", parts.next()?, parts.next()?))
}

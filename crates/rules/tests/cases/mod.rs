//! Cases in text files: manifests, the line `--- expect`, and the result.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const EXPECT: &str = "--- expect\n";

/// Checks all files of a directory of `tests`. `meaning` gets a file's name and manifests, and returns the result.
/// With `UPDATE_EXPECT=1`, writes the results instead.
pub fn check(directory: &str, meaning: impl Fn(&str, &str) -> String) {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut failures = String::new();
    for file in files(directory) {
        let name = file.file_stem().unwrap().to_string_lossy();
        let text = fs::read_to_string(&file).unwrap();
        let (manifests, expected) = text.split_once(EXPECT).unwrap_or((&text, ""));
        let actual = meaning(&name, manifests);
        if update {
            fs::write(&file, format!("{manifests}{EXPECT}{actual}")).unwrap();
        } else if actual != expected {
            write!(failures, "\n{name}:\n{}", difference(expected, &actual)).unwrap();
        }
    }
    assert!(failures.is_empty(), "(-: expected, +: actual)\n{failures}");
}

fn files(directory: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(directory);
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The differing lines, without equal lines at both ends.
fn difference(expected: &str, actual: &str) -> String {
    let (mut old, mut new): (Vec<&str>, Vec<&str>) =
        (expected.lines().collect(), actual.lines().collect());
    while !old.is_empty() && old.last() == new.last() {
        old.pop();
        new.pop();
    }
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let old = old[same..].iter().map(|line| format!("- {line}\n"));
    old.chain(new[same..].iter().map(|line| format!("+ {line}\n"))).collect()
}

//! The licence texts of everything that is linked into the program: most licences require them beside copies of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::image::linked_crates;
use crate::process::{cargo, output, root};

const HEAD: &str = "\
Millrace is licensed under Apache-2.0. The program contains the following software of others.
";

/// Beginnings of the names of files with licences and notices.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// The C library's notices and licence; the static program contains it.
const LIBC_LICENCES: [&str; 2] =
    ["/usr/share/doc/libc6/copyright", "/usr/share/common-licenses/LGPL-2.1"];

pub fn collect_notices() -> Result<String> {
    let folders = source_folders()?;
    let mut texts = Texts::default();
    for (name, version, license) in linked_crates()? {
        let folder = folders
            .get(&(name.clone(), version.clone()))
            .with_context(|| format!("cargo metadata does not list {name} {version}"))?;
        texts.add(&format!("{name} {version} ({license})"), &licence_texts(folder)?);
    }
    let mut rust = Command::new("rustc");
    let sysroot = output(rust.args(["--print", "sysroot"]))?;
    let standard = Path::new(sysroot.trim()).join("share/doc/rust");
    let licences_of_rust = licence_texts(&standard)?;
    ensure!(
        !licences_of_rust.is_empty(),
        "{} has no licence of Rust's standard library",
        standard.display()
    );
    texts.add("Rust's standard library (MIT OR Apache-2.0)", &licences_of_rust);
    let libc = LIBC_LICENCES.map(|path| {
        fs::read_to_string(path)
            .with_context(|| format!("{path}: release from Debian, with the package libc6"))
    });
    let libc = libc.into_iter().collect::<Result<Vec<_>>>()?;
    texts.add("GNU C library (LGPL-2.1-or-later)", &libc);
    Ok(texts.page())
}

/// Where the sources of each crate are, by name and version.
fn source_folders() -> Result<BTreeMap<(String, String), PathBuf>> {
    let mut folders = BTreeMap::new();
    // The BPF programs are no member of the workspace's default builds, but of its lock file.
    let mut command = cargo();
    command.current_dir(root()).args(["metadata", "--locked", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&output(&mut command)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    for package in packages {
        let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
        if let Some(folder) = Path::new(&text("manifest_path")).parent() {
            folders.insert((text("name"), text("version")), folder.to_owned());
        }
    }
    Ok(folders)
}

/// The texts of the licence files in a directory, in the order of their names.
fn licence_texts(folder: &Path) -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        path.is_file() && NAMES.iter().any(|start| name.starts_with(start))
    });
    let read = |path: &PathBuf| {
        let text = fs::read(path).with_context(|| path.display().to_string())?;
        Ok(String::from_utf8_lossy(&text).replace("\r\n", "\n").trim_end().to_owned())
    };
    paths.iter().map(read).collect()
}

/// Each text once, with all that it belongs to.
#[derive(Default)]
struct Texts {
    owners: BTreeMap<String, Vec<String>>,
    /// What has no text in its package.
    without: Vec<String>,
}

impl Texts {
    fn add(&mut self, owner: &str, texts: &[String]) {
        if texts.is_empty() {
            self.without.push(owner.to_owned());
        }
        for text in texts {
            self.owners.entry(text.clone()).or_default().push(owner.to_owned());
        }
    }

    fn page(&self) -> String {
        let mut page = HEAD.to_owned();
        let rule = "-".repeat(80);
        for (text, owners) in &self.owners {
            page += &format!("\n{rule}\n{}\n{rule}\n\n{text}\n", owners.join("\n"));
        }
        if !self.without.is_empty() {
            let list = self.without.join("\n");
            page += &format!("\n{rule}\nWithout a licence text in their packages:\n{list}\n");
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_there_once_with_its_owners() {
        let directory = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("a/LICENSE-MIT", "MIT of a\r\n"),
            ("a/license-apache", "Apache"),
            ("a/lib.rs", "no licence"),
            ("b/LICENSE", "Apache"),
            ("c/lib.rs", ""),
        ] {
            let path = directory.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut texts = Texts::default();
        for name in ["a", "b", "c"] {
            texts.add(name, &licence_texts(&directory.path().join(name)).unwrap());
        }
        let page = texts.page();
        assert!(page.starts_with("Millrace is licensed under Apache-2.0."), "{page}");
        assert_eq!(page.matches("Apache\n").count(), 1, "{page}");
        assert!(page.contains("\na\nb\n---"), "{page}");
        assert!(page.contains("\n\nMIT of a\n"), "{page}");
        assert!(page.ends_with("Without a licence text in their packages:\nc\n"), "{page}");
        assert!(!page.contains("no licence"), "{page}");
    }

    #[test]
    fn every_linked_crate_is_in_the_notices() {
        let page = collect_notices().unwrap();
        let crates = linked_crates().unwrap();
        assert!(crates.len() > 100, "{}", crates.len());
        for (name, version, _) in crates {
            assert!(page.contains(&format!("\n{name} {version} (")), "{name} {version}");
        }
    }
}

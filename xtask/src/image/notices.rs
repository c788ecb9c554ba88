//! The licence texts of everything that is linked into the program: most licences require them beside copies of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use spdx::{Expression, LicenseId, ParseMode};

use super::materials::linked_crates;
use crate::process::{cargo, read_output, repository_root};

const HEAD: &str = "\
Millrace is licensed under Apache-2.0. The program contains the following software of others. Of these, the GNU C
library is linked statically: from the source of Millrace, `cargo xtask image` links it with another version.
";

/// Begins the list of what has no licence text.
const WITHOUT: &str = "Without a licence text:";

/// Beginnings of the names of files with licences and notices.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// The C library's notices and licence; the static program contains it.
const LIBC_LICENCES: [&str; 2] =
    ["/usr/share/doc/libc6/copyright", "/usr/share/common-licenses/LGPL-2.1"];

pub fn collect_notices() -> Result<String> {
    let packages = packages()?;
    let mut texts = Texts::default();
    for (name, version, license) in linked_crates()? {
        let (folder, authors) = packages
            .get(&(name.clone(), version.clone()))
            .with_context(|| format!("cargo metadata does not list {name} {version}"))?;
        let own = licence_texts(folder)?;
        if own.is_empty() {
            texts.add(
                &format!("{name} {version} ({license}), by {authors}"),
                &standard_texts(&license)?,
            );
        } else {
            texts.add(&format!("{name} {version} ({license})"), &own);
        }
    }
    let mut rust = Command::new("rustc");
    let sysroot = read_output(rust.args(["--print", "sysroot"]))?;
    let standard = Path::new(sysroot.trim()).join("share/doc/rust");
    let licences_of_rust = standard_library_texts(&standard)?;
    ensure!(
        !licences_of_rust.is_empty(),
        "{} has no licence of Rust's standard library",
        standard.display()
    );
    texts.add("Rust's standard library (MIT OR Apache-2.0)", &licences_of_rust);
    let libc: Vec<String> = LIBC_LICENCES.into_iter().flat_map(fs::read_to_string).collect();
    texts.add("GNU C library (LGPL-2.1-or-later)", &libc);
    Ok(texts.page())
}

/// Fails if the notices lack a text. A release needs all; an image can also be built where Debian's files are missing.
pub fn ensure_complete(notices: &str) -> Result<()> {
    let (_, without) = notices.split_once(WITHOUT).unwrap_or_default();
    ensure!(
        without.is_empty(),
        "no licence text was found of:{without}The C library's are in Debian's package libc6: make releases on Debian"
    );
    Ok(())
}

/// Where the sources of each crate are, and its authors, by name and version.
fn packages() -> Result<BTreeMap<(String, String), (PathBuf, String)>> {
    let mut folders = BTreeMap::new();
    // The BPF programs are no member of the workspace's default builds, but of its lock file.
    let mut command = cargo();
    command.current_dir(repository_root()).args(["metadata", "--locked", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&read_output(&mut command)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    for package in packages {
        let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
        if let Some(folder) = Path::new(&text("manifest_path")).parent() {
            let authors = package["authors"].as_array().into_iter().flatten();
            let authors: Vec<&str> = authors.filter_map(Value::as_str).collect();
            let authors = authors.join(", ");
            folders.insert((text("name"), text("version")), (folder.to_owned(), authors));
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

/// The notices of Rust's standard library. Those of the whole compiler, in the file beside it, are 14 MB of what is not
/// linked.
fn standard_library_texts(folder: &Path) -> Result<Vec<String>> {
    match fs::read_to_string(folder.join("COPYRIGHT-library.html")) {
        Ok(text) => Ok(vec![text]),
        Err(_) => licence_texts(folder),
    }
}

/// The usual texts of a licence, for a crate whose package has none. Of alternatives Apache-2.0, whose text names no owner.
fn standard_texts(license: &str) -> Result<Vec<String>> {
    let expression = Expression::parse_mode(license, ParseMode::LAX)?;
    let ids: Vec<LicenseId> =
        expression.requirements().filter_map(|one| one.req.license.id()).collect();
    let apache = ids.iter().filter(|id| id.name == "Apache-2.0");
    let chosen: Vec<&LicenseId> = apache.collect();
    let chosen = if chosen.is_empty() { ids.iter().collect() } else { chosen };
    Ok(chosen.into_iter().map(|id| id.text().trim_end().to_owned()).collect())
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
            page += &format!("\n{rule}\n{WITHOUT}\n{list}\n");
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
        assert!(page.ends_with("Without a licence text:\nc\n"), "{page}");
        assert!(ensure_complete(&page).unwrap_err().to_string().contains("\nc\n"));
        assert!(!page.contains("no licence"), "{page}");
    }

    #[test]
    fn the_notices_of_rust_are_those_of_its_library() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("COPYRIGHT.html"), "the compiler").unwrap();
        assert_eq!(standard_library_texts(directory.path()).unwrap(), ["the compiler"]);
        fs::write(directory.path().join("COPYRIGHT-library.html"), "the library").unwrap();
        assert_eq!(standard_library_texts(directory.path()).unwrap(), ["the library"]);
    }

    #[test]
    fn a_crate_without_a_text_gets_the_usual_one() {
        let starts = |license: &str| -> Vec<String> {
            let texts = standard_texts(license).unwrap();
            texts.iter().map(|text| text.trim_start().chars().take(14).collect()).collect()
        };
        assert_eq!(starts("MIT OR Apache-2.0"), ["Apache License"]);
        assert_eq!(starts("BSD-3-Clause").len(), 1);
        assert!(standard_texts("nothing known").is_err());
    }

    #[test]
    fn every_linked_crate_is_in_the_notices_with_a_text() {
        let page = collect_notices().unwrap();
        ensure_complete(&page).unwrap();
        let crates = linked_crates().unwrap();
        assert!(crates.len() > 100, "{}", crates.len());
        for (name, version, _) in crates {
            assert!(page.contains(&format!("\n{name} {version} (")), "{name} {version}");
        }
    }
}

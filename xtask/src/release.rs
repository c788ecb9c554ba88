//! `cargo xtask release`: all that a release consists of, from a clean tree, in one directory. The same commit gives the
//! same bytes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

use crate::image::{self, ImageSource, LICENCES, LayerArchive, NOTICES, VERSION};
use crate::process::{ensure_replaceable, replace_directory, repository_root, target_directory};
use crate::site;

/// The section of CHANGELOG.md with the changes that no release has yet.
const UNRELEASED: &str = "Unreleased";

const SUMS: &str = "SHA256SUMS";

#[derive(Debug, Args)]
pub struct ReleaseOptions {
    /// Directory for the files of the release, new or of an earlier release, which they replace
    /// [default: target/release-files]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

pub fn make_release(options: &ReleaseOptions) -> Result<()> {
    let source = ImageSource::find()?;
    let version = source.version();
    ensure!(
        source.is_committed(),
        "the tree has changes, or is no git repository: a release is made of a commit. Commit or stash them"
    );
    source.check_tag()?;
    let directory =
        options.output.clone().unwrap_or_else(|| target_directory().join("release-files"));
    // Fails before the build.
    ensure_replaceable(&directory, SUMS)?;
    let section = if source.is_release() { VERSION } else { UNRELEASED };
    let changes = changes_of(section, &read_text(&repository_root().join("CHANGELOG.md"))?)?;
    image::build_image(&image::ImageOptions::default())?;
    let built = image::default_directory();
    image::ensure_complete(&read_text(&built.join(NOTICES))?)?;
    let site = target_directory().join("site");
    site::build_site(&site, &version)?;
    pack_files(&built, &site, &directory, &source, &changes)?;
    eprintln!("Millrace {version} is in {}", directory.display());
    Ok(())
}

fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Writes the files of the release from those of the image and the site.
fn pack_files(
    built: &Path,
    site: &Path,
    directory: &Path,
    source: &ImageSource,
    changes: &str,
) -> Result<()> {
    let version = source.version();
    replace_directory(directory)?;
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    let mut texts = vec![(NOTICES, read(&built.join(NOTICES))?)];
    for name in LICENCES {
        texts.push((name, read(&repository_root().join(name))?));
    }

    let mut program = LayerArchive::new(Vec::new(), source.time);
    let folder = format!("millrace-{version}");
    program.file(&format!("{folder}/millrace"), 0o755, &read(&built.join("millrace"))?)?;
    let unit = read(&repository_root().join("deploy/millrace.service"))?;
    program.file(&format!("{folder}/millrace.service"), 0o644, &unit)?;
    for (name, content) in &texts {
        program.file(&format!("{folder}/{name}"), 0o644, content)?;
    }

    let mut chart = LayerArchive::new(Vec::new(), source.time);
    add_folder(&mut chart, &built.join("deploy/helm/millrace"), "millrace")?;

    let mut manifests = LayerArchive::new(Vec::new(), source.time);
    for part in ["kustomize", "prometheus", "grafana"] {
        add_folder(&mut manifests, &built.join("deploy").join(part), &format!("{folder}/{part}"))?;
    }

    let mut pages = LayerArchive::new(Vec::new(), source.time);
    add_folder(&mut pages, site, &format!("millrace-docs-{version}"))?;

    let mut files = vec![
        (format!("millrace-image-{version}.tar"), read(&built.join("millrace.tar"))?),
        (format!("millrace-{version}-x86_64-linux.tar.gz"), compress_gzip(&program.finish()?)?),
        // The name that Helm gives a packaged chart.
        (format!("millrace-{version}.tgz"), compress_gzip(&chart.finish()?)?),
        (format!("millrace-manifests-{version}.tar.gz"), compress_gzip(&manifests.finish()?)?),
        (format!("millrace-docs-{version}.tar.gz"), compress_gzip(&pages.finish()?)?),
        (format!("millrace-{version}.cdx.json"), read(&built.join("millrace.cdx.json"))?),
        ("CHANGES.md".to_owned(), changes.as_bytes().to_owned()),
    ];
    files.extend(texts.into_iter().map(|(name, content)| (name.to_owned(), content)));
    let mut sums = String::new();
    for (name, content) in &files {
        let path = directory.join(name);
        fs::write(&path, content).with_context(|| path.display().to_string())?;
        let digest = Sha256::digest(content);
        let digits: String = digest.iter().map(|octet| format!("{octet:02x}")).collect();
        sums += &format!("{digits}  {name}\n");
    }
    fs::write(directory.join(SUMS), sums).context(SUMS)
}

/// Adds all files below a directory, in a fixed order.
fn add_folder(archive: &mut LayerArchive<Vec<u8>>, from: &Path, to: &str) -> Result<()> {
    let entries = fs::read_dir(from).with_context(|| from.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let inside = format!("{to}/{name}");
        if path.is_dir() {
            add_folder(archive, &path, &inside)?;
        } else {
            let content = fs::read(&path).with_context(|| path.display().to_string())?;
            archive.file(&inside, 0o644, &content)?;
        }
    }
    Ok(())
}

/// Without a time in the header.
fn compress_gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    writer.write_all(content)?;
    Ok(writer.finish()?)
}

/// The changes under the heading `## [version]`, which may continue, for example with a date.
fn changes_of(version: &str, changelog: &str) -> Result<String> {
    let (_, rest) = changelog
        .split_once(&format!("\n## [{version}]"))
        .with_context(|| format!("CHANGELOG.md has no section [{version}]"))?;
    let (_, rest) = rest.split_once('\n').unwrap_or_default();
    let section = rest.split("\n## ").next().unwrap_or(rest).trim();
    ensure!(!section.is_empty(), "CHANGELOG.md has nothing under [{version}]");
    Ok(format!("{section}\n"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_release_is_the_same_bytes_each_time_and_has_their_sums() {
        let directory = tempfile::tempdir().unwrap();
        let built = directory.path().join("built");
        for (file, content) in [
            ("millrace", "program"),
            ("millrace.tar", "image"),
            ("millrace.cdx.json", "{}"),
            ("deploy/helm/millrace/Chart.yaml", "name: millrace\n"),
            ("deploy/helm/millrace/templates/a.yaml", "a: b\n"),
            ("deploy/kustomize/base/kustomization.yaml", "kind: Kustomization\n"),
            ("deploy/prometheus/rules.yaml", "groups: []\n"),
            ("deploy/grafana/millrace.json", "{}"),
            (NOTICES, "notices"),
            ("../site/docs/index.html", "<html>"),
        ] {
            let path = built.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let source =
            ImageSource::of_commit("0123456789abcdef0123456789abcdef01234567", 1_700_000_000);
        let outputs = ["one", "two"].map(|name| directory.path().join(name));
        for output in &outputs {
            let site = directory.path().join("site");
            pack_files(&built, &site, output, &source, "changes\n").unwrap();
        }
        let version = source.version();
        let names = fs::read_dir(&outputs[0]).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names.len(), 11, "{names:?}");
        for name in &names {
            let [one, two] = outputs.each_ref().map(|output| fs::read(output.join(name)).unwrap());
            assert_eq!(one, two, "{name}");
        }
        let mut check = Command::new("sha256sum");
        let checked = check.args(["--check", "--quiet", SUMS]).current_dir(&outputs[0]).status();
        assert!(checked.unwrap().success());
        let list = |name: String| {
            let output = Command::new("tar").arg("-tzf").arg(outputs[0].join(name)).output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        let chart = list(format!("millrace-{version}.tgz"));
        assert!(chart.contains("millrace/Chart.yaml\n"), "{chart}");
        assert!(chart.contains("millrace/templates/a.yaml\n"), "{chart}");
        let program = list(format!("millrace-{version}-x86_64-linux.tar.gz"));
        for file in [
            "millrace",
            "millrace.service",
            "LICENSE",
            "LICENSE-GPL-2.0",
            "THIRD-PARTY-NOTICES.txt",
        ] {
            assert!(program.contains(&format!("millrace-{version}/{file}\n")), "{program}");
        }
    }

    #[test]
    fn the_changes_are_those_of_the_version() {
        let text = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- one\n\n## [0.1.0] - 2026-12-01\n\n- two\n";
        assert_eq!(changes_of(UNRELEASED, text).unwrap(), "### Added\n\n- one\n");
        assert_eq!(changes_of("0.1.0", text).unwrap(), "- two\n");
        assert!(changes_of("0.2.0", text).is_err());
        let empty = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0]\n- two\n";
        assert!(changes_of(UNRELEASED, empty).is_err());
        let own = read_text(&repository_root().join("CHANGELOG.md")).unwrap();
        assert!(changes_of(UNRELEASED, &own).is_ok());
    }

    #[test]
    fn a_directory_with_something_else_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let check = |path: &Path| ensure_replaceable(path, SUMS).map_err(|error| error.to_string());
        assert_eq!(check(&directory.path().join("new")), Ok(()));
        assert_eq!(check(directory.path()), Ok(()));
        fs::write(directory.path().join("thesis.txt"), "").unwrap();
        assert!(check(directory.path()).unwrap_err().contains("name another directory"));
        fs::write(directory.path().join(SUMS), "").unwrap();
        assert_eq!(check(directory.path()), Ok(()));
    }
}

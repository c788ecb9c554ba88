//! A copy of `deploy/` in which the chart and the manifests name the image that was built.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The version and the tag that the files in the repository have, which no image has.
const TAG: &str = "0.0.0";

/// Replaces the directory `to` by a copy of `from` for the image `name`. Links become files.
pub fn write_manifests(from: &Path, to: &Path, name: &str) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| to.display().to_string())?;
    }
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    let replaced = copy_with_tag(from, to, tag)?;
    ensure!(replaced > 1, "{} names no image with the tag {TAG}", from.display());
    Ok(())
}

/// Returns how many lines were replaced.
fn copy_with_tag(from: &Path, to: &Path, tag: &str) -> Result<usize> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    let mut replaced = 0;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let from = entry?.path();
        let name = from.file_name().unwrap_or_default();
        let target = to.join(name);
        if from.is_dir() {
            replaced += copy_with_tag(&from, &target, tag)?;
        } else if name == "Chart.yaml" || name == "kustomization.yaml" {
            let text = fs::read_to_string(&from).with_context(|| from.display().to_string())?;
            let (text, lines) = replace_tag(&text, tag);
            fs::write(&target, text).with_context(|| target.display().to_string())?;
            replaced += lines;
        } else {
            fs::copy(&from, &target).with_context(|| from.display().to_string())?;
        }
    }
    Ok(replaced)
}

/// A chart's version must be a semantic one, so it keeps its own if the tag is another kind of name.
fn replace_tag(text: &str, tag: &str) -> (String, usize) {
    let is_version =
        tag.starts_with(|first: char| first.is_ascii_digit()) && tag.matches('.').count() >= 2;
    let mut replaced = 0;
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let key = line.trim_start().split(':').next().unwrap_or_default();
        let has_tag = matches!(key, "appVersion" | "newTag") || (key == "version" && is_version);
        lines.push(match line.strip_suffix(TAG).filter(|_| has_tag) {
            Some(start) => {
                replaced += 1;
                format!("{start}{tag}")
            }
            None => line.to_owned(),
        });
    }
    (lines.join("\n") + "\n", replaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::repository_root;

    #[test]
    fn manifests_name_the_image_that_was_built() {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("deploy");
        let tag = format!("{TAG}-g0123456789ab");
        // What an earlier build left goes.
        fs::create_dir_all(to.join("old")).unwrap();
        write_manifests(
            &repository_root().join("deploy"),
            &to,
            &format!("registry.example.com:5000/millrace:{tag}"),
        )
        .unwrap();
        assert!(!to.join("old").exists());
        let read = |file: &str| fs::read_to_string(to.join(file)).unwrap();
        let chart = read("helm/millrace/Chart.yaml");
        assert!(chart.contains(&format!("\nversion: {tag}\n")), "{chart}");
        assert!(chart.contains(&format!("\nappVersion: {tag}\n")), "{chart}");
        for folder in ["base", "cleanup", "controller", "ingress"] {
            let text = read(&format!("kustomize/{folder}/kustomization.yaml"));
            assert!(text.contains(&format!("newTag: {tag}\n")), "{text}");
        }
        assert_eq!(
            read("helm/millrace/values.yaml"),
            fs::read_to_string(repository_root().join("deploy/helm/millrace/values.yaml")).unwrap()
        );
        assert!(
            !fs::symlink_metadata(to.join("helm/millrace/files/rules.yaml")).unwrap().is_symlink()
        );
    }

    #[test]
    fn a_tag_that_is_no_version_is_not_the_charts() {
        let (text, replaced) =
            replace_tag(&format!("version: {TAG}\nappVersion: {TAG}\nname: a\n"), "mine");
        assert_eq!((text, replaced), (format!("version: {TAG}\nappVersion: mine\nname: a\n"), 1));
    }
}

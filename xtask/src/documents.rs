//! Checks what the documentation refers to: links to files and headings, and in ARCHITECTURE.md the names of
//! functions and types on the way of a packet, an object or a request.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::process::repository_root;

/// Fails if a link leads nowhere, or a name does not exist.
pub fn check_documents() -> Result<()> {
    let files = files_in(repository_root())?;
    let mut wrong = Vec::new();
    let documents = files.iter().filter(|file| has_extension(file, "md"));
    for file in documents {
        let text = read_document(file)?;
        for link in link_targets(&text) {
            if let Some(reason) = broken(file, link)? {
                wrong.push(format!("{}: {link}: {reason}", relative_path(file).display()));
            }
        }
    }
    let mut defined = BTreeSet::new();
    for file in files.iter().filter(|file| has_extension(file, "rs")) {
        defined.extend(definitions(&read_document(file)?).map(str::to_owned));
    }
    let architecture = read_document(&repository_root().join("ARCHITECTURE.md"))?;
    let missing = names_on_paths(&architecture).filter(|name| !defined.contains(*name));
    wrong.extend(missing.map(|name| format!("ARCHITECTURE.md: nothing is called {name}")));
    ensure!(
        wrong.is_empty(),
        "the documentation refers to what does not exist:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

pub fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        if path.is_file() {
            files.push(path);
        } else if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            files.extend(files_in(&path)?);
        }
    }
    Ok(files)
}

pub fn has_extension(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|found| found == extension)
}

pub fn read_document(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| file.display().to_string())
}

pub fn relative_path(file: &Path) -> &Path {
    file.strip_prefix(repository_root()).unwrap_or(file)
}

/// The lines of a document outside of its code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of a document's links.
pub fn link_targets(text: &str) -> impl Iterator<Item = &str> {
    prose(text)
        .flat_map(|line| line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)))
}

/// Whether a link leads to another place than the repository.
pub fn is_outside(link: &str) -> bool {
    link.contains("://") || link.starts_with("//") || link.starts_with("mailto:")
}

/// Why a link of the file leads nowhere; `None` if it leads to a place, or out of the repository.
fn broken(file: &Path, link: &str) -> Result<Option<&'static str>> {
    if is_outside(link) {
        return Ok(None);
    }
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() {
        file.to_owned()
    } else {
        normalize_path(&file.parent().unwrap_or(repository_root()).join(path))
    };
    if !target.exists() {
        return Ok(Some("there is no such file"));
    }
    let is_found = heading.is_empty()
        || !has_extension(&target, "md")
        || anchors(&read_document(&target)?).contains(heading);
    Ok((!is_found).then_some("it has no such heading"))
}

pub fn normalize_path(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        if component == Component::ParentDir {
            normal.pop();
        } else {
            normal.push(component);
        }
    }
    normal
}

/// The anchors that a document's headings have on GitHub.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in prose(text).filter(|line| line.starts_with('#')) {
        let title = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let is_kept = |char: &char| char.is_alphanumeric() || matches!(char, '-' | '_');
        let anchor: String = title.chars().filter(is_kept).collect();
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free =
            std::iter::once(anchor.clone()).chain(numbered).find(|one| !anchors.contains(one));
        anchors.extend(free);
    }
    anchors
}

/// The functions, types and modules that a source file defines.
fn definitions(text: &str) -> impl Iterator<Item = &str> {
    const WORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "mod", "const", "static"];
    text.lines().flat_map(|line| {
        let words = line.split(' ').zip(line.split(' ').skip(1));
        let named = words.filter(|(word, _)| WORDS.contains(&word.trim_start()));
        named.filter_map(|(_, name)| name.split(|char: char| !is_part_of_name(char)).next())
    })
}

fn is_part_of_name(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// The functions and types in the sections of ARCHITECTURE.md that follow a path.
fn names_on_paths(architecture: &str) -> impl Iterator<Item = &str> {
    let sections = architecture.split("\n## ").skip(1);
    let paths = sections
        .filter(|section| section.lines().next().is_some_and(|line| line.ends_with("'s path")));
    let code = paths.flat_map(|section| section.split('`').skip(1).step_by(2));
    // Not files, commands and maps.
    let names = code.filter(|code| code.chars().all(|char| is_part_of_name(char) || char == ':'));
    let names = names.filter_map(|name| name.rsplit("::").next());
    names.filter(|name| name.chars().any(|char| char.is_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "[a](a.md) and [b](../b.md#part)\n```console\n$ [c](c.md)\n```\n[d](#here)";
        assert_eq!(link_targets(text).collect::<Vec<_>>(), ["a.md", "../b.md#part", "#here"]);
    }

    #[test]
    fn headings_have_the_anchors_of_github() {
        let text = "# What's `--new`, in short?\n## One\n```sh\n# no heading\n```\n## One\n";
        let anchors = anchors(text);
        assert_eq!(anchors.iter().collect::<Vec<_>>(), ["one", "one-1", "whats---new-in-short"]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_reported() -> Result<()> {
        let readme = repository_root().join("README.md");
        assert_eq!(broken(&readme, "https://kubernetes.io/")?, None);
        assert_eq!(broken(&readme, "docs/../ARCHITECTURE.md#crates")?, None);
        assert_eq!(broken(&readme, "ARCHITECTURE.md#nowhere")?, Some("it has no such heading"));
        assert_eq!(broken(&readme, "docs/nothing.md")?, Some("there is no such file"));
        Ok(())
    }

    #[test]
    fn names_on_a_path_are_functions_and_types() {
        let text = "# A\n## Maps\n`nothing`\n## A packet's path\n`find_flow` in `wire/parse.rs` by \
                    `Table::read_entry` and `FLOWS4`; `Draft`\n## More\n`none`";
        assert_eq!(names_on_paths(text).collect::<Vec<_>>(), ["find_flow", "read_entry", "Draft"]);
    }

    #[test]
    fn definitions_are_found_by_their_keyword() {
        let text = "pub(crate) fn find_flow<F: Family>(\nenum Fate {\n    pub struct Draft<F>;\nlet x = y;";
        assert_eq!(definitions(text).collect::<Vec<_>>(), ["find_flow", "Fate", "Draft"]);
    }
}

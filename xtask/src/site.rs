//! `cargo xtask site`: the documentation as a site that a browser reads without a server and without a network.
//!
//! mdBook makes it from the pages as they are in the repository. Its table of contents is the list of `docs/README.md`, so
//! that there is one list.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::documents::{
    files_in, has_extension, is_outside, link_targets, normalize_path, read_document, relative_path,
};
use crate::image::ImageSource;
use crate::process::{
    ensure_replaceable, find_program, read_output, replace_directory, repository_root,
    target_directory,
};
use crate::tools::{install_program, tools_directory};

const MDBOOK_VERSION: &str = "0.5.4";
/// Without its web server. A build for debugging: it takes less than half as long, and renders a site in seconds.
const MDBOOK_OPTIONS: [&str; 4] = ["--no-default-features", "--features", "search", "--debug"];

/// What mdBook writes beside the pages of each site.
const MARK: &str = ".nojekyll";

/// The page that lists all others.
const LIST: &str = "docs/README.md";

#[derive(Debug, Args)]
pub struct SiteOptions {
    /// Directory for the site, which is replaced; open index.html in it [default: target/site]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

pub fn build_site_from_options(options: &SiteOptions) -> Result<()> {
    let directory = options.output.clone().unwrap_or_else(|| target_directory().join("site"));
    build_site(&directory, &ImageSource::find()?.version())?;
    eprintln!("The documentation is in {}", directory.join("index.html").display());
    Ok(())
}

/// Replaces a directory by the site.
pub fn build_site(directory: &Path, version: &str) -> Result<()> {
    ensure_replaceable(directory, MARK)?;
    let mdbook = ensure_mdbook()?;
    let book = target_directory().join("site-source");
    replace_directory(&book)?;
    write_book(&book, version)?;
    replace_directory(directory)?;
    let directory = directory.canonicalize()?;
    render(&mdbook, &book, &directory)?;
    let broken = broken_references(&directory)?;
    ensure!(broken.is_empty(), "the site refers to what it does not have:\n{}", broken.join("\n"));
    Ok(())
}

/// Fails on warnings, too: text that looks like an HTML element would not be visible.
fn render(mdbook: &Path, book: &Path, directory: &Path) -> Result<()> {
    let mut command = Command::new(mdbook);
    command.arg("build").arg("--dest-dir").args([directory, book]);
    let output = command.output().context("mdBook can't be started")?;
    let messages = String::from_utf8_lossy(&output.stderr);
    let has_warned = messages.lines().any(|line| line.trim_start().starts_with("WARN"));
    ensure!(output.status.success() && !has_warned, "mdBook: {messages}");
    Ok(())
}

/// Finds mdBook in `target/tools`, or builds it there.
fn ensure_mdbook() -> Result<PathBuf> {
    let program = tools_directory().join("bin/mdbook");
    let version = read_output(Command::new(&program).arg("--version")).unwrap_or_default();
    if version != format!("mdbook v{MDBOOK_VERSION}") {
        if find_program("cc").is_none() {
            bail!("there is no C compiler, with which cargo links programs: install gcc or clang");
        }
        install_program("mdbook", MDBOOK_VERSION, &MDBOOK_OPTIONS)?;
    }
    Ok(program)
}

/// Writes what mdBook reads: the pages, all files that they link to, and the table of contents.
fn write_book(book: &Path, version: &str) -> Result<()> {
    let source = book.join("src");
    let summary = Summary::read()?;
    fs::create_dir_all(&source)?;
    fs::write(source.join("SUMMARY.md"), summary.page()?)?;
    fs::write(book.join("book.toml"), settings(version))?;
    let mut copied = BTreeSet::new();
    for page in &summary.pages {
        let text = read_document(page)?;
        let place = source.join(place_of_page(relative_path(page)));
        fs::create_dir_all(place.parent().context("a page is in a directory")?)?;
        fs::write(&place, link_to_index(&text)).with_context(|| place.display().to_string())?;
        for link in link_targets(&text).filter(|link| !is_outside(link)) {
            let path = link.split('#').next().unwrap_or_default();
            let file = normalize_path(&page.parent().unwrap_or(repository_root()).join(path));
            if path.is_empty() || summary.pages.contains(&file) {
                continue;
            }
            ensure!(
                !has_extension(&file, "md"),
                "{} links to {link}, which {LIST} does not list",
                relative_path(page).display()
            );
            copied.insert(file);
        }
    }
    for file in copied {
        let place = source.join(relative_path(&file));
        fs::create_dir_all(place.parent().context("a file is in a directory")?)?;
        fs::copy(&file, &place).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn settings(version: &str) -> String {
    format!(
        "\
[book]
title = \"Millrace {version}\"
language = \"en\"

[build]
create-missing = false

[output.html]
no-section-label = true
# Its links would be those of one place on a server.
input-404 = \"\"

[output.html.fold]
enable = true

[output.html.playground]
runnable = false

[output.html.print]
enable = false
"
    )
}

/// A README is the page of its directory.
fn place_of_page(page: &Path) -> PathBuf {
    if page.ends_with("README.md") { page.with_file_name("index.md") } else { page.to_owned() }
}

fn link_to_index(text: &str) -> String {
    text.replace("README.md)", "index.md)").replace("README.md#", "index.md#")
}

/// All pages, under the headings of `docs/README.md`.
struct Summary {
    pages: BTreeSet<PathBuf>,
    parts: Vec<(String, Vec<PathBuf>)>,
}

impl Summary {
    fn read() -> Result<Self> {
        let list = repository_root().join(LIST);
        let folder = list.parent().unwrap_or(repository_root());
        let (mut pages, mut parts) =
            (BTreeSet::from([repository_root().join("README.md"), list.clone()]), Vec::new());
        let text = read_document(&list)?;
        for section in text.split("\n## ").skip(1) {
            let (title, section) = section.split_once('\n').unwrap_or((section, ""));
            let targets = link_targets(section).filter_map(|link| link.split('#').next());
            let of_part = targets.map(|path| normalize_path(&folder.join(path)));
            let of_part = of_part.filter(|page| pages.insert(page.clone()));
            parts.push((title.to_owned(), of_part.collect()));
        }
        let is_missing = |page: &PathBuf| has_extension(page, "md") && !pages.contains(page);
        let missing = files_in(folder)?.into_iter().find(is_missing);
        ensure!(missing.is_none(), "{LIST} does not list {missing:?}");
        Ok(Self { pages, parts })
    }

    /// The table of contents, as mdBook reads it.
    fn page(&self) -> Result<String> {
        let entry = |page: &Path, title: &str| {
            format!("[{title}]({})\n", place_of_page(relative_path(page)).display())
        };
        let mut text = entry(&repository_root().join("README.md"), "Millrace");
        text += &entry(&repository_root().join(LIST), "Documentation");
        for (title, pages) in &self.parts {
            text += &format!("\n# {title}\n\n");
            for page in pages {
                let content = read_document(page)?;
                let title = content.lines().find_map(|line| line.strip_prefix("# "));
                let title = title.with_context(|| format!("{} has no title", page.display()))?;
                text += &format!("- {}", entry(page, title));
            }
        }
        Ok(text)
    }
}

/// What the pages of a site refer to and it does not have: files, headings, and scripts, styles and pictures of other hosts.
fn broken_references(site: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for file in files_in(site)?.into_iter().filter(|file| has_extension(file, "html")) {
        let text = read_document(&file)?;
        pages.insert(file, text);
    }
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for reference in attributes(text, "src").chain(loaded(text)) {
            if is_outside(reference) {
                broken.push(format!("{}: {reference}: needs a network", page.display()));
            }
        }
        for reference in attributes(text, "href").chain(attributes(text, "src")) {
            if is_outside(reference) || reference.starts_with("data:") {
                continue;
            }
            let (path, heading) = reference.split_once('#').unwrap_or((reference, ""));
            let target = match path {
                "" => page.clone(),
                path => normalize_path(&page.parent().unwrap_or(site).join(path)),
            };
            let is_there = match pages.get(&target) {
                Some(target) => heading.is_empty() || target.contains(&format!("id=\"{heading}\"")),
                None => target.exists(),
            };
            if !is_there {
                broken.push(format!("{}: {reference}", page.display()));
            }
        }
    }
    Ok(broken)
}

/// The addresses of a page's styles and icons.
fn loaded(page: &str) -> impl Iterator<Item = &str> {
    page.split("<link")
        .skip(1)
        .filter_map(|rest| attributes(rest.split('>').next()?, "href").next())
}

fn attributes<'a>(page: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {name}=\"");
    let ends: Vec<&str> = page.split(&start).skip(1).collect();
    ends.into_iter().filter_map(|rest| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_contents_has_all_pages_under_the_headings_of_the_list() {
        let summary = Summary::read().unwrap();
        let page = summary.page().unwrap();
        assert!(
            page.starts_with("[Millrace](index.md)\n[Documentation](docs/index.md)\n"),
            "{page}"
        );
        let (_, install) = page.split_once("\n# To install\n").unwrap();
        let (install, _) = install.split_once("\n# ").unwrap();
        assert!(install.contains("\n- [Install Millrace](docs/install.md)\n"), "{install}");
        assert_eq!(page.matches("](").count(), summary.pages.len(), "{page}");
    }

    #[test]
    fn the_book_has_every_file_that_a_page_links_to() {
        let book = tempfile::tempdir().unwrap();
        write_book(book.path(), "1.0.0").unwrap();
        let source = book.path().join("src");
        for file in ["docs/pictures/packet.svg", "docs/index.md", "index.md", "LICENSE-GPL-2.0"] {
            assert!(source.join(file).is_file(), "{file}");
        }
        let settings = fs::read_to_string(book.path().join("book.toml")).unwrap();
        assert!(
            settings.parse::<toml::Table>().unwrap()["book"]["title"].as_str()
                == Some("Millrace 1.0.0")
        );
    }

    #[test]
    fn a_site_that_refers_to_what_it_does_not_have_is_reported() {
        let site = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(site.path().join(name), text).unwrap();
        write(
            "a.html",
            "<h1 id=\"here\"></h1> <a href=\"b.html#there\"> <a href=\"#here\"> <img src=\"a.svg\">",
        );
        write(
            "b.html",
            "<h1 id=\"there\"></h1> <a href=\"https://kubernetes.io\"> <link rel=\"x\" href=\"a.svg\">",
        );
        write("a.svg", "");
        assert_eq!(broken_references(site.path()).unwrap(), Vec::<String>::new());
        write(
            "c.html",
            "<a href=\"a.html#there\"> <a href=\"d.html\"> <script src=\"https://cdn.example.com/a.js\"> \
             <link rel=\"stylesheet\" href=\"//cdn.example.com/a.css\">",
        );
        let broken = broken_references(site.path()).unwrap();
        assert_eq!(broken.len(), 4, "{broken:?}");
    }
}

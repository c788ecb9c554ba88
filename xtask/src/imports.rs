//! Finds import cycles of three or more files within a crate.
//!
//! Two files may import each other, such as a type and its parts. In a longer cycle no file can be
//! understood or moved without all others: what they share belongs into a file of its own.
//!
//! An import of a re-exported name counts as one of the file that defines it. Unit tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, ensure};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::process::repository_root;

/// The names from the crate's root to a module: `["kernel", "tables"]`.
type ModulePath = Vec<String>;

/// By file, the files that it imports from.
type Imports = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

/// Fails if files of a crate import each other in a cycle of three or more.
pub fn check_imports() -> Result<()> {
    let mut cycles = Vec::new();
    for file in crate_roots()? {
        let mut modules = Modules::default();
        modules.load(Vec::new(), &file)?;
        cycles.extend(cycles_of(&modules.imports()));
    }
    ensure!(
        cycles.is_empty(),
        "files import each other in a cycle; move what they share into a file of its own:\n{}",
        cycles.join("\n")
    );
    Ok(())
}

/// The root files of all libraries, programs and integration tests.
fn crate_roots() -> Result<Vec<PathBuf>> {
    let mut roots = Vec::new();
    let crates = repository_root().join("crates");
    let folders = directory(repository_root())?.chain(directory(&crates)?);
    for package in folders.filter(|path| path.join("Cargo.toml").exists()) {
        let sources = ["src/lib.rs", "src/main.rs"].map(|file| package.join(file));
        roots.extend(sources.into_iter().filter(|file| file.exists()));
        for folder in ["src/bin", "tests"].map(|folder| package.join(folder)) {
            for path in directory(&folder).into_iter().flatten() {
                let file = if path.is_dir() { path.join("main.rs") } else { path };
                roots.extend(Some(file).filter(|file| is_rust_file(file) && file.exists()));
            }
        }
    }
    ensure!(!roots.is_empty(), "no crates in {}", repository_root().display());
    Ok(roots)
}

fn directory(path: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    let entries = fs::read_dir(path).with_context(|| path.display().to_string())?;
    Ok(entries.flatten().map(|entry| entry.path()))
}

fn is_rust_file(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "rs")
}

/// What a file declares and refers to.
#[derive(Default)]
struct SourceFile {
    file: PathBuf,
    /// Its modules in other files.
    children: Vec<String>,
    uses: Vec<Use>,
    /// Paths outside of `use`.
    paths: Vec<Vec<String>>,
    /// Names outside of `use`.
    names: BTreeSet<String>,
}

/// One name of a `use`.
struct Use {
    path: Vec<String>,
    name: String,
    is_public: bool,
}

impl SourceFile {
    fn parse(file: &Path, text: &str) -> Result<Self> {
        let tokens =
            TokenStream::from_str(text).map_err(|error| anyhow!("{}: {error}", file.display()))?;
        let mut source = Self { file: file.to_owned(), ..Self::default() };
        source.read(tokens);
        Ok(source)
    }

    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        let mut is_public = false;
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            match first {
                TokenTree::Punct(mark) if mark.as_char() == '#' && is_for_tests(rest.first()) => {
                    rest = after_item(&rest[1..]);
                }
                TokenTree::Ident(word) if word == "pub" => is_public = true,
                TokenTree::Ident(word) if word == "use" => {
                    let end = rest.iter().position(is_semicolon).unwrap_or(rest.len());
                    self.read_use(&rest[..end], &[], is_public);
                    rest = &rest[end..];
                }
                TokenTree::Ident(word) if word == "mod" => {
                    if let [TokenTree::Ident(name), end, ..] = rest
                        && is_semicolon(end)
                    {
                        self.children.push(name.to_string());
                    }
                }
                TokenTree::Ident(_) => {
                    let (path, after) = split_path(first, rest);
                    self.names.extend(path.first().cloned());
                    if path.len() > 1 {
                        self.paths.push(path);
                    }
                    rest = after;
                }
                TokenTree::Group(group) => {
                    self.read(group.stream());
                    // The group in `pub(super) use`.
                    if group.delimiter() == Delimiter::Parenthesis {
                        continue;
                    }
                    is_public = false;
                }
                other if is_semicolon(other) => is_public = false,
                _ => {}
            }
        }
    }

    /// Reads the tree of a `use` below `prefix`.
    fn read_use(&mut self, tree: &[TokenTree], prefix: &[String], is_public: bool) {
        for branch in tree.split(|token| is_mark(token, ',')) {
            let mut path = prefix.to_vec();
            let mut name = None;
            let mut is_list = false;
            let mut tokens = branch.iter();
            while let Some(token) = tokens.next() {
                match token {
                    TokenTree::Ident(word) if word == "as" => {
                        name = tokens.next().map(ToString::to_string);
                    }
                    TokenTree::Ident(word) => path.push(word.to_string()),
                    TokenTree::Group(group) => {
                        let list: Vec<TokenTree> = group.stream().into_iter().collect();
                        self.read_use(&list, &path, is_public);
                        is_list = true;
                    }
                    token if is_mark(token, '*') => path.push("*".to_owned()),
                    _ => {}
                }
            }
            if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            if let Some(last) = path.last().filter(|_| !is_list) {
                let name = name.unwrap_or_else(|| last.clone());
                self.uses.push(Use { path, name, is_public });
            }
        }
    }
}

/// Whether an attribute is `cfg(test)`.
fn is_for_tests(attribute: Option<&TokenTree>) -> bool {
    let Some(TokenTree::Group(attribute)) = attribute else { return false };
    let text = attribute.stream().to_string();
    text.starts_with("cfg") && text.contains("test") && !text.contains("not")
}

/// The tokens after the first item, which ends with a semicolon or a block.
fn after_item(tokens: &[TokenTree]) -> &[TokenTree] {
    let is_end = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        other => is_semicolon(other),
    };
    tokens.iter().position(is_end).map_or(&[], |end| &tokens[end + 1..])
}

fn split_path<'a>(first: &TokenTree, mut rest: &'a [TokenTree]) -> (Vec<String>, &'a [TokenTree]) {
    let mut path = vec![first.to_string()];
    while let [one, other, name @ TokenTree::Ident(_), after @ ..] = rest
        && is_mark(one, ':')
        && is_mark(other, ':')
    {
        path.push(name.to_string());
        rest = after;
    }
    (path, rest)
}

fn is_semicolon(token: &TokenTree) -> bool {
    is_mark(token, ';')
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

/// The modules of a crate.
#[derive(Default)]
struct Modules(BTreeMap<ModulePath, SourceFile>);

/// How many re-exports are followed for one name, so that a name that leads to itself ends.
const MAX_DEPTH: usize = 8;

impl Modules {
    /// Reads a module's file, and those of its children.
    fn load(&mut self, path: ModulePath, file: &Path) -> Result<()> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let source =
            SourceFile::parse(file.strip_prefix(repository_root()).unwrap_or(file), &text)?;
        let parent = file.parent().unwrap_or(file);
        let stem = file.file_stem().unwrap_or_default();
        let has_own_folder = path.is_empty() || stem == "mod";
        let folder = if has_own_folder { parent.to_owned() } else { parent.join(stem) };
        for name in &source.children {
            let files = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
            // A child may stand elsewhere: `#[path = ...]`.
            if let Some(file) = files.iter().find(|file| file.exists()) {
                self.load([&path[..], std::slice::from_ref(name)].concat(), file)?;
            }
        }
        self.0.insert(path, source);
        Ok(())
    }

    fn imports(&self) -> Imports {
        self.0
            .iter()
            .map(|(path, source)| (source.file.clone(), self.imports_of(path, source)))
            .collect()
    }

    fn imports_of(&self, module: &ModulePath, source: &SourceFile) -> BTreeSet<PathBuf> {
        let uses = source.uses.iter().filter(|used| {
            let is_only_exported = used.is_public && !source.names.contains(&used.name);
            let is_module = self.find(module, &used.path, 0).is_some_and(|found| {
                found.last().is_some_and(|name| Some(name) == used.path.last())
            });
            // What is used of an imported module is among the paths.
            !is_only_exported && !is_module
        });
        let paths = uses.map(|used| &used.path).chain(&source.paths);
        let found = paths.filter_map(|path| self.0.get(&self.find(module, path, 0)?));
        found.map(|found| found.file.clone()).filter(|file| *file != source.file).collect()
    }

    /// The module that defines what a path in a module names. `None` if it is not of this crate.
    fn find(&self, module: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.find_below(&[], rest, depth),
            "self" => self.find_below(module, rest, depth),
            "super" => {
                let supers = rest.iter().take_while(|name| *name == "super").count();
                let up = module.len().checked_sub(1 + supers)?;
                self.find_below(&module[..up], &rest[supers..], depth)
            }
            _ if self.0.contains_key(&[module, &path[..1]].concat()) => {
                self.find_below(module, path, depth)
            }
            name => self.follow_use(module, name, rest, depth),
        }
    }

    fn find_below(&self, module: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let Some((first, rest)) = path.split_first() else { return Some(module.to_vec()) };
        let child = [module, &path[..1]].concat();
        if self.0.contains_key(&child) {
            return self.find_below(&child, rest, depth);
        }
        self.follow_use(module, first, rest, depth).or_else(|| Some(module.to_vec()))
    }

    /// Where a name that a module imports is defined.
    fn follow_use(
        &self,
        module: &[String],
        name: &str,
        rest: &[String],
        depth: usize,
    ) -> Option<ModulePath> {
        if depth == MAX_DEPTH {
            return None;
        }
        let used = self.0.get(module)?.uses.iter().find(|used| used.name == name)?;
        self.find(module, &[&used.path, rest].concat(), depth + 1)
    }
}

/// The cycles of three or more files, each as the list of its imports.
fn cycles_of(imports: &Imports) -> Vec<String> {
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        imports.keys().map(|file| (file, reached_from(file, imports))).collect();
    let mut cycles = Vec::new();
    let mut done = BTreeSet::new();
    for (file, to) in &reached {
        let cycle: BTreeSet<&PathBuf> =
            to.iter().copied().filter(|other| reached[other].contains(file)).collect();
        if cycle.len() >= 3 && !done.contains(file) {
            let within = |file: &&PathBuf| {
                let to = imports[*file].iter().filter(|other| cycle.contains(other));
                let names: Vec<String> = to.map(|other| other.display().to_string()).collect();
                format!("  {} imports {}", file.display(), names.join(", "))
            };
            cycles.push(cycle.iter().map(within).collect::<Vec<_>>().join("\n"));
        }
        done.extend(cycle);
    }
    cycles
}

fn reached_from<'a>(file: &PathBuf, imports: &'a Imports) -> BTreeSet<&'a PathBuf> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&PathBuf> = imports[file].iter().collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(&imports[file]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cycles of a crate whose modules have these texts; the root is "".
    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        let mut modules = Modules::default();
        for (path, text) in files {
            let path: ModulePath = path.split_terminator("::").map(str::to_owned).collect();
            let source = SourceFile::parse(Path::new(&path.join("/")), text).unwrap();
            modules.0.insert(path, source);
        }
        cycles_of(&modules.imports())
    }

    #[test]
    fn a_cycle_of_three_files_is_found() {
        let found = cycles(&[
            ("", "mod a; mod b; mod c;"),
            ("a", "use crate::b::B;"),
            ("b", "fn b() { super::c::c::<u8>(1); }"),
            ("c", "use super::{std, a::{self as first, self}}; fn c() { first::a(); }"),
        ]);
        assert_eq!(found, ["  a imports b\n  b imports c\n  c imports a"]);
    }

    #[test]
    fn two_files_may_import_each_other() {
        let files =
            [("", "mod a; mod b; use b::B; fn f(_: B) {}"), ("a", ""), ("b", "use crate::f;")];
        assert_eq!(cycles(&files), [""; 0]);
    }

    #[test]
    fn a_re_export_is_no_import() {
        let facade = "mod a; mod b; pub use a::A; pub(super) use b::B; fn f() { a::f(); b::f() }";
        let files = [("", facade), ("a", "use super::b::B;"), ("b", "struct B;")];
        assert_eq!(cycles(&files), [""; 0]);
        let through = [("", facade), ("a", "use super::B;"), ("b", "use super::C;")];
        assert_eq!(cycles(&through).len(), 1, "C is not exported, so it is the facade's own");
    }

    #[test]
    fn unit_tests_and_comments_do_not_count() {
        let tests =
            "#[cfg(test)] mod tests { use crate::a::A; } // crate::a\nfn c() { \"crate::a\"; }";
        let files = [
            ("", "mod a; mod b; mod c;"),
            ("a", "use crate::b;fn a(){b::b()}"),
            ("b", "use crate::c::c;"),
            ("c", tests),
        ];
        assert_eq!(cycles(&files), [""; 0]);
    }
}

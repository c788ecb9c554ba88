//! The `console` blocks of documentation pages.

// Each test program uses a part.
#![allow(dead_code)]

use std::fs;
use std::path::Path;

/// The pages whose commands are all tested.
pub const PAGES: [&str; 8] = [
    "getting-started",
    "install",
    "loadbalancer",
    "migrate-from-ingress-nginx",
    "migrate-from-kube-proxy",
    "two-machines",
    "uninstall",
    "upgrade",
];

/// A fenced block of commands and what they print.
#[derive(Debug)]
pub struct Block {
    /// The line of the fence, counted from 1.
    pub line: usize,
    /// Why not all of its commands are run: the comment `<!-- not run: … -->` above the block.
    pub not_run: Option<String>,
    pub commands: Vec<DocumentedCommand>,
}

#[derive(Debug, Default)]
pub struct DocumentedCommand {
    pub line: usize,
    /// Without the prompt; several lines if it continues, or has a here-document.
    pub text: String,
    pub output: String,
}

fn read_page(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/{page}.md"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

pub fn blocks_of_page(page: &str) -> Vec<Block> {
    find_blocks(page, &read_page(page))
}

/// The files that a page shows: path and text of each YAML block below a comment `<!-- file: PATH -->`.
pub fn files_of_page(page: &str) -> Vec<(String, String)> {
    let page = read_page(page);
    let files = page.split("<!-- file: ").skip(1).map(|rest| {
        let (path, rest) = rest.split_once(" -->\n```yaml\n").expect("a YAML block follows");
        let (text, _) = rest.split_once("\n```").expect("the block ends");
        (path.to_owned(), format!("{text}\n"))
    });
    files.collect()
}

pub fn find_blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    let mut not_run = None;
    while let Some((index, line)) = lines.next() {
        let content = line.trim_start();
        if let Some(reason) = content.strip_prefix("<!-- not run: ") {
            not_run = reason.strip_suffix(" -->").map(str::to_owned);
            assert!(not_run.is_some(), "{page}.md:{}: end the comment on its line", index + 1);
        } else if content == "```console" {
            let indent = &line[..line.len() - content.len()];
            let inside = lines.by_ref().take_while(|(_, line)| line.trim() != "```");
            let inside =
                inside.map(|(index, line)| (index + 1, line.strip_prefix(indent).unwrap_or(line)));
            let commands = find_commands(inside);
            let line = index + 1;
            assert!(!commands.is_empty(), "{page}.md:{line}: no command has a prompt ($ or #)");
            blocks.push(Block { line, not_run: not_run.take(), commands });
        } else if !content.is_empty() {
            assert!(not_run.is_none(), "{page}.md:{}: `not run` is above no block", index + 1);
        }
    }
    blocks
}

fn find_commands<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<DocumentedCommand> {
    let mut commands: Vec<DocumentedCommand> = Vec::new();
    // The word that ends the here-document.
    let mut here: Option<String> = None;
    for (line, text) in lines {
        let prompted = text.strip_prefix("$ ").or(text.strip_prefix("# "));
        if let Some(last) = commands.last_mut()
            && (here.is_some() || last.text.ends_with('\\'))
        {
            last.text.push('\n');
            last.text.push_str(text);
            if here.as_deref() == Some(text) {
                here = None;
            }
        } else if let Some(text) = prompted {
            here = text
                .split_once("<<'")
                .and_then(|(_, word)| Some(word.split_once('\'')?.0.to_owned()));
            commands.push(DocumentedCommand { line, text: text.to_owned(), output: String::new() });
        } else if let Some(last) = commands.last_mut() {
            last.output.push_str(text);
            last.output.push('\n');
        }
    }
    commands
}

//! nginx's configuration as Ingresses have it in snippets: read, and never executed. The directives are honoured that can
//! be read without doubt; a refused one that could restrict access closes the rules.

mod combine;
mod directives;
mod harmless;
mod restrictions;
mod syntax;

pub use combine::combine_scopes;
pub(crate) use directives::{DirectiveFinding, DirectiveOutcome, SnippetLevel, read_scope};
pub use directives::{SnippetLocation, SnippetScope};
pub(crate) use syntax::read_directives;

use restrictions::{find_swallowed_restriction, is_restriction};
use syntax::Directive;

/// Which nginx configuration a snippet is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnippetKind {
    Location,
    Server,
    /// A part of which nothing is honoured.
    Other,
}

/// Whether the settings allow to read snippets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnippetReading {
    #[default]
    Refused,
    Allowed,
}

/// The first directive of a refused snippet that restricts access.
pub(crate) fn restricting_directive(snippet: &str) -> Option<String> {
    match read_directives(snippet) {
        Ok(directives) => find_restriction(&directives),
        // It is searched as if it had neither quotes nor comments.
        Err(_) => snippet.split(['\n', ';', '{', '}', '#', '"', '\'']).find_map(|statement| {
            let mut words = statement.split_ascii_whitespace();
            let name = words.next()?;
            is_restriction(name, words.next()).then(|| name.to_owned())
        }),
    }
}

fn find_restriction(directives: &[Directive]) -> Option<String> {
    directives.iter().find_map(|Directive { name, words, block, .. }| {
        if is_restriction(name, words.first().map(String::as_str)) {
            return Some(name.clone());
        }
        let swallowed = find_swallowed_restriction(name, words).map(str::to_owned);
        swallowed.or_else(|| find_restriction(block.as_deref()?))
    })
}

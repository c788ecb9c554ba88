//! Regular expressions for paths, which tenants write.
//!
//! Invariant: matching takes a few nanoseconds for each octet of the path, whatever the expression: see
//! [`crate::automaton`].

use std::fmt::{self, Debug};
use std::sync::Arc;

use regex::bytes::{Regex, RegexBuilder};

use crate::automaton::Automaton;

/// Limit on the compiled size of the engine that finds groups, once for a request that is rewritten.
const MOST_OCTETS_OF_GROUPS: usize = 64 << 10;

/// The engine copies all positions of groups for each of its states.
const MOST_GROUPS: usize = 32;

/// An expression for the beginning of paths, regardless of case. Normalized paths are ASCII, so classes like `\w` are,
/// too: as in nginx, and a hundredth of Unicode's size.
#[derive(Clone)]
pub struct PathRegex {
    text: Arc<str>,
    automaton: Automaton,
    /// Finds groups. `None`: the expression has none.
    groups: Option<Regex>,
    group_count: usize,
}

impl PathRegex {
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        let build = |expression: &str| {
            RegexBuilder::new(expression)
                .case_insensitive(true)
                .unicode(false)
                .size_limit(MOST_OCTETS_OF_GROUPS)
                .dfa_size_limit(MOST_OCTETS_OF_GROUPS)
                .build()
        };
        // Compiled without the group first: `a)(b` must not become valid by being put into one.
        build(text)?;
        let regex = build(&format!("^(?:{text})"))?;
        let group_count = regex.captures_len() - 1;
        if group_count > MOST_GROUPS {
            return Err(regex::Error::Syntax(format!("more than {MOST_GROUPS} groups")));
        }
        Ok(Self {
            text: text.into(),
            automaton: Automaton::of_beginning(text)?,
            groups: (group_count > 0).then_some(regex),
            group_count,
        })
    }

    /// As the rule has it.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn matches(&self, path: &str) -> bool {
        self.automaton.matches(path.as_bytes())
    }

    /// Number of groups, which a rewrite can refer to.
    pub fn groups(&self) -> usize {
        self.group_count
    }

    /// What the groups of an expression with groups match.
    pub fn captures<'p>(&self, path: &'p str) -> Option<Captures<'p>> {
        let captures = self.groups.as_ref()?.captures(path.as_bytes())?;
        Some(Captures { path, captures })
    }

    /// Size of the automaton in octets.
    pub fn octets(&self) -> usize {
        self.automaton.octets()
    }
}

impl Debug for PathRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PathRegex").field(&self.text).finish()
    }
}

impl PartialEq for PathRegex {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for PathRegex {}

/// The parts of a path that the groups of an expression match.
pub struct Captures<'p> {
    path: &'p str,
    captures: regex::bytes::Captures<'p>,
}

impl<'p> Captures<'p> {
    /// Group 0 is the whole match.
    pub fn get(&self, group: usize) -> Option<&'p str> {
        self.path.get(self.captures.get(group)?.range())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_expression_matches_from_the_beginning_regardless_of_case() {
        let regex = PathRegex::new("/api/v[12]|/old").unwrap();
        for path in ["/api/v1", "/API/V2/x", "/old"] {
            assert!(regex.matches(path), "{path}");
        }
        for path in ["/x/api/v1", "/api/v3", "/x/old"] {
            assert!(!regex.matches(path), "{path}");
        }
    }

    #[test]
    fn classes_are_ascii() {
        let regex = PathRegex::new(r"/(\w+){20}/([^/]*)").unwrap();
        assert_eq!(
            regex.captures(&format!("/{}/%C3%A9/", "a".repeat(20))).unwrap().get(2),
            Some("%C3%A9")
        );
        assert!(!PathRegex::new(r"/\w").unwrap().matches("/é"));
    }

    #[test]
    fn an_expression_cannot_leave_its_group() {
        assert!(PathRegex::new("/a)|(?:/").is_err());
        assert!(PathRegex::new("/a{1000}{1000}").is_err());
        assert!(PathRegex::new(&"(.*)".repeat(MOST_GROUPS)).is_ok());
        assert!(PathRegex::new(&"(.*)".repeat(MOST_GROUPS + 1)).is_err());
    }

    #[test]
    fn an_expression_whose_automaton_explodes_is_refused() {
        for text in ["/.*a[ab]{1000}", "/.*a.{20}", "/(.*a){12}[ab]{200}"] {
            assert!(matches!(PathRegex::new(text), Err(regex::Error::CompiledTooBig(_))), "{text}");
        }
    }

    #[test]
    fn ordinary_expressions_are_small() {
        let words: Vec<String> = (0..40).map(|number| format!("service-{number}")).collect();
        let ordinary = [
            "/api/v[0-9]+(/|$)(.*)".to_string(),
            r"/users/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/(.*)".to_string(),
            r"/[a-z0-9-]{1,63}/[^/]+\.(jpe?g|png|gif|css|js)$".to_string(),
            "/(.*)/(.*)/(.*)/edit".to_string(),
            r"/\w+\b".to_string(),
            format!("/({})(/|$)(.*)", words.join("|")),
        ];
        for text in ordinary {
            let octets = PathRegex::new(&text).map(|regex| regex.octets());
            assert!(octets.as_ref().is_ok_and(|octets| *octets < 24 << 10), "{text}: {octets:?}");
        }
    }

    proptest! {
        #[test]
        fn the_automaton_agrees_with_the_engine(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "/", "a", "b", "A", ".", "*", "+", "?", "(", ")", "|", "[ab]", "[^/]", "$", "^", r"\b", r"\w", r"\d", "{2}",
                "%20", "-",
            ]), 0..10),
            paths in prop::collection::vec("/[abA1/%-]{0,8}", 1..8),
        ) {
            let text = pieces.concat();
            let Ok(regex) = PathRegex::new(&text) else { return Ok(()) };
            let engine = RegexBuilder::new(&format!("^(?:{text})")).case_insensitive(true).unicode(false).build();
            let engine = engine.expect("an expression that compiled before");
            for path in paths {
                prop_assert_eq!(regex.matches(&path), engine.is_match(path.as_bytes()), "{} {}", text, path);
            }
        }
    }
}

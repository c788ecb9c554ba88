//! Paths in rules.

use std::fmt::{self, Display};
use std::sync::Arc;

use regex::bytes::{Regex, RegexBuilder};

use super::normalize::{comparable, normalize};

/// The paths that a rule is for. They are compared with the normalized path of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// This path only.
    Exact(Arc<str>),
    /// This path and all below it, by path element: `/a` and `/a/` match `/a`, `/a/` and `/a/b`, not `/ab`.
    Prefix(Arc<str>),
    /// Paths whose beginning matches the expression, regardless of case.
    Regex(PathRegex),
    /// All paths that no other pattern of the host matches.
    Default,
}

impl PathPattern {
    pub fn regex(text: &str) -> Result<Self, regex::Error> {
        PathRegex::new(text).map(Self::Regex)
    }

    /// Whether a normalized path matches.
    pub fn matches(&self, path: &str) -> bool {
        let is_below = |prefix: &str| {
            let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
            comparable(path)
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let normal = |text| normalize(text).map(|path| comparable(&path).into_owned());
        match self {
            Self::Exact(text) => normal(text).is_ok_and(|text| text == comparable(path)),
            Self::Prefix(text) => normal(text).is_ok_and(|text| is_below(&text)),
            Self::Regex(regex) => regex.matches(path),
            Self::Default => true,
        }
    }

    /// As the rule has it.
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(path) | Self::Prefix(path) => path,
            Self::Regex(regex) => regex.text(),
            Self::Default => "",
        }
    }
}

impl Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) => write!(f, "= {path}"),
            Self::Prefix(path) => write!(f, "{path}"),
            Self::Regex(regex) => write!(f, "~ {}", regex.text()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// An expression for the beginning of paths. The engine takes linear time.
#[derive(Clone, Debug)]
pub struct PathRegex {
    text: Arc<str>,
    regex: Regex,
}

/// Limit on the compiled size of one expression, and on the cache of its automaton: tenants write them.
const MOST_OCTETS: usize = 128 << 10;

impl PathRegex {
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        // Normalized paths are ASCII, so classes like `\w` are, too: as in nginx, and a hundredth of Unicode's size.
        let build = |expression: &str| {
            RegexBuilder::new(expression)
                .case_insensitive(true)
                .unicode(false)
                .size_limit(MOST_OCTETS)
                .dfa_size_limit(MOST_OCTETS)
                .build()
        };
        // Compiled without the group first: `a)(b` must not become valid by being put into one.
        build(text)?;
        Ok(Self { text: text.into(), regex: build(&format!("^(?:{text})"))? })
    }

    /// As the rule has it.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn matches(&self, path: &str) -> bool {
        self.regex.is_match(path.as_bytes())
    }

    /// Number of groups, which a rewrite can refer to.
    pub fn groups(&self) -> usize {
        self.regex.captures_len() - 1
    }

    pub fn captures<'p>(&self, path: &'p str) -> Option<Captures<'p>> {
        self.regex.captures(path.as_bytes()).map(|captures| Captures { path, captures })
    }
}

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

impl PartialEq for PathRegex {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for PathRegex {}

#[cfg(test)]
mod tests {
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
    }
}

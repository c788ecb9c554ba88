//! Paths in rules.

use std::fmt::{self, Display};
use std::sync::Arc;

use super::expression::PathRegex;
use super::normalize::{Slashes, comparable_path, normalize_path};

/// The paths that a rule is for. They are compared with the [`comparable_path`] path of a request.
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
    pub fn matches(&self, path: &str, slashes: Slashes) -> bool {
        let path = &*comparable_path(path, slashes);
        let is_below = |prefix: &str| {
            let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let normal =
            |text| normalize_path(text).map(|path| comparable_path(&path, slashes).into_owned());
        match self {
            Self::Exact(text) => normal(text).is_ok_and(|text| text == path),
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

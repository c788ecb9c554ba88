//! Paths in rules.

use std::fmt::{self, Display};
use std::sync::Arc;

use regex::Regex;

/// The paths that a rule is for. They are compared with the normalized path of a request.
#[derive(Clone, Debug)]
pub enum PathPattern {
    /// This path only.
    Exact(Arc<str>),
    /// This path and all below it, by path element: `/a` and `/a/` match `/a`, `/a/` and `/a/b`, not `/ab`.
    Prefix(Arc<str>),
    /// Paths whose beginning matches the expression, regardless of case.
    Regex(Regex),
    /// All paths that no other pattern of the host matches.
    Default,
}

impl PathPattern {
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(path) | Self::Prefix(path) => path,
            Self::Regex(regex) => regex.as_str(),
            Self::Default => "",
        }
    }
}

impl PartialEq for PathPattern {
    fn eq(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.text() == other.text()
    }
}

impl Eq for PathPattern {}

impl Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) => write!(f, "= {path}"),
            Self::Prefix(path) => write!(f, "{path}"),
            Self::Regex(regex) => write!(f, "~ {regex}"),
            Self::Default => f.write_str("default"),
        }
    }
}

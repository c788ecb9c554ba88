//! Host names in rules.

use std::fmt::{self, Display};
use std::sync::Arc;

/// The hosts that a rule is for. The most specific pattern that matches owns a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// One name, in lower case, without port and without the dot of the root.
    Exact(Arc<str>),
    /// Names with exactly one label before this suffix. `*.example.org` has the suffix `example.org`.
    Wildcard(Arc<str>),
    /// Requests that no other pattern matches.
    Any,
}

impl Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Wildcard(suffix) => write!(f, "*.{suffix}"),
            Self::Any => f.write_str("*"),
        }
    }
}

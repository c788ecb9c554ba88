//! Replaces the path of requests.

use std::fmt::{self, Display};

use crate::path::{self, Captures, InvalidPath, PathPattern, Slashes};
use crate::policy::Rewrite;

/// Path and query for the endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    pub path: String,
    pub query: Option<String>,
}

impl Rewritten {
    pub fn path_and_query(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }
}

/// The target, with the parts of the path that the rule's groups have matched, is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTarget(pub InvalidPath);

impl Display for InvalidTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rewritten path is invalid: {}", self.0)
    }
}

impl std::error::Error for InvalidTarget {}

/// Fills the target's `$1` to `$9` with what the groups of the rule's expression have matched in the [`path::decode_unreserved`] path;
/// `$` before anything else is a dollar sign. The result is normalized: `/.$1./b` is a path above the root if `$1` is
/// empty.
///
/// What follows `?` in the target is put before the request's query.
pub fn rewrite_path(
    rewrite: &Rewrite,
    pattern: &PathPattern,
    path: &str,
    query: Option<&str>,
) -> Result<Rewritten, InvalidTarget> {
    // What slashes the client sent are kept, unless the rule only matches without.
    let decoded = path::decode_unreserved(path);
    let merged = path::comparable_path(path, Slashes::Merged);
    let groups = match pattern {
        PathPattern::Regex(regex) => regex.captures(&decoded).or_else(|| regex.captures(&merged)),
        _ => None,
    };
    let (target, arguments) = match rewrite.target.split_once('?') {
        Some((target, arguments)) => (target, Some(fill(arguments, groups.as_ref()))),
        None => (&*rewrite.target, None),
    };
    let path =
        path::normalize_path(&fill(target, groups.as_ref())).map_err(InvalidTarget)?.into_owned();
    let query = match (arguments.filter(|arguments| !arguments.is_empty()), query) {
        (Some(arguments), Some(query)) => Some(format!("{arguments}&{query}")),
        (arguments, query) => arguments.or(query.map(String::from)),
    };
    Ok(Rewritten { path, query })
}

fn fill(template: &str, groups: Option<&Captures>) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        rest = after;
        match after.bytes().next() {
            Some(digit @ b'1'..=b'9') => {
                rest = &after[1..];
                let group = groups.and_then(|groups| groups.get(usize::from(digit - b'0')));
                text.push_str(group.unwrap_or_default());
            }
            _ => text.push('$'),
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(pattern: &PathPattern, target: &str, uri: &str) -> Result<String, InvalidPath> {
        let (path, query) =
            uri.split_once('?').map_or((uri, None), |(path, query)| (path, Some(query)));
        let rewrite = Rewrite { target: target.into() };
        let result = rewrite_path(&rewrite, pattern, path, query);
        result.map(|rewritten| rewritten.path_and_query()).map_err(|InvalidTarget(reason)| reason)
    }

    #[test]
    fn groups_fill_the_target() {
        let cases = [
            ("/api(/|$)(.*)", "/$2", "/api/v1/x?q=1", Ok("/v1/x?q=1")),
            ("/api(/|$)(.*)", "/$2", "/api", Ok("/")),
            ("/api(/|$)(.*)", "/$2", "/api//x", Ok("//x")),
            ("/api(/|$)(.*)", "/$2", "/API/X", Ok("/X")),
            ("/api/(.*)", "/new", "/api/v1", Ok("/new")),
            ("/api/(.*)", "/$3$9", "/api/v1", Ok("/")),
            ("/(a)/(b)", "/$2$1-$10", "/a/b", Ok("/ba-a0")),
            ("/a/(.*)", "/$$1/$x/$", "/a/b", Ok("/$b/$x/$")),
            ("/api(/|$)(.*)", "/$2", "//api//x", Ok("/x")),
            ("/@in(/|$)(.*)", "/$2", "/%40in/%3Ax", Ok("/:x")),
            ("/a/(.*)", "/x?id=$1", "/a/7", Ok("/x?id=7")),
            ("/a/(.*)", "/x?id=$1", "/a/7?q=1", Ok("/x?id=7&q=1")),
            ("/a/(.*)", "/x?", "/a/7?q=1", Ok("/x?q=1")),
            ("/a/(.*)", "/b/$1", "/a/x%2Fy%3Fz", Ok("/b/x%2Fy%3Fz")),
            ("/a/(.*)", "/b/é $1", "/a/x", Ok("/b/%C3%A9%20x")),
            ("/a/(.*)", "$1", "/a/x", Err(InvalidPath::NotAbsolute)),
            ("/a/(.*)", "http://b/$1", "/a/x", Err(InvalidPath::NotAbsolute)),
            ("/a/(.*)", "", "/a/x", Err(InvalidPath::NotAbsolute)),
            ("/a(.*)", "/.$1./b", "/a", Err(InvalidPath::AboveRoot)),
            ("/a(.*)", "/c/.$1./b", "/a", Ok("/b")),
            ("/a/%(..)", "/%$1", "/a/%2F", Ok("/%2F")),
            ("/a/(.*)", "/%0$1", "/a/0", Err(InvalidPath::ControlCharacter)),
        ];
        for (expression, target, uri, expected) in cases {
            let pattern = PathPattern::regex(expression).unwrap();
            assert_eq!(
                rewritten(&pattern, target, uri).as_deref().map_err(|&error| error),
                expected,
                "{target} {uri}"
            );
        }
    }

    #[test]
    fn without_groups_the_target_replaces_the_path() {
        for pattern in
            [PathPattern::Exact("/a".into()), PathPattern::Prefix("/".into()), PathPattern::Default]
        {
            assert_eq!(rewritten(&pattern, "/b/$1", "/a?q=1").as_deref(), Ok("/b/?q=1"));
        }
    }
}

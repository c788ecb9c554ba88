//! Paths of rules.

use lb_http::PathPattern;

use super::annotations::expression_error;

const MOST_OCTETS: usize = 4096;

/// Reads a path. `expressions`: annotations ask for regular expressions.
///
/// Paths of type Exact are never expressions. Those of type Prefix are only if they have operators: that type is
/// defined by path elements, but ingress-nginx's users write expressions into it.
pub(crate) fn read_path(
    path: Option<&str>,
    path_type: &str,
    expressions: bool,
    use_regex: bool,
) -> Result<PathPattern, String> {
    let path = path.unwrap_or_default();
    if path.len() > MOST_OCTETS {
        return Err(format!("is longer than {MOST_OCTETS} characters"));
    }
    let is_exact = match path_type {
        "Exact" => true,
        "Prefix" | "ImplementationSpecific" => false,
        other => {
            return Err(format!(
                "has the type {other:?}, which is not one of Exact, Prefix, ImplementationSpecific"
            ));
        }
    };
    let expression = !is_exact
        && expressions
        && !path.is_empty()
        && (has_operators(path) || (use_regex && path_type == "ImplementationSpecific"));
    if expression {
        return PathPattern::regex(path).map_err(|error| expression_error(&error));
    }
    let path = if path.is_empty() { "/" } else { path };
    lb_http::path::normalize_path(path).map_err(|why| format!("can't match: {why}"))?;
    Ok(if is_exact { PathPattern::Exact(path.into()) } else { PathPattern::Prefix(path.into()) })
}

/// Whether it is more than a path. A dot alone does not count.
pub(crate) fn has_operators(path: &str) -> bool {
    path.contains(['(', ')', '[', ']', '{', '}', '*', '+', '?', '^', '$', '|', '\\'])
}

/// The highest group that a rewrite target names.
pub(crate) fn highest_group(target: &str) -> usize {
    let after = target.split('$').skip(1);
    let number = |text: &str| {
        text.chars().next().and_then(|digit| digit.to_digit(10)).map_or(0, |digit| digit as usize)
    };
    after.map(number).max().unwrap_or(0)
}

/// Groups of an expression.
pub(crate) fn count_groups(pattern: &PathPattern) -> usize {
    match pattern {
        PathPattern::Regex(expression) => expression.groups(),
        _ => 0,
    }
}

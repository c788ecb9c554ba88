//! The rules of one host.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::iter;
use std::sync::Arc;

use super::MatchedRule;
use super::prefixes::{Prefixes, prefix_of};
use crate::host::HostPattern;
use crate::path::{self, PathPattern, Slashes};
use crate::route::Route;

/// Expressions of a host that are served, and octets of their automata. Each request tries them in order.
pub const MOST_EXPRESSIONS: usize = 256;
pub const MOST_EXPRESSION_OCTETS: usize = 2 << 20;

#[derive(Debug)]
pub struct HostRules {
    host: HostPattern,
    /// The rules that are served. The other fields have indexes into them.
    rules: Box<[HostRuleEntry]>,
    /// Sorted by path.
    exact: Box<[(Box<str>, u32)]>,
    prefixes: Prefixes,
    /// The longest texts first.
    expressions: Box<[u32]>,
    default: Option<u32>,
    shadowed: Box<[Shadowed]>,
}

#[derive(Debug)]
struct HostRuleEntry {
    path: PathPattern,
    route: Arc<Route>,
    /// Octets of the path or expression.
    length: usize,
}

/// A rule that is never served.
#[derive(Clone, Debug)]
pub struct Shadowed {
    pub path: PathPattern,
    pub route: Arc<Route>,
    pub why: WhyShadowed,
}

#[derive(Clone, Debug)]
pub enum WhyShadowed {
    /// This route has an equal pattern, and precedence.
    By(Arc<Route>),
    /// No request can have this path.
    InvalidPath(path::InvalidPath),
    /// With those that have precedence, it exceeds [`MOST_EXPRESSIONS`] or [`MOST_EXPRESSION_OCTETS`].
    TooManyExpressions,
}

/// What makes two patterns equal.
#[derive(PartialEq, Eq, Hash)]
enum PatternKey {
    Exact(Box<str>),
    Prefix(Box<str>),
    Regex(Box<str>),
    Default,
}

impl PatternKey {
    /// With the length of the path or expression.
    fn of(pattern: &PathPattern, slashes: Slashes) -> Result<(Self, usize), path::InvalidPath> {
        let comparable = |text: &str| {
            path::normalize_path(text)
                .map(|path| path::comparable_path(&path, slashes).into_owned())
        };
        Ok(match pattern {
            PathPattern::Exact(text) => (Self::Exact(comparable(text)?.into()), text.len()),
            PathPattern::Prefix(text) => {
                let path = comparable(text)?;
                (Self::Prefix(prefix_of(&path).into()), path.len())
            }
            PathPattern::Regex(regex) => (Self::Regex(regex.text().into()), regex.text().len()),
            PathPattern::Default => (Self::Default, 0),
        })
    }
}

/// What the expressions of a host may still take.
struct ExpressionBudget {
    expressions: usize,
    octets: usize,
}

impl ExpressionBudget {
    fn admits(&mut self, pattern: &PathPattern) -> bool {
        let PathPattern::Regex(regex) = pattern else { return true };
        let octets = regex.octets();
        let fits = self.expressions > 0 && octets <= self.octets;
        if fits {
            self.expressions -= 1;
            self.octets -= octets;
        }
        fits
    }
}

impl HostRules {
    pub fn new(
        host: HostPattern,
        candidates: Vec<(PathPattern, Arc<Route>)>,
        slashes: Slashes,
    ) -> Self {
        let mut rules: Vec<HostRuleEntry> = Vec::with_capacity(candidates.len());
        let mut indexes: HashMap<PatternKey, u32> = HashMap::new();
        let mut shadowed = Vec::new();
        let mut budget =
            ExpressionBudget { expressions: MOST_EXPRESSIONS, octets: MOST_EXPRESSION_OCTETS };
        for (path, route) in candidates {
            let why = match PatternKey::of(&path, slashes) {
                Err(error) => WhyShadowed::InvalidPath(error),
                Ok((key, length)) => match indexes.get(&key) {
                    Some(&first) => WhyShadowed::By(rules[first as usize].route.clone()),
                    None if !budget.admits(&path) => WhyShadowed::TooManyExpressions,
                    None => {
                        indexes.insert(key, rules.len() as u32);
                        rules.push(HostRuleEntry { path, route, length });
                        continue;
                    }
                },
            };
            shadowed.push(Shadowed { path, route, why });
        }
        let (mut exact, mut prefixes, mut expressions, mut default) =
            (Vec::new(), Vec::new(), Vec::new(), None);
        for (key, index) in indexes {
            match key {
                PatternKey::Exact(path) => exact.push((path, index)),
                PatternKey::Prefix(prefix) => prefixes.push((prefix, index)),
                PatternKey::Regex(_) => expressions.push(index),
                PatternKey::Default => default = Some(index),
            }
        }
        exact.sort();
        // Of equal lengths, the rule with precedence first.
        expressions.sort_by_key(|&index| (Reverse(rules[index as usize].length), index));
        Self {
            host,
            rules: rules.into(),
            exact: exact.into(),
            prefixes: Prefixes::new(prefixes),
            expressions: expressions.into(),
            default,
            shadowed: shadowed.into(),
        }
    }

    pub fn host(&self) -> &HostPattern {
        &self.host
    }

    pub fn shadowed(&self) -> &[Shadowed] {
        &self.shadowed
    }

    /// The rules that match a path, beginning with the one that is served. `comparable` is [`path::comparable_path`] of it, with
    /// the slashes of [`HostRules::new`].
    pub fn matching<'t>(&'t self, comparable: &str) -> impl Iterator<Item = MatchedRule<'t>> {
        let exact = self.exact.binary_search_by(|(text, _)| (**text).cmp(comparable)).ok();
        let mut prefixes = self.prefixes.of(comparable).peekable();
        let mut expressions = self.expressions.iter().copied().peekable();
        let length = |index: &u32| self.rules[*index as usize].length;
        let longest_first = iter::from_fn(move || match (prefixes.peek(), expressions.peek()) {
            (Some(prefix), Some(expression)) if length(prefix) >= length(expression) => {
                prefixes.next()
            }
            (Some(_), None) => prefixes.next(),
            _ => expressions.next(),
        });
        let exact = exact.map(|at| self.exact[at].1);
        exact
            .into_iter()
            .chain(longest_first)
            .chain(self.default)
            .map(|index| self.rule(index))
            .filter(|rule| match rule.path {
                PathPattern::Regex(regex) => regex.matches(comparable),
                _ => true,
            })
    }

    pub fn iter(&self) -> impl Iterator<Item = MatchedRule<'_>> {
        (0..self.rules.len() as u32).map(|index| self.rule(index))
    }

    fn rule(&self, index: u32) -> MatchedRule<'_> {
        let HostRuleEntry { path, route, .. } = &self.rules[index as usize];
        MatchedRule { host: &self.host, path, route }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_budget_for_expressions() {
        let expression = PathPattern::regex("/a[0-9]+").unwrap();
        let PathPattern::Regex(regex) = &expression else { panic!("not an expression") };
        for (mut budget, expected) in [
            (
                ExpressionBudget { expressions: 2, octets: MOST_EXPRESSION_OCTETS },
                [true, true, false],
            ),
            (ExpressionBudget { expressions: 9, octets: 2 * regex.octets() }, [true, true, false]),
            (
                ExpressionBudget { expressions: 9, octets: 2 * regex.octets() - 1 },
                [true, false, false],
            ),
        ] {
            assert!(budget.admits(&PathPattern::Default));
            assert_eq!([(); 3].map(|()| budget.admits(&expression)), expected);
        }
    }
}

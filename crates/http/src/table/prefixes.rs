//! Prefixes of paths, to find the longest one of a path.

use std::cmp::Ordering;

/// Prefixes in the order of their elements, so that a prefix is directly followed by all that it contains. A path's
/// predecessor in this order is its longest prefix, or contained in it.
#[derive(Debug, Default)]
pub struct Prefixes {
    entries: Box<[PrefixEntry]>,
}

#[derive(Debug)]
struct PrefixEntry {
    /// Without the trailing slash: the root is empty.
    prefix: Box<str>,
    /// Index of the longest other prefix that contains this one.
    parent: Option<u32>,
    value: u32,
}

/// The prefix that a path in a rule stands for: `/a/` is the same as `/a`.
pub(crate) fn prefix_of(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}

impl Prefixes {
    /// From different prefixes, with their values.
    pub fn new(mut prefixes: Vec<(Box<str>, u32)>) -> Self {
        prefixes.sort_by(|(one, _), (other, _)| compare(one, other));
        let mut entries: Vec<PrefixEntry> = Vec::with_capacity(prefixes.len());
        for (prefix, value) in prefixes {
            let last = entries.len().checked_sub(1).map(|last| last as u32);
            let parent = chain(&entries, last).find(|&at| contains(&entries[at].prefix, &prefix));
            let parent = parent.map(|at| at as u32);
            entries.push(PrefixEntry { prefix, parent, value });
        }
        Self { entries: entries.into() }
    }

    /// The prefixes of a path with their values, the longest first.
    pub fn of(&self, path: &str) -> impl Iterator<Item = u32> {
        let after =
            self.entries.partition_point(|entry| compare(&entry.prefix, path) != Ordering::Greater);
        let predecessor = after.checked_sub(1).map(|at| at as u32);
        let shared =
            predecessor.map_or(0, |at| shared_octets(&self.entries[at as usize].prefix, path));
        chain(&self.entries, predecessor)
            .map(|at| &self.entries[at])
            // Cheaper than a comparison of the text, for paths beside a long chain of nested prefixes.
            .filter(move |entry| {
                entry.prefix.len() <= shared && ends_element(path, entry.prefix.len())
            })
            .map(|entry| entry.value)
    }
}

/// An entry and its parents.
fn chain(entries: &[PrefixEntry], first: Option<u32>) -> impl Iterator<Item = usize> {
    std::iter::successors(first, |&at| entries[at as usize].parent).map(|at| at as usize)
}

fn contains(prefix: &str, path: &str) -> bool {
    path.starts_with(prefix) && ends_element(path, prefix.len())
}

/// Whether an element of the path ends after so many octets.
fn ends_element(path: &str, octets: usize) -> bool {
    matches!(path.as_bytes().get(octets), None | Some(b'/'))
}

fn shared_octets(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count()
}

/// Compares octets, of which `/` is the lowest.
fn compare(one: &str, other: &str) -> Ordering {
    let shared = shared_octets(one, other);
    let rank = |path: &str| path.as_bytes().get(shared).map(|&octet| (octet != b'/', octet));
    rank(one).cmp(&rank(other))
}

//! The selection of cases.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// A part of a name, or a whole name in which `*` matches any text.
#[derive(Clone, Debug)]
pub struct Pattern(String);

impl Pattern {
    pub fn fits(&self, name: &str) -> bool {
        if self.0.contains('*') { matches(&self.0, name) } else { name.contains(&self.0) }
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.is_char_boundary(at) && matches(rest, &name[at..]))
        }),
    }
}

impl FromStr for Pattern {
    type Err = Infallible;

    fn from_str(pattern: &str) -> Result<Self, Infallible> {
        Ok(Self(pattern.to_owned()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, name: &str) -> bool {
        Pattern(pattern.to_owned()).fits(name)
    }

    #[test]
    fn with_a_star_it_is_the_whole_name() {
        assert!(fits("xdp.v4.*", "xdp.v4.tcp.new"));
        assert!(fits("*.new", "xdp.v4.tcp.new"));
        assert!(fits("xdp.*.tcp.*", "xdp.v6.tcp.established"));
        assert!(!fits("v4.*", "xdp.v4.none"));
        assert!(!fits("tc.*", "xdp.v4.none"));
    }

    #[test]
    fn without_a_star_it_is_a_part() {
        assert!(fits("v4.tcp", "xdp.v4.tcp.new"));
        assert!(fits("", "xdp.v4.tcp.new"));
        assert!(!fits("v6", "xdp.v4.tcp.new"));
    }
}

//! The specs that cannot run in a cluster of this kind, each with its reason.

/// A list in the repository: lines that begin with `#` are the reason of the names that follow.
pub(crate) struct Exclusions(Vec<(String, String)>);

impl Exclusions {
    pub(crate) fn of_suite(suite: &str) -> Self {
        match suite {
            "sig-network" => Self::parse(include_str!("../../suites/sig-network.txt")),
            "api" => Self::parse(include_str!("../../suites/api.txt")),
            "http2" => Self::parse(include_str!("../../suites/http2.txt")),
            _ => Self(Vec::new()),
        }
    }

    fn parse(text: &str) -> Self {
        let mut reason = String::new();
        let mut names = Vec::new();
        let mut in_reason = false;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match line.strip_prefix("# ") {
                Some(more) if in_reason => reason = format!("{reason} {more}"),
                Some(first) => reason = first.to_owned(),
                None => names.push((line.to_owned(), reason.clone())),
            }
            in_reason = line.starts_with('#');
        }
        Self(names)
    }

    /// Parts of names.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Why a spec cannot run, if its name contains one of the list.
    pub fn reason(&self, spec: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| spec.contains(name)).map(|(_, reason)| reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_the_reason_above_it() {
        let list = Exclusions::parse("# no\n# internet\na spec\nanother\n\n# no SCTP\nsctp\n");
        assert_eq!(list.reason("[x] a spec of x"), Some("no internet"));
        assert_eq!(list.reason("another"), Some("no internet"));
        assert_eq!(list.reason("with sctp"), Some("no SCTP"));
        assert_eq!(list.reason("something else"), None);
    }

    #[test]
    fn every_exclusion_has_a_reason() {
        for suite in ["sig-network", "http2", "api"] {
            for (name, reason) in Exclusions::of_suite(suite).0 {
                assert!(reason.len() > 10, "{suite}: {name}: {reason:?}");
            }
        }
    }
}

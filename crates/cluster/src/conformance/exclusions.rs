//! The specs that cannot run in a cluster of this kind, each with its reason.

/// A list in the repository: lines that begin with `#` are the reason of the names that follow.
#[derive(Default)]
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

    /// Why a spec cannot run, if its name contains one of the list. ` * ` in the list stands for any text.
    pub fn reason(&self, spec: &str) -> Option<&str> {
        let found = self.0.iter().find(|(name, _)| contains_in_order(spec, name));
        found.map(|(_, reason)| reason.as_str())
    }

    /// Names of the list that name none of these specs.
    pub fn list_unused<'a>(&'a self, specs: &[&str]) -> Vec<&'a str> {
        let names = self.0.iter().map(|(name, _)| name.as_str());
        names.filter(|name| !specs.iter().any(|spec| contains_in_order(spec, name))).collect()
    }
}

fn contains_in_order(spec: &str, name: &str) -> bool {
    let mut rest = spec;
    name.split(" * ").all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
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
        assert_eq!(list.list_unused(&["a spec", "sctp"]), ["another"]);
    }

    #[test]
    fn an_asterisk_stands_for_any_text() {
        let list = Exclusions::parse("# no\nlists: * /items\n");
        assert!(list.reason("v1 Node: lists: any: /items: real 1").is_some());
        assert!(list.reason("v1 Node: /items: lists: any").is_none());
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

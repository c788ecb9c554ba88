//! Checks the form of names, labels and addresses. Each check returns the messages of an API
//! server.

use std::net::IpAddr;

use super::violation::Violation;

const LABEL_FORM: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const NAME_PART_FORM: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// A check of a string.
pub(crate) type NameCheck = fn(&str) -> Vec<String>;

/// The violations that a check finds in a field.
pub fn check_name(field: &str, value: &str, check: NameCheck) -> Vec<Violation> {
    check(value).iter().map(|wrong| Violation::invalid(field, value, wrong)).collect()
}

/// An RFC 1123 label. May start with a digit.
pub(crate) fn check_label(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 63);
    if !is_label(value) {
        wrong.push(if is_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            form(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
                 or '-', and must start and end with an alphanumeric character",
                LABEL_FORM,
                &["my-name", "123-abc"],
            )
        });
    }
    wrong
}

/// An RFC 1035 label. Starts with a letter.
pub(crate) fn check_letter_label(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 63);
    if !is_label(value) || !value.starts_with(|first: char| first.is_ascii_lowercase()) {
        wrong.push(form(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start \
             with an alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    wrong
}

pub(crate) fn check_subdomain(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 253);
    if !is_subdomain(value) {
        wrong.push(form(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character",
            &format!(r"{LABEL_FORM}(\.{LABEL_FORM})*"),
            &["example.com"],
        ));
    }
    wrong
}

pub(crate) fn check_wildcard_subdomain(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 253);
    if !value.strip_prefix("*.").is_some_and(is_subdomain) {
        wrong.push(form(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS \
             subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and \
             end with an alphanumeric character",
            &format!(r"\*\.{LABEL_FORM}(\.{LABEL_FORM})*"),
            &["*.example.com"],
        ));
    }
    wrong
}

/// `name` or `prefix/name`, for label keys and finalizers.
pub(crate) fn check_qualified_name(value: &str) -> Vec<String> {
    let (prefix, name) = match value.split_once('/') {
        None => (None, value),
        Some((_, name)) if name.contains('/') => {
            let form = form(
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and \
                 must start and end with an alphanumeric character",
                NAME_PART_FORM,
                &["MyName", "my.name", "123-abc"],
            );
            return vec![format!(
                "{form} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => (Some(prefix), name),
    };
    let mut wrong = Vec::new();
    match prefix {
        Some("") => wrong.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            wrong.extend(check_subdomain(prefix).iter().map(|what| format!("prefix part {what}")));
        }
        None => {}
    }
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    }
    wrong.extend(too_long(name, 63).iter().map(|what| format!("name part {what}")));
    if !is_name_part(name) {
        wrong.push(form(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start \
             and end with an alphanumeric character",
            NAME_PART_FORM,
            &["MyName", "my.name", "123-abc"],
        ));
    }
    wrong
}

pub(crate) fn check_label_value(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 63);
    if !value.is_empty() && !is_name_part(value) {
        wrong.push(form(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', \
             '_' or '.', and must start and end with an alphanumeric character",
            &format!("({NAME_PART_FORM})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    wrong
}

/// The key of an entry of a Secret or ConfigMap.
pub(crate) fn check_data_key(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 253);
    if value.is_empty()
        || !value.chars().all(|letter| is_alphanumeric(letter) || "-._".contains(letter))
    {
        wrong.push(form(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match value {
        "." => wrong.push("must not be '.'".to_owned()),
        ".." => wrong.push("must not be '..'".to_owned()),
        _ if value.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

/// A port name, as targets refer to it.
pub(crate) fn check_port_name(value: &str) -> Vec<String> {
    let is_letter = |letter: char| letter.is_ascii_lowercase();
    let mut wrong = too_long(value, 15);
    if value.is_empty()
        || !value
            .chars()
            .all(|letter| is_letter(letter) || letter.is_ascii_digit() || letter == '-')
    {
        wrong.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !value.contains(is_letter) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

/// The name of an object in a request's path.
pub(crate) fn check_path_segment(value: &str) -> Vec<String> {
    match value {
        "." | ".." => return vec![format!("may not be '{value}'")],
        _ => {}
    }
    ["/", "%"]
        .iter()
        .filter(|letter| value.contains(**letter))
        .map(|letter| format!("may not contain '{letter}'"))
        .collect()
}

pub(crate) fn check_port_number(field: &str, port: i64) -> Option<Violation> {
    (!(1..=65535).contains(&port))
        .then(|| Violation::invalid(field, port, "must be between 1 and 65535, inclusive"))
}

/// Parses an address like Go in the API server, which accepts leading zeros in IPv4.
pub(crate) fn parse_ip(value: &str) -> Option<IpAddr> {
    if let Ok(address) = value.parse::<IpAddr>() {
        return Some(match address {
            IpAddr::V6(inner) => inner.to_ipv4_mapped().map_or(address, IpAddr::V4),
            IpAddr::V4(_) => address,
        });
    }
    let octets: Option<Vec<u8>> = value
        .split('.')
        .map(|part| {
            let is_number = !part.is_empty() && part.chars().all(|digit| digit.is_ascii_digit());
            is_number.then(|| part.parse().ok()).flatten()
        })
        .collect();
    <[u8; 4]>::try_from(octets?).ok().map(IpAddr::from)
}

/// What was valid before Kubernetes 1.36. Stored objects may have it.
pub(crate) const AMBIGUOUS_IP: [&str; 2] =
    ["must not have leading 0s", "must not be an IPv4-mapped IPv6 address"];

pub(crate) fn check_ip(value: &str) -> Vec<String> {
    let [leading_zeros, mapped] = AMBIGUOUS_IP;
    let wrong = match (value.parse::<IpAddr>(), parse_ip(value)) {
        (_, None) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        (Err(_), Some(_)) => leading_zeros,
        (Ok(IpAddr::V6(address)), _) if address.to_ipv4_mapped().is_some() => mapped,
        (Ok(_), _) => return Vec::new(),
    };
    vec![wrong.to_owned()]
}

/// Refuses addresses that cannot belong to an endpoint or a Service.
pub(crate) fn check_endpoint_ip(field: &str, value: &str) -> Vec<Violation> {
    let Some(address) = parse_ip(value) else {
        return vec![Violation::invalid(field, value, "must be a valid IP address")];
    };
    let (link_local_unicast, link_local_multicast) = match address {
        IpAddr::V4(address) => (address.is_link_local(), address.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(address) => {
            (address.is_unicast_link_local(), address.segments()[0] & 0xff0f == 0xff02)
        }
    };
    [
        (address.is_unspecified(), format!("may not be unspecified ({value})")),
        (
            address.is_loopback(),
            "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned(),
        ),
        (
            link_local_unicast,
            "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned(),
        ),
        (
            link_local_multicast,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned(),
        ),
    ]
    .into_iter()
    .filter(|(is_so, _)| *is_so)
    .map(|(_, wrong)| Violation::invalid(field, value, &wrong))
    .collect()
}

/// Checks a `generateName` prefix. It may end with a dash, because the server appends to it.
pub(crate) fn check_name_prefix(value: &str, check: NameCheck) -> Vec<String> {
    match value.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => check(&format!("{rest}a")),
        _ => check(value),
    }
}

fn is_alphanumeric(letter: char) -> bool {
    letter.is_ascii_alphanumeric()
}

fn is_label(value: &str) -> bool {
    let is_end = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    value.starts_with(is_end)
        && value.ends_with(is_end)
        && value.chars().all(|letter| is_end(letter) || letter == '-')
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_name_part(value: &str) -> bool {
    value.starts_with(is_alphanumeric)
        && value.ends_with(is_alphanumeric)
        && value.chars().all(|letter| is_alphanumeric(letter) || "-_.".contains(letter))
}

fn too_long(value: &str, most: usize) -> Vec<String> {
    if value.len() > most { vec![format!("must be no more than {most} bytes")] } else { Vec::new() }
}

fn form(rule: &str, regex: &str, examples: &[&str]) -> String {
    // An API server puts a comma after each example.
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{regex}')", examples.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_distinguished() {
        let long = "a".repeat(64);
        let cases: &[(&str, NameCheck, &[&str], &[&str])] = &[
            (
                "label",
                check_label,
                &["a", "1a", "a-b"],
                &["", "A", "-a", "a-", "a.b", "a_b", &long],
            ),
            ("letter_label", check_letter_label, &["a", "a1", "a-b"], &["", "1a", "a-", "a.b"]),
            (
                "subdomain",
                check_subdomain,
                &["a", "1.b", "a-b.c"],
                &["", ".a", "a.", "a..b", "A.b"],
            ),
            (
                "wildcard_subdomain",
                check_wildcard_subdomain,
                &["*.a.b"],
                &["*", "*a", "a.*", "*.*.a"],
            ),
            (
                "qualified",
                check_qualified_name,
                &["a", "A_b.c", "example.com/A"],
                &["", "/a", "a/", "a/b/c", "-a", "A/b", &long],
            ),
            ("label_value", check_label_value, &["", "a", "A_b"], &["-", "a b", "_a", &long]),
            ("data_key", check_data_key, &["a", ".a", "A_b-c"], &["", ".", "..", "..a", "a/b"]),
            ("port_name", check_port_name, &["http", "a-1"], &["", "1", "-a", "a--b", "A", &long]),
            (
                "ip",
                check_ip,
                &["10.0.0.1", "::1"],
                &["", "10.0.0", "10.0.0.256", "a", "010.0.0.1", "::ffff:10.0.0.1"],
            ),
        ];
        for (name, check, good, bad) in cases {
            for value in *good {
                assert_eq!(check(value), Vec::<String>::new(), "{name} {value}");
            }
            for value in *bad {
                assert!(!check(value).is_empty(), "{name} {value}");
            }
        }
    }

    #[test]
    fn a_form_is_explained_like_an_api_server_does() {
        assert_eq!(
            check_letter_label("1"),
            ["a DNS-1035 label must consist of lower case alphanumeric characters or '-', start \
              with an alphabetic character, and end with an alphanumeric character (e.g. \
              'my-name',  or 'abc-123', regex used for validation is \
              '[a-z]([-a-z0-9]*[a-z0-9])?')"]
        );
        assert_eq!(check_label("a.b"), ["must not contain dots"]);
    }

    #[test]
    fn a_prefix_may_end_with_a_dash() {
        assert!(check_name_prefix("web-", check_letter_label).is_empty());
        assert!(!check_name_prefix("-", check_letter_label).is_empty());
        assert!(!check_name_prefix("Web-", check_letter_label).is_empty());
    }

    #[test]
    fn special_addresses_are_named() {
        for (address, expected) in [
            ("0.0.0.0", "may not be unspecified (0.0.0.0)"),
            ("127.0.0.1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
            ("::1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
            ("169.254.1.1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
            ("fe80::1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
            ("224.0.0.1", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
        ] {
            let violations = check_endpoint_ip("ip", address);
            assert_eq!(violations.len(), 1, "{address}");
            assert!(violations[0].message().ends_with(expected), "{}", violations[0]);
        }
        assert!(check_endpoint_ip("ip", "10.0.0.1").is_empty());
    }
}

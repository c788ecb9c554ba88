//! Values that settings of several parts have.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use lb_rules::duration::parse_go_duration;
use lb_rules::model::ServiceName;

/// Listen address; none if it is off.
#[derive(Clone, Copy, Debug)]
pub struct ListenAddress(pub Option<SocketAddr>);

pub fn parse_listen_address(text: &str) -> Result<ListenAddress, String> {
    match text {
        "off" | "" => Ok(ListenAddress(None)),
        _ => text.parse().map(|address| ListenAddress(Some(address))).map_err(|_| {
            "neither an address and port, such as 127.0.0.1:10249, nor `off`".to_owned()
        }),
    }
}

/// Key of a taint; none if it is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintKey(pub Option<String>);

pub(crate) fn taint_key(text: &str) -> Result<TaintKey, String> {
    if text == "off" {
        return Ok(TaintKey(None));
    }
    let is_alphanumeric =
        |character: Option<char>| character.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_part = |part: &str, longest: usize, more: &str| {
        part.len() <= longest
            && is_alphanumeric(part.chars().next())
            && is_alphanumeric(part.chars().last())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    let is_key = match text.split_once('/') {
        Some((domain, name)) => is_part(domain, 253, "-.") && is_part(name, 63, "-._"),
        None => is_part(text, 63, "-._"),
    };
    let wrong =
        || "neither the key of a taint, such as example.org/not-ready, nor `off`".to_owned();
    is_key.then(|| TaintKey(Some(text.to_owned()))).ok_or_else(wrong)
}

pub(crate) fn namespaced_name(text: &str) -> Result<ServiceName, String> {
    match text.split_once('/') {
        Some((namespace, name))
            if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
        {
            Ok(ServiceName::new(namespace, name))
        }
        _ => Err("not a namespace and name, such as kube-system/ingress".to_owned()),
    }
}

/// Parses a number of seconds, or a duration such as `24h`.
pub fn parse_seconds(
    range: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync {
    parse_in_units(Duration::from_secs(1), "seconds", range)
}

/// Parses a number of milliseconds, or a duration such as `1s`.
pub fn parse_milliseconds(
    range: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync {
    parse_in_units(Duration::from_millis(1), "milliseconds", range)
}

fn parse_in_units(
    unit: Duration,
    units: &'static str,
    range: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync {
    move |text| {
        let number = if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
            text.parse::<u32>().unwrap_or(u32::MAX)
        } else {
            let duration = parse_go_duration(text).ok_or_else(|| {
                format!("neither a number of {units} nor a duration such as 1m30s or 100ms")
            })?;
            let (whole, rest) =
                (duration.as_millis() / unit.as_millis(), duration.as_millis() % unit.as_millis());
            if rest != 0 {
                return Err(format!("not a whole number of {units}"));
            }
            u32::try_from(whole).unwrap_or(u32::MAX)
        };
        if range.contains(&number) {
            Ok(number)
        } else {
            let (least, most) = (range.start(), range.end());
            Err(format!("{number} is not in {least}..={most} {units}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_a_taint_is_a_name_with_or_without_a_domain() {
        let key = |text: &str| Ok(TaintKey(Some(text.to_owned())));
        for text in ["millrace.dev/agent-not-ready", "not_ready", "a/B.c"] {
            assert_eq!(taint_key(text), key(text), "{text}");
        }
        assert_eq!(taint_key("off"), Ok(TaintKey(None)));
        for text in ["", "/a", "a/", "a/b/c", "a b", "-a", "a=b", &"a".repeat(64)] {
            assert!(taint_key(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_duration_is_a_number_or_has_units() {
        let read = parse_seconds(60..=86_400);
        for (text, expected) in [
            ("86400", 86_400),
            ("24h", 86_400),
            ("24h0m0s", 86_400),
            ("1m30s", 90),
            ("60000ms", 60),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        for (text, complaint) in [
            ("", "neither a number of seconds nor a duration"),
            ("1d", "neither a number of seconds nor a duration"),
            ("-1", "neither a number of seconds nor a duration"),
            ("60500ms", "not a whole number of seconds"),
            ("59s", "59 is not in 60..=86400 seconds"),
            ("99999999999", "is not in 60..=86400 seconds"),
            ("1193047h", "is not in 60..=86400 seconds"),
        ] {
            assert!(read(text).unwrap_err().contains(complaint), "{text}: {:?}", read(text));
        }
        let read = parse_milliseconds(20..=10_000);
        assert_eq!((read("100"), read("100ms"), read("2s")), (Ok(100), Ok(100), Ok(2_000)));
    }
}

//! `tracestate` (W3C Trace Context, level 2): what other tracing systems pass along a trace. Millrace adds nothing.

use http::{HeaderMap, HeaderValue};

use super::context::TRACESTATE;

/// What is passed on; the specification asks for no more. Long members are left out first, then the last ones.
pub const MOST_STATE_OCTETS: usize = 512;
const MOST_MEMBERS: usize = 32;
const LONG_MEMBER: usize = 128;
const MOST_KEY_OCTETS: usize = 256;
const MOST_VALUE_OCTETS: usize = 256;

/// The state of a request whose context is continued. `None`: there is none, or it is malformed.
pub fn read_state(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut members = Vec::new();
    for line in headers.get_all(TRACESTATE) {
        for member in line.as_bytes().split(|octet| *octet == b',') {
            let member = member.trim_ascii();
            if member.is_empty() {
                continue;
            }
            if members.len() == MOST_MEMBERS || !is_member(member) {
                return None;
            }
            members.push(member);
        }
    }
    let length = |members: &[&[u8]]| members.iter().map(|member| member.len() + 1).sum::<usize>();
    if length(&members) > MOST_STATE_OCTETS + 1 {
        members.retain(|member| member.len() <= LONG_MEMBER);
    }
    while length(&members) > MOST_STATE_OCTETS + 1 {
        members.pop();
    }
    if members.is_empty() {
        return None;
    }
    HeaderValue::from_bytes(&members.join(&b","[..])).ok()
}

fn is_member(member: &[u8]) -> bool {
    let Some(end) = member.iter().position(|octet| *octet == b'=') else { return false };
    let (key, value) = (&member[..end], &member[end + 1..]);
    let fits_key = |octet: &u8| {
        octet.is_ascii_lowercase() || octet.is_ascii_digit() || b"_-*/@".contains(octet)
    };
    let is_key = key.len() <= MOST_KEY_OCTETS
        && key.first().is_some_and(|first| first.is_ascii_lowercase() || first.is_ascii_digit())
        && key.iter().all(fits_key);
    let is_value = (1..=MOST_VALUE_OCTETS).contains(&value.len())
        && value.iter().all(|octet| (b' '..=b'~').contains(octet) && *octet != b'=');
    is_key && is_value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Option<String> {
        let line = |line: &&str| (TRACESTATE, HeaderValue::try_from(*line).unwrap());
        let state = read_state(&lines.iter().map(line).collect())?;
        Some(state.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_state_is_joined_or_left_out() {
        for (lines, expected) in [
            (&["foo=1"][..], Some("foo=1")),
            (&["foo=1,bar=2"], Some("foo=1,bar=2")),
            (&["foo=1 , \t bar=2", "rojo=3"], Some("foo=1,bar=2,rojo=3")),
            (&["", "foo=1,,"], Some("foo=1")),
            (&["foo=1,foo=2"], Some("foo=1,foo=2")),
            (&["tenant@sys=a b!", "0a=~"], Some("tenant@sys=a b!,0a=~")),
            (&[], None),
            (&["", " , "], None),
            (&["foo"], None),
            (&["foo="], None),
            (&["=1"], None),
            (&["foo=1=2"], None),
            (&["foo =1"], None),
            (&["FOO=1"], None),
            (&["foo=1;bar=2,ok=1,Not=1"], None),
            (&["foo=a\tb"], None),
        ] {
            assert_eq!(read(lines).as_deref(), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_state_is_bounded() {
        let many = |count: usize| vec!["a=1"; count].join(",");
        assert_eq!(read(&[&many(32)]), Some(many(32)));
        assert_eq!(read(&[&many(33)]), None);
        assert_eq!(read(&[&many(20), &many(20)]), None);
        assert_eq!(read(&[&format!("a={}", "b".repeat(257))]), None);
        let long = format!("long={}", "b".repeat(200));
        assert_eq!(read(&[&format!("{long},{long},c=1")]), Some(format!("{long},{long},c=1")));
        assert_eq!(read(&[&format!("{long},{long},{long},c=1")]).as_deref(), Some("c=1"));
        let member = format!("m={}", "b".repeat(100));
        let kept = read(&[&vec![member.as_str(); 20].join(",")]).unwrap();
        assert_eq!(kept, [member.as_str(); 4].join(","));
        assert!(kept.len() <= MOST_STATE_OCTETS);
    }
}

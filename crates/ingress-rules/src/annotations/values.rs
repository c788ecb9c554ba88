//! Parses the values of annotations. Errors continue a sentence that begins with the value.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};
use ipnet::{IpNet, Ipv4Net};

pub type Parsed<T> = Result<T, String>;

/// Tenants write annotations, and each item is looked at for requests.
const MOST_ITEMS: usize = 1000;
/// Each request or response gets a copy of them. Endpoints and clients take about a hundred.
const MOST_HEADERS: usize = 64;

pub fn parse_boolean(text: &str) -> Parsed<bool> {
    match text.trim() {
        "true" | "True" | "TRUE" | "t" | "T" | "1" => Ok(true),
        "false" | "False" | "FALSE" | "f" | "F" | "0" => Ok(false),
        _ => Err("is neither true nor false".to_owned()),
    }
}

pub fn parse_number<T: FromStr + PartialOrd + Display>(text: &str, least: T, most: T) -> Parsed<T> {
    let wrong = || format!("is not a number from {least} to {most}");
    let number: T = text.trim().parse().map_err(|_| wrong())?;
    if number < least || number > most { Err(wrong()) } else { Ok(number) }
}

/// One of some words, regardless of case.
pub fn parse_word<T: Copy>(text: &str, known: &[(&str, T)]) -> Parsed<T> {
    let same = |(name, _): &&(&str, T)| name.eq_ignore_ascii_case(text.trim());
    known.iter().find(same).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        format!("is not one of {}", names.join(", "))
    })
}

/// Octets: a number with an optional unit `k`, `m` or `g`, in powers of 1024.
pub fn parse_size(text: &str) -> Parsed<u64> {
    let wrong = || "is not a size such as 1000, 64k, 8m or 1g".to_owned();
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "ki" | "kb" => 10,
        "m" | "mi" | "mb" => 20,
        "g" | "gi" | "gb" => 30,
        _ => return Err(wrong()),
    };
    digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)).ok_or_else(wrong)
}

/// A number of seconds, or of another unit: `500ms`, `30s`, `5m`, `1h`.
pub fn parse_duration(text: &str) -> Parsed<Duration> {
    let wrong = || "is not a time such as 60, 500ms, 30s, 5m or 1h, of at most a year".to_owned();
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let milliseconds: u64 = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let time = number.checked_mul(milliseconds).map(Duration::from_millis);
    time.filter(|time| *time <= Duration::from_secs(366 * 86_400)).ok_or_else(wrong)
}

/// A time that is not zero.
pub fn parse_timeout(text: &str) -> Parsed<Duration> {
    let time = parse_duration(text)?;
    if time.is_zero() { Err("is zero, so every request would fail".to_owned()) } else { Ok(time) }
}

/// Items that are separated by commas, without empty ones.
pub fn parse_list(text: &str) -> Parsed<Vec<&str>> {
    let items: Vec<&str> = text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
    match items.len() {
        0 => Err("has no items".to_owned()),
        1..=MOST_ITEMS => Ok(items),
        many => Err(format!("has {many} items; at most {MOST_ITEMS} are possible")),
    }
}

/// Addresses and ranges.
pub fn parse_sources(text: &str) -> Parsed<Vec<IpNet>> {
    let range = |text: &str| {
        let address = || text.parse::<IpAddr>().map(IpNet::from);
        text.parse::<IpNet>().or_else(|_| address())
    };
    let items = parse_list(text)?;
    let one = |item: &&str| {
        let range =
            range(item).map_err(|_| format!("contains {item:?}, which is no address or range"))?;
        let range = canonical(range).ok_or_else(|| {
            format!("contains {item:?}, which has IPv4 and IPv6 addresses; list two ranges")
        });
        range.map(|range| range.trunc())
    };
    items.iter().map(one).collect()
}

/// Clients of IPv4 have IPv4 addresses, so a range of mapped ones (`::ffff:192.0.2.0/120`) is an IPv4 range. `None`:
/// it has mapped addresses and others.
fn canonical(range: IpNet) -> Option<IpNet> {
    const MAPPED_BITS: u8 = 96;
    let IpNet::V6(six) = range else { return Some(range) };
    match six.addr().to_ipv4_mapped() {
        Some(network) => {
            let length = six.prefix_len().checked_sub(MAPPED_BITS)?;
            Ipv4Net::new(network, length).ok().map(IpNet::V4)
        }
        None => Some(range),
    }
}

pub(crate) fn header_name(text: &str) -> Parsed<HeaderName> {
    HeaderName::from_str(text.trim()).map_err(|_| format!("has {text:?}, which is no header name"))
}

pub(crate) fn header_names(text: &str) -> Parsed<Vec<HeaderName>> {
    let mut names: Vec<HeaderName> = Vec::new();
    for name in parse_list(text)? {
        let name = header_name(name)?;
        // Each is looked up for each request.
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.len() > MOST_HEADERS {
        return Err(format!("has more than {MOST_HEADERS} names"));
    }
    Ok(names)
}

pub(crate) fn header_value(text: &str) -> Parsed<HeaderValue> {
    // Kubernetes allows all of Unicode, header values only visible ASCII and blanks.
    let visible = text.bytes().all(|octet| (0x20..0x7f).contains(&octet));
    let value = HeaderValue::from_str(text.trim()).ok().filter(|_| visible);
    value.ok_or_else(|| "has characters that header values can't have".to_owned())
}

/// Lines `Name: value`.
pub fn parse_headers(text: &str) -> Parsed<Vec<(HeaderName, HeaderValue)>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let one = |line: &str| {
        let (name, value) = line.split_once(':').ok_or("has a line without a colon")?;
        let name = header_name(name)?;
        if is_reserved(&name) {
            return Err(format!("sets {name}, which the proxy itself controls"));
        }
        Ok((name, header_value(value)?))
    };
    let headers = lines.map(one).collect::<Parsed<Vec<_>>>()?;
    match headers.len() {
        0..=MOST_HEADERS => Ok(headers),
        _ => Err(format!("has more than {MOST_HEADERS} headers")),
    }
}

/// Headers that frame messages, or that endpoints trust because the proxy wrote them.
pub fn is_reserved(name: &HeaderName) -> bool {
    const RESERVED: [&str; 12] = [
        "connection",
        "content-length",
        "expect",
        "forwarded",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-real-ip",
    ];
    let name = name.as_str();
    RESERVED.contains(&name) || name.starts_with("x-forwarded-") || name.starts_with("ssl-client-")
}

/// A name of a cookie or of a query argument.
pub fn parse_token(text: &str) -> Parsed<Arc<str>> {
    let text = text.trim();
    let allowed = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if text.is_empty() || text.len() > 128 || !text.chars().all(allowed) {
        return Err("is not a name of letters, digits, - and _".to_owned());
    }
    Ok(text.into())
}

/// The value of an attribute of a cookie.
pub fn parse_cookie_attribute(text: &str) -> Parsed<Arc<str>> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| (0x21..0x7f).contains(&b) && b != b';' && b != b',')
    {
        return Err("has characters that a cookie's attributes can't have".to_owned());
    }
    Ok(text.into())
}

pub fn parse_path(text: &str) -> Parsed<Arc<str>> {
    let text = text.trim();
    if !text.starts_with('/') {
        return Err("does not begin with /".to_owned());
    }
    header_value(text)?;
    Ok(text.into())
}

pub fn parse_status(text: &str, least: u16, most: u16) -> Parsed<StatusCode> {
    let code = parse_number(text, least, most)?;
    StatusCode::from_u16(code).map_err(|_| "is not a status code".to_owned())
}

pub fn parse_statuses(text: &str) -> Parsed<BTreeSet<u16>> {
    parse_list(text)?.into_iter().map(|item| parse_number(item, 400, 599)).collect()
}

/// An absolute URL for clients, or a path on the same host.
pub fn parse_location(text: &str) -> Parsed<Arc<str>> {
    let text = text.trim();
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let absolute = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    // `//host` is another host without scheme.
    let local = text.starts_with('/') && !text.starts_with("//") && !text.contains('\\');
    if !absolute && !local {
        return Err("is neither a URL of http or https nor a path".to_owned());
    }
    header_value(text)?;
    Ok(text.into())
}

/// Variables of nginx that the proxy fills in.
const VARIABLES: [&str; 6] =
    ["escaped_request_uri", "request_uri", "scheme", "host", "http_host", "uri"];

/// A location with variables.
pub fn parse_template(text: &str) -> Parsed<Arc<str>> {
    let text = text.trim();
    // `$scheme://` begins a URL, too.
    let url = text.replacen("$scheme://", "https://", 1);
    parse_location(&url)?;
    for after in text.split('$').skip(1) {
        let name = after.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
        if !name.is_some_and(|name| VARIABLES.contains(&name)) {
            return Err(format!("has a variable other than ${}", VARIABLES.join(", $")));
        }
    }
    // Paths begin with a slash, and `//name` is another host. `$host` may be empty.
    let authority = url.split_once("://").map(|(_, rest)| rest);
    let lets_choose = match authority {
        Some(authority) => {
            authority.starts_with('$')
                && !["$host", "$http_host"].iter().any(|v| authority.starts_with(v))
        }
        None => url.starts_with("/$"),
    };
    if lets_choose {
        return Err("begins with a variable, so that clients could choose the host".to_owned());
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("8m"), Ok(8 << 20));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        for wrong in ["", "m", "-1", "8x", "99999999999g", "1.5m"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_duration("60"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "s", "1.5", "-1", "99999999999999999999", "400d"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert!(parse_timeout("0").is_err());
    }

    #[test]
    fn one_bad_range_makes_a_list_invalid() {
        let read = parse_sources("10.0.0.0/8, 192.0.2.1,2001:db8::/32").unwrap();
        let text: Vec<String> = read.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"]);
        for wrong in ["", ",", "10.0.0.0/8,10.0.0.0/33", "all"] {
            assert!(parse_sources(wrong).is_err(), "{wrong}");
        }
    }

    /// Clients have canonical addresses: a range in IPv6 form would match none of them.
    #[test]
    fn ranges_of_mapped_addresses_are_ranges_of_ipv4() {
        let text = |text| parse_sources(text).map(|ranges| ranges[0].to_string());
        for (mapped, plain) in [
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8::/32", "2001:db8::/32"),
        ] {
            assert_eq!(text(mapped), Ok(plain.to_owned()), "{mapped}");
        }
        assert!(parse_sources("::ffff:192.0.2.0/80").is_err());
    }

    /// `Location: //evil.example/` leads to another host.
    #[test]
    fn templates_do_not_let_clients_choose_the_host() {
        for right in [
            "/a$request_uri",
            "/a/$uri",
            "https://$host$request_uri",
            "https://$http_host$request_uri",
            "$scheme://$host$request_uri",
            "https://a.example.org$uri",
            "https://a.example.org/$host",
        ] {
            assert_eq!(parse_template(right).as_deref(), Ok(right));
        }
        for wrong in [
            "/$request_uri",
            "/$uri",
            "/$escaped_request_uri",
            "/$host",
            "https://$request_uri",
            "http://$uri",
            "$scheme://$escaped_request_uri",
            "https://$hostname/",
            "/a$query",
        ] {
            assert!(parse_template(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn headers_cannot_be_split_or_forged() {
        assert!(header_value("a\r\nb: c").is_err());
        assert!(header_value("caf\u{e9}").is_err());
        assert_eq!(parse_headers("X-A: 1\nX-B: 2").unwrap().len(), 2);
        for wrong in ["Host: a", "Transfer-Encoding: chunked", "X-Forwarded-For: 1", "X A: 1", "a"]
        {
            assert!(parse_headers(wrong).is_err(), "{wrong}");
        }
        let many = |count: usize| (0..count).map(|n| format!("X-{n}: a\n")).collect::<String>();
        assert_eq!(parse_headers(&many(64)).unwrap().len(), 64);
        assert!(parse_headers(&many(65)).is_err());
        let names = |count: usize| (0..count).map(|n| format!("X-{n},x-1,")).collect::<String>();
        assert_eq!(header_names(&names(64)).unwrap().len(), 64);
        assert!(header_names(&names(65)).is_err());
        assert!(parse_location("//evil.example").is_err());
        assert!(parse_location("javascript:alert(1)").is_err());
        assert!(parse_location("https://a/\r\nb").is_err());
    }
}

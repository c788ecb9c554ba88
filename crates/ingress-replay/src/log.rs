//! Lines of access logs. Clients wrote parts of them, so nothing about them is certain.
//!
//! Formats: nginx's combined one, with what ingress-nginx appends to it; JSON with the names that ingress-nginx's users
//! give to nginx's variables; this proxy's text and JSON.

use serde_json::{Map, Value};

/// What a line says about a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedRequest {
    /// As the client sent it. ingress-nginx's default format does not contain it.
    pub host: Option<String>,
    pub method: String,
    /// Path and query.
    pub target: String,
    /// ingress-nginx's name of the Service that it chose: namespace, name and port, joined by `-`.
    pub upstream: Option<String>,
}

/// Names of fields, in the order of precedence: `$uri` is not what the client sent.
const HOSTS: &[&str] = &["host", "http_host", "vhost", "server_name", "request_host"];
const METHODS: &[&str] = &["method", "request_method"];
const TARGETS: &[&str] = &["request_uri", "uri", "path", "url", "request_url"];
const UPSTREAMS: &[&str] = &["proxy_upstream_name", "upstream_name"];

/// `None`: the line has no request with a path.
pub fn parse_log_line(line: &str) -> Option<LoggedRequest> {
    let line = line.trim();
    let request = match line.starts_with('{') {
        true => of_json(serde_json::from_str(line).ok()?)?,
        false => of_text(line)?,
    };
    request.target.starts_with('/').then_some(request)
}

fn of_json(fields: Map<String, Value>) -> Option<LoggedRequest> {
    let text = |names: &[&str]| {
        let values = names.iter().filter_map(|name| fields.get(*name)?.as_str());
        values.map(str::trim).find(|value| !value.is_empty() && *value != "-").map(str::to_owned)
    };
    let mut request = match (text(TARGETS), fields.get("request").and_then(Value::as_str)) {
        (Some(target), _) => {
            let (host, target) = split_target(&target);
            LoggedRequest {
                host,
                method: text(METHODS).unwrap_or_default(),
                target,
                upstream: None,
            }
        }
        (None, Some(line)) => of_request_line(line)?,
        (None, None) => return None,
    };
    request.host = request.host.or_else(|| text(HOSTS));
    request.upstream = text(UPSTREAMS).and_then(|name| upstream(&name));
    Some(request)
}

fn of_text(line: &str) -> Option<LoggedRequest> {
    // Quotation marks in the user's name are escaped, so the first one begins the request.
    let (_, rest) = line.split_once('"')?;
    let (request_line, rest) = quoted(rest)?;
    let mut request = of_request_line(&request_line)?;
    // Status and length, referrer, user agent.
    let Some((_, rest)) = rest.split_once('"') else { return Some(request) };
    let Some((_referrer, rest)) = quoted(rest) else { return Some(request) };
    let Some((_, rest)) = rest.split_once('"') else { return Some(request) };
    let Some((_agent, rest)) = quoted(rest) else { return Some(request) };
    let rest = rest.trim_start();
    if let Some(rest) = rest.strip_prefix('"') {
        let (host, _) = quoted(rest)?;
        request.host = request.host.or(Some(host).filter(|host| host != "-"));
    } else if let Some((_, rest)) = rest.split_once('[')
        && let Some((name, _)) = rest.split_once(']')
    {
        request.upstream = upstream(name);
    }
    Some(request)
}

/// The text up to the next quotation mark, and what follows. nginx escapes as `\x22`, this proxy as `\"`.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut octets = Vec::new();
    let mut rest = text.as_bytes();
    loop {
        let (first, after) = rest.split_first()?;
        rest = after;
        match (first, after) {
            (b'"', _) => break,
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digits = [*high, *low];
                octets.push(u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?);
                rest = after;
            }
            (b'\\', [escaped, after @ ..]) => {
                octets.push(*escaped);
                rest = after;
            }
            (octet, _) => octets.push(*octet),
        }
    }
    // What is left begins after a quotation mark, which is one octet, so it is UTF-8.
    let rest = text.get(text.len() - rest.len()..)?;
    Some((String::from_utf8_lossy(&octets).into_owned(), rest))
}

fn of_request_line(line: &str) -> Option<LoggedRequest> {
    let (method, rest) = line.split_once(' ')?;
    let (target, _protocol) = rest.rsplit_once(' ')?;
    let (host, target) = split_target(target);
    Some(LoggedRequest { host, method: method.to_owned(), target, upstream: None })
}

/// A target may be a whole URL; its host counts then.
fn split_target(target: &str) -> (Option<String>, String) {
    let after = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    let Some(after) = after else { return (None, target.to_owned()) };
    let end = after.find(['/', '?']).unwrap_or(after.len());
    let (host, target) = after.split_at(end);
    let slash = if target.starts_with('/') { "" } else { "/" };
    (Some(host.to_owned()), format!("{slash}{target}"))
}

fn upstream(name: &str) -> Option<String> {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    (!name.is_empty() && name != "-").then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: &str, target: &str, upstream: &str) -> Option<LoggedRequest> {
        let optional = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Some(LoggedRequest {
            host: optional(host),
            method: "GET".to_owned(),
            target: target.to_owned(),
            upstream: optional(upstream),
        })
    }

    const BEFORE: &str = "192.0.2.1 - ann [24/Nov/2026:10:00:00 +0000]";

    #[test]
    fn text_of_ingress_nginx_and_of_this_proxy() {
        let nginx = format!(
            r#"{BEFORE} "GET /a?b HTTP/2.0" 200 5 "-" "curl \x22[x]\x22" 80 0.001 [shop-web-80] [] 10.0.0.1:80 5 0.001 200 0f"#
        );
        assert_eq!(parse_log_line(&nginx), request("", "/a?b", "shop-web-80"));
        let refused = format!(r#"{BEFORE} "GET /a HTTP/1.1" 400 0 "-" "-" 0 0.0 [] [] - - - - 0f"#);
        assert_eq!(parse_log_line(&refused), request("", "/a", ""));
        let combined = format!(r#"{BEFORE} "GET /\x22\xC3\xA9 HTTP/1.1" 200 5"#);
        assert_eq!(parse_log_line(&combined), request("", "/\"é", ""));
        let ours = format!(
            r#"{BEFORE} "GET /a HTTP/1.1" 200 5 "-" "curl \"8\"" "a.test" 0.001500 shop/web 10.0.0.1:80 -"#
        );
        assert_eq!(parse_log_line(&ours), request("a.test", "/a", ""));
        let url =
            format!(r#"{BEFORE} "GET http://a.test?b HTTP/1.1" 200 5 "-" "-" 0 0.0 [x-y-80]"#);
        assert_eq!(parse_log_line(&url), request("a.test", "/?b", "x-y-80"));
    }

    #[test]
    fn json_with_the_names_in_use() {
        let lines = [
            r#"{"vhost": "a.test", "path": "/a", "method": "GET", "status": 200}"#,
            r#"{"host": "a.test", "request": "GET /a HTTP/1.1"}"#,
            r#"{"http_host": "a.test", "request_uri": "/a", "uri": "/", "request_method": "GET"}"#,
            r#"{"client": "192.0.2.1", "method": "GET", "host": "a.test", "uri": "/a", "ingress": "shop/web"}"#,
        ];
        for line in lines {
            assert_eq!(parse_log_line(line), request("a.test", "/a", ""), "{line}");
        }
        let line =
            r#"{"request": "GET /a HTTP/1.1", "proxy_upstream_name": "shop-web-80", "host": "-"}"#;
        assert_eq!(parse_log_line(line), request("", "/a", "shop-web-80"));
    }

    #[test]
    fn lines_without_a_request() {
        let lines = [
            "",
            "{}",
            "{",
            "[]",
            r#"{"request": 1, "uri": ["/"]}"#,
            "I1124 10:00:00.000000       7 main.go:1] started",
            r#"192.0.2.1 - - [t] "" 400 0 "-" "-""#,
            r#"192.0.2.1 - - [t] "\x16\x03\x01" 400 150 "-" "-""#,
            r#"192.0.2.1 - - [t] "OPTIONS * HTTP/1.1" 200 0 "-" "-""#,
            r#"192.0.2.1 - - [t] "CONNECT a:443 HTTP/1.1" 400 0 "-" "-""#,
            r#"192.0.2.1 - - [t] "GET /a HTTP/1.1"#,
            r#"192.0.2.1 - - [t] "GET /\xZZ HTTP/1.1" 200"#,
            "\"\\",
        ];
        for line in lines {
            assert_eq!(parse_log_line(line), None, "{line}");
        }
    }
}

//! How requests are forwarded: body size, protocol, rewriting, timeouts, retries, headers.

use lb_http::policy::Retry;
use lb_http::upstream::UpstreamProtocol;

use super::values::{
    header_value, parse_boolean, parse_duration, parse_headers, parse_list, parse_number,
    parse_path, parse_size, parse_statuses, parse_timeout, parse_word,
};
use super::{Annotation, Draft};

/// Tries without limit, in ingress-nginx.
const MOST_TRIES: u32 = 10;

const PROTOCOLS: [(&str, UpstreamProtocol); 5] = [
    ("HTTP", UpstreamProtocol::Http1),
    ("HTTPS", UpstreamProtocol::Https),
    ("GRPC", UpstreamProtocol::H2c),
    ("GRPCS", UpstreamProtocol::Grpcs),
    ("AUTO_HTTP", UpstreamProtocol::Http1),
];

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "max-body-size",
        &["proxy-body-size"],
        "size (`8m`), `0`: no limit",
        |draft, text| {
            let read = parse_size(text);
            draft.has_unknown_max_body = read.is_err();
            draft.max_body = Some(read?);
            Ok(())
        },
        "Limit of the size of a request's body; larger ones get 413. Without it, the limit of the controller's settings, \
         and none for gRPC calls",
    ),
    Annotation::set(
        "backend-protocol",
        &["backend-protocol"],
        "`HTTP`, `HTTPS`, `GRPC`, `GRPCS`",
        |draft, text| { draft.protocol = Some(parse_word(text, &PROTOCOLS)?); Ok(()) },
        "What the endpoints speak; takes precedence over the port's `appProtocol`",
    )
    .restricting()
    .differs("AUTO_HTTP means HTTP; FCGI is not supported; with HTTPS, endpoints that offer HTTP/2 get it"),
    Annotation::set(
        "rewrite-target",
        &["rewrite-target"],
        "path, `$1` for groups",
        |draft, text| {
            let read = rewrite(text);
            // Its paths are expressions in any case: they must not match less than they would.
            draft.use_regex |= read.is_err();
            draft.rewrite = Some(read?);
            Ok(())
        },
        "Replaces the path of requests; `$1` stands for the first group of the rule's regular expression",
    )
    .restricting(),
    Annotation::set(
        "use-regex",
        &["use-regex"],
        "`true`, `false`",
        |draft, text| {
            let read = parse_boolean(text);
            draft.use_regex |= read != Ok(false);
            read.map(|_| ())
        },
        "Paths of type `ImplementationSpecific`, and those with operators, are regular expressions that match the \
         beginning of a path, regardless of case",
    )
    .restricting()
    .differs(
        "only for paths of this Ingress, not for all of the host; no look-around and back-references",
    ),
    Annotation::set(
        "connect-timeout",
        &["proxy-connect-timeout"],
        "time (`5s`)",
        |draft, text| { draft.timeouts.connect = parse_timeout(text)?; Ok(()) },
        "Longest time until a connection to an endpoint is established",
    ),
    Annotation::set(
        "send-timeout",
        &["proxy-send-timeout"],
        "time (`60s`)",
        |draft, text| { draft.timeouts.send = parse_timeout(text)?; Ok(()) },
        "Longest time between two writes to an endpoint",
    ),
    Annotation::set(
        "read-timeout",
        &["proxy-read-timeout"],
        "time (`60s`)",
        |draft, text| { draft.timeouts.read = parse_timeout(text)?; Ok(()) },
        "Longest time between two reads from an endpoint, and until its response begins",
    ),
    Annotation::set(
        "retry-on",
        &["proxy-next-upstream"],
        "words, such as `error timeout http_502 non_idempotent`, or `off`",
        retry_on,
        "When a request is sent to another endpoint",
    )
    .differs(
        "requests that no endpoint received are always retried, unless it is `off`; of others, only idempotent ones; \
         `invalid_header` is the same as `error`",
    ),
    Annotation::set(
        "retry-tries",
        &["proxy-next-upstream-tries"],
        "number, `1`: no retry",
        retry_tries,
        "Endpoints that are tried altogether",
    )
    .differs("0 means 10, not without limit"),
    Annotation::set(
        "retry-timeout",
        &["proxy-next-upstream-timeout"],
        "time, `0`: no limit",
        |draft, text| {
            let time = parse_duration(text)?;
            draft.retry.timeout = Some(time).filter(|time| !time.is_zero());
Ok(())
        },
        "Longest time of all tries together",
    ),
    Annotation::set(
        "upstream-host",
        &["upstream-vhost"],
        "host",
        |draft, text| { draft.upstream_host = Some(host_header(text)?); Ok(()) },
        "`Host` that endpoints get, instead of the client's",
    ),
    Annotation::set(
        "forwarded-prefix",
        &["x-forwarded-prefix"],
        "path",
        |draft, text| { draft.forwarded_prefix = Some(header_value(&parse_path(text)?)?); Ok(()) },
        "`X-Forwarded-Prefix` that endpoints get",
    ),
    Annotation::set(
        "request-headers",
        &[],
        "lines `Name: value`",
        |draft, text| { draft.request_headers = parse_headers(text)?; Ok(()) },
        "Headers that are set in requests to endpoints",
    )
    .restricting(),
    Annotation::set(
        "response-headers",
        &[],
        "lines `Name: value`",
        |draft, text| { draft.response_headers = parse_headers(text)?; Ok(()) },
        "Headers that are set in responses to clients",
    ),
    Annotation::set(
        "compress",
        &[],
        "`true`, `false`",
        |draft, text| { draft.compress = parse_boolean(text)?; Ok(()) },
        "Compresses texts in responses with Brotli or gzip, as the client prefers",
    ),
    Annotation::set(
        "custom-http-errors",
        &["custom-http-errors"],
        "status codes (`404,503`)",
        |draft, text| { draft.error_statuses = parse_statuses(text)?; Ok(()) },
        "Responses of endpoints with these statuses are replaced by those of `default-backend`, or of \
         `spec.defaultBackend`",
    ),
    Annotation::set(
        "default-backend",
        &["default-backend"],
        "name of a Service",
        |draft, text| { draft.default_backend = Some(service_name(text)?); Ok(()) },
        "Gets requests while the rule's Service has no endpoints, and those of `custom-http-errors`; its first port is \
         used",
    ),
    Annotation::set(
        "access-log",
        &["enable-access-log"],
        "`true`, `false`",
        |draft, text| { draft.no_access_log = !parse_boolean(text)?; Ok(()) },
        "Whether requests appear in the access log",
    ),
];

fn rewrite(text: &str) -> Result<std::sync::Arc<str>, String> {
    let text = text.trim();
    // `$1` may be the whole path; the result begins with a slash in any case.
    if !text.starts_with('/') && !text.starts_with('$') {
        return Err("is not a path".to_owned());
    }
    header_value(text)?;
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('$') {
        if !after.starts_with(|c: char| c.is_ascii_digit()) {
            return Err("has a variable; only groups such as $1 are possible".to_owned());
        }
        rest = after;
    }
    Ok(text.into())
}

fn retry_on(draft: &mut Draft, text: &str) -> Result<(), String> {
    let mut retry = Retry { on_error: false, on_timeout: false, ..draft.retry.clone() };
    for word in text.split_ascii_whitespace() {
        match word {
            "error" | "invalid_header" => retry.on_error = true,
            "timeout" => retry.on_timeout = true,
            "non_idempotent" => retry.non_idempotent = true,
            "off" => retry.tries = 1,
            other => match other.strip_prefix("http_").and_then(|code| code.parse().ok()) {
                Some(code @ 400..=599) => drop(retry.statuses.insert(code)),
                _ => return Err(format!("has {other:?}, which is no reason to retry")),
            },
        }
    }
    if text.trim().is_empty() {
        return Err("names no reason to retry".to_owned());
    }
    draft.retry = retry;
    Ok(())
}

fn retry_tries(draft: &mut Draft, text: &str) -> Result<(), String> {
    let tries = parse_number(text, 0, 1000)?;
    // `retry-on: off` stays off.
    if draft.retry.tries != 1 {
        draft.retry.tries = if tries == 0 { MOST_TRIES } else { tries.min(MOST_TRIES) };
    }
    Ok(())
}

fn host_header(text: &str) -> Result<http::HeaderValue, String> {
    lb_http::host::normalize_host(text.trim()).map_err(|why| why.to_string())?;
    header_value(text)
}

/// A name of a Service in the Ingress's namespace.
fn service_name(text: &str) -> Result<std::sync::Arc<str>, String> {
    let [name] = parse_list(text)?[..] else { return Err("is more than one Service".to_owned()) };
    if name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') {
        Ok(name.into())
    } else {
        Err("is not the name of a Service in this namespace".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrite_targets_have_groups_only() {
        for (text, valid) in [
            ("/$2", true),
            ("$1", true),
            ("/a", true),
            ("a", false),
            ("/$uri", false),
            ("/\n", true),
            ("/a\nb", false),
        ] {
            assert_eq!(rewrite(text).is_ok(), valid, "{text:?}");
        }
    }

    #[test]
    fn off_means_one_try_in_any_order() {
        let mut draft = Draft::default();
        retry_on(&mut draft, "off").unwrap();
        retry_tries(&mut draft, "5").unwrap();
        assert_eq!(draft.retry.tries, 1);
        retry_on(&mut Draft::default(), "error http_502 http_x").unwrap_err();
    }

    #[test]
    fn only_failures_that_are_named_are_retried() {
        for (text, on_error, on_timeout) in [
            ("error timeout", true, true),
            ("error http_502", true, false),
            ("timeout", false, true),
            ("http_503", false, false),
        ] {
            let mut draft = Draft::default();
            retry_on(&mut draft, text).unwrap();
            assert_eq!((draft.retry.on_error, draft.retry.on_timeout), (on_error, on_timeout));
        }
    }
}

//! Canary Ingresses.

use lb_http::route::ValueRegex;

use super::values::{
    header_name, header_value, parse_boolean, parse_cookie_attribute, parse_number, parse_token,
};
use super::{Annotation, Draft};

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "canary",
        &["canary"],
        "`true`, `false`",
        |draft, text| { draft.canary.enabled = parse_boolean(text)?; Ok(()) },
        "The Ingress gets a part of the requests of the other Ingress of its namespace with the same hosts and paths, \
         under that Ingress's annotations",
    )
    .restricting()
    .differs(
        "up to 16 canaries of one path are possible; `backend-protocol` is the canary's own; one that restricts access \
         otherwise than the other Ingress gets no requests",
    ),
    Annotation::set(
        "canary-by-header",
        &["canary-by-header"],
        "header name",
        |draft, text| { draft.canary.header = Some(header_name(text)?); Ok(()) },
        "Header of requests that selects the canary (`always`) or excludes it (`never`)",
    ),
    Annotation::set(
        "canary-by-header-value",
        &["canary-by-header-value"],
        "text",
        |draft, text| {
            header_value(text).inspect_err(|_| draft.canary.header = None)?;
            draft.canary.header_value = Some(text.trim().into());
            Ok(())
        },
        "Value of that header that selects the canary, instead of `always`",
    ),
    Annotation::set(
        "canary-by-header-pattern",
        &["canary-by-header-pattern"],
        "regular expression",
        header_pattern,
        "Expression for values that select the canary, if `canary-by-header-value` is not set",
    )
    .differs("expressions run in linear time, so look-around and back-references are not supported; classes are ASCII"),
    Annotation::set(
        "canary-by-cookie",
        &["canary-by-cookie"],
        "name",
        |draft, text| { draft.canary.cookie = Some(parse_cookie_attribute(&parse_token(text)?)?); Ok(()) },
        "Cookie that selects the canary (`always`) or excludes it (`never`), if no header decided",
    ),
    Annotation::set(
        "canary-weight",
        &["canary-weight"],
        "number",
        |draft, text| { draft.canary.weight = parse_number(text, 0, 1_000_000)?; Ok(()) },
        "Share of all other requests, of `canary-weight-total`",
    ),
    Annotation::set(
        "canary-weight-total",
        &["canary-weight-total"],
        "number",
        |draft, text| { draft.canary.weight_total = Some(parse_number(text, 1, 1_000_000)?); Ok(()) },
        "What `canary-weight` is a part of; 100 without it",
    ),
];

/// Without a value that can be read, no header selects the canary: `always` is not what was asked for.
fn header_pattern(draft: &mut Draft, text: &str) -> Result<(), String> {
    let built = ValueRegex::new(text).inspect_err(|_| draft.canary.header = None);
    draft.canary.header_pattern = Some(built.map_err(|error| expression_error(&error))?);
    Ok(())
}

/// In one line.
pub fn expression_error(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "is too large as a regular expression".to_owned(),
        error => {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            let why = last.strip_prefix("error: ").unwrap_or(last);
            format!("is not a regular expression that is supported: {why}")
        }
    }
}

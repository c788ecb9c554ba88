//! Cross-origin resource sharing.

use http::{HeaderValue, Method};
use lb_http::policy::CorsOrigin;

use super::values::{header_names, header_value, parse_boolean, parse_duration, parse_list};
use super::{Annotation, Draft};

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "cors",
        &["enable-cors"],
        "`true`, `false`",
        |draft, text| {
            draft.cors.enabled = parse_boolean(text)?;
            Ok(())
        },
        "Answers preflight requests, and adds the headers of CORS to responses",
    ),
    Annotation::set(
        "cors-allow-origin",
        &["cors-allow-origin"],
        "origins, `*`",
        |draft, text| {
            let (valid, result) = origins(text);
            draft.cors.origins = Some(valid);
            result
        },
        "Origins that may use the responses: `https://example.org`, `https://*.example.org:8443`; `*` without it",
    ),
    Annotation::set(
        "cors-allow-methods",
        &["cors-allow-methods"],
        "methods",
        |draft, text| {
            draft.cors.methods = methods(text).map_err(allow_none(draft))?.into();
            Ok(())
        },
        "Methods that may be used; `GET, PUT, POST, DELETE, PATCH, OPTIONS` without it",
    ),
    Annotation::set(
        "cors-allow-headers",
        &["cors-allow-headers"],
        "header names",
        |draft, text| {
            draft.cors.headers = names(text).map_err(allow_none(draft))?.into();
            Ok(())
        },
        "Headers that requests may have",
    ),
    Annotation::set(
        "cors-expose-headers",
        &["cors-expose-headers"],
        "header names",
        |draft, text| {
            draft.cors.expose = Some(names(text)?);
            Ok(())
        },
        "Headers of responses that scripts may read",
    ),
    Annotation::set(
        "cors-allow-credentials",
        &["cors-allow-credentials"],
        "`true`, `false`",
        |draft, text| {
            let allows = parse_boolean(text);
            draft.cors.no_credentials = allows != Ok(true);
            allows.map(|_| ())
        },
        "Whether requests may have cookies; they may without it",
    ),
    Annotation::set(
        "cors-max-age",
        &["cors-max-age"],
        "time",
        |draft, text| {
            draft.cors.max_age = Some(parse_duration(text)?);
            Ok(())
        },
        "How long browsers keep the response to a preflight request; 20 days without it",
    ),
];

/// What can't be read allows nothing. Of origins, the others count.
fn origins(text: &str) -> (Vec<CorsOrigin>, Result<(), String>) {
    let items = match parse_list(text) {
        Ok(items) => items,
        Err(why) => return (Vec::new(), Err(why)),
    };
    let mut result = Ok(());
    let mut valid = Vec::new();
    for item in items {
        match origin(item) {
            Ok(origin) => valid.push(origin),
            Err(why) => result = result.and(Err(why)),
        }
    }
    (valid, result)
}

/// The default would allow more than was asked for.
fn allow_none(draft: &mut Draft) -> impl FnOnce(String) -> String {
    |why| {
        draft.cors.origins = Some(Vec::new());
        why
    }
}

fn origin(text: &str) -> Result<CorsOrigin, String> {
    if text == "*" {
        return Ok(CorsOrigin::Any);
    }
    let wrong = || format!("has {text:?}, which is no origin such as https://example.org");
    let lower = text.to_ascii_lowercase();
    let (scheme, rest) = lower.split_once("://").ok_or_else(wrong)?;
    let (wildcard, name) = match rest.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, rest),
    };
    // An origin has no path.
    lb_http::host::normalize_host(name).map_err(|_| wrong())?;
    if !["http", "https"].contains(&scheme) {
        return Err(wrong());
    }
    Ok(if wildcard {
        CorsOrigin::Wildcard { scheme: scheme.into(), suffix: format!(".{name}").into() }
    } else {
        CorsOrigin::Exact(lower.as_str().into())
    })
}

fn methods(text: &str) -> Result<HeaderValue, String> {
    let items = parse_list(text)?;
    for item in &items {
        Method::from_bytes(item.as_bytes())
            .map_err(|_| format!("has {item:?}, which is no method"))?;
    }
    header_value(&items.join(", "))
}

fn names(text: &str) -> Result<HeaderValue, String> {
    if text.trim() != "*" {
        header_names(text)?;
    }
    header_value(&parse_list(text)?.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_scheme_and_host_only() {
        assert_eq!(origin("*"), Ok(CorsOrigin::Any));
        assert_eq!(
            origin("https://A.org:8443"),
            Ok(CorsOrigin::Exact("https://a.org:8443".into()))
        );
        let wildcard = CorsOrigin::Wildcard { scheme: "https".into(), suffix: ".a.org".into() };
        assert_eq!(origin("https://*.a.org"), Ok(wildcard));
        for wrong in
            ["a.org", "https://", "https://a.org/path", "ftp://a.org", "https://*", "https://a\"b"]
        {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_invalid_origin_is_none_and_not_all() {
        let a = CorsOrigin::Exact("https://a.example.org".into());
        let (valid, result) = origins("https://a.example.org, https://b.example.org/, null");
        assert_eq!(valid, [a]);
        assert!(result.unwrap_err().contains("https://b.example.org/"));
        for wrong in ["null", "https://b.example.org/", "", ","] {
            let (valid, result) = origins(wrong);
            assert!(valid.is_empty() && result.is_err(), "{wrong}");
        }
    }
}

//! Cross-origin resource sharing.

use http::{HeaderValue, Method};
use lb_http::policy::CorsOrigin;

use super::Annotation;
use super::values::{boolean, duration, header_names, header_value, list};

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "cors",
        &["enable-cors"],
        "`true`, `false`",
        |draft, text| {
            draft.cors.enabled = boolean(text)?;
            Ok(())
        },
        "Answers preflight requests, and adds the headers of CORS to responses",
    ),
    Annotation::set(
        "cors-allow-origin",
        &["cors-allow-origin"],
        "origins, `*`",
        |draft, text| {
            draft.cors.origins = Some(origins(text)?);
            Ok(())
        },
        "Origins that may use the responses: `https://example.org`, `https://*.example.org:8443`; `*` without it",
    ),
    Annotation::set(
        "cors-allow-methods",
        &["cors-allow-methods"],
        "methods",
        |draft, text| {
            draft.cors.methods = Some(methods(text)?);
            Ok(())
        },
        "Methods that may be used; `GET, PUT, POST, DELETE, PATCH, OPTIONS` without it",
    ),
    Annotation::set(
        "cors-allow-headers",
        &["cors-allow-headers"],
        "header names",
        |draft, text| {
            draft.cors.headers = Some(names(text)?);
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
            draft.cors.no_credentials = !boolean(text)?;
            Ok(())
        },
        "Whether requests may have cookies; they may without it",
    ),
    Annotation::set(
        "cors-max-age",
        &["cors-max-age"],
        "time",
        |draft, text| {
            draft.cors.max_age = Some(duration(text)?);
            Ok(())
        },
        "How long browsers keep the response to a preflight request; 20 days without it",
    ),
];

fn origins(text: &str) -> Result<Vec<CorsOrigin>, String> {
    list(text)?.into_iter().map(origin).collect()
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
    lb_http::host::normalize(name).map_err(|_| wrong())?;
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
    let items = list(text)?;
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
    header_value(&list(text)?.join(", "))
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
}

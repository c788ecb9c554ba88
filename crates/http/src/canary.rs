//! Which requests of a route its canaries get. The order is that of ingress-nginx: header, cookie, weight.

use std::sync::Arc;

use http::HeaderMap;

use crate::cookie;
use crate::route::{Canary, CanaryHeader, CanaryValue, Route};

/// The route itself, or the canary that takes its place. `random` is one random number, all bits of it.
///
/// Of several canaries, those with headers are asked first, then those with cookies. By weight they share the
/// remaining requests: their shares add up, and are cut off at all requests.
pub fn choose_route<'a>(route: &'a Arc<Route>, headers: &HeaderMap, random: u64) -> &'a Arc<Route> {
    if route.canaries.is_empty() {
        return route;
    }
    let (mut by_cookie, mut by_weight) = (None, None);
    let mut end = 0;
    // Each is asked once: what a header costs depends on its author.
    for canary in &route.canaries {
        match canary.header.as_ref().and_then(|header| ask_header(header, headers)) {
            Some(true) => return &canary.route,
            Some(false) => continue,
            None => {}
        }
        match canary.cookie.as_ref().and_then(|name| ask_cookie(name, headers)) {
            Some(true) => by_cookie = by_cookie.or(Some(&canary.route)),
            Some(false) => {}
            None => {
                end += share(canary);
                if u128::from(random) < end {
                    by_weight = by_weight.or(Some(&canary.route));
                }
            }
        }
    }
    by_cookie.or(by_weight).unwrap_or(route)
}

/// Of 2^64 requests.
fn share(canary: &Canary) -> u128 {
    let total = canary.weight_total.max(1);
    (u128::from(canary.weight.min(total)) << 64) / u128::from(total)
}

/// Whether the canary gets the request; `None`: the header does not decide.
fn ask_header(header: &CanaryHeader, headers: &HeaderMap) -> Option<bool> {
    let value = headers.get(&header.name)?.as_bytes();
    match &header.value {
        CanaryValue::AlwaysOrNever => always_or_never(value),
        CanaryValue::Exact(text) => (value == text.as_bytes()).then_some(true),
        CanaryValue::Pattern(regex) => regex.matches(value).then_some(true),
    }
}

fn ask_cookie(name: &str, headers: &HeaderMap) -> Option<bool> {
    always_or_never(cookie::find_cookie(headers, name)?)
}

fn always_or_never(value: &[u8]) -> Option<bool> {
    match value {
        b"always" => Some(true),
        b"never" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue, StatusCode};

    use super::*;
    use crate::route::{Action, RouteOwner, ValueRegex};

    fn route(name: &str, canaries: Vec<Canary>) -> Arc<Route> {
        Arc::new(Route {
            owner: RouteOwner { namespace: "default".into(), name: name.into() },
            action: Action::Respond { status: StatusCode::OK, reason: "".into() },
            canaries,
            policy: Arc::default(),
        })
    }

    fn canary(name: &str, value: Option<CanaryValue>, cookie: Option<&str>, weight: u32) -> Canary {
        let header = |value| CanaryHeader { name: HeaderName::from_static("canary"), value };
        Canary {
            header: value.map(header),
            cookie: cookie.map(Arc::from),
            weight,
            weight_total: 100,
            route: route(name, Vec::new()),
        }
    }

    fn chosen(route: &Arc<Route>, header: &str, cookie: &str, random: u64) -> String {
        let mut headers = HeaderMap::new();
        if !header.is_empty() {
            headers.insert("canary", HeaderValue::from_bytes(header.as_bytes()).unwrap());
        }
        if !cookie.is_empty() {
            headers.insert("cookie", HeaderValue::from_str(&format!("canary={cookie}")).unwrap());
        }
        choose_route(route, &headers, random).owner.name.to_string()
    }

    #[test]
    fn the_header_decides_before_the_cookie_and_the_cookie_before_the_weight() {
        let always = Some(CanaryValue::AlwaysOrNever);
        let half = route("main", vec![canary("canary", always, Some("canary"), 50)]);
        let (low, high) = (0, u64::MAX);
        let cases = [
            ("always", "never", high, "canary"),
            ("never", "always", low, "main"),
            ("other", "always", high, "canary"),
            ("other", "never", low, "main"),
            ("other", "other", low, "canary"),
            ("other", "other", high, "main"),
            ("", "always", high, "canary"),
            ("", "", low, "canary"),
            ("", "", (1 << 63) - 1, "canary"),
            ("", "", 1 << 63, "main"),
        ];
        for (header, cookie, random, expected) in cases {
            assert_eq!(
                chosen(&half, header, cookie, random),
                expected,
                "{header:?} {cookie:?} {random}"
            );
        }
    }

    #[test]
    fn a_value_or_pattern_replaces_always_and_never() {
        let exact =
            route("main", vec![canary("canary", Some(CanaryValue::Exact("eu".into())), None, 0)]);
        let pattern = CanaryValue::Pattern(ValueRegex::new("^v[0-9]+$").unwrap());
        let pattern = route("main", vec![canary("canary", Some(pattern), None, 100)]);
        assert_eq!(chosen(&exact, "eu", "", 0), "canary");
        assert_eq!(chosen(&exact, "always", "", 0), "main");
        assert_eq!(chosen(&pattern, "v12", "", u64::MAX), "canary");
        // It decides nothing, so the weight does.
        assert_eq!(chosen(&pattern, "never", "", u64::MAX), "canary");
        assert_eq!(chosen(&pattern, "\u{fc}", "", u64::MAX), "canary");
    }

    /// A client sends the value, and a tenant writes the expression: together they must not take a worker's time.
    #[test]
    fn an_expression_costs_the_same_whatever_it_is() {
        for text in ["1[01]{2000}[a-z]", "(.*a){12}[ab]{200}", "a.{20}b"] {
            let built = ValueRegex::new(text);
            assert!(matches!(built, Err(regex::Error::CompiledTooBig(_))), "{text}");
        }
        for text in ["(", "a)(b", "(?=x)", r"(.)\1"] {
            assert!(matches!(ValueRegex::new(text), Err(regex::Error::Syntax(_))), "{text}");
        }
        let regex = ValueRegex::new("(eu|us)-[0-9]+").unwrap();
        assert!(regex.matches(b"zone eu-1, \xff"));
        assert!(!regex.matches(b"EU-1"));
        assert!(!regex.matches(format!("eu-1{}", "x".repeat(8 << 10)).as_bytes()));
    }

    #[test]
    fn weights_of_several_canaries_add_up() {
        let three = route(
            "main",
            vec![
                canary("a", None, None, 20),
                canary("b", None, None, 30),
                canary("c", None, Some("canary"), 10),
            ],
        );
        let mut counts = std::collections::BTreeMap::new();
        for i in 0..1000u64 {
            *counts
                .entry(chosen(&three, "", "", ((u128::from(i) << 64) / 1000) as u64))
                .or_insert(0) += 1;
        }
        let expected = [("a", 200), ("b", 300), ("c", 100), ("main", 400)];
        assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!(chosen(&three, "", "always", 0), "c");
        assert_eq!(chosen(&three, "", "never", (1 << 63) + 1), "main");
    }

    #[test]
    fn extreme_weights_mean_none_and_all() {
        let all = |weight, total| {
            let mut canary = canary("canary", None, None, weight);
            canary.weight_total = total;
            route("main", vec![canary])
        };
        for (weight, total, random, expected) in [
            (0, 100, 0, "main"),
            (100, 100, u64::MAX, "canary"),
            (500, 100, u64::MAX, "canary"),
            (1, 0, u64::MAX, "canary"),
            (0, 0, 0, "main"),
            (u32::MAX, u32::MAX, u64::MAX, "canary"),
        ] {
            assert_eq!(
                chosen(&all(weight, total), "", "", random),
                expected,
                "{weight} of {total}"
            );
        }
    }
}

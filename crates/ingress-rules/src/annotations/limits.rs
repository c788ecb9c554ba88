//! Limits for each client address.

use super::Annotation;
use super::values::{parse_number, parse_sources};

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "limit-rps",
        &["limit-rps"],
        "number, `0`: no limit",
        |draft, text| {
            draft.limits.requests_per_second = limit(text)?;
            Ok(())
        },
        "Requests of a client address in a second, counted by each replica of the proxy; others get 429",
    )
    .restricting()
    .differs("429 instead of 503"),
    Annotation::set(
        "limit-rpm",
        &["limit-rpm"],
        "number, `0`: no limit",
        |draft, text| {
            draft.limits.requests_per_minute = limit(text)?;
            Ok(())
        },
        "As `limit-rps`, in a minute",
    )
    .restricting()
    .differs("429 instead of 503"),
    Annotation::set(
        "limit-burst-multiplier",
        &["limit-burst-multiplier"],
        "number",
        |draft, text| {
            draft.limits.burst_multiplier = parse_number(text, 1, 1000)?;
            Ok(())
        },
        "Requests beyond the rate that are accepted at once, as a multiple of it; 5 without it",
    )
    .restricting(),
    Annotation::set(
        "limit-connections",
        &["limit-connections"],
        "number, `0`: no limit",
        |draft, text| {
            draft.limits.concurrent = limit(text)?;
            Ok(())
        },
        "Requests of a client address at the same time; others get 429",
    )
    .restricting()
    .differs("counts requests, of which an HTTP/2 connection has several; 429 instead of 503"),
    Annotation::set(
        "limit-allowlist",
        &["limit-allowlist", "limit-whitelist"],
        "addresses and ranges",
        |draft, text| {
            draft.limits.exempt = parse_sources(text)?;
            Ok(())
        },
        "Clients without these limits",
    ),
];

fn limit(text: &str) -> Result<Option<u32>, String> {
    let number = parse_number(text, 0, 1_000_000)?;
    Ok(Some(number).filter(|&number| number != 0))
}

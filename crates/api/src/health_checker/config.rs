//! How the endpoints of a slice are checked: read from its annotations.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::Value;

const CHECK_ANNOTATION: &str = "millrace.io/health-check";
const INTERVAL_ANNOTATION: &str = "millrace.io/health-check-interval";
const TIMEOUT_ANNOTATION: &str = "millrace.io/health-check-timeout";
const RISE_ANNOTATION: &str = "millrace.io/health-check-rise";
const FALL_ANNOTATION: &str = "millrace.io/health-check-fall";
const ALL_ANNOTATIONS: [&str; 5] =
    [CHECK_ANNOTATION, INTERVAL_ANNOTATION, TIMEOUT_ANNOTATION, RISE_ANNOTATION, FALL_ANNOTATION];

/// More would only delay what a check is for.
const CONSECUTIVE_RESULTS: RangeInclusive<u32> = 1..=100;
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    pub protocol: ProbeProtocol,
    /// Between the probes of an endpoint.
    pub interval: Duration,
    /// The longest wait for a response. At most the interval.
    pub timeout: Duration,
    /// Consecutive successes that make an endpoint ready.
    pub rise: u32,
    /// Consecutive failures that make it unready.
    pub fall: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProbeProtocol {
    /// The connection is accepted.
    Tcp,
    /// GET of the path returns 2xx or 3xx.
    Http { path: String },
    /// GET over TLS returns 2xx or 3xx, whatever the certificate: it proves that the server is up, not who it is.
    Https { path: String },
    /// `grpc.health.v1.Health/Check` of the service returns SERVING.
    Grpc { service: String },
}

/// An annotation that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidAnnotation {
    pub annotation: &'static str,
    pub value: String,
    pub fix: &'static str,
}

/// The annotations of a slice that determine its checks, as they are written.
pub(crate) type WantedCheck = BTreeMap<&'static str, String>;

/// `None` if the slice asks for no checks.
pub(crate) fn read_wanted_check(slice: &Value) -> Option<WantedCheck> {
    let annotations = &slice["metadata"]["annotations"];
    annotations[CHECK_ANNOTATION].as_str()?;
    let texts = ALL_ANNOTATIONS
        .iter()
        .filter_map(|name| Some((*name, annotations[*name].as_str()?.to_owned())));
    Some(texts.collect())
}

impl HealthCheck {
    pub fn parse(wish: &WantedCheck) -> Result<Self, InvalidAnnotation> {
        let invalid = |annotation: &'static str, fix| {
            let value = wish.get(annotation).cloned().unwrap_or_default();
            InvalidAnnotation { annotation, value, fix }
        };
        let number = |annotation, default: u32| match wish.get(annotation) {
            None => Ok(default),
            Some(text) => text
                .parse()
                .ok()
                .filter(|number| CONSECUTIVE_RESULTS.contains(number))
                .ok_or_else(|| invalid(annotation, "write a number from 1 to 100")),
        };
        let duration = |annotation, default: Duration, longest: Duration, fix| {
            let Some(text) = wish.get(annotation) else { return Ok(default) };
            let parsed = text.parse::<SignedDuration>().ok();
            parsed
                .and_then(|parsed| Duration::try_from(parsed).ok())
                .filter(|parsed| INTERVALS.contains(parsed) && *parsed <= longest)
                .ok_or_else(|| invalid(annotation, fix))
        };
        let protocol = wish.get(CHECK_ANNOTATION).and_then(|text| ProbeProtocol::parse(text));
        let protocol = protocol.ok_or_else(|| {
            invalid(CHECK_ANNOTATION, "write tcp, http:/path, https:/path, grpc or grpc:service")
        })?;
        let two = Duration::from_secs(2);
        let fix = "write a duration from 100ms to 1h, such as 2s";
        let interval = duration(INTERVAL_ANNOTATION, two, *INTERVALS.end(), fix)?;
        let fix = "write a duration from 100ms to the interval, such as 1s";
        let default = Duration::from_secs(1).min(interval);
        let timeout = duration(TIMEOUT_ANNOTATION, default, interval, fix)?;
        Ok(Self {
            protocol,
            interval,
            timeout,
            rise: number(RISE_ANNOTATION, 1)?,
            fall: number(FALL_ANNOTATION, 2)?,
        })
    }
}

impl ProbeProtocol {
    fn parse(text: &str) -> Option<Self> {
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let (name, rest) = match text.split_once(':') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        let path = rest.filter(|path| path.starts_with('/') && is_plain(path)).map(str::to_owned);
        match (name, rest) {
            ("tcp", None) => Some(Self::Tcp),
            ("http", Some(_)) => Some(Self::Http { path: path? }),
            ("https", Some(_)) => Some(Self::Https { path: path? }),
            ("grpc", None) => Some(Self::Grpc { service: String::new() }),
            ("grpc", Some(service)) => {
                let fits = !service.is_empty() && service.len() <= 253 && is_plain(service);
                fits.then(|| Self::Grpc { service: service.to_owned() })
            }
            _ => None,
        }
    }
}

impl fmt::Display for InvalidAnnotation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "annotation {} is {:?}: {}", self.annotation, self.value, self.fix)
    }
}

/// The consecutive results of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProbeStreak {
    pub succeeds: bool,
    pub length: u32,
}

impl ProbeStreak {
    /// The streak after one more result.
    pub fn after(before: Option<Self>, succeeds: bool) -> Self {
        match before {
            Some(before) if before.succeeds == succeeds => {
                Self { succeeds, length: before.length.saturating_add(1) }
            }
            _ => Self { succeeds, length: 1 },
        }
    }
}

impl HealthCheck {
    /// Whether an endpoint is ready, from what it was and the streaks of all its ports.
    pub fn is_ready(&self, was_ready: bool, streaks: &[ProbeStreak]) -> bool {
        if was_ready {
            !streaks.iter().any(|streak| !streak.succeeds && streak.length >= self.fall)
        } else {
            streaks.iter().all(|streak| streak.succeeds && streak.length >= self.rise)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(annotations: Value) -> Result<HealthCheck, InvalidAnnotation> {
        HealthCheck::parse(
            &read_wanted_check(&json!({"metadata": {"annotations": annotations}})).unwrap(),
        )
    }

    #[test]
    fn all_is_read_from_annotations_and_has_defaults() {
        let seconds = Duration::from_secs;
        let default = check(json!({CHECK_ANNOTATION: "tcp"})).unwrap();
        let expected = HealthCheck {
            protocol: ProbeProtocol::Tcp,
            interval: seconds(2),
            timeout: seconds(1),
            rise: 1,
            fall: 2,
        };
        assert_eq!(default, expected);
        let own = json!({CHECK_ANNOTATION: "http:/ok?a=b", INTERVAL_ANNOTATION: "1m30s", TIMEOUT_ANNOTATION: "500ms", RISE_ANNOTATION: "3",
            FALL_ANNOTATION: "5"});
        let expected = HealthCheck {
            protocol: ProbeProtocol::Http { path: "/ok?a=b".to_owned() },
            interval: seconds(90),
            timeout: Duration::from_millis(500),
            rise: 3,
            fall: 5,
        };
        assert_eq!(check(own).unwrap(), expected);
        for (text, protocol) in [
            ("https:/", ProbeProtocol::Https { path: "/".to_owned() }),
            ("grpc", ProbeProtocol::Grpc { service: String::new() }),
            ("grpc:a.B", ProbeProtocol::Grpc { service: "a.B".to_owned() }),
        ] {
            assert_eq!(check(json!({CHECK_ANNOTATION: text})).unwrap().protocol, protocol);
        }
        assert_eq!(
            read_wanted_check(&json!({"metadata": {"annotations": {RISE_ANNOTATION: "2"}}})),
            None
        );
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for nonsense in ["", "udp", "http", "http:ok", "http:/a b", "http:/a\r\nX: y", "grpc:"] {
            assert_eq!(
                check(json!({CHECK_ANNOTATION: nonsense})).unwrap_err().annotation,
                CHECK_ANNOTATION
            );
        }
        for (annotation, value) in [
            (INTERVAL_ANNOTATION, "2"),
            (INTERVAL_ANNOTATION, "0s"),
            (INTERVAL_ANNOTATION, "-2s"),
            (INTERVAL_ANNOTATION, "2h"),
            (TIMEOUT_ANNOTATION, "3s"),
            (RISE_ANNOTATION, "0"),
            (FALL_ANNOTATION, "many"),
        ] {
            let invalid = check(json!({CHECK_ANNOTATION: "tcp", annotation: value})).unwrap_err();
            assert_eq!((invalid.annotation, invalid.value.as_str()), (annotation, value));
        }
    }

    #[test]
    fn thresholds_count_consecutive_results() {
        let mut check =
            check(json!({CHECK_ANNOTATION: "tcp", RISE_ANNOTATION: "2", FALL_ANNOTATION: "3"}))
                .unwrap();
        let streak = |succeeds, length| ProbeStreak { succeeds, length };
        for (was_ready, streaks, expected) in [
            (true, vec![streak(false, 2)], true),
            (true, vec![streak(false, 3)], false),
            (true, vec![streak(true, 9), streak(false, 3)], false),
            (false, vec![streak(true, 1)], false),
            (false, vec![streak(true, 2)], true),
            (false, vec![streak(true, 2), streak(true, 1)], false),
            (false, vec![streak(true, 2), streak(false, 1)], false),
        ] {
            assert_eq!(check.is_ready(was_ready, &streaks), expected, "{was_ready} {streaks:?}");
        }
        check.rise = 1;
        assert!(check.is_ready(false, &[streak(true, 1)]));
        let results = [true, true, false, false, true];
        let lengths = results.iter().scan(None, |before, result| {
            *before = Some(ProbeStreak::after(*before, *result));
            before.map(|streak| streak.length)
        });
        assert_eq!(lengths.collect::<Vec<_>>(), [1, 2, 1, 2, 1]);
    }
}

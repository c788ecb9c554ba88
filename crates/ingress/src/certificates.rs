//! Certificates that expire. Pure.

use lb_http::HostPattern;

const DAY_SECONDS: i64 = 24 * 3600;
/// ACME clients renew a certificate 30 days before it expires, or when a third of its lifetime is left. Two weeks
/// before, their attempts have failed for long.
const EXPIRY_NOTICE_SECONDS: i64 = 14 * DAY_SECONDS;

/// What to report of a certificate. The text changes at most once a day, so that Events repeat.
pub(crate) fn warn_of_expiry(host: &HostPattern, not_after: i64, now: i64) -> Option<String> {
    let left = not_after - now;
    if left < 0 {
        Some(format!("the certificate for {host} has expired: clients refuse it"))
    } else if left < EXPIRY_NOTICE_SECONDS {
        let days = left / DAY_SECONDS;
        Some(format!("the certificate for {host} expires in less than {} days", days + 1))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_reported_from_two_weeks_before_it_expires() {
        let host = HostPattern::Exact("a.example".into());
        let message =
            |left: i64| warn_of_expiry(&host, 1_000 * DAY_SECONDS + left, 1_000 * DAY_SECONDS);
        assert_eq!(message(15 * DAY_SECONDS), None);
        assert!(message(13 * DAY_SECONDS + 1).unwrap().contains("less than 14 days"));
        assert!(message(0).unwrap().contains("less than 1 days"));
        assert!(message(-1).unwrap().contains("has expired"));
    }
}

//! Certificates that expire. Pure.

use lb_http::HostPattern;

const DAY: i64 = 24 * 3600;
/// ACME clients renew a certificate 30 days before it expires, or when a third of its lifetime is left. Two weeks
/// before, their attempts have failed for long.
const SOON: i64 = 14 * DAY;

/// What to report of a certificate. The text changes at most once a day, so that Events repeat.
pub fn expires_soon(host: &HostPattern, not_after: i64, now: i64) -> Option<String> {
    let left = not_after - now;
    if left < 0 {
        Some(format!("the certificate for {host} has expired: clients refuse it"))
    } else if left < SOON {
        let days = left / DAY;
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
        let message = |left: i64| expires_soon(&host, 1_000 * DAY + left, 1_000 * DAY);
        assert_eq!(message(15 * DAY), None);
        assert!(message(13 * DAY + 1).unwrap().contains("less than 14 days"));
        assert!(message(0).unwrap().contains("less than 1 days"));
        assert!(message(-1).unwrap().contains("has expired"));
    }
}

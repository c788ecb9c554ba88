//! Durations as Kubernetes and Go write them.

use std::time::Duration;

/// A duration with a unit for each number: `90s`, `1m30s`, `24h0m0s`, `100ms`.
pub fn parse_go_duration(text: &str) -> Option<Duration> {
    let mut milliseconds: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let letters = rest.bytes().take_while(u8::is_ascii_lowercase).count();
        let factor = match rest.get(..letters)? {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        milliseconds = milliseconds.checked_add(number.checked_mul(factor)?)?;
        rest = rest.get(letters..)?;
    }
    (!text.is_empty()).then(|| Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, milliseconds) in [
            ("90s", Some(90_000)),
            ("1m30s", Some(90_000)),
            ("24h0m0s", Some(86_400_000)),
            ("1500ms", Some(1_500)),
            ("0s", Some(0)),
            ("", None),
            ("90", None),
            ("s", None),
            ("1d", None),
            ("-1s", None),
            ("1.5s", None),
            ("1s ", None),
            ("99999999999999999999s", None),
            ("18446744073709551615h", None),
        ] {
            assert_eq!(
                parse_go_duration(text),
                milliseconds.map(Duration::from_millis),
                "{text:?}"
            );
        }
    }
}

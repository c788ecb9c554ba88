//! `traceparent` (W3C Trace Context, level 2).

use std::num::{NonZeroU64, NonZeroU128};

use http::{HeaderMap, HeaderName, HeaderValue};

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Octets of version 00.
const OCTETS: usize = 55;
const SAMPLED: u8 = 1;
/// The lower 56 bits of the trace's number are random.
const RANDOM: u8 = 2;

/// A trace, and the span in it that a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: NonZeroU128,
    pub span: NonZeroU64,
    pub is_sampled: bool,
    pub is_random: bool,
}

impl TraceContext {
    /// Versions after 00 may have more after a further `-`, and are read as 00.
    fn parse(text: &[u8]) -> Option<Self> {
        let (fields, rest) = text.split_at_checked(OCTETS)?;
        let version = hexadecimal(&fields[..2])?;
        let is_complete = rest.is_empty() || (version > 0 && rest[0] == b'-');
        if version == 0xff || !is_complete || [2, 35, 52].iter().any(|at| fields[*at] != b'-') {
            return None;
        }
        let flags = hexadecimal(&fields[53..])? as u8;
        Some(Self {
            trace: NonZeroU128::new(hexadecimal(&fields[3..35])?)?,
            span: NonZeroU64::new(hexadecimal(&fields[36..52])? as u64)?,
            is_sampled: flags & SAMPLED != 0,
            is_random: flags & RANDOM != 0,
        })
    }

    pub fn flags(&self) -> u8 {
        (u8::from(self.is_sampled) * SAMPLED) | (u8::from(self.is_random) * RANDOM)
    }

    pub fn to_header(&self) -> HeaderValue {
        let text = format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags());
        HeaderValue::try_from(text).unwrap_or_else(|_| unreachable!("digits and dashes"))
    }
}

/// The context that a request carries. `None`: there is none, it is malformed, or there are several.
pub fn read_context(headers: &HeaderMap) -> Option<TraceContext> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let context = TraceContext::parse(values.next()?.as_bytes())?;
    values.next().is_none().then_some(context)
}

/// Of digits in lower case: others are malformed.
fn hexadecimal(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, octet| {
        let digit = match octet {
            b'0'..=b'9' => octet - b'0',
            b'a'..=b'f' => octet - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_context_is_read_strictly() {
        for (text, flags) in [
            (format!("00-{TRACE}-{SPAN}-01"), Some(1)),
            (format!("00-{TRACE}-{SPAN}-00"), Some(0)),
            (format!("00-{TRACE}-{SPAN}-ff"), Some(3)),
            (format!("01-{TRACE}-{SPAN}-02"), Some(2)),
            (format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"), Some(1)),
            (format!("cc-{TRACE}-{SPAN}-01.what"), None),
            (format!("00-{TRACE}-{SPAN}-01-"), None),
            (format!("00-{TRACE}-{SPAN}-01-what"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("00-{TRACE}-{SPAN}-1"), None),
            (format!("00-{TRACE}-{SPAN}-0x"), None),
            (format!("00-{TRACE}-{SPAN}"), None),
            (format!("0-{TRACE}-{SPAN}-01"), None),
            (format!(" 00-{TRACE}-{SPAN}-01"), None),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None),
            (format!("00-{TRACE}-{}-01", SPAN.to_uppercase()), None),
            (format!("00-{}-{SPAN}-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("00_{TRACE}_{SPAN}_01"), None),
            (format!("00-{}\u{e9}-{SPAN}-01", &TRACE[2..]), None),
            (String::new(), None),
            ("-".repeat(OCTETS), None),
            ("0".repeat(100_000), None),
        ] {
            let context = TraceContext::parse(text.as_bytes());
            assert_eq!(context.map(|context| context.flags()), flags, "{text}");
            if let Some(context) = context {
                let written = format!("00-{TRACE}-{SPAN}-{:02x}", context.flags());
                assert_eq!(context.to_header().as_bytes(), written.as_bytes());
            }
        }
    }

    #[test]
    fn several_contexts_are_none() {
        let one = HeaderValue::try_from(format!("00-{TRACE}-{SPAN}-01")).unwrap();
        let mut headers = HeaderMap::new();
        assert_eq!(read_context(&headers), None);
        headers.append(TRACEPARENT, one.clone());
        assert!(read_context(&headers).is_some());
        headers.append(TRACEPARENT, one);
        assert_eq!(read_context(&headers), None);
    }
}

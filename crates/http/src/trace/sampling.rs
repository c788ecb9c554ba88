//! Which requests are recorded: those whose parent is, and of those without parent a share, by the number of the trace.

use std::fmt::{self, Display};
use std::num::{NonZeroU64, NonZeroU128};
use std::str::FromStr;

use super::context::TraceContext;

/// The share of traces that are recorded. All processes that compare like this, as the SDKs of OpenTelemetry do, record
/// the same ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingRatio(f64);

impl SamplingRatio {
    pub fn includes(self, trace: NonZeroU128) -> bool {
        // As a number of 63 bits, which the factor does not change.
        let random = (trace.get() as u64) >> 1;
        self.0 >= 1.0 || random < (self.0 * (1_u64 << 63) as f64) as u64
    }
}

impl FromStr for SamplingRatio {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.map(Self).ok_or("not a number from 0 to 1, such as 0.01")
    }
}

impl Display for SamplingRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a request is to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingReason {
    /// Whoever sent it records it.
    Parent,
    /// It is within the ratio.
    Ratio,
}

/// The trace of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedTrace {
    pub trace: NonZeroU128,
    pub is_random: bool,
    /// `None`: the request is not recorded.
    pub sampled: Option<SamplingReason>,
}

/// Continues the trace of the parent, or begins one with the number `random`.
pub fn choose_trace(
    parent: Option<&TraceContext>,
    ratio: SamplingRatio,
    random: u128,
) -> WantedTrace {
    if let Some(parent) = parent {
        let sampled = parent.is_sampled.then_some(SamplingReason::Parent);
        return WantedTrace { trace: parent.trace, is_random: parent.is_random, sampled };
    }
    let trace = NonZeroU128::new(random).unwrap_or(NonZeroU128::MIN);
    let sampled = ratio.includes(trace).then_some(SamplingReason::Ratio);
    WantedTrace { trace, is_random: true, sampled }
}

impl WantedTrace {
    /// The context of a request that this proxy sends from the span.
    pub fn context_of(&self, span: u64, is_sampled: bool) -> TraceContext {
        let &Self { trace, is_random, .. } = self;
        let span = NonZeroU64::new(span).unwrap_or(NonZeroU64::MIN);
        TraceContext { trace, span, is_sampled, is_random }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(text: &str) -> SamplingRatio {
        text.parse().unwrap()
    }

    #[test]
    fn a_ratio_is_a_share() {
        for text in ["0", "1", "0.01", "1e-3", "1.0"] {
            assert!(text.parse::<SamplingRatio>().is_ok(), "{text}");
        }
        for text in ["", "-0.1", "1.1", "NaN", "inf", "1%", "a"] {
            assert!(text.parse::<SamplingRatio>().is_err(), "{text}");
        }
    }

    /// The values that the SDKs' tests have.
    #[test]
    fn the_number_of_the_trace_decides() {
        let trace = |low: u64| NonZeroU128::new(1 << 100 | u128::from(low)).unwrap();
        for (share, low, is_included) in [
            ("0", 0, false),
            ("0", u64::MAX, false),
            ("1", u64::MAX, true),
            ("1", 0, true),
            ("0.5", u64::MAX / 2 - 1, true),
            ("0.5", u64::MAX / 2 + 1, false),
            ("0.25", 1 << 61, true),
            ("0.25", 1 << 62, false),
            ("1e-300", 0, false),
        ] {
            assert_eq!(ratio(share).includes(trace(low)), is_included, "{share} {low:x}");
        }
        let step = 0x9e37_79b9_7f4a_7c15_u64;
        let count = (0..100_000_u64)
            .filter(|number| ratio("0.01").includes(trace(number.wrapping_mul(step))))
            .count();
        assert!((900..1100).contains(&count), "{count}");
    }

    #[test]
    fn a_parent_decides_and_otherwise_the_ratio() {
        let parent = |is_sampled| TraceContext {
            trace: NonZeroU128::new(7).unwrap(),
            span: NonZeroU64::MIN,
            is_sampled,
            is_random: false,
        };
        let sampled = |parent: Option<TraceContext>, share: &str| {
            choose_trace(parent.as_ref(), ratio(share), 9).sampled
        };
        assert_eq!(sampled(Some(parent(true)), "0"), Some(SamplingReason::Parent));
        assert_eq!(sampled(Some(parent(false)), "1"), None);
        assert_eq!(sampled(None, "1"), Some(SamplingReason::Ratio));
        assert_eq!(sampled(None, "0"), None);
        let continued = choose_trace(Some(&parent(true)), ratio("0"), 9);
        assert_eq!((continued.trace.get(), continued.is_random), (7, false));
        let begun = choose_trace(None, ratio("0"), 9);
        assert_eq!((begun.trace.get(), begun.is_random), (9, true));
        assert_eq!(begun.context_of(0, false).span.get(), 1);
        assert_eq!(choose_trace(None, ratio("1"), 0).trace.get(), 1);
    }
}

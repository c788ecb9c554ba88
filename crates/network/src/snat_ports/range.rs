//! The range of ports that SNAT chooses from.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The smallest useful number of ports.
const MIN_SNAT_PORTS: u16 = 256;

/// The number of ports is prime: the programs step through the range by strides, and so every
/// stride visits all ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnatRange {
    /// As configured; the last ports of the range may be left out.
    last: u16,
    pub first: u16,
    pub count: u16,
}

impl SnatRange {
    pub const DEFAULT: &str = "1024-32764";

    pub fn new(range: RangeInclusive<u16>) -> Result<Self, String> {
        let (first, last) = range.into_inner();
        let count = u32::from(last.saturating_sub(first)) + 1;
        if first == 0 || last < first || count < u32::from(MIN_SNAT_PORTS) {
            return Err(format!(
                "no range of at least {MIN_SNAT_PORTS} ports, such as {}",
                Self::DEFAULT
            ));
        }
        // The range begins at 1 or above, so it has at most 65,535 ports. Every number from 2 on
        // has a prime at or below it.
        let count = (2..=count).rev().find(|&number| is_prime(number)).unwrap_or(2) as u16;
        Ok(Self { first, last, count })
    }

    /// The ports that SNAT chooses from.
    pub fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.first + (self.count - 1)
    }
}

impl FromStr for SnatRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("no range of ports, such as {}", Self::DEFAULT);
        let (first, last) = text.split_once('-').ok_or_else(wrong)?;
        Self::new(first.parse().map_err(|_| wrong())?..=last.parse().map_err(|_| wrong())?)
    }
}

impl Display for SnatRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Default for SnatRange {
    fn default() -> Self {
        Self { first: 1024, last: 32764, count: 31_741 }
    }
}

fn is_prime(number: u32) -> bool {
    number >= 2 && (2..).take_while(|d| d * d <= number).all(|d| !number.is_multiple_of(d))
}

#[cfg(test)]
mod tests {
    use lb_common::layout::Settings;

    use super::*;

    #[test]
    fn the_default_equals_the_data_planes() {
        let settings = Settings::new(0, 8);
        let range: SnatRange = SnatRange::DEFAULT.parse().unwrap();
        assert_eq!(range, SnatRange::default());
        let (first, count) = (settings.snat_port_first, settings.snat_port_count);
        assert_eq!((range.first, range.count), (first, count));
    }

    #[test]
    fn every_stride_visits_all_ports() {
        for text in ["1024-32764", "1-65535", "2000-30000", "60000-60255"] {
            let range: SnatRange = text.parse().unwrap();
            assert!(is_prime(range.count.into()), "{text}: {range:?}");
            let (first, last) = range.ports().into_inner();
            assert!(format!("{first}-") == text[..text.find('-').unwrap() + 1], "{text}");
            assert!(last <= range.last && range.last - last < 60, "{text}: {range:?}");
        }
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for wrong in ["", "1024", "0-9000", "2000-1000", "1024-1100", "1-65536", "a-b"] {
            assert!(wrong.parse::<SnatRange>().is_err(), "{wrong}");
        }
    }
}

//! How a broken path to a peer is found (BFD), whichever kind of object says so. Pure.

use std::time::Duration;

use lb_bfd::BfdConfig;
use lb_rules::kinds::{BFDProfile, PeerBfd};

use super::InvalidField;
use crate::bfd::HopLimit;

/// MetalLB's default, in milliseconds.
const METALLB_INTERVAL_MILLISECONDS: u32 = 300;
/// Packets of a router behind others; MetalLB's default.
const METALLB_MIN_TTL: u8 = 254;
const INTERVAL_MILLISECONDS: std::ops::RangeInclusive<u32> = 10..=60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectionConfig {
    pub config: BfdConfig,
    /// The least TTL of packets of a router behind others.
    min_ttl: u8,
}

impl DetectionConfig {
    /// `hops`: the most to the router, if they are limited.
    pub(crate) fn of_peer_bfd(spec: &PeerBfd, hops: Option<u8>) -> Result<Self, InvalidField> {
        let default = BfdConfig::default();
        let interval = match spec.interval_milliseconds {
            Some(given) => parse_interval("spec.bfd.intervalMilliseconds", given)?,
            None => default.transmit,
        };
        let multiplier = spec.multiplier.unwrap_or(default.multiplier);
        if multiplier == 0 {
            return Err(("spec.bfd.multiplier", "0 packets are missing always".to_owned()));
        }
        let config =
            BfdConfig { multiplier, transmit: interval, receive: interval, passive: spec.passive };
        Ok(Self { config, min_ttl: hops.map_or(1, |hops| u8::MAX - (hops.max(1) - 1)) })
    }

    pub(crate) fn of_profile(profile: &BFDProfile) -> Result<Self, InvalidField> {
        let spec = &profile.spec;
        let multiplier = match spec.detect_multiplier.map(u8::try_from) {
            None => BfdConfig::default().multiplier,
            Some(Ok(given)) if given > 0 => given,
            _ => return Err(("spec.detectMultiplier", "is not between 1 and 255".to_owned())),
        };
        let min_ttl = match spec.minimum_ttl.map(u8::try_from) {
            None => METALLB_MIN_TTL,
            Some(Ok(given)) if given > 0 => given,
            _ => return Err(("spec.minimumTtl", "is not between 1 and 255".to_owned())),
        };
        let config = BfdConfig {
            multiplier,
            transmit: parse_interval(
                "spec.transmitInterval",
                spec.transmit_interval.unwrap_or(METALLB_INTERVAL_MILLISECONDS),
            )?,
            receive: parse_interval(
                "spec.receiveInterval",
                spec.receive_interval.unwrap_or(METALLB_INTERVAL_MILLISECONDS),
            )?,
            passive: spec.passive_mode.unwrap_or(false),
        };
        Ok(Self { config, min_ttl })
    }

    pub fn hops(&self, is_on_link: bool) -> HopLimit {
        match is_on_link {
            true => HopLimit::One,
            false => HopLimit::Several(u8::MAX - self.min_ttl + 1),
        }
    }
}

fn parse_interval(field: &'static str, milliseconds: u32) -> Result<Duration, InvalidField> {
    if !INTERVAL_MILLISECONDS.contains(&milliseconds) {
        let (least, most) = (INTERVAL_MILLISECONDS.start(), INTERVAL_MILLISECONDS.end());
        return Err((field, format!("{milliseconds} ms is not between {least} and {most} ms")));
    }
    Ok(Duration::from_millis(milliseconds.into()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn own(spec: Value, hops: Option<u8>) -> Result<DetectionConfig, InvalidField> {
        DetectionConfig::of_peer_bfd(&serde_json::from_value(spec).unwrap(), hops)
    }

    fn profile(spec: Value) -> Result<DetectionConfig, InvalidField> {
        let object = json!({"apiVersion": "metallb.io/v1beta1", "kind": "BFDProfile", "metadata": {"name": "a"}, "spec": spec});
        DetectionConfig::of_profile(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn absent_fields_have_defaults() {
        let found = own(json!({}), None).unwrap();
        assert_eq!(found.config, BfdConfig::default());
        assert_eq!(found.hops(false).min_hop_limit(), 1, "any router");
        assert_eq!(found.hops(true).min_hop_limit(), 255);
        let found = own(json!({"intervalMilliseconds": 50}), Some(3)).unwrap();
        assert_eq!(found.config.receive, Duration::from_millis(50));
        assert_eq!(found.hops(false).min_hop_limit(), 253);
        let found = profile(json!({})).unwrap();
        assert_eq!((found.config.transmit.as_millis(), found.config.multiplier), (300, 3));
        assert_eq!(found.hops(false).min_hop_limit(), 254);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (spec, field) in [
            (json!({"intervalMilliseconds": 9}), "spec.bfd.intervalMilliseconds"),
            (json!({"intervalMilliseconds": 60_001}), "spec.bfd.intervalMilliseconds"),
            (json!({"multiplier": 0}), "spec.bfd.multiplier"),
        ] {
            assert_eq!(own(spec, None).unwrap_err().0, field);
        }
        for (spec, field) in [
            (json!({"receiveInterval": 1}), "spec.receiveInterval"),
            (json!({"transmitInterval": 100_000}), "spec.transmitInterval"),
            (json!({"detectMultiplier": 256}), "spec.detectMultiplier"),
            (json!({"minimumTtl": 0}), "spec.minimumTtl"),
        ] {
            assert_eq!(profile(spec).unwrap_err().0, field);
        }
    }
}

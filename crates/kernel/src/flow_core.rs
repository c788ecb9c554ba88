//! Decides where in the flow table new flows go: to its core while there are few flows, otherwise to
//! the rest (`lb_common::hash`).
//!
//! Each flow has a bucket in both, and is looked for in both. A late or wrong decision costs time,
//! but no flow. It stays in the map while no agent runs.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use aya::maps::{Array, Map, MapData};
use lb_common::family::{Family, V4, V6};
use lb_common::hash::core_of_flows;
use lb_common::layout::{BUCKET_ENTRIES, FlowBucket, Hints, Settings, Ticks, map};

use super::clock::read_clock;
use super::flow_tables::sample;
use super::mapped::Mapped;
use super::pins::Pins;
use super::plain::Plain;
use super::repeat::repeat_step;

/// In this time a thousand connections a second fill less than a third of the core of a table with
/// default size. What does not fit goes to the rest anyway.
const INTERVAL: Duration = Duration::from_secs(10);

/// Decides for both families every ten seconds, until the process ends.
pub fn place_new_flows(pins: &Pins) -> Result<()> {
    let places = FlowPlaces::open(pins)?;
    repeat_step(INTERVAL, "new flows stay where they go now", move || places.decide().map(drop));
    Ok(())
}

/// Where flows begin, of both families.
pub struct FlowPlaces {
    v4: FamilyFlows<V4>,
    v6: FamilyFlows<V6>,
    hints: Mapped,
    settings: Settings,
}

impl FlowPlaces {
    pub fn open(pins: &Pins) -> Result<Self> {
        let parameters = MapData::from_pin(pins.map(map::PARAMETERS))?;
        let parameters = Array::<_, Plain<Settings>>::try_from(Map::Array(parameters))?;
        let Plain(settings) = parameters.get(&0, 0)?;
        let hints = Mapped::new(&MapData::from_pin(pins.map(map::HINTS))?, size_of::<Hints>())?;
        let v4 = FamilyFlows::open(pins, map::FLOWS4)?;
        Ok(Self { v4, v6: FamilyFlows::open(pins, map::FLOWS6)?, hints, settings })
    }

    /// Returns whether flows begin in the rest now: IPv4's, and IPv6's.
    pub fn decide(&self) -> Result<[bool; 2]> {
        let now = read_clock()?;
        let v4 = self.decide_for(0, "IPv4", self.v4.load(&self.settings, now));
        let v6 = self.decide_for(1, "IPv6", self.v6.load(&self.settings, now));
        Ok([v4, v6])
    }

    fn decide_for(&self, index: u32, family: &str, load: FlowTableLoad) -> bool {
        let hint = self.hints.half(index, true);
        let before = hint.load(Ordering::Relaxed) != 0;
        let after = begins_in_rest(before, load);
        if after != before {
            hint.store(after.into(), Ordering::Relaxed);
            let first = if after { "rest" } else { "core" };
            tracing::debug!(family, flows = load.flows, first, "new flows begin elsewhere");
        }
        after
    }
}

struct FamilyFlows<F: Family> {
    flows: Mapped,
    family: PhantomData<F>,
}

impl<F: Family> FamilyFlows<F> {
    fn open(pins: &Pins, name: &str) -> Result<Self> {
        let flows = Mapped::new(&MapData::from_pin(pins.map(name))?, size_of::<FlowBucket<F>>())?;
        Ok(Self { flows, family: PhantomData })
    }

    /// An estimate.
    fn load(&self, settings: &Settings, now: Ticks) -> FlowTableLoad {
        let sample = sample::<F>(&self.flows);
        let scale = u64::from(sample.scale);
        let living = sample.buckets.map(|bucket| u64::from(bucket.living(settings, now)));
        FlowTableLoad { flows: living.sum::<u64>() * scale, buckets: self.flows.len() }
    }
}

/// How many flows live in a table, and how many buckets it has.
#[derive(Clone, Copy, Debug)]
pub struct FlowTableLoad {
    pub flows: u64,
    pub buckets: u32,
}

/// Whether new flows go to the rest first: once there are flows for more than half of the core, and
/// until there are flows for a quarter of it. The fuller it is the more flows are not in their
/// preferred entry, and their packets wait for one line of memory after the other.
pub fn begins_in_rest(before: bool, FlowTableLoad { flows, buckets }: FlowTableLoad) -> bool {
    let core = u64::from(core_of_flows(buckets)) * BUCKET_ENTRIES as u64;
    if before { 4 * flows > core } else { 2 * flows > core }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_begin_in_the_rest_while_there_are_many() {
        let decisions = [
            (false, 0, false),
            (false, 8, false),
            (false, 9, true),
            (true, 256, true),
            (true, 5, true),
            (true, 4, false),
        ];
        for (before, flows, after) in decisions {
            let load = FlowTableLoad { flows, buckets: 32 };
            assert_eq!(begins_in_rest(before, load), after, "{before}, {load:?}");
        }
    }
}

//! Clears the bits that mark clients as crowded once no flow needs them any more
//! (`lb_common::conntrack`). Otherwise, after a time with a nearly full table, every new flow would be
//! looked for in six buckets instead of two.

use std::marker::PhantomData;
use std::time::Duration;

use anyhow::Result;
use aya::maps::{Array, Map, MapData};
use lb_common::atomic::AtomicLong;
use lb_common::conntrack::{bit_of, clear_stale, crowded_bits, forget_lately};
use lb_common::family::{Family, V4, V6};
use lb_common::hash::FlowHash;
use lb_common::layout::{FlowBucket, FlowKind, Settings, Ticks, map};

use super::clock::read_clock;
use super::flow_tables::flows;
use super::mapped::Mapped;
use super::pins::Pins;
use super::plain::Plain;
use super::repeat::repeat_step;

/// The time between two steps. The programs that run when a clearing begins have long ended when it
/// continues.
const CLEARING_INTERVAL: Duration = Duration::from_secs(60);

/// Bits are cleared when more than one of this many is set: new flows hardly ever meet fewer.
const BITS_FOR_EACH_STALE_ONE: u64 = 64;

/// Takes a step for both families every minute, until the process ends.
pub fn clear_crowded_bits(pins: &Pins) -> Result<()> {
    let mut bits = CrowdedBits::open(pins)?;
    repeat_step(CLEARING_INTERVAL, "marks of crowded clients stay", move || {
        let marks = bits.step()?;
        if marks > 0 {
            tracing::debug!(marks, "marks of crowded clients cleared");
        }
        Ok(())
    });
    Ok(())
}

/// The bits of both families, and their clearing, which takes two steps: one that notes which bits are set from now on,
/// and one that clears those that neither a flow needs nor a program has set meanwhile.
pub struct CrowdedBits {
    v4: FamilyCrowdedBits<V4>,
    v6: FamilyCrowdedBits<V6>,
}

impl CrowdedBits {
    pub fn open(pins: &Pins) -> Result<Self> {
        let parameters = MapData::from_pin(pins.map(map::PARAMETERS))?;
        let parameters = Array::<_, Plain<Settings>>::try_from(Map::Array(parameters))?;
        let Plain(settings) = parameters.get(&0, 0)?;
        let v4 = [map::FLOWS4, map::CROWDED4, map::CROWDED_LATELY4];
        let v6 = [map::FLOWS6, map::CROWDED6, map::CROWDED_LATELY6];
        Ok(Self {
            v4: FamilyCrowdedBits::open(pins, v4, settings)?,
            v6: FamilyCrowdedBits::open(pins, v6, settings)?,
        })
    }

    /// Begins to clear if many bits are set, or ends what the last step has begun. Returns how many
    /// bits it has cleared.
    pub fn step(&mut self) -> Result<u32> {
        let now = read_clock()?;
        Ok(self.v4.step(now) + self.v6.step(now))
    }
}

struct FamilyCrowdedBits<F: Family> {
    flows: Mapped,
    crowded: Mapped,
    lately: Mapped,
    settings: Settings,
    has_begun: bool,
    family: PhantomData<F>,
}

impl<F: Family> FamilyCrowdedBits<F> {
    fn open(pins: &Pins, [flows, crowded, lately]: [&str; 3], settings: Settings) -> Result<Self> {
        let mapped = |name, size| Mapped::new(&MapData::from_pin(pins.map(name))?, size);
        Ok(Self {
            flows: mapped(flows, size_of::<FlowBucket<F>>())?,
            crowded: mapped(crowded, size_of::<AtomicLong>())?,
            lately: mapped(lately, size_of::<AtomicLong>())?,
            settings,
            has_begun: false,
            family: PhantomData,
        })
    }

    fn step(&mut self, now: Ticks) -> u32 {
        if self.has_begun {
            self.has_begun = false;
            return self.clear(now);
        }
        let words = (0..self.crowded.len()).map(|index| bit_word(&self.crowded, index).load());
        let set: u64 = words.map(|word| u64::from(word.count_ones())).sum();
        self.has_begun = set * BITS_FOR_EACH_STALE_ONE > u64::from(crowded_bits(self.flows.len()));
        if self.has_begun {
            (0..self.lately.len()).for_each(|index| forget_lately(bit_word(&self.lately, index)));
        }
        0
    }

    fn clear(&self, now: Ticks) -> u32 {
        let mut needed = vec![0; self.crowded.len() as usize];
        for (state, seen, flow) in flows::<F>(&self.flows) {
            // No lookup finds an expired flow.
            let has_expired = now.since(seen) > self.settings.limits[state as usize];
            if has_expired || !flow.kind.has(FlowKind::SPREAD) {
                continue;
            }
            let secret = &self.settings.secret;
            let client =
                FlowHash::of_client::<F>(secret, flow.client, flow.client_port, flow.protocol);
            let (word, bit) = bit_of(client, self.flows.len() - 1);
            needed[word as usize] |= bit;
        }
        let cleared = (0..).zip(needed).map(|(index, needed)| {
            clear_stale(bit_word(&self.crowded, index), bit_word(&self.lately, index), needed)
        });
        cleared.sum()
    }
}

fn bit_word(mapped: &Mapped, index: u32) -> &AtomicLong {
    // SAFETY: the map's values are words of 64 bits: their size was compared when it was mapped. All
    // access to them is atomic.
    unsafe { &*mapped.address(index).cast::<AtomicLong>() }
}

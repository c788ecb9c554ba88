//! The Maglev table of a pool.

use lb_common::maglev::{self, Weight};

/// A backend as a table needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WeightedBackend {
    pub identity: u64,
    pub weight: Weight,
    pub index: u32,
}

/// The contents of a pool's region. A Maglev table is built only when it is written: the tables of
/// a hundred thousand pools take half a gigabyte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table(Content);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Maglev {
        size: u32,
        /// Sorted.
        backends: Box<[WeightedBackend]>,
        /// How many slots are written: `size`, or more, which repeat the table.
        region: u32,
    },
    Slots(Vec<u32>),
}

impl Table {
    /// The table of these backends; empty if there are none.
    pub fn maglev(size: u32, mut backends: Vec<WeightedBackend>) -> Self {
        backends.sort_unstable();
        let size = if backends.is_empty() { 0 } else { size };
        Self(Content::Maglev { size, backends: backends.into(), region: size })
    }

    /// Arbitrary slots, valid or not.
    pub fn of_slots(slots: Vec<u32>) -> Self {
        Self(Content::Slots(slots))
    }

    pub fn is_empty(&self) -> bool {
        match &self.0 {
            Content::Maglev { size, .. } => *size == 0,
            Content::Slots(slots) => slots.is_empty(),
        }
    }

    /// This table for a larger region: it is repeated until the region is full.
    pub fn repeated(self, region: u32) -> Self {
        match self.0 {
            Content::Maglev { size, backends, .. } => {
                Self(Content::Maglev { size, backends, region })
            }
            slots => Self(slots),
        }
    }

    /// The backend's index in each slot.
    pub fn slots(&self) -> Vec<u32> {
        let (size, backends, region) = match &self.0 {
            Content::Maglev { size, backends, region } => (*size, backends, *region),
            Content::Slots(slots) => return slots.clone(),
        };
        let weighted: Vec<(u64, Weight)> =
            backends.iter().map(|backend| (backend.identity, backend.weight)).collect();
        let mut slots = maglev::weighted_table(&weighted, size);
        for slot in &mut slots {
            *slot = backends[*slot as usize].index;
        }
        for slot in size..region.max(size) {
            slots.push(slots[(slot - size) as usize]);
        }
        slots
    }
}

/// A digest of all slots in order: different tables have the same digest with probability 2^-64.
pub fn digest(slots: impl IntoIterator<Item = u32>) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    slots.into_iter().fold(0, |digest, slot| {
        // Each step is a bijection of the previous digest, so a difference persists.
        let product = (digest ^ u64::from(slot)).wrapping_add(1).wrapping_mul(ODD);
        product ^ (product >> 29)
    })
}

use lb_common::maglev;

/// What is written into a pool's region. A Maglev table is built only then: of a hundred thousand
/// pools, all tables at once take half a gigabyte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table(Content);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Maglev {
        size: u32,
        /// What each backend is, and its index; sorted.
        backends: Box<[(u64, u32)]>,
        /// How many slots are written: `size`, or more of the same.
        region: u32,
    },
    Slots(Vec<u32>),
}

impl Table {
    /// The table of these backends, by their identities and indexes; empty, if there are none.
    pub fn maglev(size: u32, mut backends: Vec<(u64, u32)>) -> Self {
        backends.sort_unstable();
        let size = if backends.is_empty() { 0 } else { size };
        Self(Content::Maglev { size, backends: backends.into(), region: size })
    }

    /// Any slots, right or wrong.
    pub fn of_slots(slots: Vec<u32>) -> Self {
        Self(Content::Slots(slots))
    }

    pub fn is_empty(&self) -> bool {
        match &self.0 {
            Content::Maglev { size, .. } => *size == 0,
            Content::Slots(slots) => slots.is_empty(),
        }
    }

    /// The same backends in a region that is larger than their table: the table is followed by its
    /// beginning, as often as there is room.
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
        let identities: Vec<u64> = backends.iter().map(|&(identity, _)| identity).collect();
        let mut slots = maglev::table(&identities, size);
        for slot in &mut slots {
            *slot = backends[*slot as usize].1;
        }
        for slot in size..region.max(size) {
            slots.push(slots[(slot - size) as usize]);
        }
        slots
    }
}

/// A number that follows from all slots in their order: tables that differ have, but for one chance
/// in 2^64, different ones.
pub fn digest(slots: impl IntoIterator<Item = u32>) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    slots.into_iter().fold(0, |digest, slot| {
        // Each step is a bijection of the digest before, so a difference stays one.
        let product = (digest ^ u64::from(slot)).wrapping_add(1).wrapping_mul(ODD);
        product ^ (product >> 29)
    })
}

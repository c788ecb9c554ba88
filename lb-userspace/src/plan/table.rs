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
    },
    Slots(Vec<u32>),
}

impl Table {
    /// The table of these backends, by their identities and indexes; empty, if there are none.
    pub fn maglev(size: u32, mut backends: Vec<(u64, u32)>) -> Self {
        backends.sort_unstable();
        let size = if backends.is_empty() { 0 } else { size };
        Self(Content::Maglev { size, backends: backends.into() })
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

    /// The backend's index in each slot.
    pub fn slots(&self) -> Vec<u32> {
        let (size, backends) = match &self.0 {
            Content::Maglev { size, backends } => (*size, backends),
            Content::Slots(slots) => return slots.clone(),
        };
        let identities: Vec<u64> = backends.iter().map(|&(identity, _)| identity).collect();
        let mut slots = maglev::table(&identities, size);
        for slot in &mut slots {
            *slot = backends[*slot as usize].1;
        }
        slots
    }
}

//! What the planner knows of a pool's table in the kernel.

use lb_common::maglev;

use super::allocate::Region;

/// A pool's table in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolTable {
    pub region: Region,
    pub fit: Fit,
}

/// How a table matches its pool's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The members' table, in the fitting size.
    Exact,
    /// The members' table, in a smaller size for lack of room.
    Coarse,
    /// Another table: an earlier agent's, or a partly written one.
    Unknown,
}

impl Fit {
    pub fn of(size: u32, members: usize) -> Self {
        if size == maglev::fitted_size(members) { Self::Exact } else { Self::Coarse }
    }
}

impl PoolTable {
    pub const EMPTY: Self = Self { region: Region::EMPTY, fit: Fit::Exact };
}

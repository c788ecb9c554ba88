//! The programs' clock.

use anyhow::Result;
use lb_common::layout::Ticks;
use nix::time::{ClockId, clock_gettime};

/// The current time of the clock that the programs read.
pub fn read_clock() -> Result<Ticks> {
    let clock = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE)?;
    Ok(Ticks::from_nanoseconds(clock.tv_sec() as u64 * 1_000_000_000 + clock.tv_nsec() as u64))
}

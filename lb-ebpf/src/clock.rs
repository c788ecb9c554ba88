//! The time, without asking for it.
//!
//! The coarse clock moves on with the kernel's timer ticks, which are counted in a word that the
//! verifier makes one load of. So the clock need only be asked, by a call, when that count has moved.

use aya_ebpf::helpers::{bpf_jiffies64, bpf_ktime_get_coarse_ns};
use lb_common::atomic::AtomicLong;
use lb_common::layout::Ticks;

/// The time when it was last asked for: the count's low half, then [`Ticks`]. One word, so that no
/// processor sees one half of what another writes. Never asked is as if asked when the count was 0:
/// in the one tick of 2^32 that has that count, nothing harmful is told.
static ASKED: AtomicLong = AtomicLong::new(0);

#[inline(always)]
pub fn now() -> Ticks {
    // SAFETY: the helper takes nothing and only reads a word.
    let count = unsafe { bpf_jiffies64() } << 32;
    let asked = ASKED.load();
    if asked & !u64::from(u32::MAX) == count {
        return Ticks(asked as u32);
    }
    // SAFETY: as above; it reads a clock.
    let now = Ticks::from_nanoseconds(unsafe { bpf_ktime_get_coarse_ns() });
    ASKED.store(count | u64::from(now.0));
    now
}

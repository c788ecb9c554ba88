//! The time, mostly without a call.
//!
//! The coarse clock advances with the kernel's timer ticks, and the verifier turns reading the tick
//! count into one load. So the clock is only called when the count has changed.

use aya_ebpf::helpers::{bpf_jiffies64, bpf_ktime_get_coarse_ns};
use lb_common::atomic::AtomicLong;
use lb_common::layout::Ticks;

/// The time at the last call: the low half of the count, then [`Ticks`]. One word, so that no CPU
/// sees half of another's store. Initially 0, as if called when the count was 0: in the one tick of
/// 2^32 with that count the result is wrong, without harm.
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

//! Messages of the programs in the agent's log, if enabled: only what no counter shows.
//!
//! Each is a function of its own, with its own stack frame, and is called on rare paths only. The
//! level is a constant to the verifier, which removes disabled messages.

use aya_log_ebpf::{debug, error, warn};

#[inline(never)]
pub fn stage_is_missing(stage: u32) {
    error!(
        (),
        "stage {} can't be reached: its program is missing, or too many came before it", stage
    );
}

#[inline(never)]
pub fn not_marked(device: u32) {
    warn!((), "device {} leaves no room to mark a packet for tc: it is dropped", device);
}

#[inline(never)]
pub fn replies(stage: u32, device: u32) {
    debug!((), "stage {}: a reply to a packet from device {}", stage, device);
}

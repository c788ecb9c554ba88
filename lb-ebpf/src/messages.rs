//! What the programs say in the agent's log, if they are to: nothing that a counter tells as well.
//!
//! Each is a function of its own, off the stack of who calls it, and called where packets seldom
//! come. The level is a constant to the verifier, which removes what it switches off.

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
pub fn answers(stage: u32, device: u32) {
    debug!((), "stage {}: a packet from device {} is answered", stage, device);
}

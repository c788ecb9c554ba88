//! Writes the link-layer addresses whose frames this machine receives.

use std::sync::atomic::Ordering;

use lb_common::layout::LinkAddresses;
use lb_network::Device;

use crate::mapped::Mapped;

/// Replaces the addresses of an interface; `None`: removed.
///
/// At no moment the interface has others, but not its own: frames to that one would not be served.
pub fn write_link_addresses(words: &Mapped, index: u32, device: Option<&Device>) {
    let wanted = device.map_or_else(Vec::new, |device| words_of(index, device));
    let bucket: Vec<u32> =
        (LinkAddresses::bucket(index)..).take(LinkAddresses::SLOTS as usize).collect();
    let read = |slot: &u32| words.word(*slot).load(Ordering::Relaxed);
    let is_kept = |slot: &u32| LinkAddresses::device(read(slot)) == u64::from(index);
    if bucket.iter().filter(|slot| is_kept(slot)).map(read).eq(wanted.iter().copied()) {
        return;
    }
    for slot in bucket.iter().filter(|slot| is_kept(slot)).rev() {
        words.word(*slot).store(0, Ordering::Release);
    }
    let free: Vec<u32> = bucket.into_iter().filter(|slot| read(slot) == 0).collect();
    if free.len() < wanted.len() {
        tracing::warn!(
            index,
            addresses = wanted.len(),
            room = free.len(),
            "interface has too many link-layer addresses; frames for other machines are served, too"
        );
        return;
    }
    for (slot, word) in free.into_iter().zip(wanted) {
        words.word(slot).store(word, Ordering::Release);
    }
}

/// Its own address first.
fn words_of(index: u32, device: &Device) -> Vec<u64> {
    if device.mac == [0; 6] {
        return Vec::new();
    }
    let macs = std::iter::once(&device.mac).chain(&device.macs_above);
    macs.map(|mac| LinkAddresses::word(index, *mac)).filter(|word| *word != 0).collect()
}

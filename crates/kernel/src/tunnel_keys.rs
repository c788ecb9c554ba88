//! The tunnel keys in the kernel.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use aya::maps::MapData;
use lb_common::layout::{TunnelKey, map};

use super::mapped::Mapped;
use super::pins::Pins;

/// The map with the tunnel keys to send and to accept.
pub struct TunnelKeys(Mapped);

impl TunnelKeys {
    pub fn open(pins: &Pins) -> Result<Self> {
        let path = pins.map(map::TUNNEL_KEYS);
        let data = MapData::from_pin(&path).with_context(|| path.display().to_string())?;
        Ok(Self(Mapped::new(&data, size_of::<u64>())?))
    }

    /// Indexed by [`TunnelKey`]. The key that is only accepted is written first, so that no packet
    /// is lost when keys change.
    pub fn write(&self, keys: [u64; TunnelKey::COUNT]) {
        for which in [TunnelKey::Other, TunnelKey::Current] {
            self.0.word(which as u32).store(keys[which as usize], Ordering::Release);
        }
    }
}

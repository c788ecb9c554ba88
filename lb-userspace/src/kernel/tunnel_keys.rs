use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use aya::maps::MapData;
use lb_common::layout::{TunnelKey, map};

use super::mapped::Mapped;
use super::pins::Pins;

/// The map with the keys that tunnels carry and that are accepted.
pub struct TunnelKeys(Mapped);

impl TunnelKeys {
    pub fn open(pins: &Pins) -> Result<Self> {
        let path = pins.map(map::TUNNEL_KEYS);
        let data = MapData::from_pin(&path).with_context(|| path.display().to_string())?;
        Ok(Self(Mapped::new(&data, size_of::<u64>())?))
    }

    /// By [`TunnelKey`]. What is accepted comes first: keys change without a packet lost.
    pub fn write(&self, keys: [u64; TunnelKey::COUNT]) {
        for which in [TunnelKey::Other, TunnelKey::Current] {
            self.0.word(which as u32).store(keys[which as usize], Ordering::Release);
        }
    }
}

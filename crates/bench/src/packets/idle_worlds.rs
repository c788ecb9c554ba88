//! Data planes that no case uses any more. Loading the programs takes the verifier seconds, and a reset data plane is
//! like a new one.

use std::collections::BTreeMap;

use ::tests::packets::datapath::KernelWorld;
use anyhow::Result;
use lb_kernel::Sizes;

/// By the capacity of the flow table.
#[derive(Default)]
pub(crate) struct IdleWorlds(BTreeMap<u32, Vec<KernelWorld>>);

impl IdleWorlds {
    /// A data plane like a new one.
    pub(crate) fn take_or_load(&mut self, room: u32) -> Result<KernelWorld> {
        match self.0.get_mut(&room).and_then(Vec::pop) {
            Some(mut world) => {
                world.reset()?;
                Ok(world)
            }
            None => KernelWorld::new(Sizes::for_flows(room)),
        }
    }

    /// Keeps a data plane for another case.
    pub fn keep(&mut self, room: u32, world: KernelWorld) {
        self.0.entry(room).or_default().push(world);
    }

    /// Drops those with other tables than the next cases use. The largest ones take gigabytes.
    pub(crate) fn keep_only(&mut self, room: u32) {
        self.0.retain(|of, _| *of == room);
    }
}

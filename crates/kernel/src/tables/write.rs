//! Executes the steps of plans on the maps.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use aya::maps::{MapData, PerCpuArray, PerCpuValues};
use aya::util::nr_cpus;
use lb_common::family::{Family, V4, V6};
use lb_common::layout::{self, Backend, Bitmap, Pool, Traffic};
use lb_plan::{FrontendKey, SideEntry, Sweep, WriteFamily, WriteTables};
use lb_rules::model::AddressFamily;

use super::{FamilyMaps, Tables, cache, sockets};
use crate::flow_tables;
use crate::mapped::Order;
use crate::plain::Plain;
use crate::removal::ignore_missing;

impl WriteTables for Tables {
    fn write_slots(&mut self, offset: u32, slots: &[u32]) -> Result<()> {
        let end = offset as usize + slots.len();
        ensure!(end <= self.slot_count() as usize, "slots {offset}..{end} are out of range");
        for (index, &backend) in (offset..).zip(slots) {
            self.slot(index).store(backend, Ordering::Relaxed);
        }
        Ok(())
    }

    fn swap_pool(&mut self, index: u32, pool: Pool) -> Result<()> {
        ensure!(index < self.pools.len(), "pool {index} is out of range");
        // Release: a program that sees the pool also sees the slots written before.
        self.pools.word(index).store(pool.to_word(), Ordering::Release);
        Ok(())
    }

    fn set_destination_bit(&mut self, bit: Bitmap) {
        // A flow of the other family may still need it.
        self.swept_apart &= !self.lingering.remove(&bit);
        self.destinations.set_bit(bit.word, bit.bit);
    }

    fn set_source_bit(&mut self, bit: Bitmap) {
        self.sources.set_bit(bit.word, bit.bit);
    }

    fn clear_source_bit(&mut self, bit: Bitmap) {
        self.sources.clear_bit(bit.word, bit.bit);
    }

    fn set_side_entry(&mut self, side_entry: &SideEntry) -> Result<()> {
        self.side_entries.set(side_entry)
    }

    fn remove_side_entry(&mut self, side_entry: &SideEntry) -> Result<()> {
        self.side_entries.remove(side_entry)
    }

    /// Ends the datagram flows that may not stay, also those of sockets. Clears the bits of destinations that neither a
    /// frontend nor a flow has, so that packets to them pass at the prefilter. Reads each family's
    /// table at most once.
    fn sweep_flows(&mut self, sweep: &Sweep) {
        if !sweep.bits.is_empty() {
            self.lingering.extend(&sweep.bits);
            self.lingering_families.extend(&sweep.families);
        }
        let mut families = sweep.families.clone();
        if !self.lingering.is_empty() {
            families.extend(&self.lingering_families);
            families.extend(AddressFamily::ALL.iter().filter(|_| !self.swept_apart));
        }
        if !sweep.datagrams.is_empty()
            && let Err(error) = self.sweep_sockets(sweep)
        {
            let error = format!("{error:#}");
            tracing::warn!(error, "sockets may keep sending to a backend that left its Service");
        }
        let mut needed = HashSet::new();
        if families.contains(&AddressFamily::V4) {
            flow_tables::sweep_flows::<V4>(
                &self.v4.flows,
                &sweep.datagrams,
                &self.lingering,
                &mut needed,
            );
        }
        if families.contains(&AddressFamily::V6) {
            flow_tables::sweep_flows::<V6>(
                &self.v6.flows,
                &sweep.datagrams,
                &self.lingering,
                &mut needed,
            );
        }
        for bit in self.lingering.extract_if(.., |bit| !needed.contains(bit)) {
            self.destinations.clear_bit(bit.word, bit.bit);
        }
        if self.lingering.is_empty() {
            self.lingering_families.clear();
        }
    }

    fn reset_service_traffic(&mut self, index: u32) -> Result<()> {
        reset(&mut self.service_traffic, index)
    }

    fn reset_backend_traffic(&mut self, index: u32) -> Result<()> {
        reset(&mut self.backend_traffic, index)
    }
}

impl Tables {
    fn sweep_sockets(&mut self, sweep: &Sweep) -> Result<()> {
        for family in &sweep.families {
            match family {
                AddressFamily::V4 => {
                    sockets::sweep_sockets(&mut self.v4.unconnected, &sweep.datagrams)?
                }
                AddressFamily::V6 => {
                    sockets::sweep_sockets(&mut self.v6.unconnected, &sweep.datagrams)?
                }
            }
        }
        Ok(())
    }
}

/// Chooses the maps of a family by type.
trait SelectFamily<F: Family> {
    fn maps(&mut self) -> &mut FamilyMaps<F>;
}

impl SelectFamily<V4> for Tables {
    fn maps(&mut self) -> &mut FamilyMaps<V4> {
        &mut self.v4
    }
}

impl SelectFamily<V6> for Tables {
    fn maps(&mut self) -> &mut FamilyMaps<V6> {
        &mut self.v6
    }
}

impl<F: Family> WriteFamily<F> for Tables
where
    Self: SelectFamily<F>,
{
    fn set_backend(&mut self, index: u32, entry: Backend<F::Address>) -> Result<()> {
        // An entry becomes valid with its last word, which contains the protocol.
        self.maps().store_backend(index, &entry, Order::LastWordLast)
    }

    fn retire_backend(&mut self, index: u32, unused: Backend<F::Address>) -> Result<()> {
        self.maps().store_backend(index, &unused, Order::LastWordFirst)
    }

    fn set_frontend(&mut self, key: layout::FrontendKey<F>, value: layout::Frontend) -> Result<()> {
        let name = FrontendKey::from(key);
        let maps = self.maps();
        let written = maps.frontends.insert(Plain(key), Plain(value), 0);
        written.with_context(|| format!("frontend {name} cannot be written"))?;
        cache::write_cached_entry(&maps.frontend_cache, key.cache_index(), key, Some(value));
        Ok(())
    }

    fn remove_frontend(&mut self, key: layout::FrontendKey<F>) -> Result<()> {
        let name = FrontendKey::from(key);
        let maps = self.maps();
        cache::write_cached_entry(
            &maps.frontend_cache,
            key.cache_index(),
            key,
            None::<layout::Frontend>,
        );
        let removed = maps.frontends.remove(&Plain(key));
        ignore_missing(removed).with_context(|| format!("frontend {name} cannot be removed"))
    }
}

impl<F: Family> FamilyMaps<F> {
    fn store_backend(
        &mut self,
        index: u32,
        entry: &Backend<F::Address>,
        order: Order,
    ) -> Result<()> {
        ensure!(index < self.backends.len(), "backend {index} is out of range");
        self.backends.store(index, entry, order);
        Ok(())
    }
}

fn reset(map: &mut PerCpuArray<MapData, Plain<Traffic>>, index: u32) -> Result<()> {
    let processors = nr_cpus().map_err(|(_, error)| error)?;
    let zeros = PerCpuValues::try_from(vec![Plain(Traffic::default()); processors])?;
    Ok(map.set(index, zeros, 0)?)
}

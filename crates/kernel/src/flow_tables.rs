//! The flow tables, which the kernel writes: reads them, counts their entries, ends datagram flows.

use std::collections::{BTreeSet, HashSet};

use lb_common::conntrack::state::{self, Phase, is_over, phase_of};
use lb_common::family::Family;
use lb_common::header::protocol;
use lb_common::layout::{BUCKET_ENTRIES, Backend, Bitmap, Flow, FlowBucket, FlowState, Ticks};
use lb_plan::{DatagramFlow, Datagrams};

use super::mapped::Mapped;
use super::plain::Layout;

pub fn flows<F: Family>(mapped: &Mapped) -> impl Iterator<Item = (FlowState, Ticks, Flow<F>)> + '_ {
    (0..mapped.len()).flat_map(|index| bucket::<F>(mapped, index).entries())
}

pub fn states<F: Family>(mapped: &Mapped) -> impl Iterator<Item = FlowState> + '_ {
    (0..mapped.len()).flat_map(|index| bucket::<F>(mapped, index).states())
}

pub fn list_datagram_flows<F: Family>(mapped: &Mapped, backends: &Mapped) -> BTreeSet<DatagramFlow>
where
    Backend<F::Address>: Layout,
{
    let stays = |flow: &Flow<F>| {
        let index = flow.backend_index;
        let backend: Option<Backend<F::Address>> =
            (index < backends.len()).then(|| backends.load(index));
        backend.is_some_and(|backend| {
            let is_there =
                backend.generation as u16 == flow.backend_generation && backend.protocol != 0;
            is_there && !backend.is_draining()
        })
    };
    flows::<F>(mapped)
        .filter(|(_, _, flow)| flow.protocol == protocol::UDP && stays(flow))
        .map(|(_, _, flow)| DatagramFlow::from(&flow))
        .collect()
}

/// Ends datagram flows that may not stay. Adds to `needed` those of `bits` that frontends of live
/// connections use. Datagram flows keep no bit.
pub fn sweep_flows<F: Family>(
    mapped: &Mapped,
    datagrams: &Datagrams,
    bits: &BTreeSet<Bitmap>,
    needed: &mut HashSet<Bitmap>,
) {
    for bucket in (0..mapped.len()).map(|index| bucket::<F>(mapped, index)) {
        if !datagrams.is_empty() {
            bucket.end_datagrams(|flow| !datagrams.may_stay(&flow.into()));
        }
        if bits.is_empty() {
            continue;
        }
        let living = bucket
            .entries()
            .filter(|(state, _, flow)| !is_over(*state) && flow.protocol != protocol::UDP);
        let found = living.map(|(_, _, flow)| Bitmap::destination::<F>(flow.frontend));
        needed.extend(found.filter(|bit| bits.contains(bit)));
    }
}

/// How many flows a table holds, and its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// By [`FlowState`].
    states: [u64; state::STATES],
    pub capacity: u64,
}

impl Occupancy {
    /// By the phase of a connection.
    pub fn by_state(&self) -> [(&'static str, u64); 6] {
        let count = |wanted: Phase| {
            let states = state::ALL.iter().zip(&self.states);
            states.filter(|(state, _)| phase_of(**state) == Some(wanted)).map(|(_, n)| n).sum()
        };
        [
            ("nascent", count(Phase::Nascent)),
            ("answered", count(Phase::Answered)),
            ("probation", count(Phase::Probation)),
            ("established", count(Phase::Established)),
            ("closing", count(Phase::Closing)),
            ("closed", count(Phase::Closed)),
        ]
    }
}

/// How many buckets are read for an estimate.
const SAMPLE: u32 = 2_048;

/// Some buckets of a table.
pub struct Sample<I> {
    pub buckets: I,
    /// How many buckets each of them stands for.
    pub scale: u32,
}

/// Buckets at equal distances: a table's parts are filled differently, and evenly in themselves.
pub fn sample<F: Family>(mapped: &Mapped) -> Sample<impl Iterator<Item = &FlowBucket<F>>> {
    let scale = mapped.len().div_ceil(SAMPLE);
    let numbers = (0..mapped.len()).step_by(scale as usize);
    Sample { buckets: numbers.map(|index| bucket::<F>(mapped, index)), scale }
}

pub fn occupancy<F: Family>(mapped: &Mapped) -> Occupancy {
    let Sample { buckets, scale } = sample::<F>(mapped);
    let mut states = [0; state::STATES];
    for state in buckets.flat_map(FlowBucket::states) {
        states[state as usize] += u64::from(scale);
    }
    Occupancy { states, capacity: u64::from(mapped.len()) * BUCKET_ENTRIES as u64 }
}

fn bucket<F: Family>(mapped: &Mapped, index: u32) -> &FlowBucket<F> {
    // SAFETY: the map's values are `FlowBucket`s: their size was compared when it was mapped. The
    // kernel writes to them concurrently; a bucket consists of atomic cells, and reads them by its
    // own protocol.
    unsafe { &*mapped.address(index).cast::<FlowBucket<F>>() }
}

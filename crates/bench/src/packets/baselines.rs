//! The cost of the harness itself, measured in the same rounds as the cases.

use crate::figures::Sample;
use crate::generator::{Side, packet_template};
use ::tests::packets::Packet;
use ::tests::packets::datapath::Hook;
use anyhow::Result;
use lb_common::bench::Template;

use super::case::{Case, PacketKind};
use super::record::CaseRecord;
use super::wrapper::Wrapper;

pub(crate) struct Baselines {
    forward: Baseline,
    reverse: Baseline,
    growth: Growth,
}

/// The baselines of one hook.
struct Baseline {
    wrapper: Wrapper,
    packet: Packet,
    template: Template,
    /// The empty program in the wrapper.
    wrapped: Sample,
    /// The empty program.
    empty: Sample,
}

/// A program that adds bytes in front of the packet, which the wrapper removes: two calls of a helper.
struct Growth {
    wrapper: Wrapper,
    sample: Sample,
}

impl Baselines {
    pub fn new() -> Result<Self> {
        Ok(Self {
            forward: Baseline::new(Hook::Forward)?,
            reverse: Baseline::new(Hook::Reverse)?,
            growth: Growth { wrapper: Wrapper::around_growth()?, sample: Sample::default() },
        })
    }

    /// Measures with this number of packets.
    pub fn measure(&mut self, packets: u32) -> Result<()> {
        self.forward.measure(packets)?;
        self.reverse.measure(packets)?;
        let Growth { wrapper, sample } = &mut self.growth;
        let Baseline { packet, template, .. } = &self.forward;
        let template = Template { at_front: 1, ..*template };
        sample.push(wrapper.run(&template, packet, packets)?.as_nanos() as f64);
        Ok(())
    }

    /// What the wrapper's call costs that restores the packet's start, in nanoseconds: half of the two.
    pub(crate) fn restoring(&self) -> f64 {
        (self.growth.sample.last() - self.forward.wrapped.last()) / 2.0
    }

    /// The wrapper's cost in this round, in nanoseconds.
    pub fn wrapper(&self, hook: Hook) -> f64 {
        match hook {
            Hook::Forward => self.forward.wrapped.last(),
            _ => self.reverse.wrapped.last(),
        }
    }

    /// Named `<hook>.empty` and `<hook>.wrapper`. Nothing is subtracted from them.
    pub fn records(&self) -> Vec<CaseRecord> {
        [("xdp", &self.forward), ("tc", &self.reverse)]
            .into_iter()
            .flat_map(|(hook, baseline)| {
                let Baseline { empty, wrapped, .. } = baseline;
                [("empty", empty), ("wrapper", wrapped)].map(|(what, sample)| {
                    CaseRecord::packet(sample, &format!("{hook}.{what}"), 0, None)
                })
            })
            .chain([CaseRecord::packet(&self.growth.sample, "xdp.growth.wrapper", 0, None)])
            .collect()
    }
}

impl Baseline {
    fn new(hook: Hook) -> Result<Self> {
        let packet =
            Case { hook, kind: PacketKind::None, ..Case::established(false, false) }.request();
        // The number of clients does not affect the cost: the wrapper stores nothing about them.
        let template = packet_template(&packet, Side::Source, 1);
        let wrapper = Wrapper::around_nothing(hook)?;
        let (wrapped, empty) = (Sample::default(), Sample::default());
        Ok(Self { wrapper, packet, template, wrapped, empty })
    }

    fn measure(&mut self, packets: u32) -> Result<()> {
        let Self { wrapper, packet, template, wrapped, empty } = self;
        wrapper.run(template, packet, packets / 4)?;
        wrapped.push(wrapper.run(template, packet, packets)?.as_nanos() as f64);
        empty.push(wrapper.run_empty(packet, packets)?.as_nanos() as f64);
        Ok(())
    }
}

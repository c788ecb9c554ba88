//! What becomes of a received UPDATE: it is counted and discarded.
//!
//! RFC 7606 asks for the mildest treatment that keeps the routes of both sides consistent. The severest, ending the
//! session, is for prefixes that cannot be read; its alternative is to ignore the family. A speaker that imports
//! nothing ignores all families from the start, so no UPDATE ends its session. Which treatment a router would choose
//! is reported all the same: a peer that sends malformed messages is worth knowing.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::attributes::{code, flag};
use super::prefix;
use super::reader::OctetReader;
use crate::family::Family;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedUpdate {
    pub announced: Vec<IpNet>,
    pub withdrawn: Vec<IpNet>,
    pub end_of_rib: Option<Family>,
    /// The first of the severest.
    pub fault: Option<UpdateFault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateFault {
    pub treatment: FaultTreatment,
    pub text: &'static str,
}

/// What RFC 7606 asks of a router, from mild to severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultTreatment {
    DiscardAttribute,
    TreatAsWithdraw,
    IgnoreFamily,
}

/// What the interpretation depends on.
#[derive(Clone, Copy, Debug)]
pub struct UpdateContext {
    pub external: bool,
    pub four_octet_as: bool,
}

impl ReceivedUpdate {
    pub fn parse(body: &[u8], peer: UpdateContext) -> Self {
        let mut received = Self::default();
        if received.read(&mut OctetReader::new(body), peer).is_none() {
            received.fault(FaultTreatment::IgnoreFamily, "a length exceeds the message");
        }
        received
    }

    fn fault(&mut self, treatment: FaultTreatment, text: &'static str) {
        if self.fault.is_none_or(|fault| fault.treatment < treatment) {
            self.fault = Some(UpdateFault { treatment, text });
        }
    }

    fn read(&mut self, reader: &mut OctetReader, peer: UpdateContext) -> Option<()> {
        let withdrawn = reader.long_part()?.rest();
        let attributes = reader.long_part()?;
        let announced = reader.rest();
        if withdrawn.is_empty() && attributes.is_empty() && announced.is_empty() {
            self.end_of_rib = Some(Family::Ipv4);
            return Some(());
        }
        match prefix::parse_prefixes(withdrawn, Family::Ipv4) {
            Some(prefixes) => self.withdrawn.extend(prefixes),
            None => self.fault(FaultTreatment::IgnoreFamily, "malformed withdrawn prefixes"),
        }
        let met = self.read_attributes(attributes, peer);
        match prefix::parse_prefixes(announced, Family::Ipv4) {
            Some(prefixes) => self.announced.extend(prefixes),
            None => self.fault(FaultTreatment::IgnoreFamily, "malformed prefixes"),
        }
        let reaches = met.has(code::MP_REACH_NLRI) || !announced.is_empty();
        let required = [
            (reaches, code::ORIGIN, "without ORIGIN"),
            (reaches, code::AS_PATH, "without AS_PATH"),
            (!announced.is_empty(), code::NEXT_HOP, "without NEXT_HOP"),
        ];
        for (needed, code, text) in required {
            if needed && !met.has(code) {
                self.fault(FaultTreatment::TreatAsWithdraw, text);
            }
        }
        let nothing = self.announced.is_empty() && self.withdrawn.is_empty();
        if nothing && met.codes.len() == 1 && self.fault.is_none() {
            self.end_of_rib = met.unreached;
        }
        Some(())
    }

    fn read_attributes(&mut self, mut reader: OctetReader, peer: UpdateContext) -> SeenAttributes {
        let mut met = SeenAttributes::default();
        while !reader.is_empty() {
            let Some((flags, code, mut value)) = read_attribute(&mut reader) else {
                self.fault(FaultTreatment::TreatAsWithdraw, "an attribute exceeds the attributes");
                break;
            };
            let holds_prefixes = [code::MP_REACH_NLRI, code::MP_UNREACH_NLRI].contains(&code);
            if met.has(code) {
                match holds_prefixes {
                    true => self.fault(FaultTreatment::IgnoreFamily, "prefixes in two attributes"),
                    false => self.fault(FaultTreatment::DiscardAttribute, "an attribute twice"),
                }
                continue;
            }
            met.codes.insert(code);
            match code {
                code::MP_REACH_NLRI => self.read_reach(value),
                code::MP_UNREACH_NLRI => met.unreached = self.read_unreach(value),
                _ => {
                    let fault = find_attribute_fault(flags, code, value.rest(), peer);
                    if let Some(UpdateFault { treatment, text }) = fault {
                        self.fault(treatment, text);
                    }
                }
            }
            if holds_prefixes && flags & (flag::OPTIONAL | flag::TRANSITIVE) != flag::OPTIONAL {
                self.fault(
                    FaultTreatment::TreatAsWithdraw,
                    "flags contradict the attribute's type",
                );
            }
        }
        met
    }

    fn read_reach(&mut self, mut value: OctetReader) {
        let mut read = || {
            let (afi, safi) = (value.u16()?, value.u8()?);
            let next_hop = value.part()?.rest();
            let _reserved = value.u8()?;
            let Some(family) = Family::of_identifiers(afi, safi) else { return Some(None) };
            Some(Some((next_hop.len(), prefix::parse_prefixes(value.rest(), family)?)))
        };
        match read() {
            None => self.fault(FaultTreatment::IgnoreFamily, "malformed MP_REACH_NLRI"),
            Some(None) => (),
            Some(Some((next_hop, prefixes))) => {
                self.announced.extend(prefixes);
                if ![4, 16, 32].contains(&next_hop) {
                    self.fault(FaultTreatment::IgnoreFamily, "next hop of an unexpected length");
                }
            }
        }
    }

    /// The family, if it is known.
    fn read_unreach(&mut self, mut value: OctetReader) -> Option<Family> {
        let mut read = || {
            let (afi, safi) = (value.u16()?, value.u8()?);
            let Some(family) = Family::of_identifiers(afi, safi) else { return Some(None) };
            Some(Some((family, prefix::parse_prefixes(value.rest(), family)?)))
        };
        match read() {
            None => {
                self.fault(FaultTreatment::IgnoreFamily, "malformed MP_UNREACH_NLRI");
                None
            }
            Some(None) => None,
            Some(Some((family, prefixes))) => {
                self.withdrawn.extend(prefixes);
                Some(family)
            }
        }
    }
}

/// The codes of the attributes so far.
#[derive(Default)]
struct SeenAttributes {
    codes: BTreeSet<u8>,
    unreached: Option<Family>,
}

impl SeenAttributes {
    fn has(&self, code: u8) -> bool {
        self.codes.contains(&code)
    }
}

fn read_attribute<'a>(reader: &mut OctetReader<'a>) -> Option<(u8, u8, OctetReader<'a>)> {
    let (flags, code) = (reader.u8()?, reader.u8()?);
    let value = if flags & flag::EXTENDED != 0 { reader.long_part()? } else { reader.part()? };
    Some((flags, code, value))
}

/// Of attributes without prefixes. RFC 7606, section 7.
fn find_attribute_fault(
    flags: u8,
    code: u8,
    value: &[u8],
    peer: UpdateContext,
) -> Option<UpdateFault> {
    use FaultTreatment::{DiscardAttribute, TreatAsWithdraw};
    const WELL_KNOWN: u8 = flag::TRANSITIVE;
    const NON_TRANSITIVE: u8 = flag::OPTIONAL;
    const TRANSITIVE: u8 = flag::OPTIONAL | flag::TRANSITIVE;
    let length = value.len();
    let list_of = |octets: usize| length > 0 && length.is_multiple_of(octets);
    // External peers do not send what only concerns one autonomous system.
    let internal = if peer.external { DiscardAttribute } else { TreatAsWithdraw };
    let aggregator = if peer.four_octet_as { 8 } else { 6 };
    let (expected, valid, treatment) = match code {
        code::ORIGIN => (WELL_KNOWN, matches!(value, [0..=2]), TreatAsWithdraw),
        code::AS_PATH => (WELL_KNOWN, is_as_path(value, peer.four_octet_as), TreatAsWithdraw),
        code::NEXT_HOP => (WELL_KNOWN, length == 4, TreatAsWithdraw),
        code::MULTI_EXIT_DISC => (NON_TRANSITIVE, length == 4, TreatAsWithdraw),
        code::LOCAL_PREF => (WELL_KNOWN, length == 4 && !peer.external, internal),
        code::ATOMIC_AGGREGATE => (WELL_KNOWN, length == 0, DiscardAttribute),
        code::AGGREGATOR => {
            let names_as = value.iter().take(aggregator - 4).any(|octet| *octet != 0);
            (TRANSITIVE, length == aggregator && names_as, DiscardAttribute)
        }
        code::COMMUNITIES => (TRANSITIVE, list_of(4), TreatAsWithdraw),
        code::ORIGINATOR_ID => (NON_TRANSITIVE, length == 4 && !peer.external, internal),
        code::CLUSTER_LIST => (NON_TRANSITIVE, list_of(4) && !peer.external, internal),
        code::EXTENDED_COMMUNITIES => (TRANSITIVE, list_of(8), TreatAsWithdraw),
        code::AS4_PATH => (TRANSITIVE, is_as_path(value, true), DiscardAttribute),
        code::LARGE_COMMUNITIES => (TRANSITIVE, list_of(12), TreatAsWithdraw),
        _ if flags & flag::OPTIONAL == 0 => {
            let text = "unknown well-known attribute";
            return Some(UpdateFault { treatment: TreatAsWithdraw, text });
        }
        _ => return None,
    };
    match () {
        _ if flags & (flag::OPTIONAL | flag::TRANSITIVE) != expected => {
            let text = "flags contradict the attribute's type";
            Some(UpdateFault { treatment: TreatAsWithdraw.min(treatment), text })
        }
        _ if !valid => Some(UpdateFault { treatment, text: "malformed attribute" }),
        _ => None,
    }
}

fn is_as_path(value: &[u8], four_octet_as: bool) -> bool {
    let mut reader = OctetReader::new(value);
    let size = if four_octet_as { 4 } else { 2 };
    let mut segment = || {
        // Sets and sequences, also of confederations.
        reader.u8().filter(|kind| (1..=4).contains(kind))?;
        let count = reader.u8().filter(|count| *count > 0)?;
        let mut numbers = reader.take(usize::from(count) * size)?.chunks_exact(size);
        // No autonomous system has number 0 (RFC 7607).
        let are_valid = numbers.all(|number| number.iter().any(|octet| *octet != 0));
        are_valid.then(|| reader.is_empty())
    };
    value.is_empty() || std::iter::from_fn(&mut segment).any(|at_the_end| at_the_end)
}

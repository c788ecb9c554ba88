//! Path attributes of announcements (RFC 4271, section 5).

use super::open::AS_TRANS;
use crate::family::{Family, SAFI_UNICAST};
use crate::route::{NextHop, RouteAttributes};

pub mod flag {
    pub(crate) const OPTIONAL: u8 = 0x80;
    pub(crate) const TRANSITIVE: u8 = 0x40;
    /// The length has two octets.
    pub(crate) const EXTENDED: u8 = 0x10;
}

pub mod code {
    pub const ORIGIN: u8 = 1;
    pub(crate) const AS_PATH: u8 = 2;
    pub(crate) const NEXT_HOP: u8 = 3;
    pub(crate) const MULTI_EXIT_DISC: u8 = 4;
    pub const LOCAL_PREF: u8 = 5;
    pub(crate) const ATOMIC_AGGREGATE: u8 = 6;
    pub(crate) const AGGREGATOR: u8 = 7;
    pub const COMMUNITIES: u8 = 8;
    pub(crate) const ORIGINATOR_ID: u8 = 9;
    pub(crate) const CLUSTER_LIST: u8 = 10;
    pub(crate) const MP_REACH_NLRI: u8 = 14;
    pub(crate) const MP_UNREACH_NLRI: u8 = 15;
    pub(crate) const EXTENDED_COMMUNITIES: u8 = 16;
    pub(crate) const AS4_PATH: u8 = 17;
    pub(crate) const LARGE_COMMUNITIES: u8 = 32;
}

/// What a session determines about the form of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeForm {
    pub local_as: u32,
    /// The peer is in another autonomous system.
    pub external: bool,
    /// Whether speaker and peer use AS numbers of four octets.
    pub four_octet_as: bool,
}

const WELL_KNOWN: u8 = flag::TRANSITIVE;
const OPTIONAL_TRANSITIVE: u8 = flag::OPTIONAL | flag::TRANSITIVE;
const AS_SEQUENCE: u8 = 2;
const ORIGIN_IGP: u8 = 0;
const DEFAULT_LOCAL_PREFERENCE: u32 = 100;

/// The link-bandwidth extended community, and the bit of types that do not cross the border of an autonomous system.
const LINK_BANDWIDTH: [u8; 2] = [0x00, 0x04];
const NON_TRANSITIVE: u8 = 0x40;

fn append_attribute(out: &mut Vec<u8>, flags: u8, code: u8, value: &[u8]) {
    // No value is longer than a message.
    match u8::try_from(value.len()) {
        Ok(length) => out.extend([flags, code, length]),
        Err(_) => {
            out.extend([flags | flag::EXTENDED, code]);
            out.extend((value.len() as u16).to_be_bytes());
        }
    }
    out.extend(value);
}

/// All attributes except those with prefixes, ascending by code.
pub(crate) fn encode_attributes(
    attributes: &RouteAttributes,
    form: &AttributeForm,
    next_hop: Option<&NextHop>,
) -> Vec<u8> {
    let mut out = Vec::new();
    append_attribute(&mut out, WELL_KNOWN, code::ORIGIN, &[ORIGIN_IGP]);
    append_attribute(&mut out, WELL_KNOWN, code::AS_PATH, &encode_as_path(form));
    if let Some(NextHop::Ipv4(address)) = next_hop {
        append_attribute(&mut out, WELL_KNOWN, code::NEXT_HOP, &address.octets());
    }
    if !form.external {
        let preference = attributes.local_preference.unwrap_or(DEFAULT_LOCAL_PREFERENCE);
        append_attribute(&mut out, WELL_KNOWN, code::LOCAL_PREF, &preference.to_be_bytes());
    }
    let mut add_list = |code, value: Vec<u8>| {
        if !value.is_empty() {
            append_attribute(&mut out, OPTIONAL_TRANSITIVE, code, &value);
        }
    };
    let standard = attributes.communities.standard().iter();
    add_list(code::COMMUNITIES, standard.flat_map(|each| each.0.to_be_bytes()).collect());
    add_list(code::EXTENDED_COMMUNITIES, encode_link_bandwidth(attributes, form));
    add_list(code::AS4_PATH, encode_as4_path(form));
    let large = attributes.communities.large().iter();
    let words = large.flat_map(|each| [each.administrator, each.data[0], each.data[1]]);
    add_list(code::LARGE_COMMUNITIES, words.flat_map(u32::to_be_bytes).collect());
    out
}

fn encode_as_path(form: &AttributeForm) -> Vec<u8> {
    if !form.external {
        return Vec::new();
    }
    let mut path = vec![AS_SEQUENCE, 1];
    match form.four_octet_as {
        true => path.extend(form.local_as.to_be_bytes()),
        false => path.extend(u16::try_from(form.local_as).unwrap_or(AS_TRANS).to_be_bytes()),
    }
    path
}

/// For peers behind one that knows only AS numbers of two octets (RFC 6793).
fn encode_as4_path(form: &AttributeForm) -> Vec<u8> {
    let needed = form.external && !form.four_octet_as && form.local_as > u32::from(u16::MAX);
    match needed {
        true => [&[AS_SEQUENCE, 1][..], &form.local_as.to_be_bytes()].concat(),
        false => Vec::new(),
    }
}

/// Transitive towards another autonomous system: its routers would ignore it otherwise.
fn encode_link_bandwidth(attributes: &RouteAttributes, form: &AttributeForm) -> Vec<u8> {
    let Some(bandwidth) = attributes.bandwidth else { return Vec::new() };
    let [kind, subtype] = LINK_BANDWIDTH;
    let kind = if form.external { kind } else { kind | NON_TRANSITIVE };
    let [high, low] = u16::try_from(form.local_as).unwrap_or(AS_TRANS).to_be_bytes();
    [&[kind, subtype, high, low][..], &bandwidth.to_be_bytes()].concat()
}

/// An attribute that contains prefixes, up to them. [`finish_prefix_attribute`] sets its length.
pub(crate) fn begin_prefix_attribute(
    out: &mut Vec<u8>,
    code: u8,
    family: Family,
    next_hop: Option<&NextHop>,
) {
    out.extend([flag::OPTIONAL | flag::EXTENDED, code, 0, 0]);
    out.extend(family.afi().to_be_bytes());
    out.push(SAFI_UNICAST);
    let Some(next_hop) = next_hop else { return };
    let addresses = match next_hop {
        NextHop::Ipv4(address) => address.to_ipv6_mapped().octets().to_vec(),
        NextHop::Ipv6 { global, link_local } => {
            let both = [Some(*global), *link_local].into_iter().flatten();
            both.flat_map(|address| address.octets()).collect()
        }
    };
    out.push(addresses.len() as u8);
    out.extend(addresses);
    // Reserved.
    out.push(0);
}

/// `start`: where the attribute begins.
pub(crate) fn finish_prefix_attribute(out: &mut [u8], start: usize) {
    let length = (out.len() - start - 4) as u16;
    out[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
}

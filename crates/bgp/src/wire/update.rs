//! UPDATE messages that announce and withdraw prefixes.
//!
//! Each function packs as many prefixes as fit into each message.

use ipnet::IpNet;

use super::attributes::{
    self, AttributeForm, begin_prefix_attribute, code, finish_prefix_attribute,
};
use super::header::{HEADER_OCTETS, MAX_MESSAGE_OCTETS, MessageKind, append_message};
use super::prefix;
use crate::family::Family;
use crate::route::{NextHop, RouteAttributes};

/// Where a message has its prefixes.
#[derive(Clone, Copy)]
enum PrefixField {
    /// As in BGP without capabilities; only for IPv4.
    Classic,
    /// In an attribute of RFC 4760.
    Attribute(Family),
}

/// Octets of the two length fields: of withdrawn prefixes and of attributes.
const LENGTH_FIELDS_OCTETS: usize = 4;

/// Announces prefixes of one family with the same attributes.
///
/// IPv4 prefixes with an IPv6 next hop need RFC 8950.
pub fn append_announcements(
    out: &mut Vec<u8>,
    family: Family,
    prefixes: &[IpNet],
    next_hop: &NextHop,
    attributes: &RouteAttributes,
    form: &AttributeForm,
) {
    let field = match (family, next_hop) {
        (Family::Ipv4, NextHop::Ipv4(_)) => PrefixField::Classic,
        _ => PrefixField::Attribute(family),
    };
    let mut head = Vec::new();
    if let PrefixField::Attribute(family) = field {
        begin_prefix_attribute(&mut head, code::MP_REACH_NLRI, family, Some(next_hop));
    }
    let classic = matches!(field, PrefixField::Classic).then_some(next_hop);
    let common = attributes::encode_attributes(attributes, form, classic);
    let room =
        MAX_MESSAGE_OCTETS - HEADER_OCTETS - LENGTH_FIELDS_OCTETS - head.len() - common.len();
    for prefixes in chunk_prefixes(prefixes, room) {
        append_message(out, MessageKind::Update, |out| {
            out.extend([0, 0]);
            append_with_length(out, |out| match field {
                PrefixField::Classic => out.extend(&common),
                PrefixField::Attribute(_) => {
                    // RFC 7606: first, so that a fault in another attribute does not hide the prefixes.
                    let start = out.len();
                    out.extend(&head);
                    prefixes.iter().for_each(|each| prefix::append_prefix(out, each));
                    finish_prefix_attribute(out, start);
                    out.extend(&common);
                }
            });
            if let PrefixField::Classic = field {
                prefixes.iter().for_each(|each| prefix::append_prefix(out, each));
            }
        });
    }
}

/// Withdraws prefixes of one family. `extended`: they were announced with RFC 8950, or are not IPv4.
pub fn append_withdrawals(out: &mut Vec<u8>, family: Family, prefixes: &[IpNet], extended: bool) {
    if family == Family::Ipv4 && !extended {
        for prefixes in
            chunk_prefixes(prefixes, MAX_MESSAGE_OCTETS - HEADER_OCTETS - LENGTH_FIELDS_OCTETS)
        {
            append_message(out, MessageKind::Update, |out| {
                append_with_length(out, |out| {
                    prefixes.iter().for_each(|each| prefix::append_prefix(out, each))
                });
                out.extend([0, 0]);
            });
        }
        return;
    }
    let mut head = Vec::new();
    begin_prefix_attribute(&mut head, code::MP_UNREACH_NLRI, family, None);
    for prefixes in chunk_prefixes(
        prefixes,
        MAX_MESSAGE_OCTETS - HEADER_OCTETS - LENGTH_FIELDS_OCTETS - head.len(),
    ) {
        withdraw_in_attribute(out, &head, prefixes);
    }
}

fn withdraw_in_attribute(out: &mut Vec<u8>, head: &[u8], prefixes: &[IpNet]) {
    append_message(out, MessageKind::Update, |out| {
        out.extend([0, 0]);
        append_with_length(out, |out| {
            let start = out.len();
            out.extend(head);
            prefixes.iter().for_each(|each| prefix::append_prefix(out, each));
            finish_prefix_attribute(out, start);
        });
    });
}

/// Everything of this family has been announced (RFC 4724, section 2).
pub fn append_end_of_rib(out: &mut Vec<u8>, family: Family) {
    match family {
        Family::Ipv4 => {
            append_message(out, MessageKind::Update, |out| out.extend([0; LENGTH_FIELDS_OCTETS]))
        }
        Family::Ipv6 => {
            let mut head = Vec::new();
            begin_prefix_attribute(&mut head, code::MP_UNREACH_NLRI, family, None);
            withdraw_in_attribute(out, &head, &[]);
        }
    }
}

/// Appends a length of two octets, and what it is the length of.
fn append_with_length(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0, 0]);
    write(out);
    let length = (out.len() - start - 2) as u16;
    out[start..start + 2].copy_from_slice(&length.to_be_bytes());
}

/// Consecutive prefixes that together need at most `room` octets.
fn chunk_prefixes(prefixes: &[IpNet], room: usize) -> impl Iterator<Item = &[IpNet]> {
    let mut rest = prefixes;
    std::iter::from_fn(move || {
        let mut used = 0;
        let fits = |each: &&IpNet| {
            used += prefix::count_prefix_octets(each);
            used <= room
        };
        let (taken, left) = rest.split_at(rest.iter().take_while(fits).count());
        rest = left;
        (!taken.is_empty()).then_some(taken)
    })
}

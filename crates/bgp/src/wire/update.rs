//! UPDATE messages that announce and withdraw prefixes.
//!
//! Each function packs as many prefixes as fit into each message.

use ipnet::IpNet;

use super::attributes::{self, close_prefixes, code, open_prefixes};
use super::message::{HEADER, Kind, MOST_OCTETS, append};
use super::prefix;
use crate::family::Family;
use crate::route::{Attributes, NextHop};

/// What a session determines about the form of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub local_as: u32,
    /// The peer is in another autonomous system.
    pub external: bool,
    /// Both sides use AS numbers of four octets.
    pub four_octet_as: bool,
}

/// Where a message has its prefixes.
#[derive(Clone, Copy)]
enum Field {
    /// As in BGP without capabilities; only for IPv4.
    Classic,
    /// In an attribute of RFC 4760.
    Attribute(Family),
}

/// Both lengths, of withdrawn prefixes and of attributes.
const LENGTHS: usize = 4;

/// Announces prefixes of one family with the same attributes.
///
/// IPv4 prefixes with an IPv6 next hop need RFC 8950.
pub fn announce(
    out: &mut Vec<u8>,
    family: Family,
    prefixes: &[IpNet],
    next_hop: &NextHop,
    attributes: &Attributes,
    form: &Form,
) {
    let field = match (family, next_hop) {
        (Family::Ipv4, NextHop::Ipv4(_)) => Field::Classic,
        _ => Field::Attribute(family),
    };
    let mut head = Vec::new();
    if let Field::Attribute(family) = field {
        open_prefixes(&mut head, code::MP_REACH_NLRI, family, Some(next_hop));
    }
    let classic = matches!(field, Field::Classic).then_some(next_hop);
    let common = attributes::encode(attributes, form, classic);
    let room = MOST_OCTETS - HEADER - LENGTHS - head.len() - common.len();
    for prefixes in packed(prefixes, room) {
        append(out, Kind::Update, |out| {
            out.extend([0, 0]);
            with_length(out, |out| match field {
                Field::Classic => out.extend(&common),
                Field::Attribute(_) => {
                    // RFC 7606: first, so that a fault in another attribute does not hide the prefixes.
                    let start = out.len();
                    out.extend(&head);
                    prefixes.iter().for_each(|each| prefix::append(out, each));
                    close_prefixes(out, start);
                    out.extend(&common);
                }
            });
            if let Field::Classic = field {
                prefixes.iter().for_each(|each| prefix::append(out, each));
            }
        });
    }
}

/// Withdraws prefixes of one family. `extended`: they were announced with RFC 8950, or are not IPv4.
pub fn withdraw(out: &mut Vec<u8>, family: Family, prefixes: &[IpNet], extended: bool) {
    if family == Family::Ipv4 && !extended {
        for prefixes in packed(prefixes, MOST_OCTETS - HEADER - LENGTHS) {
            append(out, Kind::Update, |out| {
                with_length(out, |out| prefixes.iter().for_each(|each| prefix::append(out, each)));
                out.extend([0, 0]);
            });
        }
        return;
    }
    let mut head = Vec::new();
    open_prefixes(&mut head, code::MP_UNREACH_NLRI, family, None);
    for prefixes in packed(prefixes, MOST_OCTETS - HEADER - LENGTHS - head.len()) {
        withdraw_in_attribute(out, &head, prefixes);
    }
}

fn withdraw_in_attribute(out: &mut Vec<u8>, head: &[u8], prefixes: &[IpNet]) {
    append(out, Kind::Update, |out| {
        out.extend([0, 0]);
        with_length(out, |out| {
            let start = out.len();
            out.extend(head);
            prefixes.iter().for_each(|each| prefix::append(out, each));
            close_prefixes(out, start);
        });
    });
}

/// Everything of this family has been announced (RFC 4724, section 2).
pub fn end_of_rib(out: &mut Vec<u8>, family: Family) {
    match family {
        Family::Ipv4 => append(out, Kind::Update, |out| out.extend([0; LENGTHS])),
        Family::Ipv6 => {
            let mut head = Vec::new();
            open_prefixes(&mut head, code::MP_UNREACH_NLRI, family, None);
            withdraw_in_attribute(out, &head, &[]);
        }
    }
}

/// Appends a length of two octets, and what it is the length of.
fn with_length(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0, 0]);
    write(out);
    let length = (out.len() - start - 2) as u16;
    out[start..start + 2].copy_from_slice(&length.to_be_bytes());
}

/// Consecutive prefixes that together need at most `room` octets.
fn packed(prefixes: &[IpNet], room: usize) -> impl Iterator<Item = &[IpNet]> {
    let mut rest = prefixes;
    std::iter::from_fn(move || {
        let mut used = 0;
        let fits = |each: &&IpNet| {
            used += prefix::octets(each);
            used <= room
        };
        let (taken, left) = rest.split_at(rest.iter().take_while(fits).count());
        rest = left;
        (!taken.is_empty()).then_some(taken)
    })
}

//! What the peer should have, what it has, and the UPDATEs that lead from one to the other.
//!
//! Changes of a prefix that has not been sent yet replace each other: a peer that reads slowly gets the latest state,
//! and never more than one state of each prefix waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;

use super::config::NextHops;
use crate::family::Family;
use crate::route::RouteAttributes;
use crate::wire::AttributeForm;
use crate::wire::update::{append_announcements, append_end_of_rib, append_withdrawals};

/// Prefixes that one round of [`RouteOutbox::encode_due_updates`] takes: bounds what waits in memory for a peer.
const PREFIXES_PER_ROUND: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct RouteOutbox {
    wanted: BTreeMap<IpNet, Arc<RouteAttributes>>,
    /// On the current session.
    sent: BTreeMap<IpNet, Arc<RouteAttributes>>,
    /// Prefixes to compare; those with `true` are sent even if nothing has changed.
    pending: BTreeMap<IpNet, bool>,
    /// Families whose End-of-RIB is to be sent once nothing is pending.
    unfinished: BTreeSet<Family>,
    synced: bool,
    drained: bool,
}

/// What the session has agreed on.
#[derive(Clone, Debug)]
pub(crate) struct SessionAgreement {
    pub form: AttributeForm,
    /// Of both sides.
    pub families: BTreeSet<Family>,
    pub next_hops: NextHops,
    pub extended_next_hop: bool,
    /// The peer waits for the End-of-RIB.
    pub end_of_rib: bool,
}

impl SessionAgreement {
    /// The families that can be announced.
    pub(crate) fn announceable(&self) -> BTreeSet<Family> {
        let has_next_hop = |family: &Family| {
            self.next_hops.next_hop_for(*family, self.extended_next_hop).is_some()
        };
        self.families.iter().copied().filter(has_next_hop).collect()
    }
}

impl RouteOutbox {
    pub(crate) fn set_route(&mut self, prefix: IpNet, attributes: Option<Arc<RouteAttributes>>) {
        match attributes {
            Some(attributes) => self.wanted.insert(prefix, attributes),
            None => self.wanted.remove(&prefix),
        };
        self.pending.entry(prefix).or_insert(false);
    }

    /// All that is wanted is known.
    pub(crate) fn set_synced(&mut self) {
        self.synced = true;
    }

    pub(crate) fn set_drained(&mut self, drained: bool) {
        if std::mem::replace(&mut self.drained, drained) != drained {
            self.resend_routes(|_| true);
        }
    }

    /// The peer has nothing of a session that begins.
    pub(crate) fn restart_for_session(&mut self, agreement: &SessionAgreement) {
        self.sent.clear();
        self.pending = self.wanted.keys().map(|prefix| (*prefix, false)).collect();
        let families = agreement.families.clone();
        self.unfinished = if agreement.end_of_rib { families } else { BTreeSet::new() };
    }

    /// The peer has asked for the routes of a family.
    pub(crate) fn resend_family(&mut self, family: Family) {
        self.resend_routes(|prefix| Family::of_prefix(prefix) == family);
    }

    /// All routes of a family are sent, also those that the peer has: their next hop is another one.
    pub(crate) fn resend_with_next_hop(&mut self, family: Family) {
        let all = self.wanted.keys().chain(self.sent.keys());
        let all = all.filter(|prefix| Family::of_prefix(prefix) == family);
        self.pending.extend(all.map(|prefix| (*prefix, true)));
    }

    fn resend_routes(&mut self, which: impl Fn(&IpNet) -> bool) {
        let sent = self.sent.keys().filter(|prefix| which(prefix));
        self.pending.extend(sent.map(|prefix| (*prefix, true)));
    }

    /// How many prefixes the peer has.
    pub(crate) fn count_sent_prefixes(&self) -> usize {
        self.sent.len()
    }

    /// Whether all that is wanted, as far as known, has been sent, and the peer knows that.
    pub fn is_finished(&self) -> bool {
        self.pending.is_empty() && self.unfinished.is_empty() && self.synced
    }

    /// Some of the UPDATEs that are due. Empty if there are none.
    pub(crate) fn encode_due_updates(&mut self, agreement: &SessionAgreement) -> Vec<u8> {
        let mut out = Vec::new();
        while out.is_empty() && !self.pending.is_empty() {
            self.encode_round(agreement, &mut out);
        }
        if out.is_empty() && self.synced {
            for family in std::mem::take(&mut self.unfinished) {
                append_end_of_rib(&mut out, family);
            }
        }
        out
    }

    fn encode_round(&mut self, agreement: &SessionAgreement, out: &mut Vec<u8>) {
        let mut withdrawn: BTreeMap<Family, Vec<IpNet>> = BTreeMap::new();
        // By the address of the attributes, which routes share.
        let mut announced: BTreeMap<(Family, usize), (Arc<RouteAttributes>, Vec<IpNet>)> =
            BTreeMap::new();
        let families = agreement.announceable();
        for _ in 0..PREFIXES_PER_ROUND {
            let Some((prefix, again)) = self.pending.pop_first() else { break };
            let family = Family::of_prefix(&prefix);
            if !families.contains(&family) {
                // It had a next hop before.
                if self.sent.remove(&prefix).is_some() {
                    withdrawn.entry(family).or_default().push(prefix);
                }
                continue;
            }
            match self.wanted.get(&prefix) {
                None => {
                    if self.sent.remove(&prefix).is_some() {
                        withdrawn.entry(family).or_default().push(prefix);
                    }
                }
                Some(wanted) if again || self.sent.get(&prefix) != Some(wanted) => {
                    let key = (family, Arc::as_ptr(wanted).addr());
                    let group = announced.entry(key).or_insert_with(|| (wanted.clone(), vec![]));
                    group.1.push(prefix);
                    self.sent.insert(prefix, wanted.clone());
                }
                Some(_) => (),
            }
        }
        let next_hop =
            |family| agreement.next_hops.next_hop_for(family, agreement.extended_next_hop);
        for (family, prefixes) in withdrawn {
            let extended = matches!(next_hop(family), Some(crate::NextHop::Ipv6 { .. }));
            append_withdrawals(out, family, &prefixes, extended);
        }
        for ((family, _), (attributes, prefixes)) in announced {
            // Announceable families have one.
            let Some(next_hop) = next_hop(family) else { continue };
            let attributes = match self.drained {
                true => Arc::new(attributes.for_shutdown()),
                false => attributes,
            };
            append_announcements(out, family, &prefixes, &next_hop, &attributes, &agreement.form);
        }
    }
}

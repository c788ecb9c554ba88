//! The state of an election, as commands and metrics show it.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::address_state::AddressState;
use super::identity::{CandidateRank, LinkAddress, format_link_address};
use super::link::{ElectionCounts, LinkElection};
use super::remote_holders::RemoteHolder;
use super::timing::Time;

/// One link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkView {
    pub interface: String,
    pub usable: bool,
    pub authenticated: bool,
    pub listening: bool,
    /// More nodes would take part than can.
    #[serde(default)]
    pub crowded: bool,
    /// Addresses that are announced by no node, because there are more than a link can have.
    #[serde(default)]
    pub beyond: usize,
    /// The link-layer address of another machine that takes part under this node's name.
    #[serde(default)]
    pub same_name: Option<LinkAddress>,
    #[serde(flatten)]
    pub counts: ElectionCounts,
    pub peers: Vec<PeerView>,
    pub addresses: Vec<AddressView>,
}

/// Another participant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerView {
    pub node: String,
    pub interface: String,
    pub silent: bool,
    /// The peer does not hear this node.
    pub deaf: bool,
    pub holds: usize,
}

/// One address on one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressView {
    pub address: IpAddr,
    /// Filled in by the caller: an election knows no Services.
    pub services: Vec<String>,
    /// The node that holds the address, as far as this one knows.
    pub holder: Option<String>,
    pub epoch: Option<u32>,
    /// How long this node has held it, in seconds.
    pub held_seconds: Option<u64>,
    /// Another machine uses it.
    pub blocked: bool,
    /// Some node is a candidate.
    pub candidates: bool,
    /// Why this node does not hold it.
    pub why_not_here: Option<String>,
}

impl AddressView {
    /// Whether a node should hold it, and none does.
    pub fn is_missing(&self) -> bool {
        self.candidates && self.holder.is_none()
    }

    pub fn is_here(&self) -> bool {
        self.why_not_here.is_none()
    }
}

impl LinkElection {
    pub fn link_view(&self, now: Time) -> LinkView {
        let deaf_after = self.peers.deaf_after(&self.timing);
        // Other participants do not acknowledge one that sends nothing, so they are not deaf.
        let is_quiet = now > self.quiet_after;
        let peers = self.peers.iter().map(|(_, peer)| PeerView {
            node: peer.node.clone(),
            interface: peer.interface.clone(),
            silent: peer.silent,
            deaf: peer.hears_nobody || !is_quiet && peer.is_deaf(now, deaf_after),
            holds: peer.table.held_epochs().count(),
        });
        let known = self.wanted.iter().flatten().map(|(address, _)| *address);
        let mut known: Vec<IpAddr> = known.chain(self.addresses.keys().copied()).collect();
        known.sort_unstable();
        known.dedup();
        let holders = self.list_remote_holders(now);
        let view_of = |address| {
            let claims = holders.claims.get(&address).map_or(&[][..], Vec::as_slice);
            self.address_view(address, claims, now)
        };
        LinkView {
            interface: self.identity.interface.clone(),
            usable: self.usable,
            authenticated: self.keys.authenticate(),
            listening: self.listening.is_some(),
            crowded: self.surplus || self.peers.is_crowded(now),
            beyond: self.beyond,
            same_name: self.same_name(now),
            counts: self.counts(),
            peers: peers.collect(),
            addresses: known.into_iter().map(view_of).collect(),
        }
    }

    fn address_view(&self, address: IpAddr, claims: &[RemoteHolder], now: Time) -> AddressView {
        let state = self.addresses.get(&address).copied().unwrap_or(AddressState::Elsewhere);
        if let Some(holding) = state.holding() {
            let held: Duration = now.saturating_sub(holding.since);
            return AddressView {
                address,
                services: Vec::new(),
                holder: Some(self.identity.node.clone()),
                epoch: Some(holding.epoch),
                held_seconds: Some(held.as_secs()),
                blocked: false,
                candidates: true,
                why_not_here: None,
            };
        }
        let known = self.known_epoch(address);
        let holder =
            claims.iter().max_by_key(|claim| (!claim.silent, claim.precedence(address, known)));
        let node = holder.and_then(|holder| self.peers.get(holder.id)).map(|peer| &peer.node);
        AddressView {
            address,
            services: Vec::new(),
            epoch: holder.map(|holder| holder.epoch),
            holder: node.cloned(),
            held_seconds: None,
            candidates: self.choice.chosen.contains_key(&address),
            blocked: matches!(state, AddressState::Blocked { by: Some(_), .. }),
            why_not_here: Some(self.explain_not_held(address, state)),
        }
    }

    fn explain_not_held(&self, address: IpAddr, state: AddressState) -> String {
        let wanted = self.wanted.as_ref().and_then(|wanted| wanted.get(&address));
        match state {
            AddressState::Blocked { by: Some(by), .. } => {
                format!("{} uses the address", format_link_address(by))
            }
            AddressState::Blocked { by: None, .. } => "the kernel refused it".to_owned(),
            AddressState::Answered { .. } => {
                "the kernel of a node that does not hold it, or is silent, answers for it"
                    .to_owned()
            }
            AddressState::Probing(_) => "asking whether another machine uses it".to_owned(),
            _ if !self.usable => "the interface is down".to_owned(),
            _ if self.listening.is_some() => "listening to the other nodes".to_owned(),
            _ if self.leaving.is_some() => "the agent is shutting down".to_owned(),
            _ if self.surplus => "as many other nodes take part as can".to_owned(),
            _ if wanted.copied().unwrap_or_default() == CandidateRank::None => {
                "this node is no candidate".to_owned()
            }
            _ => match self.choice.chosen.get(&address) {
                Some(chosen) if chosen.id == self.id => "moves here soon".to_owned(),
                _ => "another node comes first".to_owned(),
            },
        }
    }
}

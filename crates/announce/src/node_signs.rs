//! What the participants of a link know of the nodes: which are alive, and which none of them hears.
//!
//! Invariant: a node is unheard only by the agreement of two participants that hear each other, of which one is this
//! one. While this participant listens, no node is.

use std::collections::BTreeSet;

use super::link::LinkElection;
use super::peers::Peer;
use super::timing::Time;

/// The names of other nodes, by what the heartbeats on a link say of them. Of others they say nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSigns {
    /// Heard here, or by a participant that is heard here.
    pub alive: BTreeSet<String>,
    /// Silent for this participant and all that it hears, of which one at least hears this one.
    pub unheard: BTreeSet<String>,
    /// Nodes whose participants hear this one and are heard by it: any of them makes others unheard that are silent.
    pub witnesses: BTreeSet<String>,
}

impl NodeSigns {
    /// Adds those of another link. A node that is alive on one link is alive.
    pub fn merge(&mut self, other: Self) {
        self.alive.extend(other.alive);
        self.unheard.extend(other.unheard);
        self.witnesses.extend(other.witnesses);
        self.unheard.retain(|node| !self.alive.contains(node));
    }
}

impl LinkElection {
    /// Without a key no node is unheard: any machine of the link could pose as the witness.
    pub fn node_signs(&self, now: Time) -> NodeSigns {
        let limit = self.peers.confirmation_limit(&self.timing);
        let is_heard = |peer: &Peer| !peer.silent || now <= peer.confirmed_until(limit);
        let others = || {
            self.peers.iter().map(|(_, peer)| peer).filter(|peer| peer.node != self.identity.node)
        };
        let alive: BTreeSet<String> =
            others().filter(|peer| is_heard(peer)).map(|peer| peer.node.clone()).collect();
        let deaf_after = self.peers.deaf_after(&self.timing);
        let is_witness = |peer: &Peer| {
            !peer.silent && !peer.mute && !peer.hears_nobody && !peer.is_deaf(now, deaf_after)
        };
        let may_judge = self.usable && self.listening.is_none() && self.keys.authenticate();
        let witnesses = others().filter(|peer| may_judge && is_witness(peer));
        let witnesses: BTreeSet<String> = witnesses.map(|peer| peer.node.clone()).collect();
        let is_unheard = |peer: &&Peer| {
            !witnesses.is_empty()
                && !alive.contains(&peer.node)
                && now >= self.peers.unheard_from(peer, limit)
        };
        let unheard = others().filter(is_unheard).map(|peer| peer.node.clone()).collect();
        NodeSigns { unheard, alive, witnesses }
    }

    /// The signs of a silent node change without an input.
    pub(super) fn schedule_node_signs(&mut self, now: Time) {
        let limit = self.peers.confirmation_limit(&self.timing);
        let silent = self.peers.iter().filter(|(_, peer)| peer.silent);
        let times = silent.map(|(_, peer)| self.peers.unheard_from(peer, limit));
        let next = times.filter(|at| *at > now).min();
        if let Some(next) = next {
            self.schedule_decision(next);
        }
    }
}

//! Which nodes are dead by all signs: no participant of a link hears them ([`NodeSigns`]), and their kernels answer no
//! probe. Pure: the caller sends probes, each of which any kernel that runs answers, and reports what came of them.
//!
//! # Invariants
//!
//! - A node is dead only if it answered such probes while it was heard, did not answer any of
//!   [`REQUIRED_MISSES`] since it is not, and another node has answered one meanwhile: otherwise a firewall, or this
//!   node's own network, may be the reason.
//! - A node that is heard is not dead. An answer alone gives back a node that has been dead for at most
//!   [`SHORT_FAILURE`]; later only [`ANSWERS_WITHOUT_HEARTBEATS`] of them do: after a reboot the kernel answers long
//!   before pods run.
//! - A node that was given back is dead again after [`FLAP_INTERVAL`] at the earliest.
//!
//! Not noticed: a node with another key, or no participant among the 128 of a link; one of two nodes; one that sends and
//! receives nothing; one that left in order, or died before this process started, or when the link had forgotten its
//! participant (10 s after that ended).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::node_signs::NodeSigns;
use super::timing::{ElectionTiming, Time};

/// Probes in a row without an answer after which a kernel does not answer.
const REQUIRED_MISSES: u32 = 3;
/// Between two probes of a node that is heard and answers, and the longest of one that does not.
const CONTROL_INTERVAL: Duration = Duration::from_secs(30);
/// Between two probes of any other node, once its state is known.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The most nodes that are probed to show that this node's own network works.
const MAX_REFERENCES: usize = 3;

/// How long a node is dead at most if its network failed, rather than the node: then its pods run.
const SHORT_FAILURE: Duration = Duration::from_secs(5);
/// How long a node without heartbeats answers all probes until it is given back: its agent may never run again.
const ANSWERS_WITHOUT_HEARTBEATS: Duration = Duration::from_secs(60);
/// Between giving a node back and declaring it dead again: each time all pools with endpoints on it are programmed.
const FLAP_INTERVAL: Duration = Duration::from_secs(10);

/// What came of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    Answered,
    Unanswered,
    /// No probe left this node: nothing is known of the other one.
    NotSent,
}

/// Until the next probe of a node that is heard, after probes in a row without an answer: soon, because they may have
/// been lost, but less and less often.
fn control_interval(misses: u32) -> Duration {
    (RETRY_INTERVAL * (1 << misses.saturating_sub(1).min(8))).min(CONTROL_INTERVAL)
}

/// What the links say of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hearing {
    /// Nothing: perhaps this node listens, or no other one agrees.
    #[default]
    Unknown,
    Heard,
    UnheardSince(Time),
}

#[derive(Clone, Debug, Default)]
struct ProbedNode {
    hearing: Hearing,
    /// The node answered probes while it was heard.
    has_answered: bool,
    /// How many probes in a row were not answered.
    misses: u32,
    /// Since when all probes have been answered.
    answering_since: Option<Time>,
    next_probe: Time,
    dead_since: Option<Time>,
    given_back_at: Option<Time>,
}

impl ProbedNode {
    fn follow_signs(&mut self, name: &str, signs: &NodeSigns, now: Time) {
        let before = self.hearing;
        self.hearing = match before {
            _ if signs.alive.contains(name) => Hearing::Heard,
            Hearing::UnheardSince(since) if signs.unheard.contains(name) => {
                Hearing::UnheardSince(since)
            }
            _ if signs.unheard.contains(name) => Hearing::UnheardSince(now),
            _ => Hearing::Unknown,
        };
        if self.hearing != before {
            (self.misses, self.next_probe) = (0, now);
        }
        if self.hearing == Hearing::Heard {
            self.give_back(now);
        }
    }

    fn give_back(&mut self, now: Time) {
        if self.dead_since.take().is_some() {
            self.given_back_at = Some(now);
        }
    }

    /// Notes an answer to a probe.
    fn note_answer(&mut self, now: Time) {
        self.misses = 0;
        let since = *self.answering_since.get_or_insert(now);
        let is_short = |dead| now.saturating_sub(dead) <= SHORT_FAILURE;
        if self.dead_since.is_some_and(is_short)
            || now.saturating_sub(since) >= ANSWERS_WITHOUT_HEARTBEATS
        {
            self.give_back(now);
        }
    }

    /// Declares it dead if it is silent and mute. `network_proven_at`: see [`NodeLiveness`].
    fn declare_if_dead(&mut self, network_proven_at: Time, now: Time) {
        let Hearing::UnheardSince(since) = self.hearing else { return };
        let is_mute = self.has_answered && self.misses >= REQUIRED_MISSES;
        let flaps = self.given_back_at.is_some_and(|at| now.saturating_sub(at) < FLAP_INTERVAL);
        if is_mute && !flaps && network_proven_at >= since {
            self.dead_since.get_or_insert(now);
        }
    }

    fn interval(&self, timing: &ElectionTiming) -> Duration {
        match self.hearing {
            Hearing::UnheardSince(_) if self.may_die() => timing.interval / 2,
            Hearing::UnheardSince(_) => RETRY_INTERVAL,
            Hearing::Unknown if self.dead_since.is_some() => RETRY_INTERVAL,
            Hearing::Heard | Hearing::Unknown => CONTROL_INTERVAL,
        }
    }

    /// Whether it depends on the next probes.
    fn may_die(&self) -> bool {
        self.has_answered && self.misses < REQUIRED_MISSES
    }
}

/// The nodes that have been heard.
#[derive(Clone, Debug)]
pub struct NodeLiveness {
    timing: ElectionTiming,
    /// See [`NodeSigns`].
    witnesses: BTreeSet<String>,
    nodes: BTreeMap<String, ProbedNode>,
    /// When the last probe of a node that is heard was sent, of those that were answered.
    network_proven_at: Time,
}

impl NodeLiveness {
    pub fn new(timing: ElectionTiming) -> Self {
        Self {
            timing,
            witnesses: BTreeSet::new(),
            nodes: BTreeMap::new(),
            network_proven_at: Time::ZERO,
        }
    }

    /// How many nodes that are heard would be found dead if they died: they answer probes, and another node hears them.
    pub fn count_watched(&self) -> usize {
        let watched = self.nodes.iter().filter(|(name, node)| {
            node.hearing == Hearing::Heard && node.has_answered && self.has_witness_about(name)
        });
        watched.count()
    }

    fn has_witness_about(&self, name: &str) -> bool {
        self.witnesses.iter().any(|witness| witness != name)
    }

    /// The nodes whose answers matter: those that are or may be found dead, and the references.
    fn probed_nodes(&self) -> impl Iterator<Item = (&String, &ProbedNode)> {
        let is_unheard = |node: &ProbedNode| matches!(node.hearing, Hearing::UnheardSince(_));
        let needs_references = self.nodes.values().any(is_unheard);
        self.nodes.iter().filter(move |(name, node)| {
            needs_references || node.dead_since.is_some() || self.has_witness_about(name)
        })
    }

    pub fn dead_nodes(&self) -> BTreeSet<String> {
        let dead = self.nodes.iter().filter(|(_, node)| node.dead_since.is_some());
        dead.map(|(name, _)| name.clone()).collect()
    }

    /// Follows the signs of all links together.
    pub fn note_signs(&mut self, signs: &NodeSigns, now: Time) {
        self.witnesses.clone_from(&signs.witnesses);
        for name in &signs.alive {
            if !self.nodes.contains_key(name) {
                self.nodes.insert(name.clone(), ProbedNode::default());
            }
        }
        let mut is_new = false;
        for (name, node) in &mut self.nodes {
            node.follow_signs(name, signs, now);
            is_new |= node.hearing == Hearing::UnheardSince(now);
        }
        if is_new {
            let heard = self.nodes.values_mut();
            let heard = heard.filter(|node| node.hearing == Hearing::Heard && node.has_answered);
            heard.take(MAX_REFERENCES).for_each(|node| node.next_probe = now);
        }
    }

    /// Forgets nodes that the cluster no longer has.
    pub fn retain_nodes(&mut self, exists: impl Fn(&str) -> bool) {
        self.nodes.retain(|name, _| exists(name));
    }

    /// The nodes to probe now.
    pub fn due_probes(&mut self, now: Time) -> Vec<String> {
        let due = self.probed_nodes().filter(|(_, node)| node.next_probe <= now);
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        for name in &due {
            if let Some(node) = self.nodes.get_mut(name) {
                node.next_probe = now + node.interval(&self.timing);
            }
        }
        due
    }

    /// When [`Self::due_probes`] has work.
    pub fn next_probe(&self) -> Time {
        self.probed_nodes().map(|(_, node)| node.next_probe).min().unwrap_or(Time::MAX)
    }

    /// How long an answer is waited for.
    pub fn answer_limit(&self) -> Duration {
        self.timing.interval
    }

    /// Notes what came of a probe that was sent at a time.
    pub fn note_probe(&mut self, name: &str, sent: Time, outcome: ProbeOutcome, now: Time) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        match (outcome, node.hearing) {
            // The probe is older than the silence.
            (_, Hearing::UnheardSince(since)) if sent < since => {}
            (ProbeOutcome::NotSent, _) => {
                node.next_probe = node.next_probe.min(now + RETRY_INTERVAL)
            }
            (ProbeOutcome::Answered, hearing) => {
                node.note_answer(now);
                if hearing == Hearing::Heard {
                    node.has_answered = true;
                    self.network_proven_at = self.network_proven_at.max(sent);
                } else {
                    // Its agent does not run, or its heartbeats are lost.
                    node.next_probe = node.next_probe.max(now + RETRY_INTERVAL);
                }
            }
            (ProbeOutcome::Unanswered, hearing) => {
                (node.misses, node.answering_since) = (node.misses.saturating_add(1), None);
                if hearing == Hearing::Heard {
                    node.has_answered &= node.misses < REQUIRED_MISSES;
                    node.next_probe = now + control_interval(node.misses);
                }
            }
        }
        for node in self.nodes.values_mut() {
            node.declare_if_dead(self.network_proven_at, now);
        }
    }
}

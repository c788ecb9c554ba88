//! Which nodes take packets out of tunnels: those that return probes.
//!
//! Pure: time, addresses and random numbers are parameters. `kernel::tunnel_probes` sends and
//! receives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

/// Between probes of a node whose state is known.
const INTERVAL: Duration = Duration::from_secs(10);
/// After a probe that was not returned, until the node's state is known.
const RETRY: Duration = Duration::from_secs(1);
/// After this many lost probes in a row the node counts as not decapsulating.
const MOST_LOST: u32 = 3;
/// The most probes of one call, so that a large cluster's replies fit in the socket's buffer.
const MOST_AT_ONCE: usize = 512;

/// A probe to a node; the reply has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    pub node: IpAddr,
    pub number: u64,
}

#[derive(Debug, Default)]
struct ProbedPeer {
    decapsulates: bool,
    /// Whether it also returns packets of connections that it does not know.
    returns: bool,
    /// The number of the probe that was not returned yet.
    outstanding: Option<u64>,
    lost: u32,
    due: Duration,
}

/// The state of all nodes.
#[derive(Debug, Default)]
pub struct Probes(BTreeMap<IpAddr, ProbedPeer>);

impl Probes {
    /// `decapsulating`: the nodes that an earlier agent has found, as [`Self::decapsulating`] returned
    /// them. They stay until their probes are lost.
    pub fn new(decapsulating: impl IntoIterator<Item = (IpAddr, bool)>) -> Self {
        let node = |returns| ProbedPeer { decapsulates: true, returns, ..ProbedPeer::default() };
        let found = decapsulating.into_iter();
        Self(found.map(|(address, returns)| (address, node(returns))).collect())
    }

    /// Sets the nodes to probe. New ones are probed at once.
    pub(crate) fn set_nodes(&mut self, nodes: &BTreeSet<IpAddr>) {
        self.0.retain(|node, _| nodes.contains(node));
        for &node in nodes {
            self.0.entry(node).or_default();
        }
    }

    /// The probes to send now; others follow at the next call.
    pub fn due(&mut self, now: Duration, mut number: impl FnMut() -> u64) -> Vec<Probe> {
        let due = self.0.iter_mut().filter(|(_, node)| node.due <= now).take(MOST_AT_ONCE);
        due.map(|(&address, node)| {
            if node.outstanding.is_some() {
                node.lost = node.lost.saturating_add(1);
            }
            if node.lost >= MOST_LOST {
                (node.decapsulates, node.returns) = (false, false);
            }
            let number = number();
            node.outstanding = Some(number);
            // A node that is known to be silent is probed rarely.
            node.due = now + if node.lost < MOST_LOST { RETRY } else { INTERVAL };
            Probe { node: address, number }
        })
        .collect()
    }

    /// A node has returned a probe, and has reported whether it also returns packets of unknown
    /// connections. Probes other than the last one are ignored: an attacker may know their numbers
    /// by now.
    pub fn returned(&mut self, now: Duration, reply: Probe, returns: bool) {
        let Some(node) = self.0.get_mut(&reply.node) else { return };
        if node.outstanding == Some(reply.number) {
            let due = now + INTERVAL;
            *node = ProbedPeer { decapsulates: true, returns, outstanding: None, lost: 0, due };
        }
    }

    /// The nodes that decapsulate, and whether each also returns packets of unknown connections.
    pub fn decapsulating(&self) -> BTreeMap<IpAddr, bool> {
        let found = self.0.iter().filter(|(_, node)| node.decapsulates);
        found.map(|(&address, node)| (address, node.returns)).collect()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// Runs for some seconds; the nodes for which `returns` is true return each probe.
    struct World {
        probes: Probes,
        now: u64,
        sent: Vec<(u64, IpAddr)>,
        last: u64,
        /// Whether nodes that return probes return other packets, too.
        abilities: bool,
    }

    impl World {
        fn new(probes: Probes, nodes: &[u8]) -> Self {
            let mut world = Self { probes, now: 0, sent: Vec::new(), last: 0, abilities: false };
            world.probes.set_nodes(&nodes.iter().map(|&last| node(last)).collect());
            world
        }

        fn run(&mut self, seconds: u64, returns: impl Fn(IpAddr) -> bool) {
            for _ in 0..seconds {
                let now = Duration::from_secs(self.now);
                let last = &mut self.last;
                let due = self.probes.due(now, || {
                    *last += 1;
                    *last
                });
                for probe in due {
                    self.sent.push((self.now, probe.node));
                    if returns(probe.node) {
                        self.probes.returned(now, probe, self.abilities);
                    }
                }
                self.now += 1;
            }
        }

        fn sent_to(&self, last: u8) -> Vec<u64> {
            self.sent.iter().filter(|(_, to)| *to == node(last)).map(|(at, _)| *at).collect()
        }
    }

    #[test]
    fn nodes_that_return_probes_decapsulate() {
        let mut world = World::new(Probes::default(), &[1, 2]);
        assert!(world.probes.decapsulating().is_empty(), "not known yet");
        world.run(40, |to| to == node(1));
        assert_eq!(world.probes.decapsulating(), [(node(1), false)].into());
        assert_eq!(world.sent_to(1), [0, 10, 20, 30]);
        assert_eq!(world.sent_to(2), [0, 1, 2, 3, 13, 23, 33], "rarely, once it is known");
    }

    #[test]
    fn what_else_a_node_does_is_known_from_its_last_reply() {
        let mut world = World::new(Probes::default(), &[1]);
        for abilities in [true, false, true] {
            world.abilities = abilities;
            world.run(11, |_| true);
            assert_eq!(world.probes.decapsulating(), [(node(1), abilities)].into());
        }
    }

    #[test]
    fn a_node_that_stops_is_left_after_three_lost_probes() {
        let mut world = World::new(Probes::default(), &[1]);
        world.run(10, |_| true);
        world.run(3, |_| false);
        assert_eq!(
            world.probes.decapsulating(),
            [(node(1), false)].into(),
            "one or two may be lost"
        );
        world.run(1, |_| false);
        assert!(world.probes.decapsulating().is_empty());
        world.run(10, |_| true);
        assert_eq!(world.probes.decapsulating(), [(node(1), false)].into(), "it is back");
    }

    #[test]
    fn what_an_earlier_agent_found_stays_until_its_probes_are_lost() {
        let mut world =
            World::new(Probes::new([(node(1), true), (node(2), false), (node(9), false)]), &[1, 2]);
        let found = [(node(1), true), (node(2), false)].into();
        assert_eq!(world.probes.decapsulating(), found, "9 is gone");
        world.run(4, |to| to == node(1));
        assert_eq!(world.probes.decapsulating(), [(node(1), false)].into());
    }

    #[test]
    fn replies_that_were_not_asked_for_are_ignored() {
        let mut probes = Probes::default();
        probes.set_nodes(&[node(1), node(2)].into());
        let now = Duration::ZERO;
        let mut number = 0;
        let mut next = || {
            number += 1;
            number
        };
        let [first, other] = probes.due(now, &mut next)[..] else { panic!("two probes") };
        probes.returned(now, Probe { node: node(3), ..first }, false);
        probes.returned(now, Probe { number: other.number, ..first }, false);
        let again = probes.due(now + RETRY, &mut next);
        probes.returned(now + RETRY, first, false);
        assert!(probes.decapsulating().is_empty(), "late, or another's");
        probes.returned(now + RETRY, again[0], false);
        assert_eq!(probes.decapsulating(), [(node(1), false)].into());
    }

    #[test]
    fn a_large_cluster_is_probed_in_parts() {
        let all: BTreeSet<IpAddr> = (0..2_000_u16)
            .map(|n| {
                let [high, low] = n.to_be_bytes();
                IpAddr::from([10, 0, high, low])
            })
            .collect();
        let mut probes = Probes::default();
        probes.set_nodes(&all);
        let mut sent = BTreeSet::new();
        for second in 0..10 {
            let now = Duration::from_secs(second);
            let due = probes.due(now, || second);
            assert!(due.len() <= MOST_AT_ONCE);
            for probe in due {
                probes.returned(now, probe, false);
                sent.insert(probe.node);
            }
        }
        assert_eq!((sent, probes.decapsulating().len()), (all, 2_000));
    }
}

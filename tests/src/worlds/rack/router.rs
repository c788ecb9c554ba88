//! The router of a rack: FRR or BIRD.

use anyhow::Result;

use super::{LOCAL_AS, NETWORK, ROUTER_AS, node_address};
use crate::programs::bird::Bird;
use crate::programs::frr::{BFD_PROFILES, Frr};
use crate::worlds::topology::{Host, Topology};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterKind {
    Frr,
    Bird,
}

/// Its daemons.
pub enum Daemons {
    Frr(Frr),
    Bird(Bird),
}

impl Daemons {
    /// With a session for each of so many nodes.
    pub fn start(kind: RouterKind, topology: &Topology, host: &Host, nodes: usize) -> Result<Self> {
        let nodes: Vec<String> = (0..nodes).map(node_address).collect();
        match kind {
            RouterKind::Frr => {
                let daemons = [("bfdd", BFD_PROFILES), ("bgpd", &*bgpd(&nodes))];
                Ok(Self::Frr(Frr::start(topology, host, &daemons)?))
            }
            RouterKind::Bird => Ok(Self::Bird(Bird::start(topology, host, &bird(&nodes))?)),
        }
    }

    /// Ends them in order, as an upgrade does.
    pub fn end(self) -> Result<()> {
        match self {
            Self::Frr(frr) => frr.end(),
            Self::Bird(bird) => bird.end(),
        }
    }
}

fn bgpd(nodes: &[String]) -> String {
    let neighbors: String =
        nodes.iter().map(|node| format!(" neighbor {node} peer-group nodes\n")).collect();
    format!(
        "\
router bgp {ROUTER_AS}
 bgp router-id {NETWORK}.1
 bgp bestpath as-path multipath-relax
 no bgp ebgp-requires-policy
 neighbor nodes peer-group
 neighbor nodes remote-as {LOCAL_AS}
 neighbor nodes timers 3 9
 neighbor nodes bfd
 neighbor nodes bfd profile fast
{neighbors} address-family ipv4 unicast
  maximum-paths 64
 exit-address-family
exit
"
    )
}

fn bird(nodes: &[String]) -> String {
    let sessions: String = (nodes.iter().enumerate())
        .map(|(number, node)| {
            format!("protocol bgp node{number} from nodes {{ neighbor {node} as {LOCAL_AS}; }}\n")
        })
        .collect();
    format!(
        "\
router id {NETWORK}.1;
protocol device {{}}
protocol bfd {{}}
protocol kernel {{ ipv4 {{ export all; }}; merge paths yes limit 64; }}
filter drained {{ if (65535,0) ~ bgp_community then bgp_local_pref = 0; accept; }}
template bgp nodes {{
  local as {ROUTER_AS};
  hold time 9;
  error wait time 1, 5;
  bfd {{ interval 100 ms; multiplier 3; }};
  ipv4 {{ import filter drained; export none; }};
}}
{sessions}"
    )
}

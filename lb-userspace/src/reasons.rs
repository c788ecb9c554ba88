//! What each reason means to who runs the machine, and what to do about it. `docs/operations.md`
//! has the same table: a test writes it, and fails where it differs.

use lb_common::layout::Reason;

/// What becomes of a packet for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It goes on untouched, as if there were no Millrace.
    Passed,
    /// It ends here, and nobody is told.
    Dropped,
    /// It ends here, and its sender is told.
    Answered,
    /// It is forwarded as others are.
    Forwarded,
}

impl Fate {
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Dropped => "dropped",
            Self::Answered => "answered",
            Self::Forwarded => "forwarded",
        }
    }
}

/// A reason for people.
#[derive(Clone, Copy, Debug)]
pub struct Meaning {
    pub fate: Fate,
    pub what: &'static str,
    pub cure: &'static str,
}

/// Most often; what became of a packet says its verdict.
pub fn meaning(reason: Reason) -> Meaning {
    use Fate::{Answered, Dropped, Forwarded, Passed};
    let (fate, what, cure) = match reason {
        Reason::Malformed => (
            Passed,
            "its headers are cut short or contradict themselves",
            "Capture it (`tcpdump -i DEVICE -w`) and look at who sends it; a few are normal on the internet.",
        ),
        Reason::Fragment => (
            Passed,
            "a fragment whose first one has not come",
            "Fragments of one packet took two ways, or the first was lost: look at ECMP in front, and make senders stay below the path's MTU.",
        ),
        Reason::UnknownProtocol => (
            Passed,
            "of a protocol that Services don't have, to an address of ours",
            "Nothing, unless somebody expects an answer: Services are TCP, UDP and SCTP.",
        ),
        Reason::NoFrontend => (
            Passed,
            "the address is one of ours, the port is no Service's",
            "Normal for ssh and the like on a node's address. Else compare the port with `millrace frontends`.",
        ),
        Reason::NoBackend => (
            Answered,
            "the service port has no ready endpoint",
            "`kubectl get endpointslices -l kubernetes.io/service-name=NAME`: are Pods ready, does the selector match, is targetPort's name right?",
        ),
        Reason::NoLocalBackend => (
            Dropped,
            "traffic policy Local, and no ready endpoint on this node",
            "Whoever sends here should ask the healthCheckNodePort first: see that the load balancer does, or run a Pod here, or set the policy to Cluster.",
        ),
        Reason::FlowTableFull => (
            Dropped,
            "every entry for the flow is protected, and it needs SNAT",
            "Raise `--max-flows`; see which clients have so many connections: `millrace flows`.",
        ),
        Reason::Untracked => (
            Forwarded,
            "every entry for the flow is protected: it is forwarded without one, to the backend that the table names",
            "Raise `--max-flows`; see which clients have so many connections: `millrace flows`. Until then these connections may break when endpoints change.",
        ),
        Reason::CorruptTable => (
            Dropped,
            "maps or programs don't fit together",
            "A fault of ours. Restart the agent; if it stays, `millrace cleanup` and start anew (connections end). Report it with the agent's log.",
        ),
        Reason::Unwritable => (
            Dropped,
            "the packet could not be written to",
            "The driver leaves too little room around packets, or memory is short: try `--xdp-mode off`, look at the driver's XDP requirements.",
        ),
        Reason::NoFlow => (
            Passed,
            "from a backend, but of no flow that is known",
            "Normal: pods are also dialled directly. Many, together with clients that hang: answers come back by another node than the requests came.",
        ),
        Reason::SourceNotAllowed => (
            Dropped,
            "the client is in none of the Service's loadBalancerSourceRanges",
            "Add the client's range to the Service, if it is to be let in. The address that counts is the one that arrives here, behind any NAT.",
        ),
        Reason::NoAlias => (
            Dropped,
            "no port is left under which the backend could know one more client",
            "Too many connections to one backend through this node: add endpoints. Or the device has no address to send from: `millrace trace` says which.",
        ),
        Reason::NoRoute => (
            Dropped,
            "the kernel has no route to the next hop, or would not forward",
            "`ip route get BACKEND from CLIENT iif DEVICE`; is `net.ipv4.ip_forward` (IPv6: `net.ipv6.conf.all.forwarding`) on?",
        ),
        Reason::NoNeighbour => (
            Passed,
            "the next hop's link-layer address is not known yet: the stack finds it out",
            "Nothing is lost. If it goes on, the next hop does not answer ARP or neighbour discovery: `ip neigh`.",
        ),
        Reason::BackendGone => (
            Answered,
            "the connection's endpoint is gone",
            "Clients dial anew. To spare them, let Pods end gracefully: terminationGracePeriodSeconds, a preStop hook.",
        ),
        Reason::NoSuchPort => (
            Answered,
            "the address is a Service's own, which has no such port",
            "Compare what the client dials with the Service's ports: `kubectl get service`.",
        ),
        Reason::RateLimited => (
            Dropped,
            "it deserved an answer, but too many were sent lately",
            "A flood of packets that are refused: the other counters say for what reason.",
        ),
        Reason::TooBig => (
            Answered,
            "it does not fit through the device that it would leave by",
            "Path MTU discovery at work: a few per client. Many: somebody in between drops ICMP; with tunnels, give nodes' devices a larger MTU.",
        ),
        Reason::HopLimit => (
            Answered,
            "it has been forwarded too often",
            "traceroute does that. Else a routing loop: `traceroute` from the client.",
        ),
        Reason::UnknownQuote => (
            Passed,
            "an ICMP error about a packet of no flow that is known",
            "Nothing: errors come late, or are about other packets.",
        ),
        Reason::CorruptFrontend => (
            Dropped,
            "a frontend's entry is of no kind that leads anywhere",
            "A fault of ours; as corrupt_table.",
        ),
        Reason::NoSuchPool => (
            Dropped,
            "a frontend names a pool beyond the last one",
            "A fault of ours; as corrupt_table.",
        ),
        Reason::NoSuchSlot => (
            Dropped,
            "a pool's region goes beyond the last slot",
            "A fault of ours; as corrupt_table.",
        ),
        Reason::NoSuchBackend => (
            Dropped,
            "a slot names a backend that is not there, or serves another protocol",
            "A fault of ours; as corrupt_table.",
        ),
        Reason::NoSuchBucket => (
            Dropped,
            "the index of answers names a bucket beyond the last one",
            "A fault of ours; as corrupt_table.",
        ),
        Reason::NotAPeer => (
            Passed,
            "from a tunnel of somebody who is no node of the cluster",
            "If it is a node: is its InternalIP in `kubectl get nodes -o wide` the address that it sends from?",
        ),
        Reason::WrongTunnelKey => (
            Passed,
            "a tunnel from a node of the cluster carries no key, or one that is not in --tunnel-key-file",
            "Compare the file on both nodes. If they agree, a pod behind that node's address sends forged packets.",
        ),
        Reason::NoSuchTarget => (
            Dropped,
            "from a tunnel, for a backend that this node does not have",
            "For a moment after a Pod has gone. If it goes on, two nodes see different endpoints: look at both agents' logs.",
        ),
        Reason::Congestion => (
            Dropped,
            "congestion was met in a tunnel, and its sender does not know of such",
            "As if a router had dropped it: look for full links between the nodes.",
        ),
    };
    Meaning { fate, what, cure }
}

/// All of them as a table of Markdown.
pub fn table() -> String {
    let mut table =
        String::from("| reason | packets are | what it means | what to do |\n|---|---|---|---|\n");
    for reason in Reason::ALL {
        let Meaning { fate, what, cure } = meaning(reason);
        table += &format!("| `{}` | {} | {what} | {cure} |\n", reason.name(), fate.name());
    }
    table
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");

    #[test]
    fn the_operations_guide_has_every_reason_as_it_is() {
        let (begin, end) = ("<!-- reasons: begin -->\n", "<!-- reasons: end -->");
        let text = fs::read_to_string(DOCUMENT).expect("docs/operations.md is there");
        let (before, rest) = text.split_once(begin).expect("the table has a beginning");
        let (found, after) = rest.split_once(end).expect("the table has an end");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            let new = format!("{before}{begin}{}{end}{after}", table());
            fs::write(DOCUMENT, new).expect("docs/operations.md can be written");
            return;
        }
        assert!(
            found == table(),
            "write it anew: UPDATE_EXPECT=1 cargo test -p lb-userspace reasons"
        );
    }

    #[test]
    fn every_reason_has_its_own_words() {
        for (number, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number, "{reason:?} is where its number says");
            for other in &Reason::ALL[..number] {
                assert_ne!(meaning(reason).what, meaning(*other).what, "{reason:?}, {other:?}");
            }
        }
    }
}

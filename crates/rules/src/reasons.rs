//! What each drop reason means to an operator, and how to fix it. The table in `docs/operations.md`
//! is generated from here; a test fails if it differs.

use lb_common::layout::Reason;

/// What happens to a packet for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReasonFate {
    /// The packet continues unchanged, as without Millrace.
    Passed,
    /// The packet is discarded, and its sender gets no error.
    Dropped,
    /// The packet is refused, and its sender gets a TCP reset or an ICMP error.
    Answered,
    /// The packet is forwarded like others.
    Forwarded,
}

impl ReasonFate {
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Dropped => "dropped",
            Self::Answered => "answered",
            Self::Forwarded => "forwarded",
        }
    }
}

/// The explanation of a reason, as Markdown.
#[derive(Clone, Copy, Debug)]
pub struct ReasonExplanation {
    pub fate: ReasonFate,
    pub what: &'static str,
    pub fix: &'static str,
}

/// The usual meaning. The verdict of a packet, not `fate`, says what happened to it.
pub fn explain_reason(reason: Reason) -> ReasonExplanation {
    use ReasonFate::{Answered, Dropped, Forwarded, Passed};
    let (fate, what, fix) = match reason {
        Reason::Malformed => (
            Passed,
            "the headers are truncated or inconsistent",
            "Capture packets (`tcpdump -i DEVICE -w FILE`) and find the sender. A few are normal on the internet.",
        ),
        Reason::Fragment => (
            Passed,
            "a fragment whose first fragment was not seen, or of SCTP whose port would change",
            "The fragments took different routes, or the first was lost. Check ECMP on the routers in front, and let senders keep packets below the path MTU. For SCTP, make targetPort equal to the port.",
        ),
        Reason::UnknownProtocol => (
            Passed,
            "a protocol that Services do not support, to an address handled by Millrace",
            "Nothing, unless a client expects a reply. Services support TCP, UDP and SCTP.",
        ),
        Reason::NoFrontend => (
            Passed,
            "the address is handled by Millrace, but no Service uses the port",
            "Normal for ssh and other programs on a node's address. Otherwise compare the port with `millrace frontends`.",
        ),
        Reason::NoBackend => (
            Answered,
            "the service port has no ready endpoint",
            "`kubectl get endpointslices -l kubernetes.io/service-name=NAME`. Check that Pods are ready, that the selector matches, and that the name in targetPort exists.",
        ),
        Reason::NoLocalBackend => (
            Dropped,
            "the traffic policy is Local and this node has no ready endpoint",
            "Let the load balancer check the healthCheckNodePort, so that it skips this node. Or run a Pod here, or set the policy to Cluster.",
        ),
        Reason::FlowTableFull => (
            Dropped,
            "the flow needs SNAT and every entry it could use is protected",
            "Raise `--max-flows`. Find clients with very many connections: `millrace flows`.",
        ),
        Reason::Moved => (
            Forwarded,
            "the first endpoint refused the connection or did not reply; the client's repeated SYN is forwarded to another",
            "Normal while endpoints end, or if SYNs are lost. Otherwise find the Service's endpoint that does not listen.",
        ),
        Reason::Untracked => (
            Forwarded,
            "every entry the flow could use is protected; the packet is forwarded without one, to the backend from the Maglev table",
            "Raise `--max-flows`. Find clients with very many connections: `millrace flows`. These connections may break when endpoints change.",
        ),
        Reason::CorruptTable => (
            Dropped,
            "maps or programs do not match each other",
            "A bug in Millrace. Restart the agent. If the counter still rises, run `millrace cleanup` and start the agent again (connections end). Report it with the agent's log.",
        ),
        Reason::Unwritable => (
            Dropped,
            "the packet could not be modified",
            "The driver leaves too little room around packets, or memory is short. Try `--xdp-mode off`, and check the driver's XDP requirements.",
        ),
        Reason::NoFlow => (
            Passed,
            "from a backend, but no flow matches",
            "Normal: clients also connect to pods directly. If there are many and clients hang, replies return through another node than the requests.",
        ),
        Reason::SourceNotAllowed => (
            Dropped,
            "the client's address is not in the Service's loadBalancerSourceRanges",
            "Add the client's range to the Service if the client should have access. The source address is compared as it arrives at this node, after any NAT on the path.",
        ),
        Reason::NoSnatPort => (
            Dropped,
            "no SNAT port to the backend is free, or the interface has no source address",
            "Too many connections to one backend through this node: add endpoints. For an interface without an address, `millrace trace` shows which one.",
        ),
        Reason::NoRoute => (
            Dropped,
            "the kernel has no route, or would not forward the packet",
            "`ip route get BACKEND from CLIENT iif DEVICE`. Check that `net.ipv4.ip_forward` (IPv6: `net.ipv6.conf.all.forwarding`) is 1.",
        ),
        Reason::NoNeighbour => (
            Passed,
            "the link-layer address of the next hop is not known yet; the network stack resolves it",
            "No packet is lost. If the counter keeps rising, the next hop does not reply to ARP or neighbour discovery: `ip neigh`.",
        ),
        Reason::BackendGone => (
            Answered,
            "the endpoint of the connection was removed",
            "Clients reconnect. To avoid resets, let Pods terminate gracefully: terminationGracePeriodSeconds, a preStop hook.",
        ),
        Reason::NoSuchPort => (
            Answered,
            "the address belongs to Services, of which none has this port",
            "Compare the client's destination port with the Service's ports: `kubectl get service`.",
        ),
        Reason::RateLimited => (
            Dropped,
            "too many resets, ICMP errors or replies to probes and `ping` were sent recently, or too many questions about connections and answers to them: the packet gets none",
            "A flood of refused packets, or of packets of unknown connections. The other counters show the reason.",
        ),
        Reason::TooBig => (
            Answered,
            "the packet exceeds the MTU of its route",
            "A few per client are normal path MTU discovery. If there are many, a device on the path drops ICMP. With tunnels, raise the MTU of the nodes' interfaces.",
        ),
        Reason::HopLimit => (
            Answered,
            "its TTL or hop limit is used up",
            "Normal for traceroute. Otherwise look for a routing loop: `traceroute` from the client.",
        ),
        Reason::UnknownQuote => (
            Passed,
            "an ICMP error about a packet that matches no flow",
            "Nothing: the error came late, or is about a packet not handled by Millrace.",
        ),
        Reason::CorruptFrontend => (
            Dropped,
            "a frontend entry has a kind without a pool",
            "A bug in Millrace; see `corrupt_table`.",
        ),
        Reason::NoSuchPool => (
            Dropped,
            "a frontend refers to a pool outside the map",
            "A bug in Millrace; see `corrupt_table`.",
        ),
        Reason::NoSuchSlot => (
            Dropped,
            "a pool's region extends outside the slot map",
            "A bug in Millrace; see `corrupt_table`.",
        ),
        Reason::NoSuchBackend => (
            Dropped,
            "a slot refers to a backend that does not exist or has another protocol",
            "A bug in Millrace; see `corrupt_table`.",
        ),
        Reason::NoSuchBucket => (
            Dropped,
            "the reply index refers to a bucket outside the flow table",
            "A bug in Millrace; see `corrupt_table`.",
        ),
        Reason::NotAPeer => (
            Passed,
            "a tunnel packet whose sender is not a node of the cluster",
            "If the sender is a node, compare its source address with its InternalIP in `kubectl get nodes -o wide`.",
        ),
        Reason::WrongTunnelKey => (
            Passed,
            "a tunnel packet from a node's address has no key, or one that is not in `--tunnel-key-file`",
            "Compare the file on both nodes. If they are equal, a pod on that node may be sending forged packets, masqueraded to the node's address.",
        ),
        Reason::NoSuchTarget => (
            Dropped,
            "a tunnel packet for a backend that this node does not have",
            "Normal for a moment after a Pod was removed. If it continues, the two nodes have different endpoints: check both agents' logs.",
        ),
        Reason::Asked => (
            Forwarded,
            "in the middle of a connection that this node does not know, for a slot that had other owners: sent to one of their nodes, to ask whether it knows the connection",
            "Normal after routers moved connections to other nodes while backends changed (docs/design/slot-history.md). A high rate without such changes is a scan, or a flood.",
        ),
        Reason::Recognized => (
            Forwarded,
            "another node asked about the packet's connection, and this one knows it",
            "Nothing: without the question the connection would have been reset.",
        ),
        Reason::Returned => (
            Forwarded,
            "another node asked about the packet's connection, and this one does not know it: returned",
            "See `asked`, on the node that asked.",
        ),
        Reason::Unserved => (
            Dropped,
            "to an assigned address, but neither to a port of a Service nor `ping`; or these get no answer",
            "Normal for fragments of `ping` and other protocols. Otherwise: `load-balancer-unserved`, source ranges of Services that share the address.",
        ),
        Reason::Congestion => (
            Dropped,
            "a router marked congestion (ECN) on the tunnel packet, but the inner packet does not support ECN",
            "Equivalent to a drop by that router (RFC 6040). Look for congested links between the nodes.",
        ),
    };
    ReasonExplanation { fate, what, fix }
}

/// All reasons as a Markdown table.
pub fn reasons_table() -> String {
    let mut table =
        String::from("| reason | packets are | what it means | what to do |\n|---|---|---|---|\n");
    for reason in Reason::ALL {
        let ReasonExplanation { fate, what, fix } = explain_reason(reason);
        table += &format!("| `{}` | {} | {what} | {fix} |\n", reason.name(), fate.name());
    }
    table
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");

    #[test]
    fn the_operations_guide_has_every_reason_as_it_is() {
        let (begin, end) = ("<!-- reasons: begin -->\n", "<!-- reasons: end -->");
        let text = fs::read_to_string(DOCUMENT).expect("docs/operations.md is there");
        let (before, rest) = text.split_once(begin).expect("the table has a beginning");
        let (found, after) = rest.split_once(end).expect("the table has an end");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            let new = format!("{before}{begin}{}{end}{after}", reasons_table());
            fs::write(DOCUMENT, new).expect("docs/operations.md can be written");
            return;
        }
        assert!(
            found == reasons_table(),
            "write it anew: UPDATE_EXPECT=1 cargo test -p lb-rules --lib reasons"
        );
    }

    #[test]
    fn every_reason_has_its_own_words() {
        for (number, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number, "{reason:?} is where its number says");
            for other in &Reason::ALL[..number] {
                assert_ne!(
                    explain_reason(reason).what,
                    explain_reason(*other).what,
                    "{reason:?}, {other:?}"
                );
            }
        }
    }
}

//! Settings of this machine that can stop packets forwarded between pods, clients and other nodes.

use std::fs;

use super::netfilter::{self, Chain};
use super::preflight::Finding;

const CHECK: &str = "forwarding";

/// Sysctls without which the kernel forwards nothing.
const SYSCTLS: [(&str, &str); 2] = [
    ("net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward"),
    ("net.ipv6.conf.all.forwarding", "/proc/sys/net/ipv6/conf/all/forwarding"),
];

/// Makes the firewall see the frames that a bridge forwards between its ports.
const BRIDGE_SYSCTL: (&str, &str) =
    ("net.bridge.bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-iptables");

/// `pod_bridges`: names of the bridges that pods are connected to.
pub fn check_forwarding(pod_bridges: &[String]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = SYSCTLS
        .into_iter()
        // Without IPv6 this file does not exist, and there is nothing to forward.
        .filter(|(_, path)| fs::read_to_string(path).is_ok_and(|value| value.trim() == "0"))
        .map(|(name, _)| is_off(name))
        .collect();
    match netfilter::list_chains() {
        Ok(chains) => {
            findings.extend(chains.iter().filter_map(drops_by_default));
            // Without the module br_netfilter the file does not exist.
            let filters_bridges =
                fs::read_to_string(BRIDGE_SYSCTL.1).is_ok_and(|value| value.trim() == "1");
            if !filters_bridges {
                findings.extend(misses_replies(&chains, pod_bridges));
            }
        }
        // A kernel without nf_tables has none.
        Err(error) => {
            tracing::debug!(error = format!("{error:#}"), "netfilter chains not listed");
        }
    }
    if findings.is_empty() {
        findings
            .push(Finding::ok(CHECK, "forwarding is enabled, and no firewall drops by default"));
    }
    findings
}

fn is_off(sysctl: &str) -> Finding {
    let message =
        format!("{sysctl} is 0: packets between pods, clients and other nodes are not forwarded");
    Finding::warning(CHECK, message, format!("sysctl -w {sysctl}=1"))
}

/// Docker sets such a policy. A network plugin may accept its pods by rules.
fn drops_by_default(chain: &Chain) -> Option<Finding> {
    chain.base.filter(|base| base.forward && base.drops)?;
    let (family, table, name) = (chain.family.name(), &chain.table, &chain.name);
    let message = format!(
        "the chain {name} of the table {family} {table} drops forwarded packets that no rule \
         accepts: clients reach pods only if one does"
    );
    let fix = format!(
        "Accept packets from and to the pods' addresses, for example with  nft insert rule \
         {family} {table} {name} {} daddr POD-CIDR accept  and the same with saddr; or set the \
         policy to accept",
        if family == "ip6" { "ip6" } else { "ip" }
    );
    Some(Finding::warning(CHECK, message, fix))
}

/// A pod's request to a Service is routed, and passes the firewall. The reply of a pod on the same
/// bridge is forwarded by the bridge. A rule such as `ct state invalid drop` then drops the
/// request's next packet, because connection tracking has seen no reply.
fn misses_replies(chains: &[Chain], pod_bridges: &[String]) -> Option<Finding> {
    let chain = chains.iter().find(|chain| chain.base.is_some_and(|base| base.forward))?;
    let bridge = pod_bridges.first()?;
    let (family, table, name) = (chain.family.name(), &chain.table, &chain.name);
    let sysctl = BRIDGE_SYSCTL.0;
    let message = format!(
        "{sysctl} is not 1: the chain {name} of the table {family} {table} does not see replies \
         between pods on the bridge {bridge}; if it drops packets by connection state, \
         connections from pods to Services with endpoints on the same bridge fail"
    );
    let fix = format!(
        "modprobe br_netfilter && sysctl -w {sysctl}=1 net.bridge.bridge-nf-call-ip6tables=1"
    );
    Some(Finding::warning(CHECK, message, fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netfilter::{Base, NetfilterFamily};

    fn chain(forward: bool, drops: bool) -> Chain {
        Chain {
            family: NetfilterFamily::Ipv4,
            table: "filter".to_owned(),
            name: "FORWARD".to_owned(),
            base: Some(Base { forward, drops }),
        }
    }

    #[test]
    fn a_firewall_that_misses_replies_on_a_bridge_of_pods_is_reported() {
        let chains = [chain(false, false), chain(true, false)];
        let finding = misses_replies(&chains, &["cni0".to_owned()]).expect("a warning");
        assert!(finding.message.contains("pods on the bridge cni0"), "{finding:?}");
        assert!(finding.fix.contains("bridge-nf-call-iptables=1"), "{finding:?}");
        assert_eq!(misses_replies(&chains, &[]), None, "no bridge has pods");
        assert_eq!(misses_replies(&chains[..1], &["cni0".to_owned()]), None, "nothing filters");
    }

    #[test]
    fn a_chain_that_drops_forwarded_packets_is_reported_with_its_name() {
        let finding = drops_by_default(&chain(true, true)).expect("a warning");
        assert!(finding.message.contains("chain FORWARD of the table ip filter"), "{finding:?}");
        assert!(finding.fix.contains("ip daddr POD-CIDR accept"), "{finding:?}");
        assert_eq!(drops_by_default(&chain(true, false)), None);
        assert_eq!(drops_by_default(&chain(false, true)), None);
        assert_eq!(drops_by_default(&Chain { base: None, ..chain(true, true) }), None);
    }
}

//! The rules that kube-proxy writes in iptables mode.

use std::fmt::Write;

use super::services::{MeasuredPort, POD_RANGE, ServicePort};

const CHAINS: [&str; 4] = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"];

const FILTER: &str = "\
*filter
:KUBE-NODEPORTS - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
";

const BASE: &str = "\
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
";

/// The input of `iptables-restore`.
pub fn iptables_rules(ports: &[ServicePort]) -> String {
    let mut text = format!("{FILTER}*nat\n");
    for chain in CHAINS {
        let _ = writeln!(text, ":{chain} - [0:0]");
    }
    for port in ports {
        let _ = writeln!(text, ":{} - [0:0]", service_chain(port));
        if port.outside.is_some() {
            let _ = writeln!(text, ":{} - [0:0]", external_chain(port));
        }
        for endpoint in 0..port.endpoints.len() {
            let _ = writeln!(text, ":{} - [0:0]", endpoint_chain(port, endpoint));
        }
    }
    text += BASE;
    for port in ports {
        write_port(port, &mut text);
    }
    text += "-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must \
             be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n\
             COMMIT\n";
    text
}

/// The name of a chain. kube-proxy's contain a hash of the same length.
fn service_chain(port: &ServicePort) -> String {
    format!("KUBE-SVC-{:016}", port.number)
}

pub(crate) fn external_chain(port: &ServicePort) -> String {
    format!("KUBE-EXT-{:016}", port.number)
}

fn endpoint_chain(port: &ServicePort, endpoint: usize) -> String {
    format!("KUBE-SEP-{:014}{endpoint:02}", port.number)
}

/// The chain that new connections to a measured port traverse.
pub(crate) fn chain_of(measured: MeasuredPort, ports: &[ServicePort]) -> Option<String> {
    let is = |port: &&ServicePort| port.outside.is_some_and(|outside| outside.measured == measured);
    ports.iter().find(is).map(external_chain)
}

fn write_port(port: &ServicePort, text: &mut String) {
    let ServicePort { service, name, cluster_address, port: number, .. } = port;
    let (protocol, chain) = (port.protocol.name(), service_chain(port));
    let comment = format!("default/{service}:{name}");
    let on = format!("-m {protocol} -p {protocol}");
    let mut add = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "-A {line}");
    };
    add(format_args!(
        "KUBE-SERVICES -m comment --comment \"{comment} cluster IP\" {on} -d {cluster_address} \
         --dport {number} -j {chain}"
    ));
    if let Some(outside) = port.outside {
        let external = external_chain(port);
        add(format_args!(
            "KUBE-SERVICES -m comment --comment \"{comment} loadbalancer IP\" {on} -d {} \
             --dport {number} -j {external}",
            outside.address
        ));
        add(format_args!(
            "KUBE-NODEPORTS -m comment --comment {comment} {on} --dport {} -j {external}",
            outside.node_port
        ));
        add(format_args!(
            "{external} -m comment --comment \"masquerade traffic for {comment} external \
             destinations\" -j KUBE-MARK-MASQ"
        ));
        add(format_args!("{external} -j {chain}"));
    }
    add(format_args!(
        "{chain} -m comment --comment \"{comment} cluster IP\" {on} -d {cluster_address} \
         --dport {number} ! -s {POD_RANGE} -j KUBE-MARK-MASQ"
    ));
    let endpoints = port.endpoints.len();
    for (endpoint, end) in port.endpoints.iter().enumerate() {
        let to = endpoint_chain(port, endpoint);
        let left = endpoints - endpoint;
        let chance = if left == 1 {
            String::new()
        } else {
            let probability = 1.0 / left as f64;
            format!("-m statistic --mode random --probability {probability:.10} ")
        };
        add(format_args!("{chain} -m comment --comment \"{comment} -> {end}\" {chance}-j {to}"));
        add(format_args!("{to} -m comment --comment {comment} -s {} -j KUBE-MARK-MASQ", end.ip()));
        add(format_args!(
            "{to} -m comment --comment {comment} {on} -j DNAT --to-destination {end}"
        ));
    }
}

/// The packet counter of a chain's last rule, from `nft list chain`.
pub fn parse_chain_counter(listed: &str) -> Option<u64> {
    let (_, after) = listed.rsplit_once("counter packets ")?;
    after.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::services::compared_services;
    use super::*;

    #[test]
    fn a_port_is_written_as_kube_proxy_does() {
        let text = iptables_rules(&compared_services(1));
        for line in [
            "-A KUBE-SERVICES -m comment --comment \"default/measured:web loadbalancer IP\" -m tcp -p tcp -d 203.0.113.10 --dport 80 -j KUBE-EXT-0000000000000000",
            "-A KUBE-SVC-0000000000000000 -m comment --comment \"default/measured:web -> 10.0.0.2:8080\" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-0000000000000000",
            "-A KUBE-SVC-0000000000000000 -m comment --comment \"default/measured:web -> 10.0.0.3:8080\" -j KUBE-SEP-0000000000000001",
            "-A KUBE-SEP-0000000000000001 -m comment --comment default/measured:web -m tcp -p tcp -j DNAT --to-destination 10.0.0.3:8080",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\nis not in\n{text}");
        }
    }

    #[test]
    fn the_last_rules_counter_is_read() {
        let listed = "chain KUBE-EXT-0 {\n counter packets 7 bytes 1 jump KUBE-MARK-MASQ\n \
                      counter packets 6 bytes 1 jump KUBE-SVC-0\n}";
        assert_eq!(parse_chain_counter(listed), Some(6));
    }
}

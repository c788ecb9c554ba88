//! The rules that kube-proxy writes in nftables mode (Kubernetes 1.31 and later).
//!
//! Table, chains, sets, verdict maps and rules are the same, for one address family. A counter is
//! added before the DNAT rule of each measured endpoint, which only the first packet of a connection
//! reaches: it proves that connections used these rules.

use std::fmt::Write;

use super::services::{MeasuredPort, POD_RANGE, ServicePort};

/// kube-proxy's default.
const MASQUERADE_MARK: &str = "0x4000";

const BASE: &str = "\
add table ip kube-proxy
add set ip kube-proxy cluster-ips { type ipv4_addr ; }
add set ip kube-proxy nodeport-ips { type ipv4_addr ; }
add map ip kube-proxy firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }
add map ip kube-proxy no-endpoint-nodeports { type inet_proto . inet_service : verdict ; }
add map ip kube-proxy no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict ; }
add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }
add map ip kube-proxy service-nodeports { type inet_proto . inet_service : verdict ; }
add chain ip kube-proxy filter-prerouting-pre-dnat { type filter hook prerouting priority -110 ; }
add chain ip kube-proxy filter-output-pre-dnat { type filter hook output priority -110 ; }
add chain ip kube-proxy filter-forward { type filter hook forward priority 0 ; }
add chain ip kube-proxy filter-input { type filter hook input priority 0 ; }
add chain ip kube-proxy filter-output { type filter hook output priority 0 ; }
add chain ip kube-proxy nat-output { type nat hook output priority -100 ; }
add chain ip kube-proxy nat-postrouting { type nat hook postrouting priority 100 ; }
add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -100 ; }
add chain ip kube-proxy cluster-ips-check
add chain ip kube-proxy firewall-check
add chain ip kube-proxy mark-for-masquerade
add chain ip kube-proxy masquerading
add chain ip kube-proxy nodeport-endpoints-check
add chain ip kube-proxy reject-chain
add chain ip kube-proxy services
add chain ip kube-proxy service-endpoints-check
add rule ip kube-proxy cluster-ips-check ip daddr @cluster-ips reject
add rule ip kube-proxy filter-prerouting-pre-dnat ct state new jump firewall-check
add rule ip kube-proxy filter-forward ct state new jump service-endpoints-check
add rule ip kube-proxy filter-forward ct state new jump cluster-ips-check
add rule ip kube-proxy filter-input ct state new jump nodeport-endpoints-check
add rule ip kube-proxy filter-input ct state new jump service-endpoints-check
add rule ip kube-proxy filter-output ct state new jump service-endpoints-check
add rule ip kube-proxy filter-output ct state new jump cluster-ips-check
add rule ip kube-proxy filter-output-pre-dnat ct state new jump firewall-check
add rule ip kube-proxy firewall-check ip daddr . meta l4proto . th dport vmap @firewall-ips
add rule ip kube-proxy mark-for-masquerade mark set mark or MARK
add rule ip kube-proxy masquerading mark and MARK == 0 return
add rule ip kube-proxy masquerading mark set mark xor MARK
add rule ip kube-proxy masquerading masquerade fully-random
add rule ip kube-proxy nat-output jump services
add rule ip kube-proxy nat-postrouting jump masquerading
add rule ip kube-proxy nat-prerouting jump services
add rule ip kube-proxy nodeport-endpoints-check ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
add rule ip kube-proxy reject-chain reject
add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
add rule ip kube-proxy services ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
add rule ip kube-proxy service-endpoints-check ip daddr . meta l4proto . th dport vmap @no-endpoint-services
";

/// The input of `nft -f`.
pub fn nftables_rules(ports: &[ServicePort], node: &str) -> String {
    let mut text = BASE.replace("MARK", MASQUERADE_MARK);
    let mut add = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "add {line}");
    };
    add(format_args!("element ip kube-proxy nodeport-ips {{ {node} }}"));
    for measured in MeasuredPort::ALL {
        add(format_args!("counter ip kube-proxy {}", measured.name()));
    }
    for port in ports {
        let names = ChainNames::of(port);
        for endpoint in 0..port.endpoints.len() {
            add(format_args!("chain ip kube-proxy {}", names.endpoint(endpoint)));
        }
        add(format_args!("chain ip kube-proxy {}", names.service));
        if port.outside.is_some() {
            add(format_args!("chain ip kube-proxy {}", names.external));
        }
        write_port(port, &names, &mut add);
    }
    text
}

/// The names of a port's chains. kube-proxy's contain a hash of the same length.
struct ChainNames<'a> {
    port: &'a ServicePort,
    base: String,
    service: String,
    external: String,
}

impl<'a> ChainNames<'a> {
    fn of(port: &'a ServicePort) -> Self {
        let ServicePort { number, service, name, protocol, .. } = port;
        let base = format!("{number:08}-default/{service}/{}/{name}", protocol.name());
        let (service, external) = (format!("service-{base}"), format!("external-{base}"));
        Self { port, base, service, external }
    }

    fn endpoint(&self, endpoint: usize) -> String {
        let end = self.port.endpoints[endpoint];
        format!("endpoint-{}__{}/{}", self.base, end.ip(), end.port())
    }
}

fn write_port(
    port: &ServicePort,
    names: &ChainNames<'_>,
    add: &mut impl FnMut(std::fmt::Arguments<'_>),
) {
    let ServicePort { cluster_address, port: number, .. } = port;
    let (service, external) = (&names.service, &names.external);
    let protocol = port.protocol.name();

    add(format_args!(
        "rule ip kube-proxy {service} ip daddr {cluster_address} ip saddr != {POD_RANGE} \
         jump mark-for-masquerade"
    ));
    let choices: Vec<String> = (0..port.endpoints.len())
        .map(|endpoint| format!("{endpoint} : goto {}", names.endpoint(endpoint)))
        .collect();
    add(format_args!(
        "rule ip kube-proxy {service} numgen random mod {} vmap {{ {} }}",
        choices.len(),
        choices.join(" , ")
    ));
    add(format_args!("element ip kube-proxy cluster-ips {{ {cluster_address} }}"));
    add(format_args!(
        "element ip kube-proxy service-ips \
         {{ {cluster_address} . {protocol} . {number} : goto {service} }}"
    ));
    if let Some(outside) = port.outside {
        let (address, node_port) = (outside.address, outside.node_port);
        add(format_args!("rule ip kube-proxy {external} jump mark-for-masquerade"));
        add(format_args!("rule ip kube-proxy {external} goto {service}"));
        add(format_args!(
            "element ip kube-proxy service-ips \
             {{ {address} . {protocol} . {number} : goto {external} }}"
        ));
        add(format_args!(
            "element ip kube-proxy service-nodeports {{ {protocol} . {node_port} : goto {external} }}"
        ));
    }
    for (endpoint, end) in port.endpoints.iter().enumerate() {
        let chain = names.endpoint(endpoint);
        let source = end.ip();
        add(format_args!("rule ip kube-proxy {chain} ip saddr {source} jump mark-for-masquerade"));
        let counter = port
            .outside
            .map_or(String::new(), |outside| format!("counter name {} ", outside.measured.name()));
        add(format_args!(
            "rule ip kube-proxy {chain} meta l4proto {protocol} {counter}dnat to {end}"
        ));
    }
}

/// The packets of a counter, from nft's output.
pub fn parse_counter(listed: &str) -> Option<u64> {
    let mut words = listed.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::services::compared_services;
    use super::*;

    #[test]
    fn a_port_is_written_as_kube_proxy_does() {
        let text = nftables_rules(&compared_services(1), "192.0.2.1");
        for line in [
            "add chain ip kube-proxy external-00000000-default/measured/tcp/web",
            "add rule ip kube-proxy service-00000000-default/measured/tcp/web ip daddr 10.96.0.10 ip saddr != 10.128.0.0/9 jump mark-for-masquerade",
            "add rule ip kube-proxy service-00000000-default/measured/tcp/web numgen random mod 2 vmap { 0 : goto endpoint-00000000-default/measured/tcp/web__10.0.0.2/8080 , 1 : goto endpoint-00000000-default/measured/tcp/web__10.0.0.3/8080 }",
            "add element ip kube-proxy service-ips { 203.0.113.10 . tcp . 80 : goto external-00000000-default/measured/tcp/web }",
            "add element ip kube-proxy service-nodeports { tcp . 30080 : goto external-00000000-default/measured/tcp/web }",
            "add rule ip kube-proxy endpoint-00000000-default/measured/tcp/web__10.0.0.2/8080 ip saddr 10.0.0.2 jump mark-for-masquerade",
            "add rule ip kube-proxy endpoint-00000000-default/measured/tcp/web__10.0.0.2/8080 meta l4proto tcp counter name web dnat to 10.0.0.2:8080",
            "add rule ip kube-proxy masquerading mark and 0x4000 == 0 return",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\nis not in\n{text}");
        }
    }

    #[test]
    fn a_counter_is_read() {
        let listed = "table ip kube-proxy {\n\tcounter web {\n\t\tpackets 12 bytes 720\n\t}\n}\n";
        assert_eq!(parse_counter(listed), Some(12));
        assert_eq!(parse_counter("table ip kube-proxy {\n}\n"), None);
    }
}

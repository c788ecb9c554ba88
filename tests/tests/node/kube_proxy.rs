//! `millrace cleanup --kube-proxy` on rules as kube-proxy, a kubelet and a user write them.

use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tests::worlds::one_node::OneNode;

/// Rules of a user, of a current kubelet, and of a container runtime.
const OTHERS: &str = "\
*nat
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-SVC-MINE - [0:0]
:MINE - [0:0]
-A PREROUTING -p tcp -m tcp --dport 8080 -j MINE
-A POSTROUTING -s 10.244.0.0/16 -j MASQUERADE
-A MINE -j KUBE-SVC-MINE
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A KUBE-FIREWALL -m conntrack --ctstate INVALID -j DROP
COMMIT
";

/// The rules of kube-proxy in iptables mode, with one Service.
const KUBE_PROXYS: &str = "\
*nat
:KUBE-EXT-ERIFXISQEP7F7OF4 - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SEP-6E7XQMQ4RAYOWTTM - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ERIFXISQEP7F7OF4 - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-EXT-ERIFXISQEP7F7OF4 -j KUBE-MARK-MASQ
-A KUBE-EXT-ERIFXISQEP7F7OF4 -j KUBE-SVC-ERIFXISQEP7F7OF4
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-EXT-ERIFXISQEP7F7OF4
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SEP-6E7XQMQ4RAYOWTTM -s 10.244.1.10/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-6E7XQMQ4RAYOWTTM -p tcp -m tcp -j DNAT --to-destination 10.244.1.10:8080
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-ERIFXISQEP7F7OF4
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-ERIFXISQEP7F7OF4 -j KUBE-SEP-6E7XQMQ4RAYOWTTM
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
";

/// The table of kube-proxy in nftables mode, and a table of a user.
const NFTABLES: &str = "\
table ip kube-proxy {
    map services {
        type ipv4_addr . inet_proto . inet_service : verdict
    }
    chain service-web {
        ip protocol tcp dnat to 10.244.1.10:8080
    }
    chain nat-prerouting {
        type nat hook prerouting priority dstnat
        ip daddr . meta l4proto . th dport vmap @services
    }
}
add element ip kube-proxy services { 10.96.0.10 . tcp . 80 : goto service-web }
table ip6 kube-proxy {
    chain services {
    }
}
table inet mine {
    chain input {
        type filter hook input priority 0
        tcp dport 22 accept
    }
}
";

struct Node(OneNode);

impl Node {
    fn new() -> Result<Self> {
        Ok(Self(OneNode::with_pods(0)?))
    }

    fn write(&self, command: &[&str], text: &str) -> Result<()> {
        let mut command = {
            let (program, arguments) = command.split_first().context("a command")?;
            let mut started = self.0.node.command(program);
            started.args(arguments).stdin(Stdio::piped());
            started
        };
        let mut child = command.spawn()?;
        child.stdin.take().context("its input")?.write_all(text.as_bytes())?;
        ensure!(child.wait()?.success(), "{text}");
        Ok(())
    }

    fn add_iptables(&self, rules: &str) -> Result<()> {
        for restore in ["iptables-nft-restore", "ip6tables-nft-restore"] {
            // The same rules in IPv6, where addresses differ.
            let rules = if restore.starts_with("ip6") {
                let rules = rules.replace("10.244.1.10:", "[fd00::10]:");
                rules
                    .replace("10.244.1.10/32", "fd00::10")
                    .replace("10.96.0.10/32", "fd01::10")
                    .replace("10.244.0.0/16", "fd00::/64")
            } else {
                rules.to_owned()
            };
            self.write(&[restore, "--noflush"], &rules)?;
        }
        Ok(())
    }

    /// All rules, without what differs from one listing to the next.
    fn rules(&self) -> Result<Vec<String>> {
        let mut rules = self.0.node.run(["iptables-nft-save"])?;
        rules += &self.0.node.run(["ip6tables-nft-save"])?;
        rules += &self.0.node.run(["nft", "list", "tables", "inet"])?;
        let lines = rules.lines().filter(|line| !line.starts_with('#'));
        let rule = |line: &str| line.split(" [").next().unwrap_or_default().to_owned();
        let mut rules: Vec<String> = lines.map(rule).collect();
        rules.sort();
        Ok(rules)
    }

    /// Another test's process may be called kube-proxy, so this does not look at processes.
    fn cleanup(&self, more: &[&str]) -> Result<String> {
        let arguments = [&["cleanup", "--kube-proxy", "--force"], more].concat();
        let output = self.0.millrace(&arguments)?.output()?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{log}");
        Ok(String::from_utf8(output.stdout)?)
    }
}

#[test]
fn exactly_what_kube_proxy_wrote_is_removed() -> Result<()> {
    let node = Node::new()?;
    node.add_iptables(OTHERS)?;
    node.write(&["nft", "-f", "-"], "table inet mine { }")?;
    let before = node.rules()?;
    ensure!(before.iter().any(|rule| rule.contains("KUBE-SVC-MINE")), "{before:?}");
    node.add_iptables(KUBE_PROXYS)?;
    node.write(&["nft", "-f", "-"], NFTABLES)?;
    // kube-proxy's is a dummy interface, which not every kernel has.
    let device = ["ip", "link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "other-end"];
    node.0.node.run(device)?;
    let with_kube_proxy = node.rules()?;

    let listed = node.cleanup(&[])?;
    for what in [
        "would remove table ip kube-proxy",
        "would remove table ip6 kube-proxy",
        "would remove jump from ip nat PREROUTING to KUBE-SERVICES",
        "would remove chain ip6 nat KUBE-SVC-ERIFXISQEP7F7OF4",
        "would remove interface kube-ipvs0",
        "pass --yes to remove it",
    ] {
        ensure!(listed.contains(what), "{what}: {listed}");
    }
    ensure!(node.rules()? == with_kube_proxy, "listing changes nothing");

    let removed = node.cleanup(&["--yes"])?;
    ensure!(removed.contains("removed chain ip nat KUBE-SERVICES"), "{removed}");
    let after = node.rules()?;
    ensure!(after == before, "left:\n{}\nbefore:\n{}", after.join("\n"), before.join("\n"));
    let tables = node.0.node.run(["nft", "list", "tables"])?;
    ensure!(!tables.contains("kube-proxy"), "{tables}");
    ensure!(node.0.node.run(["ip", "link", "show", "kube-ipvs0"]).is_err());

    let again = node.cleanup(&["--yes"])?;
    ensure!(again == "nothing of kube-proxy to remove\n", "{again}");
    Ok(())
}

#[test]
fn a_chain_that_a_user_refers_to_is_kept_with_what_it_needs() -> Result<()> {
    let node = Node::new()?;
    node.add_iptables(KUBE_PROXYS)?;
    let mine = "*nat\n:MINE - [0:0]\n-A MINE -j KUBE-MARK-MASQ\nCOMMIT\n";
    node.add_iptables(mine)?;
    let removed = node.cleanup(&["--yes"])?;
    ensure!(
        removed.contains("kept chain ip nat KUBE-MARK-MASQ: a rule in MINE refers to it"),
        "{removed}"
    );
    let rules = node.rules()?;
    for kept in [
        "-A MINE -j KUBE-MARK-MASQ",
        "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
        "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
    ] {
        ensure!(rules.iter().any(|rule| rule == kept), "{kept}: {rules:?}");
    }
    ensure!(!rules.iter().any(|rule| rule.contains("KUBE-SERVICES")), "{rules:?}");
    Ok(())
}

/// While the entry of a connection that kube-proxy translated exists, the kernel drops others with the same replies.
#[test]
fn connection_tracking_entries_of_kube_proxy_are_removed() -> Result<()> {
    let node = Node(OneNode::with_pods(1)?);
    node.write(&["nft", "-f", "-"], NFTABLES)?;
    // Connections are tracked without kube-proxy, too.
    node.0.node.run(["nft", "insert rule inet mine input ct state invalid drop"])?;
    // The port can be used again at once, whoever closes the first connection.
    node.0.client.sysctl(&["net.ipv4.tcp_max_tw_buckets=0"])?;
    let from_one_port = ["--local-port", "20001", "--header", "Connection: close"];
    node.0.client.curl_with(&from_one_port, "http://10.96.0.10:80")?;
    node.cleanup(&["--yes"])?;
    node.0.client.curl_with(&from_one_port, "http://10.244.1.10:8080")?;
    Ok(())
}

/// Skipped, with a message, on a kernel without IPVS.
#[test]
fn virtual_servers_of_kube_proxy_are_removed_and_others_are_kept() -> Result<()> {
    let node = Node::new()?;
    if let Err(error) = node.0.node.run(["ipvsadm", "--list"]) {
        println!("skipped, no IPVS: {error:#}");
        return Ok(());
    }
    let add = |server: &str, to: &str| -> Result<()> {
        let add = ["ipvsadm", "--add-service"].into_iter().chain(server.split(' '));
        node.0.node.run(add.chain(["--scheduler", "rr"]))?;
        let add = ["ipvsadm", "--add-server"].into_iter().chain(server.split(' '));
        node.0.node.run(add.chain(["--real-server", to, "--masquerading"])).map(drop)
    };
    let listed = || node.0.node.run(["ipvsadm", "--list", "--numeric"]);
    add("--tcp-service 192.0.2.1:8080", "10.244.1.10:8080")?;
    add("--fwmark-service 7", "10.244.1.10:8080")?;
    let of_user = listed()?;

    node.0.node.ip("link add kube-ipvs0 type dummy")?;
    node.0.node.address("kube-ipvs0", "10.96.0.10/32")?;
    node.0.node.address("kube-ipvs0", "fd01::10/128")?;
    add("--tcp-service 10.96.0.10:80", "10.244.1.10:8080")?;
    add("--udp-service [fd01::10]:53", "[fd00::10]:5353")?;
    add("--tcp-service 192.0.2.1:30080", "10.244.1.10:8080")?;

    let shown = node.cleanup(&[])?;
    for line in [
        "would remove virtual server TCP 10.96.0.10:80",
        "would remove virtual server UDP [fd01::10]:53",
        "would remove virtual server TCP 192.0.2.1:30080",
        "would remove interface kube-ipvs0",
        "kept virtual server TCP 192.0.2.1:8080: neither a Service's address nor a NodePort",
    ] {
        ensure!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    node.cleanup(&["--yes"])?;
    ensure!(listed()? == of_user, "{}\nand of the user:\n{of_user}", listed()?);
    Ok(())
}

/// More than fits into one transaction.
#[test]
fn the_chains_of_ten_thousand_endpoints_are_removed() -> Result<()> {
    let node = Node::new()?;
    let digit = |n: usize| char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[n % 32]);
    let name = |n: usize| {
        let hash: String = [n, n / 32, n / 1024].map(digit).iter().collect();
        format!("KUBE-SEP-{hash}AAAAAAAAAAAAA")
    };
    let chains: String = (0..10_000).map(|n| format!(":{} - [0:0]\n", name(n))).collect();
    let rules: String = (0..10_000).map(|n| format!("-A {} -j ACCEPT\n", name(n))).collect();
    node.write(&["iptables-nft-restore", "--noflush"], &format!("*nat\n{chains}{rules}COMMIT\n"))?;
    node.cleanup(&["--yes"])?;
    let rules = node.rules()?;
    ensure!(!rules.iter().any(|rule| rule.contains("KUBE-")), "{} are left", rules.len());
    Ok(())
}

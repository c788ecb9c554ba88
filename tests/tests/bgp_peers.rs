//! The kinds of BGP peers beside those of docs/bgp.md: unnumbered, behind another router, of the same AS, one that
//! connects by itself, and objects of MetalLB; and other daemons than FRR and BIRD.
//!
//! ```text
//! frr  ─── link-local addresses ─── u0 ┐
//!   └───── 192.0.2.0/24 ────────── ext0├── node
//! bird ─── 198.51.100.0/24 ─────── ext1┤
//! others ─ 10.9.0.0/24 ─────────── ext2┘
//! ```

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::agent::Agent;
use tests::bgp::{Speaker, is_answered, is_established};
use tests::bgp_daemons::{Daemon, PASSWORD, Running};
use tests::bird::Bird;
use tests::frr::{BFD_PROFILES, Frr};
use tests::manifests::{Service, manifests};
use tests::topology::{SOON, Topology, wait_until};

const POD: [&str; 2] = ["10.244.1.10", "fd00:10:244:1::10"];
/// The node's address on the link to the other daemons.
const FOR_OTHERS: &str = "10.9.0.11";
const ADDRESSES: [&str; 2] = ["203.0.113.10", "2001:db8:f::10"];

const OBJECTS: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: node}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
# The only router on the link; the node knows no address of it.
apiVersion: millrace.io/v1alpha1
kind: BGPPeer
metadata: {name: unnumbered}
spec: {interface: u0, localASN: 64512, bfd: {}}
---
# Of the same AS.
apiVersion: millrace.io/v1alpha1
kind: BGPPeer
metadata: {name: internal}
spec: {address: 198.51.100.1, localASN: 64512, peerASN: 64512, bfd: {}}
---
# It connects by itself.
apiVersion: millrace.io/v1alpha1
kind: BGPPeer
metadata: {name: passive}
spec: {address: 198.51.100.2, localASN: 64512, peerASN: 64514, passive: true}
---
# The address of a router behind its link.
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: far, namespace: metallb-system}
spec:
  myASN: 64512
  peerASN: 64513
  peerAddress: 10.255.0.1
  ebgpMultiHop: true
  holdTime: 9s
  bfdProfile: slow
---
apiVersion: metallb.io/v1beta1
kind: BFDProfile
metadata: {name: slow, namespace: metallb-system}
spec: {receiveInterval: 200, transmitInterval: 200, detectMultiplier: 5}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: public, namespace: metallb-system}
spec: {addresses: [203.0.113.0/24, "2001:db8:f::/64"]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: public, namespace: metallb-system}
spec: {ipAddressPools: [public], localPref: 150, communities: [backbone]}
---
apiVersion: metallb.io/v1beta1
kind: Community
metadata: {name: names, namespace: metallb-system}
spec: {communities: [{name: backbone, value: "64512:77"}]}
---
"#;

/// The daemons' configurations. zebra sends router advertisements because bgpd asks it to.
const BGPD: &str = "\
router bgp 64513
 bgp router-id 192.0.2.1
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 neighbor rack interface remote-as 64512
 neighbor rack bfd
 neighbor rack bfd profile fast
 neighbor rack timers 3 9
 neighbor 192.0.2.11 remote-as 64512
 neighbor 192.0.2.11 update-source 10.255.0.1
 neighbor 192.0.2.11 ebgp-multihop 3
 neighbor 192.0.2.11 timers 3 9
 neighbor 192.0.2.11 bfd
 neighbor 192.0.2.11 bfd profile slow
 address-family ipv4 unicast
  neighbor rack activate
  neighbor 192.0.2.11 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor rack activate
  neighbor 192.0.2.11 activate
 exit-address-family
exit
";
const BIRD: &str = "\
router id 198.51.100.1;
protocol device {}
protocol bfd {}
template bgp millrace {
  hold time 9;
  error wait time 1, 2;
  ipv4 { import all; export none; };
  ipv6 { import all; export none; };
}
protocol bgp inside from millrace {
  local 198.51.100.1 as 64512;
  neighbor 198.51.100.11 as 64512;
  direct;
  bfd { interval 100 ms; multiplier 3; };
}
protocol bgp dials from millrace {
  local 198.51.100.2 as 64514;
  neighbor 198.51.100.12 as 64512;
  connect delay time 1;
  connect retry time 1;
}
";

#[test]
fn peers_of_all_kinds_get_the_routes() -> Result<()> {
    let topology = Topology::new("bgp")?;
    let [frr, bird, node] = ["frr", "bird", "node"].map(|name| topology.router(name));
    let (frr, bird, node, others) = (frr?, bird?, node?, topology.host("others")?);
    topology.link(frr.port("rack"), node.port("u0"))?;
    topology.link(
        frr.port("lan").addresses(&["192.0.2.1/24", "2001:db8:1::1/64"]),
        node.port("ext0").addresses(&["192.0.2.11/24", "2001:db8:1::11/64"]),
    )?;
    topology.link(
        bird.port("lan").addresses(&["198.51.100.1/24", "198.51.100.2/24", "2001:db8:2::1/64"]),
        node.port("ext1").addresses(&["198.51.100.11/24", "198.51.100.12/24", "2001:db8:2::11/64"]),
    )?;
    let addresses = Daemon::ALL.map(|daemon| format!("{}/24", daemon.address()));
    let addresses = addresses.iter().map(String::as_str).chain(["2001:db8:3::1/64"]);
    topology.link(
        others.port("lan").addresses(&addresses.collect::<Vec<_>>()),
        node.port("ext2").addresses(&[&format!("{FOR_OTHERS}/24"), "2001:db8:3::11/64"]),
    )?;
    frr.ip("address add 10.255.0.1/32 dev lo")?;
    node.route("10.255.0.1/32", "192.0.2.1")?;
    // A node that forwards ignores routers otherwise.
    node.sysctl(&["net.ipv6.conf.u0.accept_ra=2"])?;
    let frr = Frr::start(&topology, &frr, &[("bfdd", BFD_PROFILES), ("bgpd", BGPD)])?;
    let bird = Bird::start(&topology, &bird, BIRD)?;
    let directory = topology.directory();
    let others = Daemon::ALL.map(|daemon| daemon.start(&others, directory, FOR_OTHERS, 64_512));
    let others = others.into_iter().collect::<Result<Vec<_>>>()?;

    let web = Service::new("web", &["10.96.0.10", "fd00:10:96::10"]).load_balancer(&ADDRESSES);
    let text =
        format!("{OBJECTS}{}{}", others_as_peers(), manifests(&[web.tcp(80, 8080).here(&POD)]));
    let manifests = topology.write_manifests(&text)?;
    let state = topology.directory().join("state");
    let state = state.to_str().context("UTF-8")?;
    let more = ["ext1", "ext2", "u0"].map(|device| ["--device", device]);
    let more = [more.as_flattened(), &["--xdp-mode", "off", "--state-directory", state]].concat();
    let pins = topology.warm_agent_pins();
    let _agent = Agent::start(&node, &pins, &manifests, "ext0", &more)?;
    let speaker = Speaker::of(&node, pins);

    let established = speaker.wait_for_peers("sessions", 4 + others.len(), is_established);
    established.with_context(|| {
        let frr = frr.show("bgpd", "show bgp summary").unwrap_or_default();
        let others: Vec<String> = others.iter().map(Running::log).collect();
        let others = others.join("\n");
        format!("{frr}{}{others}", bird.show("show protocols").unwrap_or_default())
    })?;
    // Packets to link-local addresses are the agent's.
    speaker.wait_for_paths("paths", 3, |path| {
        path["state"] == "up" && (is_answered(path) || path["name"] == "unnumbered")
    })?;
    let far = speaker.show(&["bfd", "metallb-system/far", "-o", "wide"])?;
    ensure!(far.contains("(multihop)") && far.contains("1000ms"), "{far}");

    for (name, command) in [
        ("internal", "show route protocol inside all"),
        ("passive", "show route protocol dials all"),
    ] {
        let mut shown = String::new();
        wait_until(name, SOON, || {
            shown = bird.show(command).unwrap_or_default();
            ADDRESSES.iter().all(|address| shown.contains(address)) && shown.contains("(64512,77)")
        })
        .with_context(|| shown.clone())?;
        // LOCAL_PREF is for the same AS only.
        ensure!(shown.contains("local_pref: 150") == (name == "internal"), "{shown}");
    }
    for family in ["ipv4", "ipv6"] {
        let mut shown = String::new();
        wait_until(family, SOON, || {
            shown = frr.show("bgpd", &format!("show bgp {family} unicast")).unwrap_or_default();
            // From both sessions.
            shown.matches("64512 i").count() == 2
        })
        .with_context(|| shown.clone())?;
    }
    for daemon in &others {
        let mut shown = String::new();
        wait_until(&format!("{:?} has the routes", daemon.daemon), SOON, || {
            shown = daemon.routes().unwrap_or_default();
            ADDRESSES.iter().all(|address| shown.contains(address))
        })
        .with_context(|| format!("{shown}{}", daemon.log()))?;
    }
    let peers = speaker.peers()?;
    let authenticated = peers.iter().filter(|peer| peer["authenticated"] == true);
    for peer in authenticated.clone() {
        ensure!(peer["families"] == json!(["IPv4", "IPv6"]), "{peer}");
        ensure!(peer["gracefulRestart"] == true, "{peer}");
    }
    ensure!(authenticated.count() == others.len(), "{peers:?}");
    Ok(())
}

/// The peers of the other daemons, and their password.
fn others_as_peers() -> String {
    let peer = |daemon: Daemon| {
        json!({
            "apiVersion": "millrace.io/v1alpha1", "kind": "BGPPeer",
            "metadata": {"name": format!("{daemon:?}").to_lowercase()},
            "spec": {
                "address": daemon.address(), "localASN": 64_512,
                "peerASN": daemon.autonomous_system(), "passwordKey": "all",
            },
        })
    };
    let password = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "millrace-bgp", "namespace": "kube-system"},
        "stringData": {"all": PASSWORD},
    });
    let objects = Daemon::ALL.map(peer).into_iter().chain([password]);
    objects.map(|object| format!("{object}\n---\n")).collect()
}

//! `millrace check` and `millrace cleanup` on nodes in various states.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use aya::maps::MapData;
use aya::programs::links::PinnedLink;
use aya::programs::{SchedClassifier, TcAttachType};
use lb_common::layout::map;
use tests::programs::agent::{Agent, program};
use tests::worlds::one_node::{DEVICE, OneNode};
use tests::worlds::topology::{SOON, copy_program, wait_until};

struct Case(OneNode);

impl Case {
    fn new() -> Result<Self> {
        let network = OneNode::with_pods(0)?;
        network.write_manifests("# nothing\n")?;
        Ok(Self(network))
    }

    fn cleanup(&self, more: &[&str]) -> Result<String> {
        let output = self.0.millrace(&[&["cleanup"], more].concat())?.output()?;
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(output.status.success(), "{printed}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Whether the command succeeded, and its findings: check, result and message.
    fn check(&self, more: &[&str]) -> Result<(bool, Vec<[String; 3]>)> {
        let output = self.0.millrace(&[&["check", "-o", "json"], more].concat())?.output()?;
        let printed = String::from_utf8_lossy(&output.stderr);
        let findings: Vec<serde_json::Value> =
            serde_json::from_slice(&output.stdout).with_context(|| printed.into_owned())?;
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let row = |finding: &serde_json::Value| {
            // Each problem comes with how to fix it.
            assert_eq!(finding["result"] == "ok", finding["fix"].is_null(), "{finding}");
            ["check", "result", "message"].map(|key| text(&finding[key]))
        };
        Ok((output.status.success(), findings.iter().map(row).collect()))
    }

    /// Programs on the device: whether there is XDP, and the numbers of tcx ingress and egress.
    fn attached(&self) -> Result<(bool, usize, usize)> {
        let device = self.0.node.run(["ip", "-details", "link", "show", "dev", DEVICE])?;
        let tcx = |way| {
            let query = || Ok(SchedClassifier::query_tcx(DEVICE, way)?.1.len());
            self.0.node.enter(query)
        };
        let tcx = [tcx(TcAttachType::Ingress)?, tcx(TcAttachType::Egress)?];
        Ok((device.contains("prog/xdp"), tcx[0], tcx[1]))
    }

    /// Holds references to the links, as `bpftool link` does, or the kernel for a moment.
    fn held_links(&self) -> Result<Vec<PinnedLink>> {
        let pins = fs::read_dir(self.0.pin_path().join("links"))?;
        pins.map(|pin| Ok(PinnedLink::from_pin(pin?.path())?)).collect()
    }

    fn filters(&self) -> Result<usize> {
        let shown = ["ingress", "egress"]
            .map(|direction| self.0.node.run(["tc", "filter", "show", "dev", DEVICE, direction]));
        let count = |shown: Result<String>| Ok(shown?.matches("millrace:").count());
        shown.into_iter().map(count).sum()
    }
}

fn find<'a>(findings: &'a [[String; 3]], check: &str) -> &'a [String; 3] {
    let found = findings.iter().find(|[name, ..]| name == check);
    found.unwrap_or_else(|| panic!("no finding of {check}: {findings:?}"))
}

const NOTHING: (bool, usize, usize) = (false, 0, 0);

#[test]
fn cleanup_shows_and_removes_what_a_crashed_agent_left() -> Result<()> {
    let case = Case::new()?;
    case.0.start_agent(&[])?.kill();
    assert_eq!(case.attached()?, (true, 1, 1));

    let shown = case.cleanup(&["--dry-run"])?;
    for part in ["would detach ext0-xdp-native", "would detach cgroup-connect4", "would remove"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert_eq!(case.attached()?, (true, 1, 1), "--dry-run detached something");

    let done = case.cleanup(&[])?;
    for line in shown.lines().filter_map(|line| line.strip_prefix("would detach ")) {
        assert!(done.contains(&format!("detached {line}\n")), "{line}: {done}");
    }
    assert_eq!(case.attached()?, NOTHING);
    assert!(!case.0.pin_path().exists());
    assert!(case.cleanup(&[])?.starts_with("nothing to clean up"), "a second run");
    assert!(case.cleanup(&["--dry-run"])?.starts_with("nothing to clean up"));
    Ok(())
}

#[test]
fn cleanup_finds_filters_by_name_if_their_records_are_lost() -> Result<()> {
    let case = Case::new()?;
    case.0.start_agent(&["--tc-mode", "clsact"])?.kill();
    assert_eq!(case.filters()?, 2);
    let notes = case.0.pin_path().join("filters").join(DEVICE);
    for note in fs::read_dir(&notes)? {
        fs::remove_dir(note?.path())?;
    }
    fs::remove_dir(notes)?;
    let done = case.cleanup(&[])?;
    assert!(done.contains("detached ext0-ingress") && done.contains("ext0-egress"), "{done}");
    assert_eq!((case.filters()?, case.attached()?), (0, NOTHING));

    // Also if all pins are gone.
    case.0.start_agent(&["--tc-mode", "clsact", "--xdp-mode", "off"])?.kill();
    fs::rename(case.0.pin_path(), case.0.topology.pins().join("lost"))?;
    assert!(case.cleanup(&["--dry-run"])?.contains("would detach ext0-ingress"));
    assert_eq!(case.filters()?, 2);
    assert!(case.cleanup(&[])?.contains("detached ext0-ingress"));
    assert_eq!(case.filters()?, 0);
    Ok(())
}

#[test]
fn cleanup_removes_pins_of_other_versions() -> Result<()> {
    let case = Case::new()?;
    case.0.start_agent(&[])?.kill();
    let pins = case.0.pin_path();
    fs::create_dir_all(pins.join("programs/old"))?;
    MapData::from_pin(pins.join(map::REASONS))?.pin(pins.join("programs/old/thing"))?;
    MapData::from_pin(pins.join(map::REASONS))?.pin(pins.join("COUNTERS"))?;
    fs::rename(pins.join("links/ext0-xdp-native"), pins.join("links/ext0-other"))?;
    case.cleanup(&[])?;
    assert!(!pins.exists());
    assert_eq!(case.attached()?, NOTHING);
    Ok(())
}

#[test]
fn cleanup_refuses_while_an_agent_runs_unless_forced() -> Result<()> {
    let case = Case::new()?;
    let agent = case.0.start_agent(&[])?;
    let refused = case.cleanup(&[]).expect_err("an agent is running").to_string();
    assert!(refused.contains("an agent (process") && refused.contains("--force"), "{refused}");
    assert_eq!(case.attached()?, (true, 1, 1));
    case.cleanup(&["--dry-run", "--force"])?;
    assert_eq!(case.attached()?, (true, 1, 1));
    case.cleanup(&["--force"])?;
    assert_eq!(case.attached()?, NOTHING);
    drop(agent);
    Ok(())
}

#[test]
fn programs_are_detached_even_if_a_process_holds_their_links() -> Result<()> {
    let case = Case::new()?;
    case.0.start_agent(&[])?.kill();
    let held = case.held_links()?;
    assert!(held.len() > 3, "{held:?}");
    let agent = case.0.start_agent(&["--xdp-mode", "off", "--tc-mode", "clsact"])?;
    assert_eq!((case.attached()?, case.filters()?), (NOTHING, 2), "only in the new mode");
    agent.kill();

    let held_too = case.held_links()?;
    case.cleanup(&[])?;
    assert_eq!((case.attached()?, case.filters()?), (NOTHING, 0));
    drop((held, held_too));
    Ok(())
}

#[test]
fn a_suitable_machine_passes_before_and_while_an_agent_runs() -> Result<()> {
    let case = Case::new()?;
    let (passed, findings) = case.check(&["--device", DEVICE])?;
    assert!(passed, "{findings:?}");
    for check in
        ["root", "capabilities", "architecture", "kernel", "btf", "jit", "bpffs", "memory", "agent"]
    {
        assert_eq!(find(&findings, check)[1], "ok", "{findings:?}");
    }
    assert!(find(&findings, "uplinks")[2].contains(DEVICE));
    assert_eq!(find(&findings, "forwarding")[1], "ok");
    assert_eq!(find(&findings, "XDP on ext0")[1], "ok");

    let _agent = case.0.start_agent(&[])?;
    let (passed, findings) = case.check(&["--device", DEVICE, "--xdp-mode", "native"])?;
    assert!(passed, "{findings:?}");
    let agent = find(&findings, "agent");
    assert!(agent[1] == "warning" && agent[2].contains("is running"), "{agent:?}");
    assert_eq!(find(&findings, "programs on ext0")[1], "ok", "programs of this agent");
    Ok(())
}

#[test]
fn settings_that_stop_forwarded_packets_are_reported_with_a_fix() -> Result<()> {
    let case = Case::new()?;
    let node = &case.0.node;
    node.sysctl(&["net.ipv4.ip_forward=0"])?;
    let (passed, findings) = case.check(&["--device", DEVICE])?;
    let found = find(&findings, "forwarding");
    assert!(passed && found[1] == "warning", "{found:?}");
    assert!(found[2].starts_with("net.ipv4.ip_forward is 0"), "{found:?}");

    node.sysctl(&["net.ipv4.ip_forward=1"])?;
    node.run(["nft", "add table ip docker"])?;
    let chain = "{ type filter hook forward priority filter; policy drop; }";
    node.run(["nft", &format!("add chain ip docker FORWARD {chain}")])?;
    let (_, findings) = case.check(&["--device", DEVICE])?;
    let found = find(&findings, "forwarding");
    assert!(found[1] == "warning" && found[2].contains("table ip docker"), "{found:?}");

    node.run(["nft", "delete table ip docker"])?;
    node.run(["nft", "add table ip firewall"])?;
    node.run([
        "nft",
        "add chain ip firewall filter { type filter hook forward priority filter; }",
    ])?;
    node.bridge("cni0")?;
    let _pod = node.pod("bridged", &[])?;
    node.ip("link set bridged master cni0")?;
    for (setting, expected) in [(0, "warning"), (1, "ok")] {
        node.sysctl(&[&format!("net.bridge.bridge-nf-call-iptables={setting}")])?;
        let (_, findings) = case.check(&["--device", DEVICE])?;
        let found = find(&findings, "forwarding");
        assert_eq!(found[1], expected, "{findings:?}");
        assert_eq!(
            found[2].contains("pods on the bridge cni0"),
            expected == "warning",
            "{found:?}"
        );
    }
    Ok(())
}

#[test]
fn routing_that_separates_replies_from_requests_is_reported_with_a_fix() -> Result<()> {
    let case = Case::new()?;
    let node = &case.0.node;
    let both = ["--device", DEVICE, "--device", "ext1"];
    let warnings = |more: &[&str]| -> Result<Vec<String>> {
        let (passed, findings) = case.check(more)?;
        assert!(passed, "only warnings: {findings:?}");
        let of_routing = findings.into_iter().filter(|[check, ..]| check == "routing");
        Ok(of_routing.filter(|[_, result, _]| result == "warning").map(|[.., text]| text).collect())
    };
    case.0.topology.link(node.port("ext1"), case.0.client.port("eth1"))?;
    node.sysctl(&["net.ipv4.conf.ext1.rp_filter=1"])?;
    assert_eq!(warnings(&both[..2])?, [""; 0], "one uplink, which is not strict");
    let strict = warnings(&both)?;
    assert!(strict.len() == 1 && strict[0].starts_with("rp_filter of ext1 is 1"), "{strict:?}");
    node.sysctl(&["net.ipv4.conf.ext1.rp_filter=2"])?;
    assert_eq!(warnings(&both)?, [""; 0]);

    node.ip("rule add from 10.244.1.0/24 lookup 7")?;
    node.ip("-6 rule add from fd00:10:244:1::10 lookup 7")?;
    let rules = "from 10.244.1.0/24 lookup 7, from fd00:10:244:1::10 lookup 7";
    let found = warnings(&both[..2])?;
    assert!(found.len() == 1 && found[0].contains(rules), "{found:?}");
    Ok(())
}

#[test]
fn check_fails_for_settings_that_the_agent_would_refuse() -> Result<()> {
    let case = Case::new()?;
    let (passed, findings) = case.check(&["--device", "eth7"])?;
    assert!(!passed);
    let devices = find(&findings, "devices");
    assert!(devices[1] == "error" && devices[2].contains("no device eth7"), "{devices:?}");
    let (passed, findings) = case.check(&["--device", DEVICE, "--max-flows", "134217728"])?;
    // A large machine may have enough memory.
    assert_eq!(passed, find(&findings, "memory")[1] != "error");
    let printed = case.0.millrace(&["check", "--max-flows", "3"])?.output()?;
    assert_eq!(printed.status.code(), Some(1));
    Ok(())
}

#[test]
fn too_few_snat_ports_are_an_error_with_a_fix() -> Result<()> {
    let case = Case::new()?;
    let device = ["--device", DEVICE];
    let (_, findings) = case.check(&device)?;
    let found = find(&findings, "SNAT ports");
    assert!(found[1] == "ok" && found[2].starts_with("31741 of"), "{found:?}");

    let set = |setting: &str| case.0.node.run(["sysctl", "--quiet", "--write", setting]);
    set("net.ipv4.ip_local_reserved_ports=2000-2009,3000")?;
    let (_, findings) = case.check(&device)?;
    assert!(find(&findings, "SNAT ports")[2].starts_with("31730 of"), "{findings:?}");

    set("net.ipv4.ip_local_port_range=1024 65535")?;
    let (passed, findings) = case.check(&device)?;
    let found = find(&findings, "SNAT ports");
    assert!(!passed && found[1] == "error" && found[2].contains("too few: 0 of"), "{found:?}");
    let agent = case.0.start_agent(&[])?;
    let printed = agent.log();
    assert!(
        printed.contains("too few ports for SNAT") && printed.contains("--snat-ports"),
        "{printed}"
    );
    agent.kill();

    set("net.ipv4.ip_local_port_range=1024 40000")?;
    let (_, findings) = case.check(&["--device", DEVICE, "--snat-ports", "50000-60000"])?;
    let found = find(&findings, "SNAT ports");
    assert!(found[1] == "ok" && found[2].contains("of the ports 50000-"), "{found:?}");
    Ok(())
}

#[test]
fn programs_of_another_agent_are_reported() -> Result<()> {
    let case = Case::new()?;
    let other = case.0.topology.pins().join("other");
    for more in [
        &["--xdp-mode", "native"][..],
        &["--xdp-mode", "off"],
        &["--xdp-mode", "off", "--tc-mode", "clsact"],
    ] {
        let agent = Agent::start(&case.0.node, &other, &case.0.topology.manifests(), DEVICE, more)?;
        let (passed, findings) = case.check(&[&["--device", DEVICE], more].concat())?;
        let programs = find(&findings, "programs on ext0");
        assert!(!passed && programs[1] == "error", "{more:?}: {findings:?}");
        agent.kill();
        let mut command = case.0.node.command(program()?);
        command.args(["cleanup", "--pin-path"]).arg(&other);
        assert!(command.output()?.status.success());
    }
    Ok(())
}

#[test]
fn kube_proxy_is_found_by_its_process_and_by_its_rules() -> Result<()> {
    let case = Case::new()?;
    // The namespace has no rules, but a kube-proxy may run on the machine.
    let (_, before) = case.check(&["--device", DEVICE])?;
    assert!(
        !before.iter().any(|[_, _, message]| message.contains("its rules are in")),
        "{before:?}"
    );
    case.0.node.run(["nft", "add", "table", "ip", "kube-proxy"])?;
    case.0.node.run(["nft", "add", "chain", "ip", "kube-proxy", "services"])?;
    // A process named kube-proxy.
    let copy = case.0.topology.directory().join("kube-proxy");
    copy_program(Path::new("/bin/sleep"), &copy)?;
    let process = case.0.node.spawn(case.0.node.command(&copy).arg("1000"))?;
    let comm = format!("/proc/{}/comm", process.pid());
    wait_until("the process is named kube-proxy", SOON, || {
        fs::read_to_string(&comm).is_ok_and(|name| name.trim_end() == "kube-proxy")
    })?;
    let (passed, findings) = case.check(&["--device", DEVICE])?;
    assert!(passed, "kube-proxy is only a warning: {findings:?}");
    for part in ["it is running (process", "1 tables of nftables"] {
        let found = findings.iter().any(|[check, result, message]| {
            check == "kube-proxy" && result == "warning" && message.contains(part)
        });
        assert!(found, "{part}: {findings:?}");
    }
    Ok(())
}

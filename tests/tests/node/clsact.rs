//! tc without tcx, as on kernels before 6.6: filters of a clsact qdisc, next to filters of other
//! software.

use std::io::{Read, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use aya::programs::{SchedClassifier, TcAttachType};
use tests::manifests::{here, manifests};
use tests::programs::agent::{Agent, program};
use tests::worlds::one_node::{DEVICE, OneNode};
use tests::worlds::topology::{SOON, wait_until};

const VIP: &str = "http://203.0.113.10/";
const VIP6: &str = "http://[2001:db8:113::10]/";

struct Case {
    network: OneNode,
    manifests: PathBuf,
}

impl Case {
    fn with_pods(count: usize) -> Result<Self> {
        let network = OneNode::warm(count)?;
        let manifests = network.write_manifests(&manifests(&[here().tcp(80, 8080)]))?;
        Ok(Self { network, manifests })
    }

    fn agent(&self, more: &[&str]) -> Result<Agent> {
        let Self { network, manifests } = self;
        Agent::start(&network.node, &network.pin_path(), manifests, DEVICE, more)
    }

    fn clsact(&self) -> Result<Agent> {
        self.agent(&["--tc-mode", "clsact", "--workload-device", "pod-*"])
    }

    /// The filters that `tc filter show` lists in this direction of the device, without the header
    /// line that it prints for each priority.
    fn filters(&self, direction: &str) -> Result<Vec<String>> {
        let words = ["tc", "filter", "show", "dev", DEVICE, direction];
        let shown = self.network.node.run(words)?;
        Ok(shown.lines().filter(|line| line.contains("handle")).map(str::to_owned).collect())
    }

    fn ours(&self, direction: &str) -> Result<Vec<String>> {
        Ok(self.filters(direction)?.into_iter().filter(|line| line.contains("millrace:")).collect())
    }

    fn has_clsact(&self) -> Result<bool> {
        Ok(self.network.node.run(["tc", "qdisc", "show", "dev", DEVICE])?.contains("clsact"))
    }

    fn cleanup(&self) -> Result<()> {
        let program = program()?;
        let pins = self.network.pin_path();
        let words = [program.as_os_str(), "cleanup".as_ref(), "--pin-path".as_ref(), pins.as_ref()];
        self.network.node.run(words).map(drop)
    }

    /// Adds a filter of other software: a program that matches nothing.
    fn others_filter(&self, priority: &str) -> Result<()> {
        let words = ["tc", "filter", "add", "dev", DEVICE, "ingress", "prio", priority];
        let rest = ["protocol", "all", "bpf", "bytecode", "1,6 0 0 0"];
        self.network.node.run(words.into_iter().chain(rest)).map(drop)
    }
}

#[test]
fn clients_and_pods_reach_services_through_clsact_filters() -> Result<()> {
    let case = Case::with_pods(2)?;
    let agent = case.clsact()?;
    assert!(agent.log().contains("clsact ingress"), "{}", agent.log());
    for url in [VIP, VIP6] {
        assert_eq!(case.network.curl(url)?, "pod-0\n");
    }
    for url in ["http://10.96.0.10/", "http://[fd00:10:96::a]/"] {
        assert_eq!(case.network.pods[1].host.curl(url)?, "pod-0\n");
    }
    assert_eq!((case.ours("ingress")?.len(), case.ours("egress")?.len()), (1, 1));
    Ok(())
}

#[test]
fn a_new_agent_replaces_the_programs_without_deleting_a_filter() -> Result<()> {
    let case = Case::with_pods(1)?;
    case.clsact()?.kill();
    let before = case.ours("ingress")?.pop().context("no filter after the agent was killed")?;
    let mut stream = case.network.client.tcp_connect("203.0.113.10:80")?;
    let mut ask = move || -> Result<bool> {
        stream.write_all(b"HEAD / HTTP/1.1\r\nHost: web\r\n\r\n")?;
        let mut answer = [0; 1000];
        let length = stream.read(&mut answer)?;
        Ok(answer[..length].starts_with(b"HTTP/1.1 200"))
    };
    assert!(ask()?);

    let node = &case.network.node;
    let mut monitor = node.spawn(node.command("tc").arg("monitor"))?;
    // tc monitor misses what happens before it listens. A change of a qdisc shows that it does.
    wait_until("tc monitor prints", SOON, || {
        let _ = node.run(["tc", "qdisc", "replace", "dev", "lo", "root", "pfifo"]);
        monitor.output().contains("dev lo")
    })?;
    case.network.forget_programs()?;
    let _agent = case.clsact()?;
    monitor.wait_for_output("millrace:", SOON)?;
    let seen = monitor.output();
    assert!(
        !seen.lines().any(|line| line.contains("deleted") && line.contains("filter")),
        "{seen}"
    );
    let after = case.ours("ingress")?;
    let place = |filter: &str| filter.split(" direct-action").next().map(str::to_owned);
    assert_eq!(after.iter().map(|f| place(f)).collect::<Vec<_>>(), [place(&before)]);
    assert_ne!(after, [before], "the filter still has the old program");
    assert!(ask()?);
    Ok(())
}

#[test]
fn filters_of_other_software_and_their_qdisc_are_kept() -> Result<()> {
    let case = Case::with_pods(1)?;
    case.network.node.run(["tc", "qdisc", "add", "dev", DEVICE, "clsact"])?;
    // At the priority that Millrace prefers.
    case.others_filter("2")?;
    let others = case.filters("ingress")?;
    let agent = case.clsact()?;
    assert_eq!(case.network.curl(VIP)?, "pod-0\n");
    assert_eq!(case.filters("ingress")?.len(), 2);
    assert!(agent.terminate()?.success());
    case.cleanup()?;
    assert_eq!(case.filters("ingress")?, others);
    assert!(case.has_clsact()?);
    Ok(())
}

#[test]
fn cleanup_removes_the_qdisc_unless_other_filters_use_it() -> Result<()> {
    let case = Case::with_pods(1)?;
    assert!(!case.has_clsact()?);
    assert!(case.clsact()?.terminate()?.success());
    case.cleanup()?;
    assert!(!case.has_clsact()? && !case.network.pin_path().exists(), "not removed");

    case.clsact()?.kill();
    case.others_filter("7")?;
    case.cleanup()?;
    assert!(case.has_clsact()?, "it has a filter of other software");
    assert_eq!((case.ours("ingress")?.len(), case.filters("ingress")?.len()), (0, 1));
    Ok(())
}

#[test]
fn agents_switch_between_clsact_and_tcx() -> Result<()> {
    if std::process::Command::new("uname").arg("-r").output()?.stdout.starts_with(b"6.1.") {
        println!("this kernel has no tcx");
        return Ok(());
    }
    let case = Case::with_pods(1)?;
    for (mode, filters) in [("clsact", 1), ("tcx", 0), ("clsact", 1)] {
        let agent = case.agent(&["--tc-mode", mode])?;
        assert_eq!(case.network.curl(VIP)?, "pod-0\n", "{mode}");
        for direction in ["ingress", "egress"] {
            assert_eq!(case.ours(direction)?.len(), filters, "{mode}, {direction}");
        }
        for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
            let query = || Ok(SchedClassifier::query_tcx(DEVICE, direction)?.1.len());
            assert_eq!(case.network.node.enter(query)?, 1 - filters, "{mode}, {direction:?}");
        }
        assert_eq!(case.has_clsact()?, filters == 1, "{mode}");
        agent.kill();
    }
    Ok(())
}

#[test]
fn a_conflicting_qdisc_is_reported_and_left_alone() -> Result<()> {
    let case = Case::with_pods(0)?;
    let node = &case.network.node;
    node.run(["tc", "qdisc", "add", "dev", DEVICE, "ingress"])?;
    case.others_filter("7")?;
    let pins = case.network.topology.pins().join("new");
    let output = node
        .command(program()?)
        .args(["agent", "--tc-mode", "clsact", "--device", DEVICE, "--manifests"])
        .arg(&case.manifests)
        .arg("--pin-path")
        .arg(&pins)
        .arg("--cgroup")
        .arg(node.cgroup())
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains(DEVICE) && log.contains("tc qdisc del dev"), "{log}");
    assert_eq!(case.filters("ingress")?.len(), 1);
    assert!(!pins.exists(), "not removed");
    Ok(())
}

#[test]
fn a_device_that_is_added_again_gets_new_filters() -> Result<()> {
    let case = Case::with_pods(1)?;
    let _agent = case.clsact()?;
    let node = &case.network.node;
    node.bridge("pod-again")?;
    let filters = || {
        let words = ["tc", "filter", "show", "dev", "pod-again", "ingress"];
        node.run(words).is_ok_and(|shown| shown.contains("millrace:"))
    };
    wait_until("the first device has a filter", SOON, filters)?;
    node.ip("link delete pod-again")?;
    node.bridge("pod-again")?;
    wait_until("the second device has a filter", SOON, filters)
}

#[test]
fn without_xdp_tc_handles_all_packets() -> Result<()> {
    let case = Case::with_pods(1)?;
    for mode in ["tcx", "clsact"] {
        let agent = case.agent(&["--xdp-mode", "off", "--tc-mode", mode]);
        let agent = match agent {
            Err(error) if mode == "tcx" && format!("{error:#}").contains("tcx") => continue,
            agent => agent?,
        };
        for url in [VIP, VIP6] {
            assert_eq!(case.network.curl(url)?, "pod-0\n", "{mode}");
        }
        let device = case.network.node.run(["ip", "-details", "link", "show", "dev", DEVICE])?;
        assert!(!device.contains("prog/xdp"), "{device}");
        agent.kill();
    }
    // With XDP again, which leaves to tc only the packets that it cannot handle.
    let _agent = case.agent(&[])?;
    assert_eq!(case.network.curl(VIP)?, "pod-0\n");
    Ok(())
}

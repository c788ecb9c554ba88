//! Errors of an agent that cannot start, or cannot serve an interface. Nothing is left behind by a
//! failed start, on a device that is no longer served, or by `cleanup`.

use std::fs;
use std::path::Path;

use anyhow::Result;
use aya::programs::{SchedClassifier, TcAttachType};
use tests::programs::agent::{Agent, program};
use tests::worlds::one_node::{DEVICE, OneNode, WEB};
use tests::worlds::topology::{SOON, copy_program, wait_until};

/// Runs the agent, which must fail, and returns its stderr.
fn refused(network: &OneNode, arguments: &[&str]) -> Result<String> {
    let output = network.node.command(program()?).args(arguments).output()?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert_eq!(attached(network)?, (false, 0), "still attached");
    assert!(!network.pin_path().exists(), "pins are left behind");
    Ok(printed)
}

/// Whether the node's device has an XDP program, and the number of its tcx egress programs.
fn attached(network: &OneNode) -> Result<(bool, usize)> {
    let device = network.node.run(["ip", "-details", "link", "show", "dev", DEVICE])?;
    let egress =
        network.node.enter(|| Ok(SchedClassifier::query_tcx(DEVICE, TcAttachType::Egress)?))?;
    Ok((device.contains("prog/xdp"), egress.1.len()))
}

struct Case {
    network: OneNode,
    manifests: String,
    pins: String,
}

impl Case {
    fn new() -> Result<Self> {
        let network = OneNode::with_pods(0)?;
        let file = network.topology.directory().join("empty.yaml");
        fs::write(&file, "# nothing\n")?;
        let pins = network.pin_path().display().to_string();
        Ok(Self { network, manifests: file.display().to_string(), pins })
    }

    fn run(&self, manifests: &str, device: &str, pins: &str) -> Result<String> {
        let arguments = ["agent", "--manifests", manifests, "--device", device, "--pin-path", pins];
        refused(&self.network, &arguments)
    }
}

#[test]
fn an_unknown_device_is_reported_with_the_existing_ones() -> Result<()> {
    let case = Case::new()?;
    let printed = case.run(&case.manifests, "eth7", &case.pins)?;
    assert!(printed.contains("no device eth7") && printed.contains(DEVICE), "{printed}");
    Ok(())
}

#[test]
fn a_second_device_that_fails_detaches_the_first() -> Result<()> {
    let case = Case::new()?;
    let printed = refused(
        &case.network,
        &["agent", "--manifests", &case.manifests, "--device", DEVICE, "--device", "eth7"]
            .into_iter()
            .chain(["--pin-path", &case.pins])
            .collect::<Vec<_>>(),
    )?;
    assert!(printed.contains("no device eth7"), "{printed}");
    Ok(())
}

#[test]
fn a_missing_manifest_is_reported_by_path() -> Result<()> {
    let case = Case::new()?;
    let printed = case.run("/nowhere/services", DEVICE, &case.pins)?;
    assert!(printed.contains("/nowhere/services") && printed.contains("No such file"), "{printed}");
    Ok(())
}

#[test]
fn invalid_yaml_is_reported_with_file_and_line() -> Result<()> {
    let case = Case::new()?;
    fs::write(&case.manifests, "kind: Service\nmetadata: {name: [}\n")?;
    let printed = case.run(&case.manifests, DEVICE, &case.pins)?;
    assert!(printed.contains("empty.yaml:2:"), "{printed}");
    Ok(())
}

#[test]
fn a_pin_path_outside_a_bpf_file_system_is_refused_with_a_fix() -> Result<()> {
    let case = Case::new()?;
    let elsewhere = case.network.topology.directory().join("pins");
    let printed = case.run(&case.manifests, DEVICE, &elsewhere.display().to_string())?;
    assert!(
        printed.contains("not on a BPF filesystem") && printed.contains("mount -t bpf"),
        "{printed}"
    );
    assert!(!elsewhere.exists());
    Ok(())
}

#[test]
fn an_invalid_cgroup_is_reported_and_nothing_stays_attached() -> Result<()> {
    let case = Case::new()?;
    for (cgroup, complaint) in
        [("/nowhere/groups", "No such file"), ("/proc", "not a control group of version 2")]
    {
        let arguments = ["agent", "--manifests", &case.manifests, "--device", DEVICE];
        let more = ["--pin-path", &case.pins, "--cgroup", cgroup];
        let printed = refused(&case.network, &[&arguments[..], &more[..]].concat())?;
        assert!(printed.contains(cgroup) && printed.contains(complaint), "{printed}");
    }
    Ok(())
}

#[test]
fn a_device_with_the_program_of_another_agent_is_refused() -> Result<()> {
    let case = Case::new()?;
    let manifests = Path::new(&case.manifests);
    let first = Agent::start(&case.network.node, Path::new(&case.pins), manifests, DEVICE, &[])?;
    let other = format!("{}-other", case.pins);
    let output = case
        .network
        .node
        .command(program()?)
        .args(["agent", "--manifests", &case.manifests, "--device", DEVICE, "--pin-path", &other])
        .args(["--xdp-mode", "native"])
        .output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("another program holds") && printed.contains("bpftool net"),
        "{printed}"
    );
    assert!(!Path::new(&other).exists(), "pins are left behind: {other}");
    drop(first);
    Ok(())
}

#[test]
fn without_root_the_agent_exits_with_an_error() -> Result<()> {
    let case = Case::new()?;
    let program = program()?;
    // A copy that every user may execute, wherever the build is.
    let copy = case.network.topology.directory().join("millrace");
    copy_program(&program, &copy)?;
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(case.network.topology.directory(), everybody)?;
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let output = std::process::Command::new("setpriv")
        .args(nobody)
        .arg(&copy)
        .args(["agent", "--manifests", "/", "--device", "lo"])
        .output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("must run as root") && printed.contains("sudo"), "{printed}");
    Ok(())
}

#[test]
fn a_new_agent_detaches_devices_that_it_does_not_serve() -> Result<()> {
    let case = Case::new()?;
    let node = &case.network.node;
    let other = case.network.topology.host("other")?;
    case.network.topology.link(node.port("ext1"), other.port("eth0"))?;
    let (pins, manifests) = (Path::new(&case.pins), Path::new(&case.manifests));
    let both = Agent::start(node, pins, manifests, DEVICE, &["--device", "ext1"])?;
    assert!(both.terminate()?.success());
    assert_eq!(attached(&case.network)?, (true, 1));

    let _one = Agent::start(node, pins, manifests, "ext1", &[])?;
    assert_eq!(attached(&case.network)?, (false, 0), "still attached");
    Ok(())
}

#[test]
fn cleanup_detaches_and_removes_everything() -> Result<()> {
    let case = Case::new()?;
    let manifests = Path::new(&case.manifests);
    let agent = Agent::start(&case.network.node, Path::new(&case.pins), manifests, DEVICE, &[])?;
    assert!(agent.terminate()?.success());
    assert_eq!(attached(&case.network)?, (true, 1), "on shutdown programs stay attached");

    let program = program()?;
    case.network.node.run([
        program.as_os_str(),
        "cleanup".as_ref(),
        "--pin-path".as_ref(),
        case.pins.as_ref(),
    ])?;
    assert_eq!(attached(&case.network)?, (false, 0), "still attached");
    assert!(!Path::new(&case.pins).exists());
    Ok(())
}

#[test]
fn an_interface_that_refuses_programs_is_reported_until_it_takes_them() -> Result<()> {
    let network = OneNode::warm(1)?;
    let arguments = ["--tc-mode", "clsact", "--workload-device", "late*"];
    let agent = network.agent_with(WEB, &arguments)?;
    // Under its first name the interface is no pod's, so its qdisc is there before the agent comes.
    let node = &network.node;
    let pod = node.pod("early", &["10.244.1.99"])?;
    node.run(["tc", "qdisc", "add", "dev", "early", "ingress"])?;
    for command in ["set early down", "set early name late0", "set late0 up"] {
        node.ip(&format!("link {command}"))?;
    }
    node.ip("route add 10.244.1.99 dev late0")?;
    let report = "interface not served device=late0 reason=";
    wait_until("the interface is reported", SOON, || agent.log().contains(report))?;
    let log = agent.log();
    let line = log.lines().find(|line| line.contains(report)).unwrap_or_default();
    assert!(line.contains("tc qdisc del dev late0"), "no fix: {line}");
    assert_eq!(network.curl("http://203.0.113.10/")?, "pod-0\n", "the rest is served");

    node.run(["tc", "qdisc", "del", "dev", "late0", "ingress"])?;
    wait_until("the interface is served", SOON, || {
        agent.log().contains("attached to interface device=late0")
    })?;
    let curl = ["curl", "--silent", "--fail", "--max-time", "60", "http://10.96.0.10/"];
    assert_eq!(pod.run(curl)?, "pod-0\n");
    Ok(())
}

#[test]
fn an_unreadable_kubeconfig_is_reported_by_path() -> Result<()> {
    let case = Case::new()?;
    let kubeconfig = case.network.topology.directory().join("kubeconfig");
    fs::write(&kubeconfig, "clusters: [")?;
    let kubeconfig = kubeconfig.display().to_string();
    let arguments = ["agent", "--kubeconfig", &kubeconfig, "--device", DEVICE];
    let printed = refused(&case.network, &[&arguments[..], &["--pin-path", &case.pins]].concat())?;
    assert!(printed.contains(&format!("--kubeconfig {kubeconfig}")), "{printed}");
    Ok(())
}

#[test]
fn an_api_server_that_sends_garbage_is_reported_and_services_are_served() -> Result<()> {
    let network = OneNode::warm(1)?;
    assert!(network.agent_on(WEB)?.0.terminate()?.success());
    let page = "<html><title>Sign in</title></html>";
    let _server = network.node.http_server(&["127.0.0.1:6443"], page)?;
    let mut agent = network.agent_of_api_server("http://127.0.0.1:6443")?;
    for kind in ["Service", "EndpointSlice"] {
        agent
            .wait_for_output(&format!("keeping the programmed state and retrying kind={kind} "))?;
    }
    assert!(agent.log().contains(page), "{}", agent.log());
    assert_eq!(network.curl("http://203.0.113.10/")?, "pod-0\n");
    Ok(())
}

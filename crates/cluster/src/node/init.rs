//! The first process of a node: lays out its files, starts containerd and kubelet, and reaps orphans.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, sethostname};
use serde_json::json;

use super::root::change_root;
use super::{API_IS_READY, IMAGES_ARE_READY, NodeSpecification};
use crate::images::PAUSE;
use crate::network::Cni;

const FILES: &str = "/cluster/files";
const PROGRAMS: &str = "/cluster/programs";
const POLL_INTERVAL: Duration = Duration::from_millis(50);

const CONTAINERD_CONFIG: &str = "\
version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
disabled_plugins = ['io.containerd.internal.v1.tracing', 'io.containerd.tracing.processor.v1.otlp']

[grpc]
  address = '/run/containerd/containerd.sock'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'PAUSE'

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['/opt/cni/bin']
  conf_dir = '/etc/cni/net.d'

[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = 'runc'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
";

/// Runs the node until a process of it ends that never should.
pub fn run_init(file: &Path) -> Result<()> {
    let node = NodeSpecification::read(file)?;
    let name = &node.addresses.name;
    sethostname(name)?;
    // Any folder of the machine: what is mounted there is visible in this mount namespace only.
    change_root(&node, &node.files.join("root"))?;
    write_files(&node)?;

    let mut containerd = start("containerd", &["--config", "/etc/containerd/config.toml"])?;
    wait_for_containerd(&mut containerd)?;
    for archive in &node.archives {
        let archive = format!("/cluster/images/{archive}");
        let output = program("ctr")
            .args(["--namespace", "k8s.io", "images", "import", &archive])
            .output()?;
        ensure!(
            output.status.success(),
            "{archive} can't be imported: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    File::create(Path::new(FILES).join(IMAGES_ARE_READY))?;
    while !Path::new(FILES).join(API_IS_READY).exists() {
        thread::sleep(POLL_INTERVAL);
    }
    let addresses = node.addresses.node.join(",");
    let kubelet = start(
        "kubelet",
        &[
            "--config=/etc/kubernetes/kubelet.yaml",
            "--kubeconfig=/cluster/files/kubeconfig",
            &format!("--node-ip={addresses}"),
            &format!("--hostname-override={name}"),
        ],
    )?;
    reap(&[("containerd", containerd), ("kubelet", kubelet)])
}

/// Waits for all processes of the node, its own and orphans of containers. Fails when one of its own ends.
fn reap(started: &[(&str, Child)]) -> Result<()> {
    loop {
        let status = waitpid(None, Some(WaitPidFlag::empty())).context("waitpid")?;
        let pid = status.pid().map(Pid::as_raw);
        let own = started.iter().find(|(_, child)| pid == i32::try_from(child.id()).ok());
        if let (Some((name, _)), WaitStatus::Exited(..) | WaitStatus::Signaled(..)) = (own, status)
        {
            bail!("{name} ended: {status:?}; its log is {name}.log");
        }
    }
}

fn program(name: &str) -> Command {
    let mut command = Command::new(Path::new(PROGRAMS).join(name));
    command.env("PATH", format!("{PROGRAMS}:/usr/sbin:/usr/bin:/sbin:/bin"));
    command
}

fn start(name: &str, arguments: &[&str]) -> Result<Child> {
    let log = File::create(Path::new(FILES).join(format!("{name}.log")))?;
    program(name)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("{name} can't be started"))
}

fn wait_for_containerd(containerd: &mut Child) -> Result<()> {
    loop {
        let version = program("ctr").arg("version").stdin(Stdio::null()).output()?;
        if version.status.success() {
            return Ok(());
        }
        if let Some(status) = containerd.try_wait()? {
            bail!("containerd ended with {status}; its log is containerd.log");
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn write_files(node: &NodeSpecification) -> Result<()> {
    let write = |path: &str, content: &str| -> Result<()> {
        let path = Path::new(path);
        fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
        fs::write(path, content).with_context(|| path.display().to_string())
    };
    let name = &node.addresses.name;
    let mut hosts = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for address in &node.addresses.node {
        hosts += &format!("{address} {name}\n");
    }
    write("/etc/hosts", &hosts)?;
    write("/etc/hostname", &format!("{name}\n"))?;
    // Nothing answers there: the cluster has no way to the internet.
    write("/etc/resolv.conf", "nameserver 192.0.2.53\n")?;
    write("/etc/machine-id", &format!("{:0>32}\n", hex(name)))?;
    write("/etc/containerd/config.toml", &CONTAINERD_CONFIG.replace("PAUSE", PAUSE))?;
    write("/etc/cni/net.d/10-bridge.conflist", &cni_config(node).to_string())?;
    write("/etc/kubernetes/kubelet.yaml", &kubelet_config(node).to_string())
}

fn hex(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn cni_config(node: &NodeSpecification) -> serde_json::Value {
    let ranges: Vec<_> =
        node.addresses.pods.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    let routes: Vec<_> =
        ["0.0.0.0/0", "::/0"].iter().take(ranges.len()).map(|all| json!({"dst": all})).collect();
    let mut bridge = json!({
        "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
    });
    if node.cni == Cni::Overlay {
        bridge["mtu"] = json!(1430);
    }
    json!({
        "cniVersion": "1.0.0", "name": "bridge",
        "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": true}}],
    })
}

/// In YAML, of which JSON is a part.
fn kubelet_config(node: &NodeSpecification) -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/cluster/files/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "clusterDNS": node.cluster_dns, "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        // The machine's disk and memory are not this node's.
        "evictionHard": {"imagefs.available": "0%", "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": false,
        "failCgroupV1": false, "failSwapOn": false,
        "resolvConf": "/etc/resolv.conf",
        "serializeImagePulls": false,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    })
}

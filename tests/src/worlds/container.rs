//! Starts the container of the DaemonSet in `deploy/` without a container runtime: with a read-only
//! root, its mounts, arguments and capabilities, in the node's network namespace.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use caps::Capability;
use serde_json::Value;

use crate::programs::agent::program;
use crate::worlds::topology::{Host, Process, Topology, copy_program};

const DAEMON_SET: &str = include_str!("../../../deploy/kustomize/base/daemon-set.yaml");

/// In a new mount namespace: mounts everything, makes the root read-only, drops capabilities, and
/// starts the program.
const START: &str = "\
set -e
root=$1 config=$2 state=$3 bpf=$4 cgroup=$5 drop=$6; shift 6
mount --bind $root $root
mount --bind /proc $root/proc
mount -t sysfs -o ro sysfs $root/sys
mount --bind $bpf $root/sys/fs/bpf
mount --bind $cgroup $root/host/sys/fs/cgroup
mount -o remount,bind,ro $root/host/sys/fs/cgroup
mount --bind $state $root/var/lib/millrace
mount --bind $config $root/etc/millrace
mount -o remount,bind,ro $root/etc/millrace
mount -o remount,bind,ro $root
exec capsh --chroot=$root --no-new-privs --drop=$drop --shell=/usr/bin/millrace -- \"$@\"";

/// Mount points, which a runtime creates.
const MOUNTED: [&str; 6] = [
    "proc",
    "sys",
    "host/sys/fs/cgroup",
    "etc/millrace",
    "etc/millrace-tunnel",
    "var/lib/millrace",
];

/// The DaemonSet's only container.
pub struct Specification {
    pub args: Vec<String>,
    /// The container's capabilities; it has no others.
    pub capabilities: Vec<Capability>,
}

impl Specification {
    pub fn read() -> Result<Self> {
        let daemon_set: Value = serde_norway::from_str(DAEMON_SET)?;
        let pod = &daemon_set["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let security = &container["securityContext"];
        ensure!(
            security["capabilities"]["drop"] == serde_json::json!(["ALL"])
                && security["readOnlyRootFilesystem"] == true
                && security["allowPrivilegeEscalation"] == false,
            "this is no longer how the container is started: {security}"
        );
        let mut mounts: Vec<&str> = texts(&container["volumeMounts"], "/mountPath")?;
        mounts.sort_unstable();
        ensure!(
            mounts
                == [
                    "/etc/millrace",
                    "/etc/millrace-tunnel",
                    "/host/sys/fs/cgroup",
                    "/sys/fs/bpf",
                    "/var/lib/millrace"
                ],
            "it has other mounts: {mounts:?}"
        );
        let capability = |name: &str| format!("CAP_{name}").parse().map_err(anyhow::Error::from);
        let capabilities = texts(&security["capabilities"]["add"], "")?;
        Ok(Self {
            args: texts(&container["args"], "")?.into_iter().map(str::to_owned).collect(),
            capabilities: capabilities.into_iter().map(capability).collect::<Result<_>>()?,
        })
    }
}

/// The strings in a list, or at a path of the objects in a list.
fn texts<'a>(list: &'a Value, pointer: &str) -> Result<Vec<&'a str>> {
    let list = list.as_array().context("the DaemonSet lacks a list")?;
    let text = |item: &'a Value| item.pointer(pointer).and_then(Value::as_str);
    list.iter().map(|item| text(item).with_context(|| format!("{item}: no text"))).collect()
}

/// A root to start containers from.
pub struct Container {
    root: PathBuf,
    config: PathBuf,
    state: PathBuf,
    pins: PathBuf,
}

impl Container {
    /// Uses the image in the directory `MILLRACE_IMAGE`, if set; otherwise the built program with
    /// its libraries. `settings` is the content of the ConfigMap.
    pub fn new(topology: &Topology, settings: &str) -> Result<Self> {
        let directory = topology.directory().join("container");
        let [root, config, state] = ["root", "config", "state"].map(|name| directory.join(name));
        for folder in MOUNTED.map(|folder| root.join(folder)).iter().chain([&config, &state]) {
            fs::create_dir_all(folder)?;
        }
        match env::var_os("MILLRACE_IMAGE") {
            Some(image) => unpack(Path::new(&image), &root)?,
            None => copy(&program()?, &root)?,
        }
        fs::write(config.join("config.yaml"), settings)?;
        Ok(Self { root, config, state, pins: topology.pins() })
    }

    /// The directory that is mounted at /etc/millrace.
    pub fn config(&self) -> &Path {
        &self.config
    }

    pub fn command(&self, node: &Host, capabilities: &[Capability], args: &[&str]) -> Command {
        let given_up = caps::all().into_iter().filter(|each| !capabilities.contains(each));
        let given_up: Vec<String> = given_up.map(|each| each.to_string().to_lowercase()).collect();
        let mut command = node.command("unshare");
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", START, "container"])
            .args([&self.root, &self.config, &self.state, &self.pins])
            .arg(node.cgroup())
            .arg(given_up.join(","))
            .args(args)
            .env("NODE_NAME", "node");
        command
    }

    pub fn start(
        &self,
        node: &Host,
        capabilities: &[Capability],
        args: &[&str],
    ) -> Result<Process> {
        node.spawn(&mut self.command(node, capabilities, args))
    }
}

/// Unpacks the only layer of an OCI image directory.
fn unpack(image: &Path, root: &Path) -> Result<()> {
    let read = |path: PathBuf| -> Result<Value> {
        let content = fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(serde_json::from_slice(&content)?)
    };
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap_or_default();
        image.join("blobs").join(digest.replace(':', "/"))
    };
    let index = read(image.join("index.json"))?;
    let manifest = read(blob(&index["manifests"][0]))?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--gzip", "--file"]).arg(blob(&manifest["layers"][0]));
    done(tar.arg("--directory").arg(root))
}

/// Copies a program and its libraries.
fn copy(program: &Path, root: &Path) -> Result<()> {
    let bin = root.join("usr/bin");
    fs::create_dir_all(&bin)?;
    copy_program(program, &bin.join("millrace"))?;
    let output = Command::new("ldd").arg(program).output().context("ldd can't be started")?;
    let output = String::from_utf8_lossy(&output.stdout);
    for library in output.split_ascii_whitespace().filter(|word| word.starts_with('/')) {
        let copy = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(copy.parent().context("a library is in a directory")?)?;
        // One of them is the program's interpreter, which the kernel starts too.
        copy_program(Path::new(library), &copy)?;
    }
    Ok(())
}

fn done(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

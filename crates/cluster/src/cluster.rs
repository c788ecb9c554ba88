//! A whole cluster: starts it, waits until it is ready, and removes it when dropped.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tests::worlds::topology::{Process, wait_until};

use crate::control_plane::{ControlPlane, api_url};
use crate::forward::forward_api;
use crate::images::make_images;
use crate::install::{Installer, MillraceFiles, install_dns, install_kube_proxy};
use crate::interrupt::{check_interrupt, is_interrupted};
use crate::kubeconfig::User;
use crate::network::{Cni, DNS_SERVICE, Network, NodeAddresses};
use crate::node::{API_IS_READY, IMAGES_ARE_READY, NodeSpecification};

const ZONES: usize = 3;
const READY_LIMIT: Duration = Duration::from_secs(300);

/// Who implements Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServiceProxy {
    /// Agents, controller and Ingress proxy, installed as docs/install.md says
    Millrace,
    /// kube-proxy in nftables mode
    KubeProxy,
    /// Nobody: for what you install yourself. DNS and other Services work then
    None,
}

/// The version of Kubernetes that was run.
pub(crate) const DEFAULT_KUBERNETES: &str = "1.36.3";

#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterOptions {
    /// Number of nodes
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=50))]
    nodes: u8,

    /// What implements Services
    #[arg(long, value_enum, value_name = "PROXY", default_value_t = ServiceProxy::Millrace)]
    pub service_proxy: ServiceProxy,

    /// How pods of different nodes reach each other
    #[arg(long, value_enum, value_name = "PLUGIN", default_value_t = Cni::Bridge)]
    cni: Cni,

    /// Version of Kubernetes
    #[arg(long, value_name = "VERSION", default_value = DEFAULT_KUBERNETES)]
    pub kubernetes: String,

    /// IPv4 and IPv6, or IPv4 only
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    dual_stack: bool,

    /// Archive of Millrace's image, with the folder `deploy` beside it, as `cargo xtask image` makes them
    #[arg(long, value_name = "FILE", default_value = "target/image/millrace.tar")]
    pub image: PathBuf,

    /// How Millrace is installed
    #[arg(long = "install", value_enum, value_name = "TOOL", default_value_t = Installer::Kustomize)]
    pub installer: Installer,

    /// Folder for programs, images and logs
    #[arg(long, value_name = "DIRECTORY", default_value = "target/cluster", hide = true)]
    pub directory: PathBuf,

    /// Only build the programs that are missing
    #[arg(long, hide = true)]
    pub build_only: bool,
}

impl ClusterOptions {
    pub fn ensure_image(&self) -> Result<()> {
        ensure!(
            self.image.is_file(),
            "there is no image {}: `cargo xtask image` builds it",
            self.image.display()
        );
        Ok(())
    }

    pub fn families(&self) -> usize {
        if self.dual_stack { 2 } else { 1 }
    }
}

/// A running cluster. Fields are dropped in this order: processes before their namespaces.
pub struct Cluster {
    nodes: Vec<ClusterNode>,
    pub plane: ControlPlane,
    pub network: Network,
    pub programs: PathBuf,
    pub families: usize,
    /// The kubeconfig for this machine, with the certificate beside it.
    pub kubeconfig: PathBuf,
    logs: PathBuf,
    /// Removes everything when this process was killed. Its standard input ends with this process.
    _cleaner: Child,
}

struct ClusterNode {
    specification: NodeSpecification,
    /// None while it is killed.
    process: Option<Process>,
}

impl Cluster {
    /// Starts a cluster. `image_names` are further names for the images that are made.
    pub fn start(
        options: &ClusterOptions,
        programs: &Path,
        image_names: &[String],
    ) -> Result<Self> {
        let start = Instant::now();
        let (programs, directory) = (programs.canonicalize()?, options.directory.canonicalize()?);
        let kubeconfig = directory.join("kubeconfig");
        let cleaner = start_cleaner(&[&kubeconfig])?;
        let images = directory.join(&options.kubernetes).join("images");
        let mut archives = make_images(&images, &programs, &options.kubernetes, image_names)?;
        if options.service_proxy == ServiceProxy::Millrace {
            options.ensure_image()?;
        }
        // In other clusters for what is installed later.
        if options.image.is_file() {
            let copy = images.join("millrace.tar");
            fs::copy(&options.image, &copy).with_context(|| copy.display().to_string())?;
            archives.push(copy);
        }
        let families = options.families();
        let network = Network::new(options.nodes.into(), options.cni, families)?;
        let files = network.topology.directory().to_owned();
        let users = Users::new(&network)?;

        // Nodes import images while the control plane starts.
        let mut nodes = Vec::new();
        for (host, addresses) in &network.nodes {
            let folder = files.join(&addresses.name);
            fs::create_dir(&folder)?;
            let specification = NodeSpecification {
                addresses: addresses.clone(),
                cni: options.cni,
                cgroup: format!("{}-{}", network.topology.id(), addresses.name),
                programs: programs.clone(),
                images: images.clone(),
                files: folder,
                archives: archives
                    .iter()
                    .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                    .collect(),
                cluster_dns: DNS_SERVICE[..families]
                    .iter()
                    .map(|&address| address.to_owned())
                    .collect(),
            };
            let process = Some(specification.start(host)?);
            nodes.push(ClusterNode { specification, process });
        }
        println!("Starting etcd, the API server and {} nodes ...", nodes.len());
        let plane = ControlPlane::start(&network.router, &programs, &files, families, &users.all());
        let logs = directory.join("logs");
        let plane = match plane {
            Ok(plane) => plane,
            Err(error) => {
                keep_logs(&files, &logs);
                return Err(error);
            }
        };
        let mut cluster =
            Self { nodes, plane, network, programs, families, kubeconfig, logs, _cleaner: cleaner };
        let made = cluster.bring_up(options, &users, &files);
        if made.is_err() {
            cluster.keep_logs();
        }
        made?;
        println!("Ready after {} s.", start.elapsed().as_secs());
        Ok(cluster)
    }

    fn bring_up(&mut self, options: &ClusterOptions, users: &Users, files: &Path) -> Result<()> {
        let [controllers, scheduler] =
            ["controllers.kubeconfig", "scheduler.kubeconfig"].map(|name| files.join(name));
        let (server, authority) = (api_url(), files.join("ca.crt"));
        users.controllers.write_kubeconfig(&controllers, &server, &authority)?;
        users.scheduler.write_kubeconfig(&scheduler, &server, &authority)?;
        self.plane.start_controllers(&controllers, &scheduler)?;
        self.plane.apply("nodes.json", &node_objects(&self.network).to_string())?;
        for ((_, addresses), user) in self.network.nodes.iter().zip(&users.kubelets) {
            let folder = files.join(&addresses.name);
            fs::copy(&authority, folder.join("ca.crt"))?;
            user.write_kubeconfig(&folder.join("kubeconfig"), &server, &authority)?;
            fs::write(folder.join(API_IS_READY), "")?;
        }
        install_dns(&self.plane, self.families)?;
        match options.service_proxy {
            ServiceProxy::Millrace => {
                let millrace = MillraceFiles::new(&options.image, files)?;
                millrace.install(&self.plane, options.installer, self.families)?;
            }
            ServiceProxy::KubeProxy => {
                install_kube_proxy(&self.plane, &options.kubernetes, self.families)?;
            }
            ServiceProxy::None => {}
        }
        self.write_own_kubeconfig(&users.administrator, files)?;

        println!("Waiting for the nodes ...");
        for (_, addresses) in self.network.nodes.clone() {
            let imported = files.join(&addresses.name).join(IMAGES_ARE_READY);
            self.wait_for(&format!("{} has its images", addresses.name), |_| imported.exists())?;
        }
        self.wait_for_nodes()?;
        println!("Waiting for the pods ...");
        let service_proxy: &[&str] = match options.service_proxy {
            ServiceProxy::Millrace => &[
                "daemonset/millrace",
                "deployment/millrace-controller",
                "deployment/millrace-ingress",
            ],
            ServiceProxy::KubeProxy => &["daemonset/kube-proxy"],
            // CoreDNS reaches the API server by a Service.
            ServiceProxy::None => return Ok(()),
        };
        self.wait_for_workloads(service_proxy)?;
        self.wait_for_workloads(&["deployment/coredns"])
    }

    pub fn wait_for_nodes(&mut self) -> Result<()> {
        self.wait_for("all nodes are ready", |cluster| {
            let ready =
                r#"{range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}"#;
            let output =
                cluster.plane.kubectl(&["get", "nodes", "--output", &format!("jsonpath={ready}")]);
            output.is_ok_and(|output| {
                output.lines().filter(|line| *line == "True").count() == cluster.nodes.len()
            })
        })
    }

    /// Waits until workloads of the namespace kube-system are available.
    pub fn wait_for_workloads(&mut self, workloads: &[&str]) -> Result<()> {
        for workload in workloads {
            self.wait_for(&format!("{workload} is available"), |cluster| {
                let status = ["-n", "kube-system", "rollout", "status", "--timeout=2s", workload];
                cluster.plane.kubectl(&status).is_ok()
            })?;
        }
        Ok(())
    }

    /// Waits for a condition of the cluster. Fails at once if a process of the cluster ends.
    pub fn wait_for(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<()> {
        let mut failed = None;
        let waited = wait_until(what, READY_LIMIT, || {
            failed = self.ended();
            failed.is_some() || is_interrupted() || is_so(self)
        });
        check_interrupt()?;
        match failed {
            Some(name) => bail!("{name} ended, while waiting until {what}"),
            None => waited.map_err(|error| {
                let pods =
                    self.plane.kubectl(&["get", "pods", "-A", "-o", "wide"]).unwrap_or_default();
                error.context(format!("the pods now:\n{pods}"))
            }),
        }
    }

    /// The name of a process that has ended, of the control plane or a node.
    pub fn ended(&mut self) -> Option<String> {
        if let Some(name) = self.plane.ended() {
            return Some(name.to_owned());
        }
        self.nodes.iter_mut().find_map(|node| {
            let process = node.process.as_mut()?;
            let name = &node.specification.addresses.name;
            process.has_ended().then(|| format!("node {name} ({})", process.output().trim()))
        })
    }

    /// Ends a node as a power failure does.
    pub fn kill_node(&mut self, index: usize) -> Result<()> {
        let node = &mut self.nodes[index];
        self.network.disconnect_node(&node.specification.addresses.name)?;
        node.process = None;
        Ok(())
    }

    /// Starts a killed node, with empty disks.
    pub fn restart_node(&mut self, index: usize) -> Result<()> {
        let node = &mut self.nodes[index];
        fs::remove_file(node.specification.files.join(IMAGES_ARE_READY))?;
        node.process = Some(node.specification.start(self.network.renew_node(index)?)?);
        Ok(())
    }

    /// Copies all logs to where they stay.
    pub(crate) fn keep_logs(&self) {
        keep_logs(self.network.topology.directory(), &self.logs);
    }

    /// A kubeconfig for programs on this machine, which belongs to the owner of its folder.
    fn write_own_kubeconfig(&self, administrator: &User, files: &Path) -> Result<()> {
        let port = forward_api(&self.network.router)?;
        let server = format!("https://127.0.0.1:{port}");
        administrator.write_kubeconfig(&self.kubeconfig, &server, &files.join("ca.crt"))?;
        let folder = fs::metadata(self.kubeconfig.parent().context("a file is in a folder")?)?;
        chown(&self.kubeconfig, Some(folder.uid()), Some(folder.gid()))?;
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.kubeconfig);
    }
}

/// All users of the API server but ServiceAccounts.
struct Users {
    administrator: User,
    controllers: User,
    scheduler: User,
    kubelets: Vec<User>,
}

impl Users {
    fn new(network: &Network) -> Result<Self> {
        let kubelets = network.nodes.iter().map(|(_, node)| User::kubelet(&node.name));
        Ok(Self {
            administrator: User::administrator()?,
            controllers: User::new("system:kube-controller-manager", "system:authenticated")?,
            scheduler: User::new("system:kube-scheduler", "system:authenticated")?,
            kubelets: kubelets.collect::<Result<_>>()?,
        })
    }

    /// The lines of the file of tokens, the administrator's first.
    fn all(&self) -> Vec<&User> {
        let processes = [&self.administrator, &self.controllers, &self.scheduler];
        processes.into_iter().chain(&self.kubelets).collect()
    }
}

/// The nodes, created before their kubelets register them: so each has the pod subnet that the routes expect. They are
/// in three zones in turn.
fn node_objects(network: &Network) -> Value {
    let node = |(index, node): (usize, &NodeAddresses)| {
        let zone = format!("zone-{}", index % ZONES + 1);
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": node.name, "labels": {"topology.kubernetes.io/zone": zone}},
            "spec": {"podCIDR": node.pods[0], "podCIDRs": node.pods},
        })
    };
    let addresses = network.nodes.iter().map(|(_, addresses)| addresses);
    let items: Vec<_> = addresses.enumerate().map(node).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Starts a process that removes everything, and these files, when this one has ended, however it ended.
pub(crate) fn start_cleaner(files: &[&Path]) -> Result<Child> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("clean-up")
        .args(files)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Out of reach of a Ctrl-C on the terminal.
    command.process_group(0).spawn().context("the process that cleans up can't be started")
}

fn keep_logs(files: &Path, logs: &Path) {
    let copy = || -> Result<()> {
        if logs.exists() {
            fs::remove_dir_all(logs)?;
        }
        fs::create_dir_all(logs)?;
        let mut folders = vec![(files.to_owned(), String::new())];
        for entry in fs::read_dir(files)?.flatten().filter(|entry| entry.path().is_dir()) {
            folders.push((entry.path(), format!("{}-", entry.file_name().display())));
        }
        for (folder, prefix) in folders {
            for file in fs::read_dir(folder)?.flatten() {
                let name = file.file_name().to_string_lossy().into_owned();
                if name.ends_with(".log") {
                    fs::copy(file.path(), logs.join(prefix.clone() + &name))?;
                }
            }
        }
        Ok(())
    };
    match copy() {
        Ok(()) => eprintln!("Logs are in {}.", logs.display()),
        Err(error) => eprintln!("Logs can't be kept in {}: {error:#}", logs.display()),
    }
}

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use lb_common::layout::{Forwarding, capacity};
use tokio::runtime::Runtime;

use crate::agent::{self, Origin};
use crate::kernel::{
    MOST_ENDPOINTS, MOST_FLOWS, MOST_SERVICE_PORTS, Modes, Sizes, TcMode, XdpMode,
};
use crate::model::forwarding_named;
use crate::network::{self, DeviceSelector, NodePortAddresses};
use crate::serve::{Addresses, MOST_OBJECTS};
use crate::source::cluster::Access;

#[derive(Debug, Args)]
pub struct Options {
    /// Take the Services from a file or directory of manifests, not from a cluster; may be repeated
    #[arg(long, value_name = "PATH")]
    #[arg(conflicts_with_all = ["kubeconfig", "context", "api_server"])]
    manifests: Vec<PathBuf>,

    /// How to reach the cluster [default: $KUBECONFIG, the pod's service account, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Another context of the kubeconfig than its current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// The API server's own address: it must not be a Service, which there is not without us
    #[arg(long, value_name = "URL", env = "MILLRACE_API_SERVER")]
    api_server: Option<String>,

    #[command(flatten)]
    agent: AgentOptions,
}

/// How the agent works, wherever its Services come from.
#[derive(Debug, Args)]
pub struct AgentOptions {
    /// A device by which clients reach this node: a name, a pattern such as eth*, or auto for
    /// those that carry default routes; may be repeated
    #[arg(long, value_name = "NAME", default_value = "auto")]
    device: Vec<DeviceSelector>,

    /// The host's ends of pods' interfaces, as veth*, cali* or lxc*; may be repeated
    #[arg(long, value_name = "PATTERN")]
    workload_device: Vec<DeviceSelector>,

    /// This node's name: which endpoints are local [default: the host's name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,

    /// Where NodePorts are open: ranges that addresses of this node are in, addresses, or
    /// primary; may be repeated [default: the addresses of the devices given by --device]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    nodeport_addresses: Vec<NodePortAddresses>,

    /// Where to tell load balancers and probes of this node's health: /healthz, /livez; `off`: nowhere
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:10256")]
    #[arg(value_parser = address)]
    healthz_bind_address: Address,

    /// Where to serve /metrics; `off`: nowhere
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10249")]
    #[arg(value_parser = address)]
    metrics_bind_address: Address,

    /// Tell in the metrics the traffic of so many ports of Services, and of so many endpoints, each on its own; the
    /// first that have any
    #[arg(long, value_name = "NUMBER", default_value_t = MOST_OBJECTS)]
    metrics_max_objects: usize,

    /// How clients outside get to backends on other nodes, unless a Service says otherwise by the
    /// annotation millrace.io/forwarding: masquerade, under this node's address; ipip or gue, as
    /// themselves through a tunnel to the other node, which answers them directly
    #[arg(long, value_name = "WAY", default_value = "masquerade", value_parser = forwarding)]
    forwarding: Forwarding,

    /// Where XDP runs
    #[arg(long, value_enum, default_value_t)]
    xdp_mode: XdpMode,

    /// How tc programs are attached
    #[arg(long, value_enum, default_value_t)]
    tc_mode: TcMode,

    /// The control group whose processes reach Services, too [default: the node's root]
    #[arg(long, value_name = "DIRECTORY")]
    cgroup: Option<PathBuf>,

    /// Room for so many ports of Services, counted once for each address family; about 900 bytes, and 40 for each
    /// processor, each
    #[arg(long, value_name = "NUMBER", default_value_t = capacity::SERVICE_PORTS)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=MOST_SERVICE_PORTS as i64))]
    max_service_ports: u32,

    /// Room for so many endpoints; about 600 bytes, and 40 for each processor, each
    #[arg(long, value_name = "NUMBER", default_value_t = capacity::BACKENDS)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=MOST_ENDPOINTS as i64))]
    max_endpoints: u32,

    /// Room for so many connections of each address family; 40 bytes each (IPv6: 80)
    #[arg(long, value_name = "NUMBER", default_value_t = 524_288)]
    #[arg(value_parser = clap::value_parser!(u32).range(8..=MOST_FLOWS as i64))]
    max_flows: u32,

    /// Detach and remove everything on exit; without it the kernel goes on forwarding
    #[arg(long)]
    cleanup_on_exit: bool,
}

pub fn run(options: Options, pin_path: &Path) -> Result<()> {
    let origin = if options.manifests.is_empty() {
        Origin::Cluster(Access {
            kubeconfig: options.kubeconfig,
            context: options.context,
            api_server: options.api_server,
        })
    } else {
        Origin::Manifests(options.manifests)
    };
    runtime()?.block_on(agent::run(options.agent.with(origin, pin_path)?))
}

/// The agent itself runs on the thread that blocks on it; what it reads and serves runs beside
/// it, and neither makes the other wait.
pub fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

impl AgentOptions {
    pub fn node_name(&self) -> Result<String> {
        match &self.node_name {
            Some(name) => Ok(name.clone()),
            None => Ok(nix::unistd::gethostname()
                .context("the host's name can't be read; give one with --node-name")?
                .to_string_lossy()
                .into_owned()),
        }
    }

    pub fn with(self, origin: Origin, pin_path: &Path) -> Result<agent::Options> {
        Ok(agent::Options {
            node_name: self.node_name()?,
            origin,
            network: network::Settings {
                external: self.device,
                workload: self.workload_device,
                node_ports: self.nodeport_addresses,
            },
            modes: Modes { xdp: self.xdp_mode, tc: self.tc_mode },
            cgroup: self.cgroup,
            forwarding: self.forwarding,
            sizes: Sizes::for_flows(self.max_flows)
                .with_services(self.max_service_ports, self.max_endpoints),
            cleanup_on_exit: self.cleanup_on_exit,
            pin_path: pin_path.to_owned(),
            addresses: Addresses {
                healthz: self.healthz_bind_address.0,
                metrics: self.metrics_bind_address.0,
            },
            metrics_max_objects: self.metrics_max_objects,
        })
    }
}

fn forwarding(text: &str) -> Result<Forwarding, String> {
    forwarding_named(text).ok_or_else(|| "none of masquerade, ipip, gue".to_owned())
}

/// Where to listen, if at all.
#[derive(Clone, Copy, Debug)]
struct Address(Option<SocketAddr>);

fn address(text: &str) -> Result<Address, String> {
    match text {
        "off" | "" => Ok(Address(None)),
        _ => text
            .parse()
            .map(|address| Address(Some(address)))
            .map_err(|_| "not an address and port, such as 127.0.0.1:10249, nor `off`".to_owned()),
    }
}

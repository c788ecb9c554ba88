//! Every setting there is, typed, with its name, default and meaning: the one list. Flags,
//! environment, file and reference are made from it.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{ArgAction, Args, ValueEnum};
use ipnet::IpNet;
use lb_common::layout::{Forwarding, Timeouts, capacity};
use tracing_subscriber::EnvFilter;

use crate::model::forwarding_named;
use crate::network::{DeviceSelector, NodePortAddresses};
use crate::settings::{
    BpfLogLevel, DEFAULT_METRICS_MAX_OBJECTS, DEFAULT_PIN_PATH, MOST_ENDPOINTS, MOST_FLOWS,
    MOST_SERVICE_PORTS, TcMode, XdpMode,
};
use crate::snat_ports::SnatRange;

/// The whole of what can be configured, as it is in effect.
#[derive(Clone, Debug, Args)]
pub struct Configuration {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub origin: OriginSettings,
    #[command(flatten)]
    pub agent: AgentSettings,
    #[command(flatten)]
    pub standalone: StandaloneSettings,
}

/// What every command knows.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// The directory in the BPF filesystem that holds the maps and links
    #[arg(long, global = true, value_name = "DIRECTORY", default_value = DEFAULT_PIN_PATH)]
    pub pin_path: PathBuf,

    /// What to log: error, warn, info, debug or trace, also by module; SIGHUP makes the agent look for it in
    /// the file again
    #[arg(long, global = true, value_name = "FILTER", default_value = "info")]
    #[arg(value_parser = log_filter)]
    pub log: String,

    /// How the log is written, to stderr
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people; without times where a journal has them
    #[default]
    Text,
    /// An object a line
    Json,
}

/// Where the agent's Services come from.
#[derive(Clone, Debug, Args)]
pub struct OriginSettings {
    /// Take the Services from a file or directory of manifests, not from a cluster; may be repeated
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub manifests: Vec<PathBuf>,

    /// How to reach the cluster [default: $KUBECONFIG, the pod's service account, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Another context of the kubeconfig than its current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// The API server's own address: it must not be a Service, which there is not without us
    #[arg(long, value_name = "URL")]
    pub api_server: Option<String>,
}

/// How the agent works, wherever its Services come from.
#[derive(Clone, Debug, Args)]
pub struct AgentSettings {
    /// A device by which clients reach this node: a name, a pattern such as eth*, or auto for
    /// those that carry default routes; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "auto")]
    pub device: Vec<DeviceSelector>,

    /// The host's ends of pods' interfaces, as veth*, cali* or lxc*; may be repeated
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub workload_device: Vec<DeviceSelector>,

    /// This node's name: which endpoints are local [default: $NODE_NAME, else the host's name]
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    pub node_name: Option<String>,

    /// Where NodePorts are open: ranges that addresses of this node are in, addresses, or
    /// primary; may be repeated [default: the addresses of the devices given by --device]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub nodeport_addresses: Vec<NodePortAddresses>,

    /// Where to tell load balancers and probes of this node's health: /healthz, /livez; `off`: nowhere
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:10256")]
    #[arg(value_parser = address)]
    pub healthz_bind_address: Address,

    /// Where to serve /metrics; `off`: nowhere
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10249")]
    #[arg(value_parser = address)]
    pub metrics_bind_address: Address,

    /// Tell in the metrics the traffic of so many ports of Services, and of so many endpoints, each on its own; the
    /// first that have any
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_METRICS_MAX_OBJECTS)]
    pub metrics_max_objects: usize,

    /// How clients outside get to backends on other nodes, unless a Service says otherwise by the
    /// annotation millrace.io/forwarding: masquerade, under this node's address; ipip or gue, as
    /// themselves through a tunnel to the other node, which answers them directly
    #[arg(long, value_name = "WAY", default_value = "masquerade", value_parser = forwarding)]
    pub forwarding: Forwarding,

    /// File with the cluster's tunnel key: a random line of at least 32 characters, the same on all nodes. A second
    /// line is a key that is accepted as well, so that keys can be replaced. With a key all tunnels use UDP (gue), and
    /// packets without it are not taken for another node's. The file is read again every 10 seconds
    #[arg(long, value_name = "FILE")]
    pub tunnel_key_file: Option<PathBuf>,

    /// Where XDP runs
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub xdp_mode: XdpMode,

    /// How tc programs are attached
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub tc_mode: TcMode,

    /// What the BPF programs themselves tell in the log of rare packets; with off they tell nothing, and it costs
    /// nothing
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t)]
    pub bpf_log_level: BpfLogLevel,

    /// The control group whose processes reach Services, too [default: the node's root]
    #[arg(long, value_name = "DIRECTORY")]
    pub cgroup: Option<PathBuf>,

    /// Room for so many ports of Services, counted once for each address family; about 900 bytes, and 40 for each
    /// processor, each
    #[arg(long, value_name = "NUMBER", default_value_t = capacity::SERVICE_PORTS)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=MOST_SERVICE_PORTS as i64))]
    pub max_service_ports: u32,

    /// Room for so many endpoints; about 730 bytes, and 40 for each processor, each
    #[arg(long, value_name = "NUMBER", default_value_t = capacity::BACKENDS)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=MOST_ENDPOINTS as i64))]
    pub max_endpoints: u32,

    /// Room for so many connections of each address family; 80 bytes each (IPv6: 144). They come to
    /// its places at random: up to half of it all find one, beyond that some are refused
    #[arg(long, value_name = "NUMBER", default_value_t = 524_288)]
    #[arg(value_parser = clap::value_parser!(u32).range(8..=MOST_FLOWS as i64))]
    pub max_flows: u32,

    /// Source ports for SNAT: connections of clients outside to backends on other nodes (masquerade) leave this node
    /// under its address and one of these. Ports that this node uses itself are excluded: those of its sockets,
    /// NodePorts, and those in the sysctls net.ipv4.ip_local_port_range and net.ipv4.ip_local_reserved_ports
    #[arg(long, value_name = "FIRST-LAST", default_value = SnatRange::DEFAULT)]
    pub snat_ports: SnatRange,

    /// How long an idle established connection of TCP or SCTP keeps its entry, in seconds. The kernel's
    /// net.netfilter.nf_conntrack_tcp_timeout_established, whose default is 432000; kube-proxy sets it to 86400
    #[arg(long, value_name = "SECONDS", default_value_t = Timeouts::DEFAULT.tcp_established)]
    #[arg(value_parser = clap::value_parser!(u32).range(60..=Timeouts::LONGEST as i64))]
    pub tcp_established_timeout: u32,

    /// How long an idle flow of UDP keeps its entry, in seconds, unless it is a stream. The kernel's
    /// net.netfilter.nf_conntrack_udp_timeout
    #[arg(long, value_name = "SECONDS", default_value_t = Timeouts::DEFAULT.udp)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=Timeouts::LONGEST as i64))]
    pub udp_timeout: u32,

    /// How long an idle stream of UDP keeps its entry, in seconds: packets both ways over more than 2 seconds. The
    /// kernel's net.netfilter.nf_conntrack_udp_timeout_stream, whose default is 120
    #[arg(long, value_name = "SECONDS", default_value_t = Timeouts::DEFAULT.udp_stream)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=Timeouts::LONGEST as i64))]
    pub udp_stream_timeout: u32,

    /// Detach and remove everything on exit; without it the kernel goes on forwarding
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub cleanup_on_exit: bool,
}

/// The API of `millrace standalone`.
#[derive(Clone, Debug, Args)]
pub struct StandaloneSettings {
    /// Where the objects, the certificates and the kubeconfig are kept
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/millrace")]
    pub data_dir: PathBuf,

    /// Where to serve the API; only clients with a certificate of ours get in
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6443")]
    pub api_bind_address: SocketAddr,

    /// Where to write the kubeconfig [default: kubeconfig in the data directory]
    #[arg(long, value_name = "FILE")]
    pub write_kubeconfig: Option<PathBuf>,

    /// Where cluster addresses are taken from: one range of a family, or one of each
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    #[arg(default_value = "10.96.0.0/16,fd00:10:96::/112")]
    pub service_cluster_ip_range: Vec<IpNet>,

    /// Where node ports are taken from
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767", value_parser = ports)]
    pub service_node_port_range: RangeInclusive<u16>,

    /// Only serve the API: nothing is balanced, and root is not needed
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub api_only: bool,
}

impl AgentSettings {
    pub fn node_name(&self) -> Result<String> {
        let told = || std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
        match self.node_name.clone().or_else(told) {
            Some(name) => Ok(name),
            None => Ok(nix::unistd::gethostname()
                .context("the host's name can't be read; give one with --node-name")?
                .to_string_lossy()
                .into_owned()),
        }
    }
}

/// Where to listen, if at all.
#[derive(Clone, Copy, Debug)]
pub struct Address(pub Option<SocketAddr>);

fn address(text: &str) -> Result<Address, String> {
    match text {
        "off" | "" => Ok(Address(None)),
        _ => text
            .parse()
            .map(|address| Address(Some(address)))
            .map_err(|_| "not an address and port, such as 127.0.0.1:10249, nor `off`".to_owned()),
    }
}

fn node_name(text: &str) -> Result<String, String> {
    let is_odd = |c: char| c == '/' || c.is_whitespace();
    if text.is_empty() || text.contains(is_odd) {
        return Err("no name of a node: `kubectl get nodes` shows them".to_owned());
    }
    Ok(text.to_owned())
}

fn forwarding(text: &str) -> Result<Forwarding, String> {
    forwarding_named(text).ok_or_else(|| "none of masquerade, ipip, gue".to_owned())
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || "no range of ports, such as 30000-32767".to_owned();
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let range = first.parse().map_err(|_| wrong())?..=last.parse().map_err(|_| wrong())?;
    if range.is_empty() || *range.start() == 0 { Err(wrong()) } else { Ok(range) }
}

fn log_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text)
        .map(|_| text.to_owned())
        .map_err(|_| "no filter such as debug, or info,lb_userspace::network=debug".to_owned())
}

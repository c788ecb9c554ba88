//! Every setting there is, typed, with its name, default and meaning: the one list. Flags,
//! environment, file and reference are made from it.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{ArgAction, Args, ValueEnum};
use ipnet::IpNet;
use lb_common::layout::{Forwarding, Timeouts};
use lb_kernel::settings::{
    BpfLogLevel, DEFAULT_PIN_PATH, MOST_ENDPOINTS, MOST_FLOWS, MOST_SERVICE_PORTS, MemoryPercent,
    TcMode, XdpMode,
};
use lb_network::snat_ports::SnatRange;
use lb_network::{DeviceSelector, NodePortAddresses};
use lb_plan::UnservedPolicy;
use lb_rules::model::{ExternalIpRule, forwarding_named};
use tracing_subscriber::EnvFilter;

use super::ingress::IngressSettings;
use super::load_balancer::{AnnouncementSettings, ControllerSettings, LoadBalancerSettings};
use super::values::{ListenAddress, TaintKey, parse_listen_address, parse_seconds, taint_key};

/// All settings, with the values in effect.
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
    #[command(flatten)]
    pub ingress: IngressSettings,
    #[command(flatten)]
    pub load_balancer: LoadBalancerSettings,
    #[command(flatten)]
    pub controller: ControllerSettings,
}

/// Settings of every command.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Directory in the BPF file system for the pinned maps and links
    #[arg(long, global = true, value_name = "DIRECTORY", default_value = DEFAULT_PIN_PATH)]
    pub pin_path: PathBuf,

    /// Log filter: a level (error, warn, info, debug or trace), optionally per module
    ///
    /// Example: info,lb_network=debug. On SIGHUP the agent reads the filter from the configuration
    /// file again.
    #[arg(long, global = true, value_name = "FILTER", default_value = "info")]
    #[arg(value_parser = log_filter)]
    pub log: String,

    /// Format of the log on stderr
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable lines; without timestamps under systemd's journal
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Where the agent's Services come from.
#[derive(Clone, Debug, Args)]
pub struct OriginSettings {
    /// File or directory of manifests to read Services from, instead of a cluster; may be repeated
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub manifests: Vec<PathBuf>,

    /// kubeconfig of the cluster [default: $KUBECONFIG, the pod's service account, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// URL of an API server; may be repeated [default: the URL in the kubeconfig or the service account]
    ///
    /// The agent uses the first server that accepts a connection: first the given ones, in this order, then the one
    /// of the kubeconfig or the service account, then those that the cluster lists as endpoints of
    /// default/kubernetes. These must prove the name of the first one, or the kubeconfig's tls-server-name. Give an
    /// address that works before Millrace does: Service addresses do not.
    #[arg(long, alias = "api-server", value_name = "URL", value_delimiter = ',')]
    pub api_servers: Vec<String>,

    /// Directory where the agent remembers the addresses of the API servers, and its objects for a restart
    ///
    /// With it a node can start while the API server that it is configured with is down, and a restarted agent reads
    /// only what has changed.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/millrace")]
    pub state_directory: PathBuf,
}

/// Settings of the agent, from whatever source it reads Services.
#[derive(Clone, Debug, Args)]
pub struct AgentSettings {
    /// Interface where clients reach this node: a name, a pattern such as eth*, or auto; may be repeated
    ///
    /// auto selects the interfaces that have a default route. Unless interfaces are named instead, all other
    /// interfaces to networks are served as well, in tc: second network cards, VLANs, overlays such as vxlan, ipip
    /// or wireguard. Replies may arrive there.
    #[arg(
        long,
        alias = "device",
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "auto"
    )]
    pub devices: Vec<DeviceSelector>,

    /// Host-side interfaces of pods: a name, a pattern such as cali*, auto, or none; may be repeated
    ///
    /// auto selects veth and netkit interfaces whose other end is in another network namespace, and tap interfaces,
    /// unless they have an address with a subnet.
    #[arg(
        long,
        alias = "workload-device",
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "auto"
    )]
    pub workload_devices: Vec<DeviceSelector>,

    /// Name of this node, to find its local endpoints [default: $NODE_NAME, otherwise the hostname]
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    pub node_name: Option<String>,

    /// Addresses that accept NodePort connections: a CIDR, an address, primary, localhost or all; may be repeated
    /// [default: the addresses of the interfaces in devices]
    ///
    /// A CIDR selects the addresses of this node that are in it. A single address is used even if
    /// no interface has it. primary selects the node's main address of each family. localhost (or 127.0.0.0/8, ::1)
    /// opens 127.0.0.1 and ::1 to processes of this node, all these and all others. NodePorts precede local listeners;
    /// sockets bound to loopback cannot use them. Health check node ports are served on the same addresses, except
    /// localhost.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub nodeport_addresses: Vec<NodePortAddresses>,

    /// Listen address for the health checks /healthz and /livez, or `off`
    ///
    /// Other nodes that have the tunnel key read the history of slots (slot-history) here.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:10256")]
    #[arg(value_parser = parse_listen_address)]
    pub healthz_bind_address: ListenAddress,

    /// Listen address for /metrics, or `off`
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10249")]
    #[arg(value_parser = parse_listen_address)]
    pub metrics_bind_address: ListenAddress,

    /// Maximum number of service ports, of endpoints, and of Ingresses that have traffic metrics of their own
    /// [default: 2000, of Ingresses 10000]
    ///
    /// The first ones with traffic get metrics and keep them until they are deleted. Metrics of further Ingresses are
    /// summed up.
    #[arg(long, value_name = "NUMBER")]
    pub metrics_max_objects: Option<usize>,

    /// How packets of outside clients reach backends on other nodes: auto, masquerade, ipip or gue
    ///
    /// masquerade uses SNAT: the backend sees an address of this node, and replies return through this node. ipip
    /// and gue use a tunnel to the backend's node: the backend sees the client's address, and its node sends
    /// replies directly to the client. auto uses gue to nodes that return a probe, and masquerade to others;
    /// without a tunnel key (tunnel-key-file), masquerade to all. The annotation millrace.io/forwarding overrides this
    /// for a Service.
    #[arg(long, value_name = "METHOD", default_value = "auto", value_parser = forwarding)]
    pub forwarding: Forwarding,

    /// Which spec.externalIPs of Services are served: all, none, or those in a CIDR; may be repeated
    ///
    /// Whoever may create Services may otherwise take over the packets to any address that pass the nodes
    /// (CVE-2020-8554). Events of the Service name addresses that are not served. The same value on all nodes.
    #[arg(long, value_name = "CIDR", value_delimiter = ',', default_value = "all")]
    pub external_ips: Vec<ExternalIpRule>,

    /// What happens to packets to assigned load balancer addresses on ports that no Service has: answer, drop or pass
    ///
    /// answer: like a host, with an echo reply (ping), a reset or an ICMP error. pass: the node's stack gets them, for nodes
    /// that use such addresses (SNAT).
    #[arg(long, value_name = "ACTION", default_value = "answer", value_parser = unserved_policy)]
    pub load_balancer_unserved: UnservedPolicy,

    /// Key of the taint that the agent removes from its Node once Services work there, or `off`
    ///
    /// New nodes that register with this taint get no pods before. Needs a permission that the chart's
    /// startupTaint.enabled and the component startup-taint grant.
    #[arg(long, value_name = "KEY", default_value = "millrace.dev/agent-not-ready", value_parser = taint_key)]
    pub startup_taint: TaintKey,

    /// File with the cluster's tunnel key, the same on all nodes [default: /etc/millrace-tunnel/key if it exists]
    ///
    /// The first line is the key: at least 32 random characters, for example from `openssl rand -hex 32`. A second
    /// line is another key that is also accepted, for key rotation. With a key, all tunnels use UDP (gue), and
    /// tunnel packets without it are not accepted as packets of another node. The file is read again every 10
    /// seconds. A file that is named here must exist when the agent starts; the default file may be created later.
    #[arg(long, value_name = "FILE")]
    pub tunnel_key_file: Option<PathBuf>,

    /// How programs are attached to XDP
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub xdp_mode: XdpMode,

    /// How programs are attached to tc
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub tc_mode: TcMode,

    /// Log level of the BPF programs, which log rare packets
    ///
    /// `off` has no runtime cost.
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t)]
    pub bpf_log_level: BpfLogLevel,

    /// Cgroup whose processes can connect to Services [default: the node's root cgroup]
    #[arg(long, value_name = "DIRECTORY")]
    pub cgroup: Option<PathBuf>,

    /// Maximum number of service ports, counted once for each address family [default: by the node's memory]
    ///
    /// Each takes about 900 bytes of memory, plus 40 bytes per CPU.
    #[arg(long, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=MOST_SERVICE_PORTS as i64))]
    pub max_service_ports: Option<u32>,

    /// Maximum number of endpoints [default: by the node's memory]
    ///
    /// Each takes about 730 bytes of memory, plus 40 bytes per CPU.
    #[arg(long, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=MOST_ENDPOINTS as i64))]
    pub max_endpoints: Option<u32>,

    /// Maximum number of flows (connections) of each address family [default: by the node's memory]
    ///
    /// Each takes 80 bytes of memory (IPv6: 144). A flow can use only the entries of its hash buckets: while the
    /// table is at most half full every new flow finds an entry; above that, some do not.
    #[arg(long, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u32).range(8..=MOST_FLOWS as i64))]
    pub max_flows: Option<u32>,

    /// Memory for the maps, in percent of the node's memory, where no numbers are set
    ///
    /// max-service-ports, max-endpoints and max-flows follow from it, in powers of two, unless they
    /// are set. If the agent's cgroup has a memory limit, maps leave 140 MiB of it to the agent.
    /// A restart keeps the sizes of the existing maps unless the memory differs by a factor of two.
    #[arg(long, value_name = "PERCENT", default_value = MemoryPercent::DEFAULT)]
    pub map_memory_percent: MemoryPercent,

    /// Source port range for SNAT
    ///
    /// Connections of outside clients to backends on other nodes (masquerade) leave this node with one of its
    /// addresses and a port of this range. Ports in use by the node itself are excluded: ports of its sockets,
    /// NodePorts, and ports in the sysctls net.ipv4.ip_local_port_range and net.ipv4.ip_local_reserved_ports.
    #[arg(long, value_name = "FIRST-LAST", default_value = SnatRange::DEFAULT)]
    pub snat_ports: SnatRange,

    /// Idle timeout of established TCP and SCTP connections, in seconds
    ///
    /// Like the sysctl net.netfilter.nf_conntrack_tcp_timeout_established, whose default is 432000; kube-proxy sets
    /// it to 86400.
    #[arg(long, value_name = "SECONDS", default_value_t = Timeouts::DEFAULT.tcp_established)]
    #[arg(value_parser = parse_seconds(60..=Timeouts::LONGEST))]
    pub tcp_established_timeout: u32,

    /// Idle timeout of UDP flows that are not streams, in seconds
    ///
    /// Like the sysctl net.netfilter.nf_conntrack_udp_timeout.
    #[arg(long, value_name = "SECONDS", default_value_t = Timeouts::DEFAULT.udp)]
    #[arg(value_parser = parse_seconds(1..=Timeouts::LONGEST))]
    pub udp_timeout: u32,

    /// Idle timeout of UDP streams, in seconds
    ///
    /// A stream is a flow with packets in both directions over more than 2 seconds. Like the sysctl
    /// net.netfilter.nf_conntrack_udp_timeout_stream, whose default is 120. Must not be shorter than udp-timeout.
    #[arg(long, value_name = "SECONDS", default_value_t = Timeouts::DEFAULT.udp_stream)]
    #[arg(value_parser = parse_seconds(1..=Timeouts::LONGEST))]
    pub udp_stream_timeout: u32,

    /// How long the earlier backends of each slot of a Maglev table are remembered, in seconds; 0: not at all
    ///
    /// A router may move a connection to another node after the backends of its Service have changed. If the Service
    /// uses tunnels, that node still finds the connection's backend for this long. Needs tunnel-key-file. Set it to the
    /// usual duration of connections. A node that joins asks other nodes for their history, at the port of
    /// healthz-bind-address, which must be reachable between nodes.
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    #[arg(value_parser = parse_seconds(0..=Timeouts::LONGEST))]
    pub slot_history: u32,

    /// Detach the programs and remove the maps on exit
    ///
    /// Without it the kernel keeps forwarding packets while no agent runs.
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub cleanup_on_exit: bool,

    #[command(flatten)]
    pub announcements: AnnouncementSettings,
}

/// The API of `millrace standalone`.
#[derive(Clone, Debug, Args)]
pub struct StandaloneSettings {
    /// Directory for API objects, certificates and the kubeconfig
    #[arg(long, global = true, value_name = "DIRECTORY", default_value = "/var/lib/millrace")]
    pub data_dir: PathBuf,

    /// Listen address of the Kubernetes API
    ///
    /// Clients need a certificate that the API's own CA has issued; the kubeconfig contains one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6443")]
    pub api_bind_address: SocketAddr,

    /// File to write the kubeconfig to [default: kubeconfig in the data directory]
    #[arg(long, value_name = "FILE")]
    pub write_kubeconfig: Option<PathBuf>,

    /// Range for cluster IPs: one range of either address family, or one of each
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    #[arg(default_value = "10.96.0.0/16,fd00:10:96::/112")]
    pub service_cluster_ip_range: Vec<IpNet>,

    /// Port range for node ports
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767", value_parser = ports)]
    pub service_node_port_range: RangeInclusive<u16>,

    /// Serve Ingresses, too, in a child process with the rights of another user
    ///
    /// Off by default: it listens on ports 80 and 443 of this machine, which other servers may use. All settings of
    /// `millrace ingress` apply, except those that say how to reach a cluster.
    #[arg(long, alias = "ingress", value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub serve_ingresses: bool,

    /// User and group ID of the process that serves Ingresses
    ///
    /// It must not be root. The default is the user `nobody` of most distributions.
    #[arg(long, value_name = "NUMBER", default_value = "65534")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub ingress_user: u32,

    /// Serve only the API, without load balancing
    ///
    /// Does not need root.
    #[arg(long, alias = "api-only", value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub serve_api_only: bool,
}

impl AgentSettings {
    pub fn node_name(&self) -> Result<String> {
        let from_environment = || std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
        match self.node_name.clone().or_else(from_environment) {
            Some(name) => Ok(name),
            None => Ok(nix::unistd::gethostname()
                .context("the hostname cannot be read; set --node-name")?
                .to_string_lossy()
                .into_owned()),
        }
    }
}

fn node_name(text: &str) -> Result<String, String> {
    let is_odd = |c: char| c == '/' || c.is_whitespace();
    if text.is_empty() || text.contains(is_odd) {
        return Err("not a node name; `kubectl get nodes` lists them".to_owned());
    }
    Ok(text.to_owned())
}

fn unserved_policy(text: &str) -> Result<UnservedPolicy, String> {
    match text {
        "answer" => Ok(UnservedPolicy::Answer),
        "drop" => Ok(UnservedPolicy::Drop),
        "pass" => Ok(UnservedPolicy::Pass),
        _ => Err("not one of answer, drop, pass".to_owned()),
    }
}

fn forwarding(text: &str) -> Result<Forwarding, String> {
    forwarding_named(text).ok_or_else(|| "not one of auto, masquerade, ipip, gue".to_owned())
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || "not a port range such as 30000-32767".to_owned();
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let range = first.parse().map_err(|_| wrong())?..=last.parse().map_err(|_| wrong())?;
    if range.is_empty() || *range.start() == 0 { Err(wrong()) } else { Ok(range) }
}

fn log_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text)
        .map(|_| text.to_owned())
        .map_err(|_| "not a log filter such as debug or info,lb_network=debug".to_owned())
}

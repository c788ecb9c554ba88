use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;
use ipnet::IpNet;
use tokio::signal::unix::{SignalKind, signal};

use super::agent::{AgentOptions, runtime};
use crate::agent::{self, Origin};
use crate::api::http::Limits;
use crate::api::kinds::Ranges;
use crate::api::server::{self, Server};
use crate::api::storage::Window;
use crate::source::cluster::Access;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Where the objects, the certificates and the kubeconfig are kept
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/millrace")]
    #[arg(env = "MILLRACE_DATA_DIR")]
    data_dir: PathBuf,

    /// Where to serve the API; only clients with a certificate of ours get in
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6443")]
    api_bind_address: SocketAddr,

    /// Where to write the kubeconfig [default: kubeconfig in the data directory]
    #[arg(long, value_name = "FILE")]
    write_kubeconfig: Option<PathBuf>,

    /// Where cluster addresses are taken from: one range of a family, or one of each
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    #[arg(default_value = "10.96.0.0/16,fd00:10:96::/112")]
    service_cluster_ip_range: Vec<IpNet>,

    /// Where node ports are taken from
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767", value_parser = ports)]
    service_node_port_range: RangeInclusive<u16>,

    /// Only serve the API: nothing is balanced, and root is not needed
    #[arg(long)]
    api_only: bool,

    #[command(flatten)]
    agent: AgentOptions,
}

const EXAMPLES: &str = "\
Examples:
  Serve and balance on one machine, and look into it with kubectl:
    millrace standalone --device eth0
    kubectl --kubeconfig /var/lib/millrace/kubeconfig get services -o wide

  Without root, only to try manifests out:
    millrace standalone --api-only --data-dir ./millrace-data";

pub fn run(options: Options, pin_path: &Path) -> Result<()> {
    let ranges = Ranges {
        cluster_ips: options.service_cluster_ip_range,
        node_ports: options.service_node_port_range,
    };
    check(&ranges)?;
    let server = server::Options {
        data_directory: options.data_dir,
        bind: options.api_bind_address,
        kubeconfig: options.write_kubeconfig,
        node_name: options.agent.node_name()?,
        ranges,
        window: Window::default(),
        limits: Limits::default(),
    };
    runtime()?.block_on(async {
        let server = Server::start(server).await?;
        tracing::info!("serving the Kubernetes API at https://{}", server.address);
        let kubeconfig = server.kubeconfig.display();
        tracing::info!("try: kubectl --kubeconfig {kubeconfig} get services --all-namespaces");
        if options.api_only {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            return Ok(());
        }
        // The agent can't tell this API from a cluster's.
        let access = Access { kubeconfig: Some(server.kubeconfig.clone()), ..Access::default() };
        agent::run(options.agent.with(Origin::Cluster(access), pin_path)?).await
    })
}

fn check(ranges: &Ranges) -> Result<()> {
    let families: Vec<bool> =
        ranges.cluster_ips.iter().map(|range| range.addr().is_ipv6()).collect();
    ensure!(
        matches!(families.as_slice(), [_] | [true, false] | [false, true]),
        "--service-cluster-ip-range takes one range, or one of IPv4 and one of IPv6"
    );
    Ok(())
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || format!("{text:?} is no range of ports, such as 30000-32767");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let range = first.parse().map_err(|_| wrong())?..=last.parse().map_err(|_| wrong())?;
    if range.is_empty() || *range.start() == 0 { Err(wrong()) } else { Ok(range) }
}

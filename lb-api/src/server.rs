//! The running embedded API: its store, certificates, initial objects and listeners.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::ifaddrs::getifaddrs;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;

use super::collector;
use super::first::{self, Machine};
use super::health_checker;
use super::http::{Authority, Identity, Limits, Service, serve, write_kubeconfig};
use super::kinds::Ranges;
use super::operations::Api;
use super::storage::{Storage, Window};
use super::upkeep;

/// The agent's kubeconfig in the data directory.
const AGENT: &str = "agent.kubeconfig";

#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the store, the certificates and, by default, the kubeconfig.
    pub data_directory: PathBuf,
    /// Port 0 selects any free port.
    pub bind: SocketAddr,
    pub kubeconfig: Option<PathBuf>,
    pub node_name: String,
    pub ranges: Ranges,
    pub window: Window,
    pub limits: Limits,
}

/// Serves until it is dropped.
pub struct Server {
    /// Address for clients on this machine.
    pub address: SocketAddr,
    pub kubeconfig: PathBuf,
    /// For the agent on this machine, which the server keeps room for.
    pub agent_kubeconfig: PathBuf,
    pub api: Api,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Server {
    /// Returns when it accepts connections and the kubeconfig exists.
    pub async fn start(options: Options) -> Result<Self> {
        let storage = Storage::open(&options.data_directory, options.window)?;
        let api = Api::new(storage, options.ranges)?;
        let machine = Machine::of_this(&options.node_name)?;
        first::create(&api, &machine).await?;

        let listener = TcpListener::bind(options.bind).await.with_context(|| {
            format!("{} can't be listened on; is there another server?", options.bind)
        })?;
        let address = reachable(listener.local_addr()?);
        let authority = Authority::open(&options.data_directory.join("pki"))?;
        let tls = authority.server(&own_addresses()?, &machine.host_name)?;
        let kubeconfig =
            options.kubeconfig.unwrap_or_else(|| options.data_directory.join("kubeconfig"));
        write_kubeconfig(&kubeconfig, &authority, address, &Identity::administrator())?;
        // The path is printed: a relative one would not work from another directory.
        let kubeconfig = std::path::absolute(&kubeconfig)?;
        let agent_kubeconfig = std::path::absolute(options.data_directory.join(AGENT))?;
        write_kubeconfig(&agent_kubeconfig, &authority, address, &Identity::agent())?;

        raise_descriptor_limit();
        let service = Service::new(api.clone(), options.limits);
        let tasks = vec![
            tokio::spawn(serve(listener, tls, service)),
            tokio::spawn(collector::run(api.clone())),
            tokio::spawn(health_checker::run(api.clone())),
            tokio::spawn(upkeep::run(api.clone(), options.data_directory.clone())),
        ];
        Ok(Self { address, kubeconfig, agent_kubeconfig, api, tasks })
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Each connection is a file descriptor, and the usual soft limit is lower than that of
/// connections.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::debug!(%error, "limit of open files not raised");
    }
}

/// An unspecified address is reached through loopback.
fn reachable(bound: SocketAddr) -> SocketAddr {
    match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from(([127, 0, 0, 1], bound.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => {
            SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, bound.port()))
        }
        _ => bound,
    }
}

/// All current addresses of this machine, for the server's certificate.
fn own_addresses() -> Result<Vec<IpAddr>> {
    let interfaces = getifaddrs().context("this machine's addresses can't be read")?;
    let mut addresses: Vec<IpAddr> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        })
        .chain([IpAddr::from([127, 0, 0, 1]), std::net::Ipv6Addr::LOCALHOST.into()])
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

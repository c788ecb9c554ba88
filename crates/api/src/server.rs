//! The running embedded API: its store, certificates, initial objects and listeners.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};

use super::collector;
use super::declared::{KindDeclaration, declare_kind};
use super::first::{self, MachineFacts};
use super::health_checker;
use super::http::{
    ApiLimits, ApiService, CertificateAuthority, ClientIdentity, kubeconfig, serve_api,
    write_private,
};
use super::kinds::{AllocationRanges, KindRegistry};
use super::operations::Api;
use super::storage::{ChangeWindow, Storage};
use super::upkeep;

/// The certificate of the agent is replaced at every start instead of being renewed.
const AGENT_DAYS: u32 = 3650;
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3600);

/// The agent's kubeconfig in the data directory.
const AGENT_KUBECONFIG: &str = "agent.kubeconfig";

#[derive(Debug, Clone)]
pub struct ApiServerOptions {
    /// Directory of the store, the certificates and, by default, the kubeconfig.
    pub data_directory: PathBuf,
    /// Port 0 selects any free port.
    pub bind: SocketAddr,
    pub kubeconfig: Option<PathBuf>,
    pub node_name: String,
    pub ranges: AllocationRanges,
    pub window: ChangeWindow,
    pub limits: ApiLimits,
    /// Kinds that the server has besides those of Kubernetes.
    pub declarations: Vec<KindDeclaration>,
    /// Namespaces that are created besides those of Kubernetes.
    pub namespaces: Vec<String>,
}

/// Serves until it is dropped.
pub struct EmbeddedApiServer {
    /// Address for clients on this machine.
    pub address: SocketAddr,
    pub kubeconfig: PathBuf,
    /// For the agent on this machine, which the server keeps room for.
    pub agent_kubeconfig: PathBuf,
    pub api: Api,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl EmbeddedApiServer {
    /// Returns when it accepts connections and the kubeconfig exists.
    pub async fn start(options: ApiServerOptions) -> Result<Self> {
        let declared = options.declarations.iter().map(declare_kind).collect::<Result<Vec<_>>>()?;
        let kinds = KindRegistry::with(&declared)?;
        let storage = Storage::open(&options.data_directory, options.window)?;
        let api = Api::new(storage, kinds, options.ranges)?;
        let machine = MachineFacts::of_this(&options.node_name)?;
        first::create_first_objects(&api, &machine, &options.namespaces).await?;

        let listener = TcpListener::bind(options.bind).await.with_context(|| {
            format!("can't listen on {}; does another server use it?", options.bind)
        })?;
        let address = reachable(listener.local_addr()?);
        let authority = CertificateAuthority::open(&options.data_directory.join("pki"))?;
        let addresses = own_addresses(address.ip())?;
        let tls = authority.server(&addresses, &machine.host_name)?;
        let issued = authority.issued().clone();
        // The paths are printed: relative ones would not work from another directory.
        let absolute = |path: PathBuf| std::path::absolute(path);
        let kubeconfig =
            options.kubeconfig.unwrap_or_else(|| options.data_directory.join("kubeconfig"));
        let kubeconfig = absolute(kubeconfig)?;
        let agent_kubeconfig = absolute(options.data_directory.join(AGENT_KUBECONFIG))?;
        // Only this process uses this kubeconfig, and reads it once. So the credentials of earlier
        // starts are revoked.
        let agent = ClientIdentity::agent();
        issued.revoke(&agent.user).unwrap_or_default();
        let text = kubeconfig::issue_kubeconfig(
            &authority,
            &format!("https://{address}"),
            &agent,
            AGENT_DAYS,
        )?;
        write_private(&agent_kubeconfig, &text)?;
        let renewal = KubeconfigRenewal { authority, path: kubeconfig.clone(), address };
        renewal.perform()?;

        raise_descriptor_limit();
        let service = ApiService::new(api.clone(), options.limits);
        let tasks = vec![
            tokio::spawn(serve_api(listener, tls, issued, service)),
            tokio::spawn(renewal.run()),
            tokio::spawn(collector::run_collector(api.clone())),
            tokio::spawn(health_checker::run_health_checker(api.clone())),
            tokio::spawn(upkeep::run_upkeep(api.clone(), options.data_directory.clone())),
        ];
        Ok(Self { address, kubeconfig, agent_kubeconfig, api, tasks })
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

/// Keeps the administrator's kubeconfig valid.
struct KubeconfigRenewal {
    authority: CertificateAuthority,
    path: PathBuf,
    address: SocketAddr,
}

impl KubeconfigRenewal {
    async fn run(self) {
        let mut times = interval(RENEWAL_INTERVAL);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            if let Err(error) = self.perform() {
                let path = self.path.display();
                tracing::warn!(kubeconfig = %path, error = format!("{error:#}"), "not renewed");
            }
        }
    }

    fn perform(&self) -> Result<()> {
        let (now, user) = (Timestamp::now(), ClientIdentity::administrator());
        self.authority.issued().prune(now)?;
        if kubeconfig::keep_kubeconfig(&self.path, &self.authority, self.address, &user, now)? {
            tracing::info!(kubeconfig = %self.path.display(), "kubeconfig written");
        }
        Ok(())
    }
}

impl Drop for EmbeddedApiServer {
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

/// All current addresses of this machine and the one that it listens on, for the server's
/// certificate.
fn own_addresses(listening: IpAddr) -> Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> = first::list_interface_addresses()?
        .chain([listening, IpAddr::from([127, 0, 0, 1]), std::net::Ipv6Addr::LOCALHOST.into()])
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

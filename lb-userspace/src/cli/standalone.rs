//! `millrace standalone`: the embedded API and the agent, and the commands for the API's data.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, Subcommand};
use futures::AsyncWriteExt;
use futures::io::AllowStdIo;
use kube::config::{KubeConfigOptions, Kubeconfig};
use lb_agent::ObjectSource;
use lb_api::http::{ApiLimits, CLIENT_DAYS, CertificateAuthority, ClientIdentity, ClientRole};
use lb_api::kinds::AllocationRanges;
use lb_api::server::{ApiServerOptions, EmbeddedApiServer};
use lb_api::storage::{self, ChangeWindow, Storage, snapshot};
use lb_files::{create_private, rename_durably};
use lb_kernel::privileges::Privileges;
use lb_process::ClientRequests;
use lb_rules::kinds;
use lb_source::cluster::Access;
use tokio::signal::unix::{SignalKind, signal};

use super::agent::{agent_options, build_runtime, confined_runtime};
use super::ingress_child::{ChildOptions, IngressChild};
use super::log::Level;
use crate::config::{
    self as configuration, Common, Configuration, Effective, EffectiveSetting, IngressSettings,
    SettingSource, StandaloneSettings,
};

/// In certificates and Events.
const PROXY_USER: &str = "millrace-ingress";
/// Replaced at every start instead of being renewed.
const PROXY_DAYS: u32 = 3650;

pub const EXAMPLES: &str = "\
Examples:
  Run on one machine, and manage Services with kubectl:
    millrace standalone --devices eth0
    kubectl --kubeconfig /var/lib/millrace/kubeconfig get services -o wide

  Run only the API, without root, to validate manifests:
    millrace standalone --serve-api-only --data-dir ./millrace-data

  Serve Ingresses, too, as the user nobody:
    millrace standalone --devices eth0 --serve-ingresses

  Back up all objects while it runs, and restore them while it is stopped:
    millrace standalone backup /root/millrace.backup
    millrace standalone restore /root/millrace.backup

  Let another user read the objects, and later revoke that:
    millrace standalone kubeconfig --role viewer --name alice > alice.kubeconfig
    millrace standalone kubeconfig --revoke alice";

#[derive(Debug, Args)]
pub struct StandaloneOptions {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write all API objects to a file, also while the server runs
    ///
    /// The file contains Secrets. Only its owner can read it.
    Backup {
        /// File to write; replaced if it exists
        file: PathBuf,
    },
    /// Issue, list and revoke kubeconfigs of the embedded API
    ///
    /// Prints a kubeconfig with a new client certificate. Works while the server runs, which then
    /// accepts it at once.
    Kubeconfig(KubeconfigOptions),
    /// Replace all API objects by those of a backup or snapshot
    ///
    /// The server must be stopped. The replaced store stays in the data directory as
    /// objects.redb.replaced.
    Restore {
        /// Backup, or snapshot.jsonl of a data directory
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
struct KubeconfigOptions {
    /// What the client may do
    #[arg(long, value_name = "ROLE", required_unless_present_any = ["revoke", "list"])]
    #[arg(value_parser = roles())]
    role: Option<ClientRole>,
    /// Name of the user [default: the role]
    #[arg(long, value_parser = user)]
    name: Option<String>,
    /// Validity of the certificate in days
    #[arg(long, default_value_t = CLIENT_DAYS, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Stop accepting all certificates of a user
    #[arg(long, value_name = "NAME", conflicts_with_all = ["role", "name", "list"])]
    revoke: Option<String>,
    /// List the accepted certificates: user, group, expiry
    #[arg(long, conflicts_with_all = ["role", "name"])]
    list: bool,
}

fn roles() -> impl TypedValueParser<Value = ClientRole> {
    PossibleValuesParser::new(ClientRole::ALL.map(ClientRole::name)).try_map(|name| {
        ClientRole::ALL.into_iter().find(|role| role.name() == name).ok_or("there is no such role")
    })
}

fn user(name: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.@:".contains(c);
    if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
        return Err("use up to 63 letters, digits, and -_.@:".to_owned());
    }
    Ok(name.to_owned())
}

/// The settings of the Ingress proxy that is a child process, as flags.
pub(crate) fn child_arguments(effective: &Effective) -> Vec<String> {
    let mut of_child = configuration::settings_of::<Common>();
    of_child.extend(configuration::settings_of::<IngressSettings>());
    let mut names: Vec<&str> = of_child.iter().filter_map(Arg::get_long).collect();
    // The other one that it shares with the agent, the node's name, is the parent's concern.
    names.push("metrics-max-objects");
    let given = effective.settings.iter().filter(|setting| {
        setting.source != SettingSource::Default && names.contains(&setting.name.as_str())
    });
    given.flat_map(EffectiveSetting::arguments).collect()
}

/// `child`: arguments of the Ingress proxy.
pub fn run_standalone(
    options: StandaloneOptions,
    configuration: Configuration,
    child: Vec<String>,
    level: Level,
) -> Result<()> {
    let settings = &configuration.standalone;
    match options.action {
        None => run(configuration, child, level),
        Some(Action::Backup { file }) => backup(&file, settings),
        Some(Action::Kubeconfig(options)) => kubeconfigs(&options, settings),
        Some(Action::Restore { file }) => restore(&file, settings),
    }
}

fn backup(file: &Path, settings: &StandaloneSettings) -> Result<()> {
    let unfinished = file.with_extension("unfinished");
    if storage::is_directory_in_use(&settings.data_dir) {
        build_runtime()?.block_on(download(&unfinished, settings))?;
    } else {
        snapshot::save_snapshot(
            &Storage::open(&settings.data_dir, ChangeWindow::default())?,
            &unfinished,
        )?;
    }
    let count = snapshot::verify_snapshot(&unfinished)?;
    rename_durably(&unfinished, file).with_context(|| format!("{} not written", file.display()))?;
    println!("{} objects written to {}", count, file.display());
    Ok(())
}

/// Downloads a backup from the running server.
async fn download(file: &Path, settings: &StandaloneSettings) -> Result<()> {
    let path = kubeconfig(settings);
    let kubeconfig = Kubeconfig::read_from(&path)
        .with_context(|| format!("kubeconfig {} not readable", path.display()))?;
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client: kube::Client = config.try_into()?;
    let request = http::Request::get("/millrace/backup").body(Vec::new())?;
    let lines = client.request_stream(request).await.context("backup not downloaded")?;
    let failed = || format!("{} not written", file.display());
    let written = create_private(file).with_context(failed)?;
    let mut written = AllowStdIo::new(written);
    futures::io::copy(lines, &mut written).await.with_context(failed)?;
    written.flush().await.and_then(|()| written.get_ref().sync_all()).with_context(failed)
}

fn restore(file: &Path, settings: &StandaloneSettings) -> Result<()> {
    let count = snapshot::restore_snapshot(file, &settings.data_dir)?;
    println!("{count} objects restored to {}", settings.data_dir.display());
    Ok(())
}

fn kubeconfigs(options: &KubeconfigOptions, settings: &StandaloneSettings) -> Result<()> {
    let pki = settings.data_dir.join("pki");
    ensure!(
        pki.exists(),
        "{} is not the data directory of a server that has run; set --data-dir",
        settings.data_dir.display()
    );
    let authority = CertificateAuthority::open(&pki)?;
    if options.list {
        for (_, entry) in authority.issued().list_by_user()? {
            println!("{}\t{}\t{}", entry.user, entry.group, entry.expires);
        }
        return Ok(());
    }
    if let Some(user) = &options.revoke {
        let count = authority.issued().revoke(user)?;
        ensure!(count > 0, "{user} has no certificate; --list shows who has");
        println!("{count} certificates of {user} revoked");
        return Ok(());
    }
    let role = options.role.context("--role is missing")?;
    let user = options.name.as_deref().unwrap_or(role.name());
    let server = lb_api::http::kubeconfig::read_server(&kubeconfig(settings))?;
    let identity = ClientIdentity::new(user, role);
    print!(
        "{}",
        lb_api::http::kubeconfig::issue_kubeconfig(&authority, &server, &identity, options.days)?
    );
    Ok(())
}

fn kubeconfig(settings: &StandaloneSettings) -> PathBuf {
    let default = || settings.data_dir.join("kubeconfig");
    settings.write_kubeconfig.clone().unwrap_or_else(default)
}

/// A kubeconfig for the Ingress proxy, which replaces that of an earlier start.
fn proxy_kubeconfig(data_directory: &Path, server: &EmbeddedApiServer) -> Result<String> {
    let authority = CertificateAuthority::open(&data_directory.join("pki"))?;
    let identity = ClientIdentity::new(PROXY_USER, ClientRole::Proxy);
    authority.issued().revoke(&identity.user)?;
    let url = format!("https://{}", server.address);
    lb_api::http::kubeconfig::issue_kubeconfig(&authority, &url, &identity, PROXY_DAYS)
}

/// What `millrace standalone` starts, besides the agent and the controller.
#[derive(Debug)]
pub(crate) struct StandaloneStart {
    api: ApiServerOptions,
    ingress: Option<ChildOptions>,
    is_api_only: bool,
}

/// `child`: arguments of the Ingress proxy.
pub(crate) fn standalone_start(
    configuration: &Configuration,
    child: Vec<String>,
) -> Result<StandaloneStart> {
    let settings = configuration.standalone.clone();
    let ingress = settings
        .serve_ingresses
        .then(|| ChildOptions::new(&configuration.ingress, settings.ingress_user, child));
    let api = ApiServerOptions {
        data_directory: settings.data_dir,
        bind: settings.api_bind_address,
        kubeconfig: settings.write_kubeconfig,
        node_name: configuration.agent.node_name()?,
        ranges: AllocationRanges {
            cluster_ips: settings.service_cluster_ip_range,
            node_ports: settings.service_node_port_range,
        },
        window: ChangeWindow::default(),
        limits: ApiLimits::default(),
        declarations: kinds::own_kinds()
            .into_iter()
            .chain(kinds::of_metallb())
            .map(Into::into)
            .collect(),
        namespaces: vec![configuration.load_balancer.metallb_namespace.clone()],
    };
    Ok(StandaloneStart { api, ingress, is_api_only: settings.serve_api_only })
}

fn run(configuration: Configuration, child: Vec<String>, level: Level) -> Result<()> {
    let StandaloneStart { api: server, ingress, is_api_only } =
        standalone_start(&configuration, child)?;
    // It needs capabilities that are given up below.
    let ingress = ingress.map(IngressChild::prepare).transpose()?;
    let data_directory = server.data_directory.clone();
    let privileges = Privileges::STANDALONE;
    let runtime = confined_runtime(privileges)?;
    // The API has its own threads: its clients can't delay the agent and its health checks.
    let api = confined_runtime(privileges)?;
    runtime.spawn(level.follow());
    runtime.block_on(async {
        let server =
            api.spawn(EmbeddedApiServer::start(server)).await.context("API server panicked")??;
        let kubeconfig = server.kubeconfig.display();
        tracing::info!(address = %server.address, %kubeconfig, "serving the Kubernetes API");
        if let Some(ingress) = &ingress {
            ingress.start(proxy_kubeconfig(&data_directory, &server)?);
        }
        let access =
            Access { kubeconfig: Some(server.agent_kubeconfig.clone()), ..Access::default() };
        let assignment = lb_controller::AssignmentMetrics::default();
        let assigning = super::controller::controller_options(
            &configuration.load_balancer,
            access.clone(),
            None,
        );
        // Its requests are few, and of no interest beside the agent's.
        lb_controller::start_controller(assigning, &ClientRequests::default(), assignment.clone())
            .await?;
        if is_api_only {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            return Ok(());
        }
        // The agent uses this API like a cluster's.
        let mut options = agent_options(configuration, ObjectSource::Cluster(access), privileges)?;
        options.assignment = Some(assignment);
        lb_agent::run_agent(options).await
    })
}

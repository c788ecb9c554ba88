//! The embedded API on a host of a test, as the API server of a cluster.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use lb_api::http::ApiLimits;
use lb_api::kinds::AllocationRanges;
use lb_api::server::{ApiServerOptions, EmbeddedApiServer};
use lb_api::storage::ChangeWindow;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::worlds::topology::Host;

/// A server that runs until it is dropped; with it go all connections, as in a crash.
pub struct ApiServer {
    server: EmbeddedApiServer,
    // Dropped last.
    _runtime: Runtime,
}

impl ApiServer {
    /// Starts the server on a host, with the objects of its data directory.
    pub fn start(host: &Host, data_directory: PathBuf, bind: SocketAddr) -> Result<Self> {
        std::fs::create_dir_all(&data_directory)?;
        let options = ApiServerOptions {
            data_directory,
            bind,
            kubeconfig: None,
            node_name: host.name().to_owned(),
            ranges: AllocationRanges {
                cluster_ips: vec!["10.96.0.0/16".parse()?, "fd00:10:96::/112".parse()?],
                node_ports: 30_000..=32_767,
            },
            window: ChangeWindow::default(),
            limits: ApiLimits::default(),
            declarations: Vec::new(),
            namespaces: Vec::new(),
        };
        let runtime = Runtime::new()?;
        // The socket belongs to the host's namespace, whichever thread serves it.
        let server = host.enter(|| runtime.block_on(EmbeddedApiServer::start(options)))?;
        Ok(Self { server, _runtime: runtime })
    }

    /// The administrator's, with all rights.
    pub fn kubeconfig(&self) -> &Path {
        &self.server.kubeconfig
    }

    /// Creates objects, in the namespace `default` if their kind has namespaces, with their status.
    pub fn create(&self, host: &Host, objects: Vec<Value>) -> Result<()> {
        // One thread, so that all connections are opened in the host's namespace.
        host.enter(|| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                create_objects(&build_client(self.kubeconfig()).await?, objects).await
            })
        })
    }

    /// Creates many objects, which do not depend on each other: the server then writes some of them to disk at once.
    pub fn create_at_once(&self, host: &Host, objects: Vec<Value>) -> Result<()> {
        const AT_ONCE: usize = 32;
        host.enter(|| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let client = build_client(self.kubeconfig()).await?;
                let mut tasks = JoinSet::new();
                for part in objects.chunks(objects.len().div_ceil(AT_ONCE).max(1)) {
                    let (client, part) = (client.clone(), part.to_vec());
                    tasks.spawn(async move { create_objects(&client, part).await });
                }
                while let Some(created) = tasks.join_next().await {
                    created??;
                }
                Ok(())
            })
        })
    }
}

/// A client of the server that a kubeconfig names.
pub async fn build_client(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Creates objects, in the namespace `default` if their kind has namespaces, with their status.
pub async fn create_objects(client: &Client, objects: Vec<Value>) -> Result<()> {
    for object in objects {
        let status = object.get("status").cloned();
        let object: DynamicObject = serde_json::from_value(object)?;
        let types = object.types.as_ref().context("an object without a kind")?;
        let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
        let api: Api<DynamicObject> = match kind.kind.as_str() {
            "Node" | "AddressPool" | "BGPPeer" => Api::all_with(client.clone(), &kind),
            _ => Api::default_namespaced_with(client.clone(), &kind),
        };
        let name = object.metadata.name.as_deref().context("an object without a name")?;
        let what = || format!("{} {name}", kind.kind);
        api.create(&PostParams::default(), &object).await.with_context(what)?;
        // Only the kubelet's and the controllers' requests set it.
        if let Some(status) = status {
            let patch = Patch::Merge(json!({"status": status}));
            let written = api.patch_status(name, &PatchParams::default(), &patch).await;
            written.with_context(what)?;
        }
    }
    Ok(())
}

//! The initial objects: namespaces, and a Node for this machine.

use std::fs;
use std::net::IpAddr;

use anyhow::{Context, Result};
use jiff::Timestamp;
use nix::ifaddrs::getifaddrs;
use serde_json::{Value, json};

use super::codec::format_time;
use super::failure::ApiFailure;
use super::kinds::{self, Subresource};
use super::operations::options::QueryParameters;
use super::operations::{Api, ApiRequest, RequestTarget};

/// Without them nothing works, so they can't be deleted.
pub const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];
/// Millrace's name as a field manager.
pub const USER_AGENT: &str = "millrace";

/// The addresses of all interfaces of this machine.
pub(crate) fn list_interface_addresses() -> Result<impl Iterator<Item = IpAddr>> {
    let interfaces = getifaddrs().context("this machine's addresses can't be read")?;
    Ok(interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    }))
}

/// What the Node reports about this machine.
pub(crate) struct MachineFacts {
    pub node_name: String,
    pub host_name: String,
    addresses: Vec<IpAddr>,
    kernel: String,
    system: String,
}

impl MachineFacts {
    pub fn of_this(node_name: &str) -> Result<Self> {
        let host_name = nix::unistd::gethostname().context("the host's name can't be read")?;
        let mut addresses: Vec<IpAddr> = list_interface_addresses()?
            .filter(|address| match address {
                IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
                IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
            })
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let system = release
            .lines()
            .find_map(|line| line.strip_prefix("PRETTY_NAME="))
            .map(|name| name.trim_matches('"').to_owned());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            node_name: node_name.to_owned(),
            host_name: host_name.to_string_lossy().into_owned(),
            addresses,
            kernel: kernel.trim().to_owned(),
            system: system.unwrap_or_else(|| "Linux".to_owned()),
        })
    }

    fn architecture() -> &'static str {
        match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
    }

    fn node(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": self.node_name, "labels": {
                "kubernetes.io/hostname": self.node_name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": Self::architecture(),
            }},
        })
    }

    fn status(&self) -> Value {
        let now = format_time(Timestamp::now());
        let mut addresses: Vec<Value> = self
            .addresses
            .iter()
            .map(|address| json!({"type": "InternalIP", "address": address}))
            .collect();
        addresses.push(json!({"type": "Hostname", "address": self.host_name}));
        json!({
            "addresses": addresses,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Standalone",
                "message": "millrace runs on this machine",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
            "nodeInfo": {
                "architecture": Self::architecture(), "operatingSystem": "linux",
                "kernelVersion": self.kernel, "osImage": self.system,
                "kubeletVersion": concat!("millrace-", env!("CARGO_PKG_VERSION")),
                "kubeProxyVersion": "", "containerRuntimeVersion": "none",
                "bootID": "", "machineID": "", "systemUUID": "",
            },
        })
    }
}

/// Creates missing objects, and updates the Node.
pub(crate) async fn create_first_objects(
    api: &Api,
    machine: &MachineFacts,
    namespaces: &[String],
) -> Result<()> {
    for name in NAMESPACES.into_iter().chain(namespaces.iter().map(String::as_str)) {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        create_one(api, "Namespace", &namespace).await?;
    }
    create_one(api, "Node", &machine.node()).await?;
    let mut node = machine.node();
    node["status"] = machine.status();
    let mut request = build_create_request("Node", Some(&machine.node_name), &node)?;
    request.target.subresource = Subresource::Status;
    request.content_type = "application/strategic-merge-patch+json".to_owned();
    api.patch(request).await.map_err(|failure| to_error(&failure))?;
    Ok(())
}

async fn create_one(api: &Api, kind: &str, object: &Value) -> Result<()> {
    match api.create(build_create_request(kind, None, object)?).await {
        Ok(_) => Ok(()),
        Err(failure) if failure.reason == "AlreadyExists" => Ok(()),
        Err(failure) => Err(to_error(&failure)),
    }
}

fn to_error(failure: &ApiFailure) -> anyhow::Error {
    anyhow::anyhow!("the initial objects can't be stored: {failure}")
}

fn build_create_request(kind: &str, name: Option<&str>, object: &Value) -> Result<ApiRequest> {
    let kind = kinds::find_kind("v1", kind).context("the kind is not among those served")?;
    let name = name.map(str::to_owned);
    Ok(ApiRequest {
        target: RequestTarget {
            kind,
            namespace: None,
            name,
            subresource: Subresource::None,
            keeps_metadata: false,
        },
        query: QueryParameters::default(),
        user_agent: USER_AGENT.to_owned(),
        content_type: "application/json".to_owned(),
        body: object.to_string().into(),
    })
}

//! `millrace standalone` with other settings than the defaults.

use std::path::Path;
use std::process::Stdio;

use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use tokio::process::{Child, Command};

use super::api_server;
use super::world::{addresses, create, free_port, service, until};

async fn standalone(directory: &Path, flags: &[&str]) -> Child {
    let process = Command::new(env!("CARGO_BIN_EXE_millrace"))
        .args(["standalone", "--serve-api-only", "--data-dir"])
        .arg(directory.join("data"))
        .args(flags)
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    api_server::serving(process).await
}

#[tokio::test]
async fn the_api_allocates_from_the_ranges_of_the_settings() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("elsewhere");
    let address = format!("127.0.0.1:{}", free_port());
    let flags = [
        &format!("--api-bind-address={address}"),
        &format!("--write-kubeconfig={}", kubeconfig.display()),
        "--service-cluster-ip-range=10.7.0.0/24",
        "--service-node-port-range=31000-31001",
    ];
    let _server = standalone(directory.path(), &flags).await;
    assert!(!directory.path().join("data/kubeconfig").exists());
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    assert!(text.contains(&format!("https://{address}")), "{text}");
    let client = api_server::client(&kubeconfig).await;
    let services: Api<Service> = Api::default_namespaced(client);
    create(&services, service("web", json!({}))).await;
    let spec = services.get("web").await.unwrap().spec.unwrap();
    assert!(spec.cluster_ip.as_ref().unwrap().starts_with("10.7.0."), "{spec:?}");
    let node_port = spec.ports.as_ref().unwrap()[0].node_port.unwrap();
    assert!([31000, 31001].contains(&node_port), "{spec:?}");
}

#[tokio::test]
async fn pools_of_metallb_are_read_in_the_namespace_of_the_setting() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["--api-bind-address=127.0.0.1:0", "--metallb-namespace=edge"];
    let _server = standalone(directory.path(), &flags).await;
    let client = api_server::client(&directory.path().join("data/kubeconfig")).await;
    let namespace = json!({"metadata": {"name": "metallb-system"}});
    let namespace: Namespace = serde_json::from_value(namespace).unwrap();
    create(&Api::all(client.clone()), namespace).await;
    let kind = GroupVersionKind::gvk("metallb.io", "v1beta1", "IPAddressPool");
    let kind = ApiResource::from_gvk_with_plural(&kind, "ipaddresspools");
    // The first one would be preferred.
    for (namespace, name, range) in
        [("metallb-system", "a", "198.51.100.0/24"), ("edge", "b", "192.0.2.0/24")]
    {
        let pool = DynamicObject::new(name, &kind).data(json!({"spec": {"addresses": [range]}}));
        let pools: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
        pools.create(&PostParams::default(), &pool).await.unwrap();
    }
    let services: Api<Service> = Api::default_namespaced(client);
    create(&services, service("web", json!({}))).await;
    until(&services, "web", |service| addresses(service) == ["192.0.2.0"]).await;
}

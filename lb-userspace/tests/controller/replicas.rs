//! Two controllers and one API server, which goes away.

use std::path::Path;
use std::process::Stdio;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::ObjectList;
use kube::{Api, Client};
use serde_json::json;
use tokio::process::{Child, Command};

use super::api_server;
use super::world::{
    SOON, addresses, create, free_port, get, pool, reason, service, until, until_status,
};

/// Not the default one.
const LEASE: &str = "edge-controller";

/// An API server that assigns no addresses itself.
async fn server(directory: &Path, bind: &str) -> Child {
    let process = Command::new(env!("CARGO_BIN_EXE_millrace"))
        .args(["standalone", "--api-only", "--load-balancer-class=example.org/none"])
        .args(["--load-balancer-class-required", "--api-bind-address", bind, "--data-dir"])
        .arg(directory)
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    api_server::serving(process).await
}

/// `listen`: addresses for health checks, and for metrics.
fn controller(kubeconfig: &Path, directory: &Path, listen: [&str; 2]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_millrace"))
        .args(["controller", "--tunnel-key-secret=kube-system/millrace-tunnel"])
        .arg(format!("--controller-lease=kube-system/{LEASE}"))
        .arg(format!("--controller-healthz-bind-address={}", listen[0]))
        .arg(format!("--controller-metrics-bind-address={}", listen[1]))
        .args(["--log=warn", "--kubeconfig"])
        .arg(kubeconfig)
        .arg("--state-directory")
        .arg(directory.join("state"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

fn versions(list: ObjectList<Service>) -> Vec<Option<String>> {
    list.items.into_iter().map(|service| service.metadata.resource_version).collect()
}

/// The key in the Secret, once there is one.
async fn tunnel_key(client: &Client) -> String {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "kube-system");
    let read = async {
        loop {
            let secret = secrets.get("millrace-tunnel").await.unwrap();
            if let Some(key) = secret.data.and_then(|mut data| data.remove("key")) {
                return String::from_utf8(key.0).unwrap();
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, read).await.expect("a tunnel key")
}

async fn holder(client: &Client) -> String {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let lease = leases.get_opt(LEASE).await.unwrap();
    lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
}

#[tokio::test]
async fn one_of_two_controllers_assigns_and_the_other_one_takes_over() {
    let directory = tempfile::tempdir().unwrap();
    // Of both servers. While neither listens, a client may connect from a port that the kernel chooses.
    let address = format!("127.0.0.1:{}", free_port());
    let mut api = server(directory.path(), &address).await;
    let kubeconfig = directory.path().join("kubeconfig");
    let client = api_server::client(&kubeconfig).await;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    create(&Api::all(client.clone()), pool("a", &["192.0.2.1-192.0.2.9"])).await;
    let foreign = service("foreign", json!({"loadBalancerClass": "example.org/other"}));
    create(&services, foreign).await;

    // As the manifests have it.
    let secret = include_str!("../../../deploy/kustomize/controller/tunnel-key.yaml");
    let secret: Secret = serde_norway::from_str(secret).unwrap();
    create(&Api::namespaced(client.clone(), "kube-system"), secret).await;

    let listen = [free_port(), free_port()];
    let addresses_of_first = listen.map(|port| format!("127.0.0.1:{port}"));
    let listen_first = [&*addresses_of_first[0], &*addresses_of_first[1]];
    let mut first = controller(&kubeconfig, directory.path(), listen_first);
    create(&services, service("a", json!({}))).await;
    until(&services, "a", |service| addresses(service) == ["192.0.2.1"]).await;
    until_status(listen[0], "/readyz", 200).await;
    let (_, metrics) = get(listen[1], "/metrics").await.unwrap();
    assert!(metrics.contains("millrace_address_pool"), "{metrics}");
    let mut second = controller(&kubeconfig, directory.path(), ["off", "off"]);
    let first_holder = holder(&client).await;
    assert!(!first_holder.is_empty());
    let key = tunnel_key(&client).await;
    assert!(key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");

    // Killed: its Lease has to expire.
    first.kill().await.unwrap();
    create(&services, service("b", json!({"loadBalancerIP": "192.0.2.1"}))).await;
    until(&services, "b", |service| reason(service) == "InUse").await;
    assert_ne!(holder(&client).await, first_holder);
    create(&services, service("c", json!({}))).await;
    until(&services, "c", |service| addresses(service) == ["192.0.2.2"]).await;
    assert_eq!(tunnel_key(&client).await, key, "the next holder keeps it");

    // Nothing is written while nothing changes, through an outage of the API, too.
    let before = versions(services.list(&Default::default()).await.unwrap());
    api.kill().await.unwrap();
    let _api = server(directory.path(), &address).await;
    let client = api_server::client(&kubeconfig).await;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    create(&services, service("d", json!({}))).await;
    until(&services, "d", |service| addresses(service) == ["192.0.2.3"]).await;
    let after = versions(services.list(&Default::default()).await.unwrap());
    assert_eq!(before, after[..3].iter().chain(&after[4..]).cloned().collect::<Vec<_>>());
    let foreign = services.get("foreign").await.unwrap();
    assert!(foreign.status.is_none_or(|status| status.conditions.is_none()));

    // A controller that exits by itself leaves the Lease to the next one at once.
    let pid = second.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
    assert!(second.wait().await.unwrap().success());
    assert_eq!(holder(&client).await, "");
}

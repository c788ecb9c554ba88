//! `millrace ingress` with other settings than the defaults.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::api_server;
use super::world::{PAUSE, SOON, create, free_port, get, service, until_status};

/// Starts the proxy, and waits until it serves.
async fn proxy(directory: &Path, flags: &[String]) -> Child {
    let process = Command::new(env!("CARGO_BIN_EXE_millrace"))
        .args(["ingress", "--node-name=node", "--https-bind-addresses=127.0.0.1:0"])
        .arg(format!("--control-socket={}", directory.join("ingress.sock").display()))
        .args(flags)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    api_server::serving(process).await
}

/// With manifests that contain nothing.
async fn idle_proxy(directory: &Path, flags: &[String]) -> Child {
    let manifests = directory.join("empty.yaml");
    std::fs::write(&manifests, "# nothing\n").unwrap();
    proxy(directory, &[flags, &[format!("--manifests={}", manifests.display())]].concat()).await
}

/// How many threads have taken such a name; a new thread does so when it first runs.
fn count_threads(process: &Child, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id().unwrap())).unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.starts_with(name)).count()
}

async fn terminate(process: &Child) {
    let pid = process.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
}

#[tokio::test]
async fn the_proxy_listens_where_the_settings_say() {
    let directory = tempfile::tempdir().unwrap();
    let [http, second_http, https] = [free_port(), free_port(), free_port()];
    let [healthz, metrics] = [free_port(), free_port()];
    let mut proxy = idle_proxy(
        directory.path(),
        &[
            format!("--http-bind-addresses=127.0.0.1:{http},127.0.0.1:{second_http}"),
            format!("--https-bind-addresses=127.0.0.1:{https}"),
            format!("--ingress-healthz-bind-address=127.0.0.1:{healthz}"),
            format!("--ingress-metrics-bind-address=127.0.0.1:{metrics}"),
            "--access-log=json".to_owned(),
            "--workers=3".to_owned(),
        ],
    )
    .await;
    until_status(healthz, "/readyz", 200).await;
    assert!(get(metrics, "/metrics").await.unwrap().1.contains("millrace_ingress_connections"));
    let running = async {
        while count_threads(&proxy, "proxy-") != 3 {
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(SOON, running).await.expect("three threads of the proxy");
    TcpStream::connect((Ipv4Addr::LOCALHOST, https)).await.expect("a port for HTTPS");

    let mut log = BufReader::new(proxy.stdout.take().unwrap()).lines();
    for port in [http, second_http] {
        assert_eq!(get(port, "/page").await.unwrap().0, 404);
        let line = tokio::time::timeout(SOON, log.next_line()).await.expect("a line of the log");
        let entry: Value = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
        assert!(entry["status"] == 404 && entry["uri"] == "/page", "{entry}");
    }
}

#[tokio::test]
async fn the_ports_stay_open_during_the_shutdown_delay() {
    let directory = tempfile::tempdir().unwrap();
    let [http, healthz] = [free_port(), free_port()];
    let proxy = idle_proxy(
        directory.path(),
        &[
            format!("--http-bind-addresses=127.0.0.1:{http}"),
            format!("--ingress-healthz-bind-address=127.0.0.1:{healthz}"),
            "--ingress-metrics-bind-address=off".to_owned(),
            "--shutdown-delay=24h".to_owned(),
        ],
    )
    .await;
    terminate(&proxy).await;
    until_status(healthz, "/readyz", 503).await;
    for _ in 0..10 {
        assert_eq!(get(http, "/").await.unwrap().0, 404);
    }
}

/// Waits until the status of the Ingress has these addresses.
async fn until_published(ingresses: &Api<Ingress>, expected: &Value) {
    let mut published = Value::Null;
    let waiting = async {
        while published != *expected {
            tokio::time::sleep(PAUSE).await;
            let ingress = ingresses.get("site").await.unwrap();
            published =
                serde_json::to_value(ingress.status).unwrap()["loadBalancer"]["ingress"].take();
        }
    };
    if tokio::time::timeout(SOON, waiting).await.is_err() {
        panic!("{published}, not {expected}");
    }
}

async fn holder(client: &Client, namespace: &str, name: &str) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    leases.get_opt(name).await.unwrap()?.spec?.holder_identity
}

#[tokio::test]
async fn the_status_is_written_as_the_settings_say() {
    let directory = tempfile::tempdir().unwrap();
    let _server = api_server::start(directory.path()).await;
    let kubeconfig = directory.path().join("kubeconfig");
    let client = api_server::client(&kubeconfig).await;
    let class: IngressClass = serde_json::from_value(json!({
        "metadata": {"name": "millrace"}, "spec": {"controller": "millrace.io/ingress-controller"}
    }))
    .unwrap();
    create(&Api::all(client.clone()), class).await;
    let ingress: Ingress = serde_json::from_value(json!({
        "metadata": {"name": "site"}, "spec": {
            "ingressClassName": "millrace",
            "defaultBackend": {"service": {"name": "site", "port": {"number": 80}}}
        }
    }))
    .unwrap();
    let ingresses: Api<Ingress> = Api::default_namespaced(client.clone());
    create(&ingresses, ingress).await;

    let start = async |name: &str, flags: &[&str]| {
        let own = directory.path().join(name);
        std::fs::create_dir(&own).unwrap();
        let flags = flags.iter().map(|&flag| flag.to_owned());
        let more = [
            "--http-bind-addresses=127.0.0.1:0".to_owned(),
            "--ingress-healthz-bind-address=off".to_owned(),
            "--ingress-metrics-bind-address=off".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--state-directory={}", own.display()),
        ];
        proxy(&own, &flags.chain(more).collect::<Vec<_>>()).await
    };
    let silent = ["--status-addresses=203.0.113.8", "--status-lease=default/silent"];
    let _silent = start("silent", &[&silent[..], &["--update-status=false"]].concat()).await;
    let addresses = "--status-addresses=203.0.113.7,lb.example.org";
    let mut first = start("first", &[addresses, "--status-lease=default/first"]).await;
    let ports = json!([{"port": 80, "protocol": "TCP"}, {"port": 443, "protocol": "TCP"}]);
    let expected = json!([
        {"ip": "203.0.113.7", "ports": ports}, {"hostname": "lb.example.org", "ports": ports}
    ]);
    until_published(&ingresses, &expected).await;
    assert!(holder(&client, "default", "first").await.is_some_and(|holder| !holder.is_empty()));
    assert_eq!(holder(&client, "kube-system", "millrace-ingress").await, None);
    assert_eq!(holder(&client, "default", "silent").await, None, "it writes no status");
    terminate(&first).await;
    first.wait().await.unwrap();

    // The addresses of a Service.
    let services: Api<Service> = Api::default_namespaced(client.clone());
    create(&services, service("front", json!({"type": "ClusterIP", "clusterIP": "10.96.0.77"})))
        .await;
    let _second = start("second", &["--publish-service=default/front"]).await;
    let port = json!([{"port": 80, "protocol": "TCP"}]);
    until_published(&ingresses, &json!([{"ip": "10.96.0.77", "ports": port}])).await;
}

//! The scenarios of kubernetes-sigs' ingress-controller-conformance, as a table. Its program cannot be had as a module.
//!
//! Each Service's pods reply with the Service's name to any request. Those of `balanced` reply with their own names.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tests::worlds::topology::{Host, wait_until};

use super::results::Results;
use crate::cluster::Cluster;
use crate::images::AGNHOST;

const NAMESPACE: &str = "ingress-conformance";
const PROXY_SERVICE: [&str; 4] = ["-n", "kube-system", "service", "millrace-ingress"];
const CLASS: &str = "millrace";
const POD_PORT: u16 = 9376;
const LIMIT: Duration = Duration::from_secs(120);
const BALANCED_PODS: usize = 10;
const BALANCED_REQUESTS: usize = 200;

/// Host, path, path type (P: Prefix, E: Exact), Service.
const RULES: [(&str, &str, char, &str); 11] = [
    ("foo.bar.com", "/", 'P', "foo-bar-com"),
    ("*.foo.com", "/", 'P', "wildcard-foo-com"),
    ("exact-path-rules", "/foo", 'E', "foo-exact"),
    ("prefix-path-rules", "/foo", 'P', "foo-prefix"),
    ("prefix-path-rules", "/aaa/bbb", 'P', "aaa-slash-bbb-prefix"),
    ("prefix-path-rules", "/aaa", 'P', "aaa-prefix"),
    ("mixed-path-rules", "/foo", 'P', "foo-prefix"),
    ("mixed-path-rules", "/foo", 'E', "foo-exact"),
    ("trailing-slash-path-rules", "/aaa/bbb/", 'P', "aaa-slash-bbb-slash-prefix"),
    ("trailing-slash-path-rules", "/foo/", 'E', "foo-slash-exact"),
    ("load-balancing", "/", 'P', "balanced"),
];

/// Group, host, path, and the Service that replies; none if the proxy responds with 404.
const REQUESTS: [(&str, &str, &str, Option<&str>); 23] = [
    ("host rules", "foo.bar.com", "/", Some("foo-bar-com")),
    ("host rules", "FOO.bar.com", "/", Some("foo-bar-com")),
    ("host rules", "foo.bar.com:8080", "/", Some("foo-bar-com")),
    ("host rules", "subdomain.bar.com", "/", None),
    ("host rules", "bar.foo.com", "/", Some("wildcard-foo-com")),
    ("host rules", "baz.bar.foo.com", "/", None),
    ("host rules", "foo.com", "/", None),
    ("path rules", "exact-path-rules", "/foo", Some("foo-exact")),
    ("path rules", "exact-path-rules", "/foo/", None),
    ("path rules", "exact-path-rules", "/FOO", None),
    ("path rules", "exact-path-rules", "/bar", None),
    ("path rules", "prefix-path-rules", "/foo", Some("foo-prefix")),
    ("path rules", "prefix-path-rules", "/foo/", Some("foo-prefix")),
    ("path rules", "prefix-path-rules", "/FOO", None),
    ("path rules", "prefix-path-rules", "/aaa/bbb", Some("aaa-slash-bbb-prefix")),
    ("path rules", "prefix-path-rules", "/aaa/bbb/ccc", Some("aaa-slash-bbb-prefix")),
    ("path rules", "prefix-path-rules", "/aaa/ccc", Some("aaa-prefix")),
    ("path rules", "prefix-path-rules", "/aaaccc", None),
    ("path rules", "mixed-path-rules", "/foo", Some("foo-exact")),
    ("path rules", "mixed-path-rules", "/foo/bar", Some("foo-prefix")),
    ("path rules", "trailing-slash-path-rules", "/aaa/bbb/", Some("aaa-slash-bbb-slash-prefix")),
    ("path rules", "trailing-slash-path-rules", "/aaa/bbb", Some("aaa-slash-bbb-slash-prefix")),
    ("path rules", "trailing-slash-path-rules", "/foo", None),
];

pub fn run_ingress_suite(cluster: &mut Cluster, log: &Path) -> Result<Results> {
    let proxy = prepare_ingresses(cluster)?;
    let client = cluster.network.client.clone();
    let mut log = File::create(log)?;
    let mut results = Results::default();
    for (group, host, path, expected) in REQUESTS {
        let result = request(&client, &proxy, host, path).and_then(|response| {
            writeln!(log, "{host}{path}: {response:?}")?;
            check(&response, expected)
        });
        let name = format!("{host}{path} {}", expected.unwrap_or("is not found"));
        results.add(group, name, result);
    }
    results.add(
        "load balancing",
        "all endpoints get requests",
        all_endpoints_reply(&client, &proxy),
    );
    results.add(
        "tls",
        "a host has the certificate of its Secret",
        certificate_is_served(cluster, &proxy),
    );
    // Last, because it replies to all hosts that no rule names.
    results.add(
        "ingress class",
        "an Ingress of another class is ignored",
        other_class_is_ignored(cluster, &proxy),
    );
    results.add(
        "default backend",
        "replies to all hosts without a rule",
        default_backend_replies(cluster, &proxy),
    );
    Ok(results)
}

/// The first address of the Ingress proxy, outside the cluster.
fn proxy_address(cluster: &Cluster) -> Result<String> {
    let output = ["-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"];
    let address = cluster.plane.kubectl(&[&["get"], &PROXY_SERVICE[..], &output[..]].concat())?;
    ensure!(!address.is_empty(), "the Service of the Ingress proxy has no address");
    Ok(address)
}

/// Creates pods, Services and the Ingress with all rules; waits until the first rule is active.
pub(crate) fn prepare_ingresses(cluster: &Cluster) -> Result<String> {
    let names: BTreeSet<&str> =
        RULES.iter().map(|(.., service)| *service).chain(["default"]).collect();
    let mut items =
        vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})];
    for name in &names {
        items.extend(service_with_pods(name));
    }
    items.push(ingress("rules", json!({"rules": rules()})));
    apply(cluster, "ingress-conformance", items)?;
    for name in &names {
        let workload = format!("deployment/{name}");
        cluster.plane.kubectl(&[
            "-n",
            NAMESPACE,
            "rollout",
            "status",
            "--timeout=180s",
            &workload,
        ])?;
    }
    let proxy = proxy_address(cluster)?;
    let client = &cluster.network.client;
    let (_, host, path, expected) = REQUESTS[0];
    wait_until("the Ingress is served", LIMIT, || {
        request(client, &proxy, host, path).is_ok_and(|response| check(&response, expected).is_ok())
    })?;
    Ok(proxy)
}

fn apply(cluster: &Cluster, name: &str, items: Vec<Value>) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    cluster.plane.apply(&format!("{name}.json"), &list.to_string())
}

fn service_with_pods(name: &str) -> [Value; 2] {
    let mut pod = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "web", "image": AGNHOST, "imagePullPolicy": "Never",
            "args": ["serve-hostname", "--http", "--port", POD_PORT.to_string()],
            "readinessProbe": {"httpGet": {"path": "/", "port": POD_PORT}, "periodSeconds": 1},
        }],
    });
    let mut replicas = 1;
    if name == "balanced" {
        replicas = BALANCED_PODS;
    } else {
        pod["hostname"] = json!(name);
    }
    let labels = json!({"app": name});
    [
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": POD_PORT}]},
        }),
    ]
}

fn ingress(name: &str, mut spec: Value) -> Value {
    if spec["ingressClassName"].is_null() {
        spec["ingressClassName"] = json!(CLASS);
    }
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec,
    })
}

fn backend(service: &str) -> Value {
    json!({"service": {"name": service, "port": {"number": 80}}})
}

fn rules() -> Vec<Value> {
    let rule = |(host, path, kind, service): &(&str, &str, char, &str)| {
        let kind = if *kind == 'E' { "Exact" } else { "Prefix" };
        let path = json!({"path": path, "pathType": kind, "backend": backend(service)});
        json!({"host": host, "http": {"paths": [path]}})
    };
    RULES.iter().map(rule).collect()
}

#[derive(Debug)]
struct Response {
    status: String,
    body: String,
}

fn request(client: &Host, proxy: &str, host: &str, path: &str) -> Result<Response> {
    let header = format!("Host: {host}");
    let url = format!("http://{proxy}{path}");
    let output = curl(
        client,
        &["--path-as-is", "--write-out", "\n%{http_code}", "--header", &header, &url],
    )?;
    let (body, status) = output.rsplit_once('\n').context("curl printed no status")?;
    Ok(Response { status: status.to_owned(), body: body.trim().to_owned() })
}

/// Not by [`Host::run`]: failures are expected until an Ingress is served.
fn curl(client: &Host, arguments: &[&str]) -> Result<String> {
    let mut command = client.command("curl");
    let output = command.args(["-sS", "--max-time", "10"]).args(arguments).output()?;
    ensure!(
        output.status.success(),
        "curl {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn check(response: &Response, expected: Option<&str>) -> Result<()> {
    match expected {
        Some(service) => ensure!(
            response.status == "200" && response.body == service,
            "expected the Service {service}, got {response:?}"
        ),
        None => ensure!(response.status == "404", "expected 404, got {response:?}"),
    }
    Ok(())
}

fn all_endpoints_reply(client: &Host, proxy: &str) -> Result<()> {
    let mut pods = BTreeSet::new();
    for _ in 0..BALANCED_REQUESTS {
        let response = request(client, proxy, "load-balancing", "/")?;
        ensure!(response.status == "200", "got {response:?}");
        pods.insert(response.body);
    }
    ensure!(pods.len() == BALANCED_PODS, "{} of {BALANCED_PODS} pods replied", pods.len());
    Ok(())
}

fn certificate_is_served(cluster: &Cluster, proxy: &str) -> Result<()> {
    const HOST: &str = "secure.example.com";
    let made = rcgen::generate_simple_self_signed([HOST.to_owned()])?;
    let files = cluster.network.topology.directory();
    let (certificate, key) = (files.join("secure.crt"), files.join("secure.key"));
    fs::write(&certificate, made.cert.pem())?;
    fs::write(&key, made.signing_key.serialize_pem())?;
    let [of_certificate, of_key] = [("cert", &certificate), ("key", &key)]
        .map(|(name, file)| format!("--{name}={}", file.display()));
    cluster.plane.kubectl(&[
        "-n",
        NAMESPACE,
        "create",
        "secret",
        "tls",
        "secure",
        &of_certificate,
        &of_key,
    ])?;
    let spec = json!({
        "tls": [{"hosts": [HOST], "secretName": "secure"}],
        "rules": [{"host": HOST, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend("foo-prefix")}]}}],
    });
    apply(cluster, "ingress-tls", vec![ingress("secure", spec)])?;
    let resolve = format!("{HOST}:443:{proxy}");
    let url = format!("https://{HOST}/");
    let certificate = certificate.display().to_string();
    let mut last = String::new();
    let served = wait_until("curl accepts the certificate", LIMIT, || {
        let arguments = ["--cacert", &certificate, "--resolve", &resolve, &url];
        match curl(&cluster.network.client, &arguments) {
            Ok(body) => {
                last = body;
                last.trim() == "foo-prefix"
            }
            Err(error) => {
                last = format!("{error:#}");
                false
            }
        }
    });
    served.with_context(|| format!("the last response: {last}"))
}

/// An Ingress of this proxy's class is created after the other, so that both have been seen when it is served.
fn other_class_is_ignored(cluster: &Cluster, proxy: &str) -> Result<()> {
    let spec = |class: &str, host: &str| {
        let path = json!({"path": "/", "pathType": "Prefix", "backend": backend("foo-prefix")});
        json!({"ingressClassName": class, "rules": [{"host": host, "http": {"paths": [path]}}]})
    };
    apply(
        cluster,
        "ingress-other",
        vec![ingress("other-class", spec("some-invalid-class-name", "other-class"))],
    )?;
    apply(cluster, "ingress-own", vec![ingress("own-class", spec(CLASS, "own-class"))])?;
    let client = &cluster.network.client;
    wait_until("the later Ingress is served", LIMIT, || {
        request(client, proxy, "own-class", "/").is_ok_and(|response| response.status == "200")
    })?;
    check(&request(client, proxy, "other-class", "/")?, None)
}

pub(crate) fn default_backend_replies(cluster: &Cluster, proxy: &str) -> Result<()> {
    apply(
        cluster,
        "ingress-default",
        vec![ingress("default", json!({"defaultBackend": backend("default")}))],
    )?;
    let client = &cluster.network.client;
    wait_until("the default backend replies", LIMIT, || {
        request(client, proxy, "a-host-without-a-rule", "/")
            .is_ok_and(|response| response.body == "default")
    })?;
    for (host, path) in [("another-host", "/"), ("another-host", "/some/path"), (proxy, "/")] {
        let response = request(client, proxy, host, path)?;
        if let Err(error) = check(&response, Some("default")) {
            bail!("{host}{path}: {error}");
        }
    }
    Ok(())
}

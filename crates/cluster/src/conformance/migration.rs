//! kube-proxy is replaced by Millrace and comes back, node by node under load, as docs/migrate-from-kube-proxy.md says.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::worlds::topology::{Host, wait_until};

use super::load::{ConnectionLoad, Target};
use super::results::Results;
use crate::cluster::Cluster;
use crate::install::MillraceFiles;

const LABEL: &str = "millrace.io/proxy";
const COMPONENT: &str = "components/one-by-one";
const LIMIT: Duration = Duration::from_secs(180);

pub fn run_migration_suite(cluster: &mut Cluster, image: &Path, log: &Path) -> Result<Results> {
    let mut log = File::create(log)?;
    let mut results = Results::default();
    let files = cluster.network.topology.directory().to_owned();
    let millrace = MillraceFiles::new(image, &files)?;
    let nodes: Vec<(Host, String)> = cluster
        .network
        .nodes
        .iter()
        .map(|(host, addresses)| (host.clone(), addresses.name.clone()))
        .collect();

    let copy = kubectl(cluster, &["get", "daemonset,configmap", "kube-proxy", "-o", "yaml"])?;
    fs::write(files.join("kube-proxy-copy.yaml"), copy)?;
    let mut load = ConnectionLoad::start(cluster, Target::NodePort)?;
    exclude_labelled_nodes(cluster, &millrace)?;
    millrace.apply_overlay(&cluster.plane, &["base"], &[COMPONENT])?;
    load.wait_for_runs(cluster)?;
    load.report(cluster)?.add_to(&mut results, "before the migration", &mut log)?;

    for (host, name) in &nodes {
        let moved = move_to_millrace(cluster, host, name);
        results.add("to Millrace", format!("{name} is moved"), moved);
        load.wait_for_runs(cluster)?;
        load.report(cluster)?.add_broken_to(
            &mut results,
            &format!("{name} to Millrace"),
            &mut log,
        )?;
    }
    kubectl(cluster, &["delete", "daemonset,configmap", "kube-proxy"])?;
    millrace.apply_overlay(&cluster.plane, &["base"], &[])?;
    cluster.wait_for_workloads(&["daemonset/millrace"])?;
    results.add("only Millrace", "endpoints can be replaced", load.replace_endpoints(cluster));
    load.wait_for_runs(cluster)?;
    load.report(cluster)?.add_to(&mut results, "only Millrace", &mut log)?;

    millrace.apply_overlay(&cluster.plane, &["base"], &[COMPONENT])?;
    cluster.wait_for_workloads(&["daemonset/millrace"])?;
    let copy = files.join("kube-proxy-copy.yaml").display().to_string();
    cluster.plane.kubectl(&["apply", "--filename", &copy])?;
    exclude_labelled_nodes(cluster, &millrace)?;
    for (host, name) in &nodes {
        let moved = move_to_kube_proxy(cluster, &millrace, host, name);
        results.add("to kube-proxy", format!("{name} is moved"), moved);
        load.wait_for_runs(cluster)?;
        load.report(cluster)?.add_broken_to(
            &mut results,
            &format!("{name} to kube-proxy"),
            &mut log,
        )?;
    }
    millrace.delete_overlay(&cluster.plane)?;
    results.add("only kube-proxy", "endpoints can be replaced", load.replace_endpoints(cluster));
    load.wait_for_runs(cluster)?;
    load.report(cluster)?.add_to(&mut results, "only kube-proxy", &mut log)?;
    load.end(cluster)?;
    Ok(results)
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    cluster.plane.kubectl(&[&["--namespace", "kube-system"], arguments].concat())
}

fn exclude_labelled_nodes(cluster: &mut Cluster, millrace: &MillraceFiles) -> Result<()> {
    let patch = millrace.manifest(COMPONENT).join("kube-proxy.yaml").display().to_string();
    kubectl(cluster, &["patch", "daemonset", "kube-proxy", "--patch-file", &patch])?;
    cluster.wait_for_workloads(&["daemonset/kube-proxy"])
}

fn move_to_millrace(cluster: &Cluster, host: &Host, node: &str) -> Result<()> {
    cluster.plane.kubectl(&["label", "node", node, &format!("{LABEL}=millrace")])?;
    let pod = wait_for_pod(cluster, "app.kubernetes.io/name=millrace", node)?;
    let run = |arguments: &[&str]| kubectl(cluster, &[&["exec", &pod, "--"], arguments].concat());
    run(&["millrace", "cleanup", "--kube-proxy"])?;
    run(&["millrace", "cleanup", "--kube-proxy", "--yes"])?;
    ensure!(!has_kube_proxy_tables(host), "tables of kube-proxy are left on {node}");
    run(&["millrace", "status"]).map(drop)
}

fn move_to_kube_proxy(
    cluster: &Cluster,
    millrace: &MillraceFiles,
    host: &Host,
    node: &str,
) -> Result<()> {
    cluster.plane.kubectl(&["label", "node", node, &format!("{LABEL}-")])?;
    wait_for_pod(cluster, "k8s-app=kube-proxy", node)?;
    wait_until("kube-proxy has written its tables", LIMIT, || has_kube_proxy_tables(host))?;
    let image = format!("--image={}", millrace.image_name());
    let debug = ["debug", &format!("node/{node}"), "--profile=sysadmin", &image, "--"];
    let cleanup = ["millrace", "cleanup", "--pin-path", "/host/sys/fs/bpf/millrace"];
    // Creating debugging pod NAME with container ...
    let made = kubectl(cluster, &[&debug[..], &cleanup].concat())?;
    let pod = made.split_whitespace().nth(3).with_context(|| made.clone())?;
    let mut phase = String::new();
    wait_until("the pod that cleans up has ended", LIMIT, || {
        phase = kubectl(cluster, &["get", "pod", pod, "-o", "jsonpath={.status.phase}"])
            .unwrap_or_default();
        ["Succeeded", "Failed"].contains(&phase.as_str())
    })?;
    let output = kubectl(cluster, &["logs", pod])?;
    kubectl(cluster, &["delete", "pod", pod])?;
    ensure!(phase == "Succeeded", "millrace cleanup: {output}");
    Ok(())
}

/// Waits until a pod of a DaemonSet is ready on a node; returns its name.
fn wait_for_pod(cluster: &Cluster, labels: &str, node: &str) -> Result<String> {
    let field = format!("--field-selector=spec.nodeName={node}");
    let select = ["-l", labels, &field, "-o", "name"];
    let mut pod = String::new();
    wait_until("the node has a pod", LIMIT, || {
        let names = kubectl(cluster, &[&["get", "pods"], &select[..]].concat());
        pod = names.unwrap_or_default().trim().to_owned();
        !pod.is_empty()
    })?;
    kubectl(cluster, &["wait", &pod, "--for=condition=ready", "--timeout=180s"])?;
    Ok(pod)
}

fn has_kube_proxy_tables(host: &Host) -> bool {
    host.run(["nft", "list", "tables"]).is_ok_and(|tables| tables.contains("kube-proxy"))
}

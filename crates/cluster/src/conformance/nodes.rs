//! The node that announces a load balancer's address is drained, killed and restarted under load.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::load::{ConnectionLoad, Target};
use super::results::Results;
use crate::cluster::Cluster;

pub fn run_nodes_suite(cluster: &mut Cluster, log: &Path) -> Result<Results> {
    let mut log = File::create(log)?;
    let mut results = Results::default();
    let mut load = ConnectionLoad::start(cluster, Target::LoadBalancer)?;
    let node = load.announcer;
    let name = cluster.network.nodes[node].1.name.clone();

    let options = ["--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s"];
    cluster.plane.kubectl(&[&["drain", &name], &options[..]].concat())?;
    load.wait_for_runs(cluster)?;
    load.report(cluster)?.add_to(&mut results, "node drained", &mut log)?;

    // New pods are on all nodes.
    cluster.plane.kubectl(&["uncordon", &name])?;
    load.replace_endpoints(cluster)?;
    load.ensure_endpoints_on(cluster, &name)?;
    load.report(cluster)?.add_to(&mut results, "node uncordoned", &mut log)?;

    let start = Instant::now();
    cluster.kill_node(node)?;
    results.add(
        "node killed",
        "requests of all clients succeed again",
        load.wait_for_runs(cluster),
    );
    let time = start.elapsed().as_secs_f32();
    println!("Clients recovered {time:.1} s after a node was killed");
    writeln!(log, "clients recovered {time:.1} s after the node was killed")?;
    load.report(cluster)?.write("node killed", &mut log)?;
    let unknown = ["--for=condition=Ready=Unknown", "--timeout=180s"];
    cluster.plane.kubectl(&[&["wait", "node", &name], &unknown[..]].concat())?;
    load.wait_for_runs(cluster)?;
    load.report(cluster)?.add_to(&mut results, "node not ready", &mut log)?;

    cluster.restart_node(node)?;
    cluster.wait_for_nodes()?;
    cluster.wait_for_workloads(&["daemonset/millrace"])?;
    load.wait_for_runs(cluster)?;
    load.report(cluster)?.add_to(&mut results, "node restarted", &mut log)?;
    load.replace_endpoints(cluster)?;
    load.ensure_endpoints_on(cluster, &name)?;
    load.report(cluster)?.add_to(&mut results, "endpoints on the restarted node", &mut log)?;
    load.end(cluster)?;
    Ok(results)
}

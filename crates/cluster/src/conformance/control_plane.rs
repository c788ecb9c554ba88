//! etcd and the API server are killed and restored under load: no request may fail, and changes take effect afterwards.

use std::fs::File;
use std::path::Path;

use anyhow::Result;

use super::load::{ConnectionLoad, Target};
use super::results::Results;
use crate::cluster::Cluster;

pub fn run_control_plane_suite(cluster: &mut Cluster, log: &Path) -> Result<Results> {
    let mut log = File::create(log)?;
    let mut results = Results::default();
    let mut load = ConnectionLoad::start(cluster, Target::LoadBalancer)?;

    cluster.plane.kill_api();
    load.wait_for_requests_outside()?;
    cluster.plane.start_api()?;
    load.wait_for_runs(cluster)?;
    load.report(cluster)?.add_to(&mut results, "API server and etcd killed", &mut log)?;

    let replaced = load.replace_endpoints(cluster);
    let name = "all endpoints can be replaced";
    results.add("API server and etcd restored", name, replaced);
    load.report(cluster)?.add_to(&mut results, "API server and etcd restored", &mut log)?;
    load.end(cluster)?;
    Ok(results)
}

//! A rolling upgrade of Millrace under load: no request of any client may fail.

use std::fs::File;
use std::path::Path;

use anyhow::Result;

use super::load::{ConnectionLoad, Target};
use super::results::Results;
use crate::cluster::Cluster;

const WORKLOADS: [&str; 2] = ["daemonset/millrace", "deployment/millrace-controller"];

pub fn run_upgrade_suite(cluster: &mut Cluster, log: &Path) -> Result<Results> {
    let mut log = File::create(log)?;
    let mut load = ConnectionLoad::start(cluster, Target::LoadBalancer)?;
    for workload in WORKLOADS {
        let kubectl = |arguments: &[&str]| {
            cluster.plane.kubectl(&[&["-n", "kube-system", "rollout"], arguments].concat())
        };
        kubectl(&["restart", workload])?;
        kubectl(&["status", "--timeout=600s", workload])?;
    }
    let mut results = Results::default();
    load.report(cluster)?.add_to(&mut results, "rolling upgrade", &mut log)?;
    load.end(cluster)?;
    Ok(results)
}

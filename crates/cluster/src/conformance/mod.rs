//! `cargo xtask conformance`: test suites of others against a new cluster, compared with what cannot run here.

mod api;
mod control_plane;
mod exclusions;
mod http2;
mod ingress;
mod load;
mod migration;
mod nodes;
mod results;
mod sig_network;
mod upgrade;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};

use crate::binaries::{build_programs, build_programs_by_name};
use crate::cluster::{Cluster, ClusterOptions, ServiceProxy};
use crate::interrupt;

use exclusions::Exclusions;
use results::{Results, TestOutcome};

/// A test suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Kubernetes' end-to-end tests of SIG Network
    SigNetwork,
    /// The scenarios of kubernetes-sigs' ingress-controller-conformance
    Ingress,
    /// h2spec against the Ingress proxy
    Http2,
    /// A rolling upgrade of Millrace under load
    Upgrade,
    /// A node drained, killed and restarted under load
    Nodes,
    /// etcd and the API server killed and restored under load
    ControlPlane,
    /// kube-proxy replaced by Millrace and back, node by node under load; needs `--service-proxy kube-proxy`
    Migration,
    /// The embedded API of `millrace standalone` beside this API server, request by request; needs no node
    Api,
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::SigNetwork => "sig-network",
            Self::Ingress => "ingress",
            Self::Http2 => "http2",
            Self::Upgrade => "upgrade",
            Self::Nodes => "nodes",
            Self::ControlPlane => "control-plane",
            Self::Migration => "migration",
            Self::Api => "api",
        }
    }

    /// Whether the suite needs more than an API server.
    fn needs_nodes(self) -> bool {
        self != Self::Api
    }

    /// Whether the suite can run in a cluster with this service proxy.
    fn runs_with(self, service_proxy: ServiceProxy) -> bool {
        match self {
            Self::SigNetwork | Self::Api => true,
            Self::Migration => service_proxy == ServiceProxy::KubeProxy,
            _ => service_proxy == ServiceProxy::Millrace,
        }
    }
}

/// Run conformance suites against a new cluster
#[derive(Debug, Args)]
pub struct ConformanceOptions {
    /// Suites [default: all that can run with the service proxy]
    #[arg(value_enum, value_name = "SUITE")]
    suites: Vec<Suite>,

    /// Run only the specs of sig-network whose names match this regular expression
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,

    /// Run slow specs, too
    #[arg(long)]
    slow: bool,

    /// Run those specs that must run alone, instead of all others
    #[arg(long)]
    serial: bool,

    /// Run the specs that the list excludes, too
    #[arg(long)]
    excluded: bool,

    /// Number of specs that run at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = 4)]
    parallel: usize,

    #[command(flatten)]
    cluster: ClusterOptions,
}

/// Runs the suites. Fails if anything fails that the lists do not exclude.
pub fn run_conformance(options: &ConformanceOptions) -> Result<()> {
    let service_proxy = options.cluster.service_proxy;
    let mut suites = options.suites.clone();
    if suites.is_empty() {
        suites.extend(Suite::value_variants());
        suites.retain(|suite| suite.runs_with(service_proxy));
    }
    if let Some(suite) = suites.iter().find(|suite| !suite.runs_with(service_proxy)) {
        bail!("{} cannot be run with this --service-proxy", suite.name());
    }
    if suites.contains(&Suite::Migration) {
        options.cluster.ensure_image()?;
    }
    let with_tests = suites.iter().any(|suite| matches!(suite, Suite::SigNetwork | Suite::Http2));
    let needs_nodes = suites.iter().any(|suite| suite.needs_nodes());
    let programs = if needs_nodes {
        build_programs(&options.cluster, with_tests)?
    } else {
        build_programs_by_name(
            &options.cluster.directory,
            &options.cluster.kubernetes,
            &api::PROGRAMS,
        )?
    };
    if options.cluster.build_only {
        return Ok(());
    }
    interrupt::handle_interrupts()?;
    let folder = options.cluster.directory.canonicalize()?.join("conformance");
    fs::create_dir_all(&folder)?;
    let mut failed = Vec::new();
    if suites.contains(&Suite::Api) {
        let log = announce(Suite::Api, &folder, "");
        let mut results = api::run_api_suite(&programs, &log)?;
        excuse_differences(&mut results);
        failed.extend(finish_suite(Suite::Api, &results, &Exclusions::default(), &log)?);
    }
    suites.retain(|suite| suite.needs_nodes());
    if !suites.is_empty() {
        failed.extend(run_in_cluster(options, &suites, &programs, &folder)?);
    }
    ensure!(failed.is_empty(), "{} specs failed:\n  {}", failed.len(), failed.join("\n  "));
    Ok(())
}

/// Runs suites in a new cluster; returns what failed unexpectedly.
fn run_in_cluster(
    options: &ConformanceOptions,
    suites: &[Suite],
    programs: &Path,
    folder: &Path,
) -> Result<Vec<String>> {
    let service_proxy = options.cluster.service_proxy;
    let images = match suites.contains(&Suite::SigNetwork) {
        true => sig_network::image_names(programs)?,
        false => Vec::new(),
    };
    let mut cluster = Cluster::start(&options.cluster, programs, &images)?;
    let proxy = service_proxy.to_possible_value();
    let proxy = proxy.map(|value| format!("-{}", value.get_name())).unwrap_or_default();

    let mut failed = Vec::new();
    for suite in suites {
        let log = announce(*suite, folder, &proxy);
        let exclusions = Exclusions::of_suite(suite.name());
        let results = match suite {
            Suite::SigNetwork => {
                let selection = sig_network::Selection {
                    focus: options.focus.as_deref(),
                    slow: options.slow,
                    serial: options.serial,
                    skip: if options.excluded { Vec::new() } else { exclusions.names() },
                };
                sig_network::run_sig_network(&cluster, &selection, options.parallel, folder, &log)?
            }
            Suite::Ingress => ingress::run_ingress_suite(&mut cluster, &log)?,
            Suite::Http2 => http2::run_http2_suite(&mut cluster, &log)?,
            Suite::Upgrade => upgrade::run_upgrade_suite(&mut cluster, &log)?,
            Suite::Nodes => nodes::run_nodes_suite(&mut cluster, &log)?,
            Suite::ControlPlane => control_plane::run_control_plane_suite(&mut cluster, &log)?,
            Suite::Migration => {
                migration::run_migration_suite(&mut cluster, &options.cluster.image, &log)?
            }
            Suite::Api => continue,
        };
        failed.extend(finish_suite(*suite, &results, &exclusions, &log)?);
        interrupt::check_interrupt()?;
    }
    if !failed.is_empty() {
        cluster.keep_logs();
    }
    Ok(failed)
}

/// Says what runs now; returns the file for its output.
fn announce(suite: Suite, folder: &Path, proxy: &str) -> PathBuf {
    let log = folder.join(format!("{}{proxy}.log", suite.name()));
    println!("Running {}; its output is in {}", suite.name(), log.display());
    log
}

/// Writes JUnit beside the log, prints the table, and returns what failed unexpectedly.
fn finish_suite(
    suite: Suite,
    results: &Results,
    exclusions: &Exclusions,
    log: &Path,
) -> Result<Vec<String>> {
    let junit = log.with_extension("xml");
    fs::write(&junit, results.to_junit(suite.name()))?;
    print!("{}", results.table());
    println!("JUnit: {}", junit.display());
    Ok(report(results, exclusions))
}

/// Takes the differences of the embedded API that have a reason for skipped, and prints how many each reason has.
fn excuse_differences(results: &mut Results) {
    let exclusions = Exclusions::of_suite(Suite::Api.name());
    let names: Vec<&str> = results.0.iter().map(|result| result.name.as_str()).collect();
    let mut counts = BTreeMap::<&str, usize>::new();
    for name in exclusions.list_unused(&names) {
        println!("no difference is excluded by {name:?}");
    }
    for result in &mut results.0 {
        if let (TestOutcome::Failed(_), Some(reason)) =
            (&result.outcome, exclusions.reason(&result.name))
        {
            *counts.entry(reason).or_default() += 1;
            result.outcome = TestOutcome::Skipped(reason.to_owned());
        }
    }
    for (reason, count) in counts {
        println!("{count:>5}  {reason}");
    }
}

/// Prints what failed as expected, and what passed unexpectedly; returns what should have passed.
fn report(results: &Results, exclusions: &Exclusions) -> Vec<String> {
    let mut failed = Vec::new();
    for result in &results.0 {
        match (&result.outcome, exclusions.reason(&result.name)) {
            (TestOutcome::Failed(_), Some(reason)) => {
                println!("excluded: {}: {reason}", result.name)
            }
            (TestOutcome::Failed(_), None) => failed.push(result.name.clone()),
            (TestOutcome::Passed, Some(_)) => {
                println!("passes although the list excludes it: {}", result.name);
            }
            _ => {}
        }
    }
    failed
}

//! `cargo xtask cluster`, `conformance` and `bench cluster`: build what a cluster consists of, and start the program of
//! `lb-cluster` as root.

use std::process::Command;

use anyhow::Result;

use crate::process::{become_root_command, run_command};
use crate::run::{build_programs_of_profile, build_with_agent, built_program};
use crate::{image, packages};

/// Runs a subcommand of the program. The image is built unless one is named or none is needed.
pub fn run_in_cluster(subcommand: &str, arguments: &[String]) -> Result<()> {
    packages::ensure_packages(&[&packages::DEMO, &packages::CLUSTER])?;
    build_programs_of_profile("dev", &["cluster"])?;
    let program = built_program("dev", "cluster");
    let arguments = [&[subcommand.to_owned()], arguments].concat();
    if !asks_for_help(&arguments) {
        // As this user, so that Go's caches are the user's own.
        run_command(Command::new(&program).args(&arguments).arg("--build-only"))?;
        if needs_image(&arguments) {
            image::build_image(&image::ImageOptions::default())?;
        }
    }
    become_root_command(&program, &arguments, None)
}

/// Runs the benchmark of an agent among many Services of a real API server. A quick run needs no release build.
pub fn bench_in_cluster(arguments: &[String]) -> Result<()> {
    packages::ensure_packages(&[&packages::DEMO, &packages::BENCHMARKS])?;
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let (program, agent) =
        build_with_agent("cluster", "dev", if is_quick { "dev" } else { "release" })?;
    let arguments = [&["bench-cluster".to_owned()], arguments].concat();
    if !asks_for_help(&arguments) {
        // As this user, so that Go's caches are the user's own.
        run_command(Command::new(&program).args(&arguments).arg("--build-only"))?;
    }
    become_root_command(&program, &arguments, Some(&agent))
}

fn asks_for_help(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument == "--help" || argument == "-h")
}

fn needs_image(arguments: &[String]) -> bool {
    let has =
        |word: &str| arguments.iter().any(|argument| argument.rsplit('=').next() == Some(word));
    let is_named = arguments.iter().any(|argument| argument.starts_with("--image"));
    // Of the suites for kube-proxy only sig-network does without Millrace; `api` by itself needs no node.
    let in_nodes = ["sig-network", "ingress", "http2", "upgrade", "nodes", "control-plane"];
    let is_without = has("none")
        || has("kube-proxy") && (has("cluster") || has("sig-network"))
        || has("api") && !in_nodes.into_iter().any(has);
    !is_named && (has("migration") || !is_without)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_built_only_for_clusters_with_millrace() {
        let needs = |line: &str| {
            needs_image(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        assert!(needs("cluster"));
        assert!(needs("cluster --service-proxy millrace --nodes 2"));
        assert!(!needs("cluster --service-proxy kube-proxy"));
        assert!(!needs("cluster --service-proxy=none"));
        assert!(!needs("cluster --image a/millrace.tar"));
        assert!(!needs("conformance sig-network --service-proxy kube-proxy"));
        assert!(!needs("conformance api"));
        assert!(needs("conformance api ingress"));
        assert!(needs("conformance --service-proxy kube-proxy"));
        assert!(needs("conformance sig-network migration --service-proxy kube-proxy"));
    }
}

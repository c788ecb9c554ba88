//! `cargo xtask cluster` and `cargo xtask conformance`: build what a cluster consists of, and start the program of
//! `lb-cluster` as root.

use std::process::Command;

use anyhow::Result;

use crate::process::{become_root_command, run_command};
use crate::run::{compile, compiled};
use crate::{image, packages};

/// Runs a subcommand of the program. The image is built unless one is named or none is needed.
pub fn run_in_cluster(subcommand: &str, arguments: &[String]) -> Result<()> {
    packages::ensure_packages(&[&packages::DEMO, &packages::CLUSTER])?;
    compile("dev", &["cluster"])?;
    let program = compiled("dev", "cluster");
    if !asks_for_help(arguments) {
        // As this user, so that Go's caches are the user's own.
        run_command(Command::new(&program).args([subcommand, "--build-only"]).args(arguments))?;
        if needs_image(arguments) {
            image::build_image(&image::Options::default())?;
        }
    }
    let arguments: Vec<_> =
        [subcommand.to_owned()].into_iter().chain(arguments.iter().cloned()).collect();
    become_root_command(&program, &arguments, None)
}

fn asks_for_help(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument == "--help" || argument == "-h")
}

fn needs_image(arguments: &[String]) -> bool {
    !arguments.iter().any(|argument| {
        argument.starts_with("--image")
            || argument == "kube-proxy"
            || argument == "none"
            || argument.ends_with("=kube-proxy")
            || argument.ends_with("=none")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_built_only_for_clusters_with_millrace() {
        let needs = |line: &str| {
            needs_image(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        assert!(needs(""));
        assert!(needs("--service-proxy millrace --nodes 2"));
        assert!(!needs("--service-proxy kube-proxy"));
        assert!(!needs("--service-proxy=none"));
        assert!(!needs("--image a/millrace.tar"));
    }
}

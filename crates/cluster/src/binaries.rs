//! Builds the programs of a cluster from Go modules, once for each version.
//!
//! Nothing is vendored: each module gets a generated `go.mod` in `target/cluster/MODULE-VERSION`, and its programs are
//! built into `bin` beside it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cluster::ClusterOptions;
use crate::install::Installer;

const KUBERNETES: &str = "k8s.io/kubernetes";
const TEST_PROGRAM: &str = "e2e.test";

/// A Go module, and the programs of it that a cluster needs: package and name of the program.
struct Module {
    path: &'static str,
    version: String,
    programs: &'static [(&'static str, &'static str)],
    tags: &'static str,
    /// Whether it contains C.
    cgo: bool,
}

fn module(
    path: &'static str,
    version: &str,
    programs: &'static [(&'static str, &'static str)],
) -> Module {
    Module { path, version: version.to_owned(), programs, tags: "", cgo: false }
}

fn modules(kubernetes: &str) -> Vec<Module> {
    vec![
        module(
            KUBERNETES,
            kubernetes,
            &[
                ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver"),
                ("k8s.io/kubernetes/cmd/kube-controller-manager", "kube-controller-manager"),
                ("k8s.io/kubernetes/cmd/kube-scheduler", "kube-scheduler"),
                ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
                ("k8s.io/kubernetes/cmd/kube-proxy", "kube-proxy"),
                ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
                ("k8s.io/kubernetes/test/images/agnhost", "agnhost"),
            ],
        ),
        module("go.etcd.io/etcd/server/v3", "3.6.16", &[("go.etcd.io/etcd/server/v3", "etcd")]),
        Module {
            tags: "no_btrfs no_zfs no_devmapper",
            ..module(
                "github.com/containerd/containerd/v2",
                "2.4.2",
                &[
                    ("github.com/containerd/containerd/v2/cmd/containerd", "containerd"),
                    (
                        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                        "containerd-shim-runc-v2",
                    ),
                    ("github.com/containerd/containerd/v2/cmd/ctr", "ctr"),
                ],
            )
        },
        Module {
            // Kubelet gives each pod a seccomp profile.
            tags: "seccomp",
            cgo: true,
            ..module(
                "github.com/opencontainers/runc",
                "1.4.4",
                &[("github.com/opencontainers/runc", "runc")],
            )
        },
        module(
            "github.com/containernetworking/plugins",
            "1.10.0",
            &[
                ("github.com/containernetworking/plugins/plugins/main/bridge", "bridge"),
                ("github.com/containernetworking/plugins/plugins/main/loopback", "loopback"),
                ("github.com/containernetworking/plugins/plugins/ipam/host-local", "host-local"),
                ("github.com/containernetworking/plugins/plugins/meta/portmap", "portmap"),
            ],
        ),
        module(
            "github.com/coredns/coredns",
            "1.14.7",
            &[("github.com/coredns/coredns", "coredns")],
        ),
    ]
}

/// Programs of the conformance suites.
fn test_modules(kubernetes: &str) -> Vec<Module> {
    vec![
        module(
            KUBERNETES,
            kubernetes,
            &[
                ("k8s.io/kubernetes/test/e2e", TEST_PROGRAM),
                ("github.com/onsi/ginkgo/v2/ginkgo", "ginkgo"),
                ("k8s.io/kubernetes/test/images/regression-issue-74839", "regression-issue-74839"),
            ],
        ),
        module(
            "github.com/summerwind/h2spec",
            "2.2.1+incompatible",
            &[("github.com/summerwind/h2spec/cmd/h2spec", "h2spec")],
        ),
    ]
}

/// Builds what is missing, and returns the folder with all programs for this version of Kubernetes.
pub fn build_programs(options: &ClusterOptions, with_tests: bool) -> Result<PathBuf> {
    let ClusterOptions { directory, kubernetes, .. } = options;
    let mut modules = modules(kubernetes);
    if with_tests {
        modules.extend(test_modules(kubernetes));
    }
    if options.installer == Installer::Helm {
        modules.push(module("helm.sh/helm/v3", "3.20.0", &[("helm.sh/helm/v3/cmd/helm", "helm")]));
    }
    build_modules(directory, kubernetes, &modules, |_| true)
}

/// Builds what is missing of these programs, and returns their folder.
pub fn build_programs_by_name(
    directory: &Path,
    kubernetes: &str,
    names: &[&str],
) -> Result<PathBuf> {
    build_modules(directory, kubernetes, &modules(kubernetes), |name| names.contains(&name))
}

fn build_modules(
    directory: &Path,
    kubernetes: &str,
    modules: &[Module],
    is_needed: impl Fn(&str) -> bool,
) -> Result<PathBuf> {
    // Go is run in other folders.
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let directory = &directory.canonicalize()?;
    let needed: Vec<_> = modules
        .iter()
        .flat_map(|module| module.programs.iter().map(move |program| (module, *program)))
        .filter(|(_, (_, name))| is_needed(name))
        .collect();
    let missing: Vec<_> = needed
        .iter()
        .filter(|(module, (_, name))| !module.binary(directory, name).exists())
        .collect();
    if !missing.is_empty() {
        check_go()?;
        println!("Building {} programs with Go, once for each version.", missing.len());
    }
    for (number, (module, (package, name))) in missing.iter().enumerate() {
        println!("[{}/{}] {name} {}", number + 1, missing.len(), module.version);
        let start = Instant::now();
        module
            .build(directory, package, name)
            .with_context(|| format!("{name} of the module {} can't be built", module.path))?;
        println!("      took {} s", start.elapsed().as_secs());
    }
    // One folder of hard links to the programs of all modules.
    let folder = directory.join(kubernetes).join("bin");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for (module, (_, name)) in &needed {
        let link = folder.join(name);
        if link.exists() {
            fs::remove_file(&link)?;
        }
        fs::hard_link(module.binary(directory, name), &link)
            .with_context(|| format!("{} can't be made", link.display()))?;
    }
    Ok(folder)
}

fn check_go() -> Result<()> {
    let version = Command::new("go").arg("version").output();
    let found = version.is_ok_and(|output| output.status.success());
    ensure!(
        found,
        "a cluster is built from Go modules, and Go is not installed: install Go 1.26 or later"
    );
    Ok(())
}

impl Module {
    fn folder(&self, directory: &Path) -> PathBuf {
        let name = self.path.replace('/', "-");
        directory.join(format!("{name}-{}", self.version))
    }

    fn binary(&self, directory: &Path, name: &str) -> PathBuf {
        self.folder(directory).join("bin").join(name)
    }

    fn build(&self, directory: &Path, package: &str, name: &str) -> Result<()> {
        let folder = self.folder(directory);
        fs::create_dir_all(folder.join("bin"))?;
        if !folder.join("go.mod").exists() {
            fs::write(folder.join("go.mod"), self.go_mod(&folder)?)?;
        }
        // An interrupted build leaves no program under its name.
        let unfinished = folder.join("bin").join(format!(".{name}"));
        let mut go = go_in(&folder);
        go.env("CGO_ENABLED", if self.cgo { "1" } else { "0" });
        if name == TEST_PROGRAM {
            go.args(["test", "-vet=off", "-c"]);
        } else {
            go.arg("build");
        }
        go.args(["-tags", self.tags, "-ldflags", &self.linker_flags(), "-o"]);
        let status = go.arg(&unfinished).arg(package).status().context("go can't be started")?;
        ensure!(status.success(), "go ended with {status}");
        fs::rename(&unfinished, self.binary(directory, name))?;
        Ok(())
    }

    fn linker_flags(&self) -> String {
        let mut flags = "-s -w".to_owned();
        if self.path == KUBERNETES {
            // Without it, kubectl and the API server disagree about their versions.
            let mut parts = self.version.splitn(3, '.');
            let (major, minor) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
            let values = [
                ("gitVersion", format!("v{}", self.version)),
                ("gitMajor", major.to_owned()),
                ("gitMinor", minor.to_owned()),
                ("gitTreeState", "clean".to_owned()),
            ];
            for (variable, value) in values {
                let _ = write!(flags, " -X k8s.io/component-base/version.{variable}={value}");
            }
        }
        flags
    }

    fn go_mod(&self, folder: &Path) -> Result<String> {
        let (path, version) = (self.path, &self.version);
        let mut text =
            format!("module millrace.invalid/cluster\n\ngo 1.26\n\nrequire {path} v{version}\n");
        if path == KUBERNETES {
            // Kubernetes' repository contains the modules that it replaces by its folder `staging`. As modules of their
            // own they have the same minor and patch version, after `0.`.
            let staging = version.strip_prefix("1.").context("Kubernetes 1.x.y")?;
            for module in staging_modules(&self.download(folder)?) {
                let _ = writeln!(text, "replace {module} => {module} v0.{staging}");
            }
        }
        Ok(text)
    }

    /// Downloads the module's own `go.mod`; returns its content.
    fn download(&self, folder: &Path) -> Result<String> {
        let module = format!("{}@v{}", self.path, self.version);
        let mut go = go_in(folder);
        go.args(["mod", "download", "-json", &module]).stderr(Stdio::inherit());
        let output = go.output().context("go can't be started")?;
        let downloaded: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{module} can't be downloaded"))?;
        let Some(file) = downloaded["GoMod"].as_str() else {
            bail!("{module} can't be downloaded: {}", downloaded["Error"]);
        };
        fs::read_to_string(file).with_context(|| file.to_owned())
    }
}

fn go_in(folder: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(folder).env("GOFLAGS", "-mod=mod -buildvcs=false").env("GOWORK", "off");
    go
}

/// The modules that a `go.mod` replaces by a folder below `staging`.
fn staging_modules(go_mod: &str) -> Vec<&str> {
    let replaced = go_mod.lines().filter(|line| line.contains("=> ./staging/"));
    replaced
        .filter_map(|line| line.trim().trim_start_matches("replace ").split_whitespace().next())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_modules_are_those_replaced_by_a_folder() {
        let text = "\
require (
\tk8s.io/api v0.0.0
\tk8s.io/utils v0.0.0-20260210185600-b8788abfbbc2
)
replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/kubelet => ./staging/src/k8s.io/kubelet
)
replace example.org/x => example.org/y v1.0.0
";
        assert_eq!(staging_modules(text), ["k8s.io/api", "k8s.io/kubelet"]);
    }

    #[test]
    fn programs_of_kubernetes_know_their_version() {
        let module = modules("1.36.3").remove(0);
        let flags = module.linker_flags();
        assert!(flags.contains("version.gitVersion=v1.36.3"), "{flags}");
        assert!(flags.contains("version.gitMinor=36 "), "{flags}");
    }
}

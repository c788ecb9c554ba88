//! etcd, API server, controller manager and scheduler, as processes in the router's network namespace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tests::worlds::topology::{Host, Process, SOON, wait_until};

use crate::certificates::write_certificates;
use crate::interrupt::{check_interrupt, is_interrupted};
use crate::kubeconfig::User;
use crate::network::{API_PORT, KUBERNETES_SERVICE, POD_RANGES, ROUTER, SERVICE_RANGES};

const ETCD: &str = "etcd";
const API_SERVER: &str = "kube-apiserver";

pub(crate) struct ControlPlane {
    host: Host,
    programs: PathBuf,
    files: PathBuf,
    families: usize,
    service_ranges: String,
    pub processes: Vec<(&'static str, Process)>,
}

/// URL of the API server for everything within the cluster.
pub(crate) fn api_url() -> String {
    format!("https://{}:{API_PORT}", ROUTER[0])
}

impl ControlPlane {
    /// Starts etcd and the API server, which accepts these users; waits until it is ready.
    pub fn start(
        host: &Host,
        programs: &Path,
        files: &Path,
        families: usize,
        users: &[&User],
    ) -> Result<Self> {
        Self::start_with_ranges(host, programs, files, &SERVICE_RANGES[..families], users)
    }

    /// Starts etcd and the API server as [`Self::start`], with these ranges of ClusterIPs, one of each address family.
    pub fn start_with_ranges(
        host: &Host,
        programs: &Path,
        files: &Path,
        service_ranges: &[&str],
        users: &[&User],
    ) -> Result<Self> {
        let mut plane = Self {
            host: host.clone(),
            programs: programs.to_owned(),
            files: files.to_owned(),
            families: service_ranges.len(),
            service_ranges: service_ranges.join(","),
            processes: Vec::new(),
        };
        let names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        let addresses = [&["127.0.0.1"], &ROUTER[..], &KUBERNETES_SERVICE[..]].concat();
        write_certificates(files, &names, &addresses)?;
        let tokens: String = users.iter().map(|user| user.token_line()).collect();
        fs::write(files.join("tokens.csv"), tokens)?;

        let administrator = users.first().context("the first user is the administrator")?;
        let file = files.join("admin.kubeconfig");
        administrator.write_kubeconfig(&file, &api_url(), &files.join("ca.crt"))?;
        plane.start_api()?;
        Ok(plane)
    }

    /// Starts etcd and the API server, and waits until it is ready.
    pub fn start_api(&mut self) -> Result<()> {
        self.start_etcd()?;
        self.start_api_server()?;
        let ready = wait_until("the API server is ready", SOON, || {
            self.kubectl(&["get", "--raw", "/readyz"]).is_ok()
                || self.ended().is_some()
                || is_interrupted()
        });
        check_interrupt()?;
        if let Some(name) = self.ended() {
            anyhow::bail!("{name} ended");
        }
        ready
    }

    /// Kills etcd and the API server. What etcd has confirmed stays in its files.
    pub fn kill_api(&mut self) {
        self.processes.retain(|(name, _)| ![ETCD, API_SERVER].contains(name));
    }

    fn start_etcd(&mut self) -> Result<()> {
        let data = format!("--data-dir={}", self.files.join("etcd").display());
        self.spawn(
            ETCD,
            &[
                &data,
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
                // The cluster ends with this machine's power anyway.
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )
    }

    fn start_api_server(&mut self) -> Result<()> {
        let file =
            |option: &str, name: &str| format!("--{option}={}", self.files.join(name).display());
        let arguments = [
            file("client-ca-file", "ca.crt"),
            file("token-auth-file", "tokens.csv"),
            file("tls-cert-file", "api.crt"),
            file("tls-private-key-file", "api.key"),
            file("cert-dir", "api"),
            file("kubelet-client-certificate", "kubelet-client.crt"),
            file("kubelet-client-key", "kubelet-client.key"),
            file("service-account-key-file", "accounts.pub"),
            file("service-account-signing-key-file", "accounts.key"),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            format!("--service-cluster-ip-range={}", self.service_ranges),
            format!("--advertise-address={}", ROUTER[0]),
            format!("--secure-port={API_PORT}"),
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--allow-privileged=true".to_owned(),
        ];
        self.spawn(API_SERVER, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts controller manager and scheduler, whose permissions the API server has created by now.
    pub(crate) fn start_controllers(&mut self, controllers: &Path, scheduler: &Path) -> Result<()> {
        let file = |option: &str, path: &Path| format!("--{option}={}", path.display());
        let arguments = [
            file("kubeconfig", controllers),
            file("root-ca-file", &self.files.join("ca.crt")),
            file("service-account-private-key-file", &self.files.join("accounts.key")),
            file("cluster-signing-cert-file", &self.files.join("ca.crt")),
            file("cluster-signing-key-file", &self.files.join("ca.key")),
            format!("--service-cluster-ip-range={}", self.service_ranges),
            format!("--cluster-cidr={}", POD_RANGES[..self.families].join(",")),
            "--allocate-node-cidrs=true".to_owned(),
            "--use-service-account-credentials=true".to_owned(),
            "--leader-elect=false".to_owned(),
        ];
        self.spawn(
            "kube-controller-manager",
            &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        )?;
        self.spawn("kube-scheduler", &[&file("kubeconfig", scheduler), "--leader-elect=false"])
    }

    fn spawn(&mut self, name: &'static str, arguments: &[&str]) -> Result<()> {
        let mut command = self.host.command(self.programs.join(name));
        self.processes.push((name, self.host.spawn(command.args(arguments))?));
        Ok(())
    }

    /// The name of a process that has ended.
    pub fn ended(&mut self) -> Option<&'static str> {
        self.processes.iter_mut().find_map(|(name, process)| process.has_ended().then_some(*name))
    }

    /// A program with the administrator's kubeconfig, in the router's network namespace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = self.host.command(self.programs.join(program));
        command.arg("--kubeconfig").arg(self.files.join("admin.kubeconfig"));
        command
    }

    /// Runs kubectl to its end; returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command("kubectl").args(arguments).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(
            output.status.success(),
            "kubectl {}: {}",
            arguments.join(" "),
            stderr.trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Applies manifests.
    pub fn apply(&self, name: &str, manifests: &str) -> Result<()> {
        let file = self.files.join(name);
        fs::write(&file, manifests)?;
        self.kubectl(&["apply", "--filename", &file.display().to_string()]).map(drop)
    }
}

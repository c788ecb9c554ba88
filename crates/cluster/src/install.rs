//! What an administrator installs into a new cluster: DNS, and a service proxy.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::json;
use tests::worlds::topology::run_to_end;

use crate::control_plane::{ControlPlane, api_url};
use crate::images::{COREDNS, kube_proxy_image, names_in_archive};
use crate::network::{DNS_SERVICE, POD_RANGES, POOL};

const DNS: &str = include_str!("../manifests/coredns.yaml");
const KUBE_PROXY: &str = include_str!("../manifests/kube-proxy.yaml");

pub(crate) fn install_dns(plane: &ControlPlane, families: usize) -> Result<()> {
    let addresses: Vec<_> =
        DNS_SERVICE[..families].iter().map(|address| format!("'{address}'")).collect();
    let manifests = DNS
        .replace("IMAGE", COREDNS)
        .replace("FIRST_ADDRESS", DNS_SERVICE[0])
        .replace("ADDRESSES", &addresses.join(", "));
    plane.apply("coredns.yaml", &manifests)
}

/// Installs kube-proxy as kubeadm does.
pub(crate) fn install_kube_proxy(
    plane: &ControlPlane,
    kubernetes: &str,
    families: usize,
) -> Result<()> {
    let manifests = KUBE_PROXY
        .replace("IMAGE", &kube_proxy_image(kubernetes))
        .replace("POD_RANGES", &POD_RANGES[..families].join(","))
        .replace("API_SERVER", &api_url());
    plane.apply("kube-proxy.yaml", &manifests)
}

/// How Millrace is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Installer {
    /// The manifests, with kubectl
    Kustomize,
    /// The chart
    Helm,
}

/// Millrace's image, and what is beside its archive.
pub(crate) struct MillraceFiles {
    /// The image's name without its tag.
    image: String,
    tag: String,
    deploy: PathBuf,
    /// The cluster's folder.
    files: PathBuf,
}

impl MillraceFiles {
    pub fn new(archive: &Path, files: &Path) -> Result<Self> {
        let name = names_in_archive(archive)?;
        let name = name.first().context("the archive names no image")?;
        let (image, tag) = name.rsplit_once(':').context("the image has a tag")?;
        let deploy = archive.parent().context("a file is in a folder")?.join("deploy");
        ensure!(
            deploy.is_dir(),
            "{} is not there: `cargo xtask image` writes it beside the image",
            deploy.display()
        );
        Ok(Self {
            image: image.to_owned(),
            tag: tag.to_owned(),
            deploy: deploy.canonicalize()?,
            files: files.to_owned(),
        })
    }

    /// Installs agents, controller and Ingress proxy. The only settings are those without which there is no installation:
    /// the URL of the API server, and a pool of addresses.
    pub fn install(
        &self,
        plane: &ControlPlane,
        installer: Installer,
        families: usize,
    ) -> Result<()> {
        match installer {
            Installer::Kustomize => {
                self.apply_overlay(plane, &["base", "controller", "ingress"], &[])?;
            }
            Installer::Helm => self.install_chart(plane)?,
        }
        plane.kubectl(&[
            "wait",
            "--for=condition=established",
            "--timeout=60s",
            "customresourcedefinition/addresspools.millrace.io",
        ])?;
        let addresses: Vec<_> = POOL[..families].iter().map(|range| format!("'{range}'")).collect();
        let pool = format!(
            "apiVersion: millrace.io/v1alpha1\nkind: AddressPool\nmetadata: {{name: public}}\nspec: {{addresses: [{}]}}\n",
            addresses.join(", ")
        );
        plane.apply("pool.yaml", &pool)
    }

    /// Applies an overlay of parts of the manifests, and of components that change them.
    pub fn apply_overlay(
        &self,
        plane: &ControlPlane,
        parts: &[&str],
        components: &[&str],
    ) -> Result<()> {
        let overlay = self.overlay();
        fs::create_dir_all(&overlay)?;
        fs::write(overlay.join("config.yaml"), format!("log: info\napi-servers: {}\n", api_url()))?;
        // kustomize takes only relative paths.
        let up = "../".repeat(overlay.canonicalize()?.components().count() - 1);
        let manifests = format!("{}{}/kustomize", up.trim_end_matches('/'), self.deploy.display());
        let paths = |names: &[&str]| {
            names.iter().map(|name| format!("{manifests}/{name}")).collect::<Vec<_>>()
        };
        let kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": paths(parts), "components": paths(components),
            "configMapGenerator": [{
                "name": "millrace-config", "namespace": "kube-system", "behavior": "merge",
                "files": ["config.yaml"],
            }],
            "images": [{"name": "millrace", "newName": self.image, "newTag": self.tag}],
        });
        fs::write(overlay.join("kustomization.yaml"), kustomization.to_string())?;
        plane.kubectl(&["apply", "--kustomize", &overlay.display().to_string()]).map(drop)
    }

    /// Removes what [`Self::apply_overlay`] applied last.
    pub fn delete_overlay(&self, plane: &ControlPlane) -> Result<()> {
        plane.kubectl(&["delete", "--kustomize", &self.overlay().display().to_string()]).map(drop)
    }

    /// The image's name with its tag.
    pub fn image_name(&self) -> String {
        format!("{}:{}", self.image, self.tag)
    }

    /// A file or folder of the manifests.
    pub fn manifest(&self, path: &str) -> PathBuf {
        self.deploy.join("kustomize").join(path)
    }

    fn overlay(&self) -> PathBuf {
        self.files.join("overlay")
    }

    fn install_chart(&self, plane: &ControlPlane) -> Result<()> {
        let values = self.files.join("values.json");
        let text = json!({
            "image": {"repository": self.image},
            "config": {"log": "info", "api-servers": api_url()},
            "controller": {"enabled": true}, "ingress": {"enabled": true},
        });
        fs::write(&values, text.to_string())?;
        let mut helm = plane.command("helm");
        // For its caches.
        helm.env("HOME", &self.files);
        helm.args(["install", "millrace", "--namespace", "kube-system", "--values"]).arg(values);
        run_to_end(helm.arg(self.deploy.join("helm/millrace"))).map(drop)
    }
}

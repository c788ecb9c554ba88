//! What an administrator installs into a new cluster: DNS, and Millrace as docs/install.md says.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::control_plane::{ControlPlane, api_url};
use crate::images::{COREDNS, names_in_archive};
use crate::network::{DNS_SERVICE, POOL};

const DNS: &str = include_str!("../manifests/coredns.yaml");

pub(crate) fn install_dns(plane: &ControlPlane, families: usize) -> Result<()> {
    let addresses: Vec<_> =
        DNS_SERVICE[..families].iter().map(|address| format!("'{address}'")).collect();
    let manifests = DNS
        .replace("IMAGE", COREDNS)
        .replace("FIRST_ADDRESS", DNS_SERVICE[0])
        .replace("ADDRESSES", &addresses.join(", "));
    plane.apply("coredns.yaml", &manifests)
}

/// Installs Millrace with kustomize, by the manifests beside the image's archive. The only settings are those without
/// which there is no installation: the URL of the API server, and a pool of addresses.
pub(crate) fn install_millrace(
    plane: &ControlPlane,
    archive: &Path,
    files: &Path,
    families: usize,
) -> Result<()> {
    let name = names_in_archive(archive)?;
    let name = name.first().context("the archive names no image")?;
    let (image, tag) = name.rsplit_once(':').context("the image has a tag")?;
    let folder = archive.parent().context("a file is in a folder")?;
    let kustomize = folder.join("deploy/kustomize");
    ensure!(
        kustomize.is_dir(),
        "{} is not there: `cargo xtask image` writes it beside the image",
        kustomize.display()
    );
    let overlay = files.join("overlay");
    fs::create_dir_all(&overlay)?;
    fs::write(overlay.join("config.yaml"), format!("log: info\napi-servers: {}\n", api_url()))?;
    // kustomize takes only relative paths.
    let up = "../".repeat(overlay.canonicalize()?.components().count() - 1);
    let up = up.trim_end_matches('/');
    let kustomize = kustomize.canonicalize()?;
    let resource = |part: &str| format!("- {up}{}/{part}\n", kustomize.display());
    let overlay_text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{}{}{}\
         configMapGenerator:\n- name: millrace-config\n  namespace: kube-system\n  behavior: merge\n  files: [config.yaml]\n\
         images:\n- {{name: millrace, newName: {image}, newTag: \"{tag}\"}}\n",
        resource("base"),
        resource("controller"),
        resource("ingress"),
    );
    fs::write(overlay.join("kustomization.yaml"), overlay_text)?;
    plane.kubectl(&["apply", "--kustomize", &overlay.display().to_string()])?;
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

//! The files of the image, in the layout of the Open Container Initiative and, for `docker load`
//! before Docker 25, also in Docker's: both in one.
//! <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io::Write;

use anyhow::{Result, bail};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::root::PROGRAM;

/// By the last part of the name, without `org.opencontainers.image.`.
pub type Labels = BTreeMap<&'static str, String>;

pub struct Image {
    files: BTreeMap<String, Vec<u8>>,
    digest: String,
    unpacked: u64,
}

impl Image {
    /// Builds an image with one layer, an archive.
    pub fn new(layer: &[u8], name: &str, labels: &Labels) -> Result<Self> {
        let Some((repository, tag)) = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'))
        else {
            bail!("{name} is not a name with a tag, such as millrace:0.1.0");
        };
        let mut files = BTreeMap::new();
        let packed = compress(layer)?;
        let layer_blob = blob(&mut files, "application/vnd.oci.image.layer.v1.tar+gzip", packed);
        let labels: BTreeMap<String, &String> = labels
            .iter()
            .map(|(label, value)| (format!("org.opencontainers.image.{label}"), value))
            .collect();
        let created = labels.get("org.opencontainers.image.created");
        let config = json!({
            "architecture": architecture(ARCH)?,
            "os": "linux",
            "created": created,
            "config": {
                "Entrypoint": [format!("/{PROGRAM}")],
                "Env": ["PATH=/usr/bin"],
                "Labels": labels,
                "User": "0:0",
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [sha256(layer)]},
            "history": [{"created": created, "created_by": "cargo xtask image"}],
        });
        let config_blob = blob(
            &mut files,
            "application/vnd.oci.image.config.v1+json",
            serde_json::to_vec(&config)?,
        );
        // The manifest that `docker load` reads.
        let legacy = json!([{
            "Config": path(&config_blob),
            "RepoTags": [name],
            "Layers": [path(&layer_blob)],
        }]);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config_blob,
            "layers": [layer_blob],
            "annotations": labels,
        });
        let mut manifest = blob(
            &mut files,
            "application/vnd.oci.image.manifest.v1+json",
            serde_json::to_vec(&manifest)?,
        );
        let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
        manifest["annotations"] = json!({
            "org.opencontainers.image.ref.name": tag,
            "io.containerd.image.name": full_name(repository, tag),
        });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [manifest],
        });
        files.insert("index.json".to_owned(), serde_json::to_vec(&index)?);
        files.insert("manifest.json".to_owned(), serde_json::to_vec(&legacy)?);
        let version = json!({"imageLayoutVersion": "1.0.0"});
        files.insert("oci-layout".to_owned(), serde_json::to_vec(&version)?);
        Ok(Self { files, digest, unpacked: layer.len() as u64 })
    }

    /// Files ordered by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(path, content)| (path.as_str(), content.as_slice()))
    }

    /// The digest by which a registry identifies the image.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    pub fn unpacked(&self) -> u64 {
        self.unpacked
    }
}

/// Adds a blob under its digest, and returns its descriptor.
fn blob(files: &mut BTreeMap<String, Vec<u8>>, media_type: &str, content: Vec<u8>) -> Value {
    let descriptor =
        json!({"mediaType": media_type, "digest": sha256(&content), "size": content.len()});
    files.insert(path(&descriptor), content);
    descriptor
}

fn path(descriptor: &Value) -> String {
    let digest = descriptor["digest"].as_str().unwrap_or_default();
    format!("blobs/{}", digest.replace(':', "/"))
}

fn sha256(content: &[u8]) -> String {
    let digest: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digest}")
}

/// Compresses without a time or name in the header.
fn compress(content: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
    gzip.write_all(content)?;
    Ok(gzip.finish()?)
}

/// The architecture's name in Go and OCI. Only x86_64: the agent refuses to start on others
/// (`crates/kernel/src/preflight.rs`).
pub fn architecture(rust_name: &str) -> Result<&'static str> {
    match rust_name {
        "x86_64" => Ok("amd64"),
        other => bail!("no image can be built on {other}: Millrace supports x86_64 (amd64) only"),
    }
}

/// The full name, as containerd stores it. Names without a registry belong to Docker Hub.
fn full_name(repository: &str, tag: &str) -> String {
    let first = repository.split('/').next().unwrap_or_default();
    let has_registry =
        repository.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    match (has_registry, repository.contains('/')) {
        (true, _) => format!("{repository}:{tag}"),
        (false, true) => format!("docker.io/{repository}:{tag}"),
        (false, false) => format!("docker.io/library/{repository}:{tag}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_out_for_containerd() {
        for (repository, full) in [
            ("millrace", "docker.io/library/millrace:1"),
            ("someone/millrace", "docker.io/someone/millrace:1"),
            ("registry.example/millrace", "registry.example/millrace:1"),
            ("localhost/millrace", "localhost/millrace:1"),
            ("127.0.0.1:5000/millrace", "127.0.0.1:5000/millrace:1"),
        ] {
            assert_eq!(full_name(repository, "1"), full);
        }
    }

    #[test]
    fn an_image_is_built_only_for_the_architecture_that_the_agent_starts_on() {
        assert_eq!(architecture("x86_64").ok(), Some("amd64"));
        for other in ["aarch64", "riscv64", "x86"] {
            let error = architecture(other).expect_err(other).to_string();
            assert!(error.contains(other) && error.contains("x86_64"), "{error}");
        }
    }

    #[test]
    fn a_name_without_a_tag_is_refused() {
        for name in ["millrace", "127.0.0.1:5000/millrace"] {
            let error = Image::new(b"", name, &Labels::new()).err().map(|e| e.to_string());
            assert!(error.is_some_and(|error| error.contains("not a name with a tag")), "{name}");
        }
    }
}

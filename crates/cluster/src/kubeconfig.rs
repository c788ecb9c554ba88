//! Users of the cluster: tokens for the API server, and kubeconfigs with them.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

/// A user, as in a file of tokens of the API server.
pub struct User {
    pub name: String,
    group: &'static str,
    token: String,
}

impl User {
    pub fn new(name: impl Into<String>, group: &'static str) -> Result<Self> {
        let mut random = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { name: name.into(), group, token })
    }

    pub fn administrator() -> Result<Self> {
        Self::new("administrator", "system:masters")
    }

    pub fn kubelet(node: &str) -> Result<Self> {
        Self::new(format!("system:node:{node}"), "system:nodes")
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// The user's line of the API server's file of tokens.
    pub(crate) fn token_line(&self) -> String {
        format!("{},{},{},\"{}\"\n", self.token, self.name, self.name, self.group)
    }

    /// Writes a kubeconfig, in YAML, of which JSON is a part. It contains the certificate, since programs copy it.
    pub fn write_kubeconfig(&self, file: &Path, server: &str, authority: &Path) -> Result<()> {
        let authority = fs::read(authority).with_context(|| authority.display().to_string())?;
        let authority = STANDARD.encode(authority);
        let config = json!({
            "apiVersion": "v1", "kind": "Config",
            "clusters": [
                {
                    "name": "cluster",
                    "cluster": {"server": server, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": self.name, "user": {"token": self.token}}],
            "contexts": [
                {"name": "cluster", "context": {"cluster": "cluster", "user": self.name}}
            ],
            "current-context": "cluster",
        });
        fs::write(file, config.to_string()).with_context(|| file.display().to_string())
    }
}

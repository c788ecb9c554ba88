//! The kubeconfig for kubectl: the server's address, its authority, and a client certificate.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::identity::Identity;
use super::pki::{Authority, write_private};

const NAME: &str = "millrace";

/// Writes a kubeconfig with a new client certificate for this user. Only the file's owner can read
/// it.
pub fn write(
    path: &Path,
    authority: &Authority,
    server: SocketAddr,
    user: &Identity,
) -> Result<()> {
    let client = authority.client(user)?;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [{"name": NAME, "cluster": {
            "server": format!("https://{server}"),
            "certificate-authority-data": STANDARD.encode(authority.certificate()),
        }}],
        "users": [{"name": NAME, "user": {
            "client-certificate-data": STANDARD.encode(&client.certificate),
            "client-key-data": STANDARD.encode(&client.key),
        }}],
        "contexts": [{"name": NAME, "context": {
            "cluster": NAME, "user": NAME, "namespace": "default",
        }}],
    });
    write_private(path, &serde_norway::to_string(&config)?)
}

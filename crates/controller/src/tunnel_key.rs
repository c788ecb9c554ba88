//! Generates the cluster's tunnel key, once, into a Secret that exists without one.
//!
//! The Secret is a part of the manifests, so the role allows this process to read and change that
//! one Secret, and to create none: a process that may create Secrets in `kube-system` could create
//! tokens that let machines join the cluster.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use lb_process::backoff::Backoff;
use lb_rules::model::ServiceName;
use tokio::time::{sleep, timeout};

/// The field of the Secret, and so the name of the file where it is mounted.
const KEY_FIELD: &str = "key";
/// Octets of randomness; the key has two characters for each.
const KEY_OCTETS: usize = 32;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs until the Secret has a key.
pub(crate) async fn generate_tunnel_key(client: Client, name: ServiceName) {
    let secrets: Api<Secret> = Api::namespaced(client, &name.namespace);
    let (mut backoff, mut reported) = (Backoff::default(), String::new());
    loop {
        let result = timeout(REQUEST_TIMEOUT, fill_secret(&secrets, &name.name)).await;
        match result.context("the API server did not reply").flatten() {
            Ok(true) => return tracing::info!(secret = %name, "tunnel key generated"),
            Ok(false) => return,
            Err(error) => {
                let error = format!("{error:#}");
                if error != reported {
                    tracing::warn!(secret = %name, error, "no tunnel key generated; retrying");
                    reported = error;
                }
            }
        }
        sleep(backoff.next_delay()).await;
    }
}

/// Whether a key was generated; one that is there stays.
async fn fill_secret(secrets: &Api<Secret>, name: &str) -> Result<bool> {
    let Some(mut secret) = secrets.get_opt(name).await? else {
        bail!("there is no such Secret; apply deploy/kustomize/controller, or create it empty");
    };
    let data = secret.data.get_or_insert_default();
    if data.get(KEY_FIELD).is_some_and(|key| !key.0.is_empty()) {
        return Ok(false);
    }
    data.insert(KEY_FIELD.to_owned(), ByteString(random_key()?.into_bytes()));
    // With the version that was read: of two processes, one fails, and then finds the key.
    secrets.replace(name, &PostParams::default(), &secret).await?;
    Ok(true)
}

fn random_key() -> Result<String> {
    let mut octets = [0; KEY_OCTETS];
    getrandom::fill(&mut octets).context("the kernel gives no random numbers")?;
    let mut key = String::with_capacity(2 * KEY_OCTETS);
    for octet in octets {
        write!(key, "{octet:02x}")?;
    }
    Ok(key)
}

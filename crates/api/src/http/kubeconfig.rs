//! Kubeconfigs: the server's address, its authority, and a client certificate.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::identity::{CertifiedClient, ClientIdentity};
use super::pki::{CLIENT_DAYS, CertificateAuthority};
use super::private_file::write_private;

const NAME: &str = "millrace";
/// Before a certificate expires by less than this, a kubeconfig of the server gets a new one.
const RENEWAL_MARGIN: SignedDuration = SignedDuration::from_hours(30 * 24);

/// A kubeconfig with a new client certificate.
pub fn issue_kubeconfig(
    authority: &CertificateAuthority,
    server: &str,
    user: &ClientIdentity,
    days: u32,
) -> Result<String> {
    let client = authority.client(user, days)?;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [{"name": NAME, "cluster": {
            "server": server,
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
    Ok(serde_norway::to_string(&config)?)
}

/// Writes the kubeconfig of this user, unless it is current: for this server, accepted, and valid
/// for another month. Only the file's owner can read it. Returns whether it was written.
pub(crate) fn keep_kubeconfig(
    path: &Path,
    authority: &CertificateAuthority,
    server: SocketAddr,
    user: &ClientIdentity,
    now: Timestamp,
) -> Result<bool> {
    let server = format!("https://{server}");
    if is_current(path, authority, &server, user, now).unwrap_or_default() {
        return Ok(false);
    }
    write_private(path, &issue_kubeconfig(authority, &server, user, CLIENT_DAYS)?)?;
    Ok(true)
}

/// The address of the server in a kubeconfig.
pub fn read_server(path: &Path) -> Result<String> {
    let config = read_kubeconfig(path)?;
    let server = config["clusters"][0]["cluster"]["server"].as_str();
    server.map(str::to_owned).with_context(|| format!("{} has no server", path.display()))
}

fn read_kubeconfig(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("kubeconfig {} not readable", path.display()))?;
    serde_norway::from_str(&text).with_context(|| format!("{} is not a kubeconfig", path.display()))
}

fn is_current(
    path: &Path,
    authority: &CertificateAuthority,
    server: &str,
    user: &ClientIdentity,
    now: Timestamp,
) -> Result<bool> {
    let config = read_kubeconfig(path)?;
    let cluster = &config["clusters"][0]["cluster"];
    let certificate = &config["users"][0]["user"]["client-certificate-data"];
    let certificate = STANDARD.decode(certificate.as_str().unwrap_or_default())?;
    let certificate =
        CertifiedClient::of_certificate(&CertificateDer::from_pem_slice(&certificate)?)?;
    let expires = Timestamp::from_second(certificate.not_after)?;
    Ok(cluster["server"] == server
        && cluster["certificate-authority-data"] == STANDARD.encode(authority.certificate())
        && certificate.identity == *user
        && authority.issued().has(&certificate.serial)
        && expires.duration_since(now) > RENEWAL_MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    #[test]
    fn a_kubeconfig_is_renewed_a_month_before_it_expires() {
        let directory = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::open(directory.path()).unwrap();
        let path = directory.path().join("kubeconfig");
        let (user, server) = (ClientIdentity::administrator(), "127.0.0.1:6443".parse().unwrap());
        let begin = Timestamp::now();
        let keep = |day: i32| {
            keep_kubeconfig(&path, &authority, server, &user, begin + DAY * day).unwrap()
        };
        assert!(keep(0));
        assert!(!keep(0));
        assert!(!keep(58));
        assert!(keep(61));
    }

    #[test]
    fn a_kubeconfig_that_is_not_usable_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::open(directory.path()).unwrap();
        let path = directory.path().join("kubeconfig");
        let now = Timestamp::now();
        let user = ClientIdentity::administrator();
        let keep = |server: &str| {
            keep_kubeconfig(&path, &authority, server.parse().unwrap(), &user, now).unwrap()
        };
        fs::write(&path, "nonsense").unwrap();
        assert!(keep("127.0.0.1:6443"));
        assert!(keep("127.0.0.1:6444"));
        assert!(!keep("127.0.0.1:6444"));
        authority.issued().revoke(&user.user).unwrap();
        assert!(keep("127.0.0.1:6444"));
    }
}

//! The cluster's certificate authority, and the certificates and keys of its servers.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// Writes the files of a cluster into a directory: `ca`, `api` (the API server, under these names and addresses) and
/// `kubelet-client` (the API server as a client of kubelets), each with `.crt` and `.key`; and `accounts.key` and
/// `accounts.pub`, which sign and verify tokens of ServiceAccounts.
pub(crate) fn write_certificates(
    directory: &Path,
    names: &[&str],
    addresses: &[&str],
) -> Result<()> {
    let key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    authority.distinguished_name.push(DnType::CommonName, "kubernetes");
    let certificate = authority.self_signed(&key)?;
    write(directory, "ca.crt", &certificate.pem())?;
    write(directory, "ca.key", &key.serialize_pem())?;
    let issuer = Issuer::new(authority, key);

    let mut server = leaf("kube-apiserver", ExtendedKeyUsagePurpose::ServerAuth);
    for name in names {
        server.subject_alt_names.push(SanType::DnsName((*name).try_into()?));
    }
    for address in addresses {
        let address = address.parse().with_context(|| (*address).to_owned())?;
        server.subject_alt_names.push(SanType::IpAddress(address));
    }
    let mut client = leaf("kube-apiserver-kubelet-client", ExtendedKeyUsagePurpose::ClientAuth);
    client.distinguished_name.push(DnType::OrganizationName, "system:masters");
    for (name, params) in [("api", server), ("kubelet-client", client)] {
        let key = KeyPair::generate()?;
        write(directory, &format!("{name}.crt"), &params.signed_by(&key, &issuer)?.pem())?;
        write(directory, &format!("{name}.key"), &key.serialize_pem())?;
    }
    let accounts = KeyPair::generate()?;
    write(directory, "accounts.key", &accounts.serialize_pem())?;
    write(directory, "accounts.pub", &accounts.public_key_pem())
}

fn leaf(name: &str, usage: ExtendedKeyUsagePurpose) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params
}

fn write(directory: &Path, name: &str, content: &str) -> Result<()> {
    let path = directory.join(name);
    fs::write(&path, content).with_context(|| path.display().to_string())
}

//! The certificates: Millrace's own authority, created once and kept beside the store; the
//! server's, created at every start; and one for each kubeconfig, which is registered (`issued`).

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use jiff::{Timestamp, ToSpan, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

use super::identity::ClientIdentity;
use super::issued::{IssuedCertificate, IssuedCertificates};
use super::private_file::write_private;

const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";
/// Validity of the certificates of the authority and the server, which are not renewed while it runs.
const OWN_DAYS: u32 = 3650;
/// Validity of client certificates, unless another one is requested.
pub const CLIENT_DAYS: u32 = 90;

pub struct CertificateAuthority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
    issued: IssuedCertificates,
}

/// A certificate and its key in PEM.
pub struct ClientCredentials {
    pub certificate: String,
    pub key: String,
}

impl CertificateAuthority {
    /// The authority in a directory, created if there is none.
    pub fn open(directory: &Path) -> Result<Self> {
        let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
        if !certificate.exists() {
            let made = make().context("a certificate authority can't be made")?;
            // The certificate is written last: if it exists, the key does, too.
            write_private(&key, &made.key)?;
            write_private(&certificate, &made.certificate)?;
        }
        let read = |path: &Path| {
            fs::read_to_string(path).with_context(|| format!("{} can't be read", path.display()))
        };
        let (certificate, key) = (read(&certificate)?, read(&key)?);
        let issuer = KeyPair::from_pem(&key)
            .and_then(|key| Issuer::from_ca_cert_pem(&certificate, key))
            .with_context(|| {
                format!(
                    "{} and {} are not a certificate authority; remove both, and a new one is created \
                     (existing kubeconfigs will then be refused)",
                    directory.join(CERTIFICATE).display(),
                    directory.join(KEY).display()
                )
            })?;
        Ok(Self { certificate, issuer, issued: IssuedCertificates::new(directory) })
    }

    /// In PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The client certificates that are accepted.
    pub fn issued(&self) -> &IssuedCertificates {
        &self.issued
    }

    /// Credentials of a client, which are accepted from now on.
    pub fn client(&self, identity: &ClientIdentity, days: u32) -> Result<ClientCredentials> {
        let mut params = params(&identity.user, ExtendedKeyUsagePurpose::ClientAuth, days)?;
        let group = identity.groups.first().context("a client needs a group")?;
        params.distinguished_name.push(DnType::OrganizationName, group);
        let mut serial = [0; 16];
        getrandom::fill(&mut serial).map_err(|error| anyhow!("no random numbers: {error}"))?;
        // Positive, and without leading zeros.
        serial[0] = serial[0] & 0x3f | 0x40;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        let expires = Timestamp::from_second(params.not_after.unix_timestamp())?;
        let credentials = self.sign(params)?;
        let serial: String = serial.iter().map(|byte| format!("{byte:02x}")).collect();
        let (user, group) = (identity.user.clone(), group.clone());
        self.issued.add(&serial, &IssuedCertificate { user, group, expires })?;
        Ok(credentials)
    }

    /// TLS configuration of a server with these addresses and this machine's name.
    pub fn server(&self, addresses: &[IpAddr], host: &str) -> Result<Arc<ServerConfig>> {
        let mut params = params("millrace", ExtendedKeyUsagePurpose::ServerAuth, OWN_DAYS)?;
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        for name in names.into_iter().chain((!host.is_empty()).then_some(host)) {
            // A host name need not be valid in a certificate.
            if let Ok(name) = name.try_into() {
                params.subject_alt_names.push(SanType::DnsName(name));
            }
        }
        let addresses = addresses.iter().map(|address| SanType::IpAddress(*address));
        params.subject_alt_names.extend(addresses);
        let credentials = self.sign(params)?;

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes())?)?;
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(credentials.certificate.as_bytes())?],
                PrivateKeyDer::from_pem_slice(credentials.key.as_bytes())?,
            )?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn sign(&self, params: CertificateParams) -> Result<ClientCredentials> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(ClientCredentials { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn make() -> Result<ClientCredentials> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "millrace-ca");
    set_validity(&mut params, OWN_DAYS)?;
    Ok(ClientCredentials { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

fn params(name: &str, usage: ExtendedKeyUsagePurpose, days: u32) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, days)?;
    Ok(params)
}

/// Valid since yesterday, because clocks may be set back.
fn set_validity(params: &mut CertificateParams, days: u32) -> Result<()> {
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let date = |date: jiff::civil::Date| -> Result<_> {
        let (month, day) = (u8::try_from(date.month())?, u8::try_from(date.day())?);
        Ok(rcgen::date_time_ymd(date.year().into(), month, day))
    };
    params.not_before = date(today.checked_sub(1.day())?)?;
    params.not_after = date(today.checked_add(i64::from(days).days())?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_authority_is_reused_and_its_key_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let first = CertificateAuthority::open(directory.path()).unwrap();
        let second = CertificateAuthority::open(directory.path()).unwrap();
        assert_eq!(first.certificate(), second.certificate());
        let mode = fs::metadata(directory.path().join(KEY)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        first.server(&["127.0.0.1".parse().unwrap()], "a_host").unwrap();
    }

    #[test]
    fn the_error_of_a_broken_authority_has_a_fix() {
        let directory = tempfile::tempdir().unwrap();
        CertificateAuthority::open(directory.path()).unwrap();
        fs::write(directory.path().join(KEY), "nonsense").unwrap();
        let error = format!("{:#}", CertificateAuthority::open(directory.path()).err().unwrap());
        assert!(error.contains("remove both"), "{error}");
    }
}

//! The client of a connection: the name, group and serial number in its certificate.

use anyhow::{Context, Result, anyhow};
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::roles::ClientRole;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The certificate's common name.
    pub user: String,
    /// The certificate's organizations.
    pub groups: Vec<String>,
}

/// The contents of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertifiedClient {
    pub identity: ClientIdentity,
    /// In hexadecimal digits.
    pub serial: String,
    /// In seconds since 1970.
    pub not_after: i64,
}

impl ClientIdentity {
    pub fn new(user: &str, role: ClientRole) -> Self {
        Self { user: user.to_owned(), groups: vec![role.group().to_owned()] }
    }

    pub fn administrator() -> Self {
        Self::new("millrace-admin", ClientRole::Administrator)
    }

    pub fn agent() -> Self {
        Self::new("millrace-agent", ClientRole::Agent)
    }

    /// `None`: no role, and no permissions.
    pub fn role(&self) -> Option<ClientRole> {
        ClientRole::of_groups(&self.groups)
    }

    /// Some capacity is reserved for the agent (`shares`).
    pub(crate) fn is_agent(&self) -> bool {
        self.role() == Some(ClientRole::Agent)
    }
}

impl CertifiedClient {
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate)
            .map_err(|error| anyhow!("client certificate not readable: {error}"))?;
        let subject = parsed.subject();
        let user = subject
            .iter_common_name()
            .next()
            .and_then(|name| name.as_str().ok())
            .context("client certificate without a common name")?
            .to_owned();
        let groups = subject
            .iter_organization()
            .filter_map(|group| group.as_str().ok())
            .map(str::to_owned)
            .collect();
        Ok(Self {
            identity: ClientIdentity { user, groups },
            serial: parsed.serial.to_str_radix(16),
            not_after: parsed.validity().not_after.timestamp(),
        })
    }
}

//! The client of a connection: the name and groups in its certificate.

use anyhow::{Context, Result, anyhow};
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The agent's group. Room is kept for its members when other clients use all they may.
pub const AGENTS: &str = "millrace:agents";

/// May do everything. Kubernetes' name of this group.
pub const ADMINISTRATORS: &str = "system:masters";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate's common name.
    pub user: String,
    /// The certificate's organizations.
    pub groups: Vec<String>,
}

impl Identity {
    pub fn administrator() -> Self {
        Self { user: "millrace-admin".to_owned(), groups: vec![ADMINISTRATORS.to_owned()] }
    }

    pub fn agent() -> Self {
        Self { user: "millrace-agent".to_owned(), groups: vec![AGENTS.to_owned()] }
    }

    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self> {
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
        Ok(Self { user, groups })
    }

    pub fn is_agent(&self) -> bool {
        self.groups.iter().any(|group| group == AGENTS)
    }
}

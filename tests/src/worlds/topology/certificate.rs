//! Certificates for servers.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Host;

/// The files of a certificate and its key, in PEM.
pub struct Certificate {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Host {
    /// Creates a self-signed certificate in a directory: `subject` is its common name and the name of its files,
    /// `names` are those of hosts.
    pub fn certificate(
        &self,
        directory: &Path,
        subject: &str,
        names: &[&str],
    ) -> Result<Certificate> {
        let [certificate, key] =
            ["crt", "key"].map(|kind| directory.join(format!("{subject}.{kind}")));
        let names: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
        let (common, names) =
            (format!("/CN={subject}"), format!("subjectAltName={}", names.join(",")));
        let mut words = vec!["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "90"];
        words.extend(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", &common, "-addext", &names]);
        // rustls accepts no authority's certificate as that of a server.
        words.extend(["-addext", "basicConstraints=critical,CA:FALSE"]);
        let paths = [&key, &certificate].map(|path| path.to_string_lossy().into_owned());
        words.extend(["-keyout", &paths[0], "-out", &paths[1]]);
        self.run(words)?;
        Ok(Certificate { certificate, key })
    }
}

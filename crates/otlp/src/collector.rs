//! Where the collector is, and how it is reached.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// The path of OTLP's servers, for URLs without one.
const DEFAULT_PATH: &str = "/v1/traces";
/// Headers and authorities are short.
const MOST_FILE_OCTETS: u64 = 256 << 10;

#[derive(Clone, Debug)]
pub struct CollectorSettings {
    pub url: CollectorUrl,
    /// Authorities for the collector's certificate, in PEM; `None`: the public ones.
    pub authority_file: Option<PathBuf>,
    /// Lines `Name: value`.
    pub header_file: Option<PathBuf>,
}

/// `http://host:port/path`, or `https`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorUrl {
    pub(crate) is_tls: bool,
    /// Without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) authority: String,
    pub(crate) path: String,
}

impl FromStr for CollectorUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "not a URL such as http://collector.example.org:4318/v1/traces";
        let uri: Uri = text.parse().map_err(|_| FORM)?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(FORM),
        };
        let authority = uri.authority().ok_or(FORM)?;
        // The URL is logged.
        if authority.as_str().contains('@') {
            return Err("has a user or password: use otlp-header-file");
        }
        let port = match &authority.as_str()[authority.host().len()..] {
            "" => Some(if is_tls { 443 } else { 80 }),
            port => port.strip_prefix(':').and_then(|port| port.parse().ok()),
        };
        let port = port.filter(|port| *port > 0 && !authority.host().is_empty()).ok_or(FORM)?;
        let path = match uri.path_and_query().map_or("/", |path| path.as_str()) {
            "/" => DEFAULT_PATH,
            path => path,
        };
        Ok(Self {
            is_tls,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port,
            authority: authority.as_str().to_owned(),
            path: path.to_owned(),
        })
    }
}

impl Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        // A query may be a credential.
        let path = self.path.split('?').next().unwrap_or_default();
        write!(f, "{scheme}://{}{path}", self.authority)
    }
}

impl CollectorSettings {
    /// How TLS connections are made. Read for each connection, so that a file can be replaced.
    pub(crate) fn read_tls(&self) -> Result<Arc<ClientConfig>, String> {
        let mut roots = RootCertStore::empty();
        match &self.authority_file {
            None => {
                let public = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned();
                roots.add_parsable_certificates(public);
            }
            Some(path) => {
                let pem = read_file(path)?;
                let invalid = |why: &dyn Display| format!("{}: {why}", path.display());
                for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    let certificate = certificate.map_err(|error| invalid(&error))?;
                    roots.add(certificate).map_err(|error| invalid(&error))?;
                }
                if roots.is_empty() {
                    return Err(invalid(&"there is no certificate in PEM (BEGIN CERTIFICATE)"));
                }
            }
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }

    /// Headers of all requests. Without those of a file that cannot be read, none is sent.
    pub(crate) fn read_headers(&self) -> Result<HeaderMap, String> {
        let Some(path) = &self.header_file else { return Ok(HeaderMap::new()) };
        parse_headers(&read_file(path)?).map_err(|why| format!("{}: {why}", path.display()))
    }
}

/// An error names the line, and not what it has: that may be a credential.
fn parse_headers(text: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let invalid = || format!("line {number}: not a header, as `Name: value`");
        let (name, value) = line.split_once(':').ok_or_else(invalid)?;
        let name = HeaderName::from_str(name.trim()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

fn read_file(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MOST_FILE_OCTETS).read_to_string(&mut text))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_path_and_no_password() {
        for (text, expected) in [
            ("http://otel.test:4318", "http://otel.test:4318/v1/traces"),
            ("http://otel.test:4318/", "http://otel.test:4318/v1/traces"),
            ("https://otel.test/a/b?key=secret", "https://otel.test/a/b"),
            ("http://[2001:db8::1]:80/a", "http://[2001:db8::1]:80/a"),
        ] {
            assert_eq!(text.parse::<CollectorUrl>().unwrap().to_string(), expected);
        }
        let url: CollectorUrl = "https://[2001:db8::1]".parse().unwrap();
        assert_eq!((&*url.host, url.port), ("2001:db8::1", 443));
        for text in [
            "",
            "otel.test:4318",
            "/v1/traces",
            "grpc://otel.test:4317",
            "http://",
            "http://otel.test:",
            "http://otel.test:431800",
            "http://otel.test:0",
            "http://[::1]:-1",
            "http://:4318",
        ] {
            assert!(text.parse::<CollectorUrl>().is_err(), "{text}");
        }
        let url: CollectorUrl = "https://otel.test/a/b?key=secret".parse().unwrap();
        assert_eq!(url.path, "/a/b?key=secret");
        let error = "http://ann:secret@otel.test/".parse::<CollectorUrl>().unwrap_err();
        assert!(error.contains("otlp-header-file"), "{error}");
    }

    #[test]
    fn headers_are_lines_and_errors_do_not_show_them() {
        let headers = parse_headers("# of the vendor\nAuthorization: Bearer a:b\n\nX-Team:  1 \n");
        let headers = headers.unwrap();
        assert_eq!(headers["authorization"], "Bearer a:b");
        assert_eq!(headers["x-team"], "1");
        assert!(!format!("{headers:?}").contains("Bearer"));
        for text in ["secret", "X Y: secret", "X: secret\u{1}"] {
            let error = parse_headers(&format!("\n{text}")).unwrap_err();
            assert!(error.starts_with("line 2:") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_file_without_authorities_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.crt");
        let settings = CollectorSettings {
            url: "https://otel.test".parse().unwrap(),
            authority_file: Some(path.clone()),
            header_file: Some(path.clone()),
        };
        assert!(settings.read_tls().unwrap_err().contains("ca.crt"));
        assert!(settings.read_headers().unwrap_err().contains("ca.crt"));
        std::fs::write(&path, "nothing").unwrap();
        assert!(settings.read_tls().unwrap_err().contains("no certificate"));
        let public = CollectorSettings { authority_file: None, header_file: None, ..settings };
        assert!(public.read_tls().is_ok() && public.read_headers().unwrap().is_empty());
    }
}

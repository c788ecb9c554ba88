//! Secrets, and the last good certificate of each.
//!
//! The last good certificate is the only thing that depends on the past: a Secret whose new contents are invalid keeps
//! the certificate that it had, until it is deleted.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use lb_http::auth::Users;
use lb_http::jwt::KeySet;
use lb_proxy::{Certificate, ClientCertificates};
use lb_rules::model::ServiceName;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITIES: &str = "ca.crt";
/// Certificates of the authorities that are revoked.
const REVOKED: &str = "ca.crl";
const TLS_TYPE: &str = "kubernetes.io/tls";
const USERS: &str = "auth";
const TOKEN_KEYS: &str = "jwks.json";

#[derive(Debug, Default)]
pub struct Secrets(BTreeMap<ServiceName, WatchedSecret>);

#[derive(Debug, Default)]
struct WatchedSecret {
    data: BTreeMap<String, ByteString>,
    is_of_type_tls: bool,
    /// The last good one.
    certificate: Option<Arc<Certificate>>,
    /// Why the present contents are no certificate.
    invalid: Option<String>,
    /// Those that must have a certificate, and those that may. Parsed once: the proxy compares them by identity.
    clients: [OnceLock<Result<ClientCertificates, String>>; 2],
}

/// A certificate and its key, in PEM.
pub(crate) type PairText = (Arc<str>, Arc<str>);

/// What a Secret says about a host.
#[derive(Debug)]
pub struct HostCertificate {
    pub certificate: Option<Arc<Certificate>>,
    pub problem: Option<String>,
}

impl Secrets {
    /// Whether its contents have changed.
    pub fn apply(&mut self, name: &ServiceName, secret: Secret) -> bool {
        let mut data = secret.data.unwrap_or_default();
        // As an API server does; Secrets from files still have it.
        let texts = secret.string_data.unwrap_or_default().into_iter();
        data.extend(texts.map(|(key, text)| (key, ByteString(text.into_bytes()))));
        let is_of_type_tls = secret.type_.as_deref() == Some(TLS_TYPE);
        let before = self.0.get(name);
        if before.is_some_and(|held| held.data == data && held.is_of_type_tls == is_of_type_tls) {
            return false;
        }
        let mut held = WatchedSecret { is_of_type_tls, ..WatchedSecret::default() };
        if data.contains_key(CERTIFICATE) || data.contains_key(KEY) {
            let part = |key| data.get(key).map_or(&[][..], |bytes: &ByteString| &bytes.0);
            match Certificate::parse(part(CERTIFICATE), part(KEY)) {
                Ok(certificate) => held.certificate = Some(Arc::new(certificate)),
                Err(why) => held.invalid = Some(why.to_string()),
            }
        } else {
            held.invalid = Some(format!("it has no {CERTIFICATE} and {KEY}"));
        }
        if held.certificate.is_none() {
            held.certificate = before.and_then(|held| held.certificate.clone());
        }
        held.data = data;
        self.0.insert(name.clone(), held);
        true
    }

    /// Whether there was one.
    pub fn remove(&mut self, name: &ServiceName) -> bool {
        self.0.remove(name).is_some()
    }

    pub(crate) fn is_of_type_tls(&self, name: &ServiceName) -> bool {
        self.0.get(name).is_some_and(|held| held.is_of_type_tls)
    }

    pub fn certificate(&self, name: &ServiceName) -> HostCertificate {
        let Some(held) = self.0.get(name) else {
            let problem = Some(format!("Secret {name} does not exist"));
            return HostCertificate { certificate: None, problem };
        };
        let problem = held.invalid.as_ref().map(|why| match held.certificate {
            Some(_) => {
                format!("Secret {name} is invalid: {why}. Its last valid certificate stays in use")
            }
            None => format!("Secret {name} is invalid: {why}"),
        });
        HostCertificate { certificate: held.certificate.clone(), problem }
    }

    /// The clients with certificates of the authorities in `ca.crt`.
    pub fn clients(
        &self,
        name: &ServiceName,
        optional: bool,
    ) -> Result<ClientCertificates, String> {
        let held = self.0.get(name).ok_or_else(|| format!("Secret {name} does not exist"))?;
        let read = || {
            let pem = held.data.get(AUTHORITIES);
            let pem = pem.ok_or_else(|| format!("Secret {name} has no {AUTHORITIES}"))?;
            let revoked = held.data.get(REVOKED).map(|pem| pem.0.as_slice());
            ClientCertificates::parse(&pem.0, revoked, optional, false).map_err(|why| {
                let keys = if revoked.is_some() { "ca.crt or ca.crl" } else { AUTHORITIES };
                format!("{keys} of Secret {name} is invalid: {why}")
            })
        };
        held.clients[usize::from(optional)].get_or_init(read).clone()
    }

    pub(crate) fn has_authorities(&self, name: &ServiceName) -> bool {
        self.0.get(name).is_some_and(|held| held.data.contains_key(AUTHORITIES))
    }

    /// The authorities in `ca.crt`, as they are written.
    pub fn authorities(&self, name: &ServiceName) -> Result<Arc<str>, String> {
        self.clients(name, false)?;
        self.text(name, AUTHORITIES)
    }

    /// The revocation lists in `ca.crl`, as they are written; `None` if the Secret has none.
    pub fn revoked(&self, name: &ServiceName) -> Result<Option<Arc<str>>, String> {
        let has_list = self.0.get(name).is_some_and(|held| held.data.contains_key(REVOKED));
        if has_list { self.text(name, REVOKED).map(Some) } else { Ok(None) }
    }

    /// A certificate and its key, as they are written; `None` if the Secret has none.
    pub(crate) fn pair_text(&self, name: &ServiceName) -> Result<Option<PairText>, String> {
        let held = self.0.get(name).ok_or_else(|| format!("Secret {name} does not exist"))?;
        if !held.data.contains_key(CERTIFICATE) && !held.data.contains_key(KEY) {
            return Ok(None);
        }
        if let Some(why) = &held.invalid {
            return Err(format!("Secret {name} is invalid: {why}"));
        }
        Ok(Some((self.text(name, CERTIFICATE)?, self.text(name, KEY)?)))
    }

    /// Keys that verify tokens, in `jwks.json`. With what is wrong with others.
    pub fn token_keys(&self, name: &ServiceName) -> Result<(KeySet, Vec<String>), String> {
        let document = self.text(name, TOKEN_KEYS)?;
        let (keys, left_out) = KeySet::parse(document.as_bytes())
            .map_err(|why| format!("{TOKEN_KEYS} of Secret {name} {why}"))?;
        if keys.is_empty() {
            let why = left_out.first().map_or("it is empty", String::as_str);
            return Err(format!(
                "{TOKEN_KEYS} of Secret {name} has no key that can be used: {why}"
            ));
        }
        Ok((keys, left_out))
    }

    /// Users and password hashes: a file in the key `auth`, or a key for each user. With what is wrong with some.
    pub fn users(
        &self,
        name: &ServiceName,
        is_map: bool,
    ) -> Result<(Arc<Users>, Vec<String>), String> {
        let (users, problems) =
            Users::parse(&if is_map { self.user_lines(name)? } else { self.text(name, USERS)? });
        let problems = problems.iter().map(|problem| format!("Secret {name}: {problem}"));
        Ok((Arc::new(users), problems.collect()))
    }

    fn user_lines(&self, name: &ServiceName) -> Result<Arc<str>, String> {
        let held = self.0.get(name).ok_or_else(|| format!("Secret {name} does not exist"))?;
        let mut lines = String::new();
        for (user, hash) in &held.data {
            let hash = std::str::from_utf8(&hash.0).map_or("", str::trim);
            // Otherwise one user's hash could define another user.
            if !hash.contains(['\n', '\r']) {
                let _ = writeln!(lines, "{user}:{hash}");
            }
        }
        Ok(lines.into())
    }

    /// The text of a key.
    pub(crate) fn text(&self, name: &ServiceName, key: &str) -> Result<Arc<str>, String> {
        let held = self.0.get(name).ok_or_else(|| format!("Secret {name} does not exist"))?;
        let bytes = held.data.get(key).ok_or_else(|| format!("Secret {name} has no key {key}"))?;
        let text = std::str::from_utf8(&bytes.0);
        text.map(Into::into).map_err(|_| format!("key {key} of Secret {name} is no text"))
    }
}

//! The token of a service account, which the kubelet replaces while the agent runs.
//!
//! The file is read for every request: they are few, and a token that was replaced is used at
//! once. If the file is gone, the last token is used.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderValue, Request};
use kube::config::AuthInfo;

/// Tokens have about one kilobyte.
const MAX_TOKEN: u64 = 64 << 10;

/// Nothing, if the credentials are not a token in a file.
#[derive(Clone, Default)]
pub struct Credentials(Option<Arc<TokenFile>>);

struct TokenFile {
    path: PathBuf,
    last: Mutex<String>,
}

impl Credentials {
    /// The token file, if nothing in the configuration takes precedence over it.
    pub fn of(auth: &AuthInfo) -> Result<Self> {
        let others = auth.token.is_some()
            || auth.auth_provider.is_some()
            || auth.username.is_some() && auth.password.is_some();
        match &auth.token_file {
            Some(path) if !others => Self::from_file(path.into()),
            _ => Ok(Self::default()),
        }
    }

    fn from_file(path: PathBuf) -> Result<Self> {
        let last = read(&path).with_context(|| format!("{}: can't be read", path.display()))?;
        Ok(Self(Some(Arc::new(TokenFile { path, last: Mutex::new(last) }))))
    }

    pub(crate) fn are_in_file(&self) -> bool {
        self.0.is_some()
    }

    /// Adds the current token to a request.
    pub fn authorize<B>(&self, request: &mut Request<B>) {
        let Some(file) = &self.0 else { return };
        // A token that is no header value is no token: the server's refusal is reported.
        if let Ok(mut value) = HeaderValue::try_from(format!("Bearer {}", file.current())) {
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
    }
}

impl TokenFile {
    fn current(&self) -> String {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(token) = read(&self.path) {
            *last = token;
        }
        last.clone()
    }
}

fn read(path: &PathBuf) -> io::Result<String> {
    let mut token = String::new();
    File::open(path)?.take(MAX_TOKEN).read_to_string(&mut token)?;
    match token.trim() {
        "" => Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty")),
        token => Ok(token.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn authorization(credentials: &Credentials) -> Option<String> {
        let mut request = Request::new(());
        credentials.authorize(&mut request);
        let value = request.headers().get(AUTHORIZATION)?;
        assert!(value.is_sensitive(), "it must not be logged");
        Some(value.to_str().unwrap().to_owned())
    }

    #[test]
    fn each_request_has_the_token_that_the_file_has() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        fs::write(&path, "one\n").unwrap();
        let credentials = Credentials::from_file(path.clone()).unwrap();
        assert_eq!(authorization(&credentials).unwrap(), "Bearer one");
        fs::write(&path, "two").unwrap();
        assert_eq!(authorization(&credentials).unwrap(), "Bearer two");
        // Neither is a token.
        fs::write(&path, "").unwrap();
        assert_eq!(authorization(&credentials).unwrap(), "Bearer two");
        fs::remove_file(&path).unwrap();
        assert_eq!(authorization(&credentials).unwrap(), "Bearer two");
    }

    #[test]
    fn other_credentials_take_precedence() {
        let file = Some("/nowhere/token".to_owned());
        let with_token = AuthInfo {
            token: Some("inline".to_owned().into()),
            token_file: file.clone(),
            ..AuthInfo::default()
        };
        assert!(!Credentials::of(&with_token).unwrap().are_in_file());
        assert!(!Credentials::of(&AuthInfo::default()).unwrap().are_in_file());
        let error = Credentials::of(&AuthInfo { token_file: file, ..AuthInfo::default() });
        assert!(format!("{:#}", error.err().unwrap()).contains("/nowhere/token"));
    }
}

//! The client certificates that are accepted: one file for each, named by its serial number.
//!
//! Invariant: a certificate without a file is refused, so removing the file revokes it. Processes do not need to agree on an order:
//! each file is written once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::private_file::write_private;

const DIRECTORY: &str = "clients";

#[derive(Debug, Clone)]
pub struct IssuedCertificates {
    directory: PathBuf,
}

/// What people want to know of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedCertificate {
    pub user: String,
    pub group: String,
    pub expires: Timestamp,
}

impl IssuedCertificates {
    /// Beside the authority's files.
    pub fn new(pki: &Path) -> Self {
        Self { directory: pki.join(DIRECTORY) }
    }

    pub fn add(&self, serial: &str, entry: &IssuedCertificate) -> Result<()> {
        write_private(&self.directory.join(serial), &serde_json::to_string(entry)?)
    }

    pub fn has(&self, serial: &str) -> bool {
        self.directory.join(serial).exists()
    }

    pub fn remove(&self, serial: &str) -> Result<()> {
        let path = self.directory.join(serial);
        fs::remove_file(&path).with_context(|| format!("{} not removed", path.display()))
    }

    /// All certificates with their serial numbers, by user.
    pub fn list_by_user(&self) -> Result<Vec<(String, IssuedCertificate)>> {
        let mut all = Vec::new();
        let failed = || format!("{} not readable", self.directory.display());
        for file in fs::read_dir(&self.directory).with_context(failed)? {
            let path = file.with_context(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // A file that another process is writing.
            if name.starts_with('.') {
                continue;
            }
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                // Another process has just revoked it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).with_context(failed),
            };
            let entry = serde_json::from_str(&text)
                .with_context(|| format!("{} is not a client's entry", path.display()))?;
            all.push((name, entry));
        }
        all.sort_by(|(_, a): &(_, IssuedCertificate), (_, b)| {
            (&a.user, a.expires).cmp(&(&b.user, b.expires))
        });
        Ok(all)
    }

    /// Removes all certificates of a user. Returns how many there were.
    pub fn revoke(&self, user: &str) -> Result<usize> {
        let all = self.list_by_user()?;
        let of_user: Vec<_> = all.iter().filter(|(_, entry)| entry.user == user).collect();
        for (serial, _) in &of_user {
            self.remove(serial)?;
        }
        Ok(of_user.len())
    }

    /// Forgets certificates that have expired.
    pub(crate) fn prune(&self, now: Timestamp) -> Result<()> {
        for (serial, entry) in self.list_by_user()? {
            if entry.expires < now {
                self.remove(&serial)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(user: &str, expires: &str) -> IssuedCertificate {
        let (user, group) = (user.to_owned(), "millrace:viewers".to_owned());
        IssuedCertificate { user, group, expires: expires.parse().unwrap() }
    }

    #[test]
    fn a_user_is_revoked_with_all_certificates_and_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let issued = IssuedCertificates::new(directory.path());
        for (serial, user) in [("1", "a"), ("2", "b"), ("3", "a")] {
            issued.add(serial, &entry(user, "2030-01-01T00:00:00Z")).unwrap();
        }
        assert_eq!(issued.revoke("a").unwrap(), 2);
        let left = ["1", "2", "3"].map(|serial| issued.has(serial));
        assert_eq!(left, [false, true, false]);
        assert_eq!(issued.revoke("a").unwrap(), 0);
    }

    #[test]
    fn expired_certificates_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let issued = IssuedCertificates::new(directory.path());
        issued.add("1", &entry("a", "2020-01-01T00:00:00Z")).unwrap();
        issued.add("2", &entry("a", "2030-01-01T00:00:00Z")).unwrap();
        issued.prune("2025-01-01T00:00:00Z".parse().unwrap()).unwrap();
        let serials: Vec<String> =
            issued.list_by_user().unwrap().into_iter().map(|(serial, _)| serial).collect();
        assert_eq!(serials, ["2"]);
    }
}

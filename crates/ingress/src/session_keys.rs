//! Reads the file with the session keys, and follows its changes. A Secret that is mounted is such a file.
//!
//! Invariant: a file that becomes unreadable or invalid keeps its last valid keys.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use lb_proxy::SessionKeys;
use lb_proxy::session_keys::Secrets;
use lb_waits::{Resource, Wait, Waits};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

/// Time between two readings. Proxies change their keys one after the other, which costs a few sessions at most: put
/// new keys in front of the old ones, and each proxy knows both.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Keys are short.
const MAX_FILE_OCTETS: u64 = 64 << 10;

/// Sets the keys of the file now, and again each time that it changes. A file that does not exist yet has none.
pub(crate) fn follow_session_keys(path: PathBuf, keys: SessionKeys) -> Result<JoinHandle<()>> {
    let mut known = read_session_keys(&path)?;
    match &known {
        Some(secrets) => keys.set(secrets.clone()),
        None => tracing::info!(
            file = %path.display(),
            "no session keys; until the file exists, other proxies do not resume sessions of this one"
        ),
    }
    Ok(tokio::spawn(async move {
        let mut last_error = String::new();
        let begin = || {
            let subject = format!("valid session keys in {}", path.display());
            Waits::of_process().begin(Resource::Key, subject)
        };
        let mut wait: Option<Wait> = known.is_none().then(|| {
            let wait = begin();
            wait.explain("there is no such file");
            wait
        });
        loop {
            sleep(FILE_CHECK_INTERVAL).await;
            let file = path.clone();
            let read = match spawn_blocking(move || read_session_keys(&file)).await {
                Ok(read) => read,
                // The runtime ends.
                Err(_) => return,
            };
            match read {
                Ok(Some(secrets)) => {
                    last_error.clear();
                    wait = None;
                    if known.as_ref() != Some(&secrets) {
                        tracing::info!(file = %path.display(), "session keys changed");
                        keys.set(secrets.clone());
                        known = Some(secrets);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    let error = format!("{error:#}");
                    wait.get_or_insert_with(begin).explain(&error);
                    if error != last_error {
                        tracing::warn!(%error, "session keys not replaced");
                        last_error = error;
                    }
                }
            }
        }
    }))
}

/// `None`: there is no such file.
fn read_session_keys(path: &Path) -> Result<Option<Secrets>> {
    let named = || format!("session-key-file {}", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(named),
    };
    let mut text = String::new();
    file.take(MAX_FILE_OCTETS).read_to_string(&mut text).with_context(named)?;
    Secrets::parse(&text).map(Some).with_context(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_has_no_keys_and_a_bad_one_is_named_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        assert_eq!(read_session_keys(&path).unwrap(), None);
        std::fs::write(&path, "a".repeat(44)).unwrap();
        assert!(read_session_keys(&path).unwrap().is_some());
        std::fs::write(&path, "secret").unwrap();
        let error = format!("{:#}", read_session_keys(&path).unwrap_err());
        assert!(error.contains("keys: line 1:") && !error.contains("secret\""), "{error}");
        assert!(read_session_keys(directory.path()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn keys_follow_the_file_and_survive_its_mistakes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        let keys = SessionKeys::new();
        let count = || keys.count();
        let task = follow_session_keys(path.clone(), keys.clone()).unwrap();
        assert_eq!(count(), 0);
        let first = "a".repeat(44);
        for (text, expected) in
            [(first.clone(), 1), (String::new(), 1), (format!("{}\n{first}", "b".repeat(44)), 2)]
        {
            std::fs::write(&path, text).unwrap();
            // Another thread reads the file, whatever the paused clock says.
            for _ in 0..3 {
                sleep(FILE_CHECK_INTERVAL * 2).await;
            }
            assert_eq!(count(), expected);
        }
        task.abort();
    }
}

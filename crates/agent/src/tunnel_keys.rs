//! The keys of tunnels between nodes, read from a file that is the same on all nodes.
//!
//! The file has one or two lines. The first key is sent; packets with either are accepted. So a key
//! is replaced without losing packets: append the new key on all nodes, swap the two on all nodes,
//! remove the old one.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lb_common::layout::TunnelKey;
use lb_waits::{Resource, Wait, Waits};
use sha2::{Digest, Sha256};
use tokio::time::{MissedTickBehavior, interval};

/// How often the file is read; kubelet updates a mounted Secret about once a minute.
const INTERVAL: Duration = Duration::from_secs(10);

/// Shorter keys can be guessed.
const SHORTEST: usize = 32;

type Keys = [u64; TunnelKey::COUNT];

/// The file's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets {
    /// As packets carry them.
    pub digests: Keys,
    /// As they are written, from which others are derived.
    pub lines: Vec<String>,
}

/// Where the keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    path: PathBuf,
    /// A file that a setting names must be there from the start.
    is_required: bool,
}

impl KeyFile {
    /// As the manifests mount a Secret that may not exist yet.
    pub const DEFAULT: &str = "/etc/millrace-tunnel/key";

    /// The file of the setting, or the default one, which may appear later.
    pub fn of(setting: Option<PathBuf>) -> Self {
        match setting {
            Some(path) => Self { path, is_required: true },
            None => Self { path: Self::DEFAULT.into(), is_required: false },
        }
    }

    /// Whether keys are, or will be, read from it.
    pub fn is_in_use(&self) -> bool {
        self.is_required || self.path.exists()
    }
}

/// The keys at the start, and the file to follow.
pub(crate) struct TunnelKeyFile {
    file: KeyFile,
    keys: Secrets,
}

impl TunnelKeyFile {
    /// Reads the file. What is wrong with one that no setting names is reported, and it is read
    /// again later.
    pub fn open(file: KeyFile) -> Result<Self> {
        let keys = match read(&file.path) {
            Err(error) if !file.is_required => {
                if !is_missing(&error) {
                    tracing::warn!(error = format!("{error:#}"), "no tunnel key is used yet");
                }
                Secrets::default()
            }
            keys => keys?,
        };
        Ok(Self { file, keys })
    }

    pub fn has_key(&self) -> bool {
        self.keys.has_key()
    }

    /// Writes the keys before it returns, also if there are none, since an earlier agent may have
    /// left some. Follows the file until the process ends.
    pub fn follow(self, write: impl Fn(&Secrets) + Send + 'static) {
        write(&self.keys);
        tokio::spawn(keep_reading(self.file.path, self.keys, write));
    }
}

impl Secrets {
    pub fn has_key(&self) -> bool {
        !self.lines.is_empty()
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == ErrorKind::NotFound)
}

async fn keep_reading(file: PathBuf, mut current: Secrets, write: impl Fn(&Secrets)) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reported = String::new();
    let mut wait: Option<Wait> = None;
    loop {
        ticks.tick().await;
        match read(&file) {
            Ok(keys) if keys != current => {
                write(&keys);
                current = keys;
                reported.clear();
                wait = None;
                tracing::info!(path = %file.display(), "tunnel keys changed");
            }
            Ok(_) => {
                reported.clear();
                wait = None;
            }
            // Without a key there are no tunnels, which nobody has to fix.
            Err(error) if is_missing(&error) && !current.has_key() => wait = None,
            Err(error) => {
                let error = format!("{error:#}");
                let begin = || {
                    let subject = format!("valid tunnel keys in {}", file.display());
                    Waits::of_process().begin(Resource::Key, subject)
                };
                wait.get_or_insert_with(begin).explain(&error);
                if error != reported {
                    tracing::warn!(error, "tunnel keys not updated; keeping the previous ones");
                    reported = error;
                }
            }
        }
    }
}

fn read(file: &Path) -> Result<Secrets> {
    let text = fs::read_to_string(file);
    text.map_err(anyhow::Error::from)
        .and_then(|text| parse(&text))
        .with_context(|| format!("tunnel key file {}", file.display()))
}

/// One key on each line, the current one first.
fn parse(text: &str) -> Result<Secrets> {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    ensure!(!lines.is_empty(), "has no key. Make one with: openssl rand -hex 32");
    ensure!(
        lines.len() <= TunnelKey::COUNT,
        "has {} lines; it may have the current key and one other that is accepted",
        lines.len()
    );
    let mut secrets = Secrets::default();
    for (number, (key, line)) in secrets.digests.iter_mut().zip(lines).enumerate() {
        ensure!(
            line.len() >= SHORTEST,
            "line {}: a key of fewer than {SHORTEST} characters can be guessed. Make one with: \
             openssl rand -hex 32",
            number + 1
        );
        *key = digest(line);
        secrets.lines.push(line.to_owned());
    }
    Ok(secrets)
}

/// The part of a key's digest that packets carry. Never 0, which means no key.
fn digest(line: &str) -> u64 {
    let digest = Sha256::digest(line);
    let (first, _) = digest.split_first_chunk().expect("SHA-256 has 32 octets");
    u64::from_be_bytes(*first).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "b1946ac92492d2347c6235b4d2611184";
    const NEW: &str = "591785b794601e212b260e25925636fd";

    #[test]
    fn a_key_is_replaced_in_three_steps() {
        let parse = |text: &str| parse(text).expect("keys").digests;
        let [old, none] = parse(&format!("{OLD}\n"));
        assert_ne!(old, 0);
        assert_eq!(none, 0);
        let [current, next] = parse(&format!("{OLD}\n{NEW}\n"));
        assert_eq!(current, old);
        assert_ne!(next, old);
        assert_eq!(parse(&format!("  {NEW}\r\n\n{OLD}")), [next, old]);
        assert_eq!(parse(NEW), [next, 0]);
    }

    #[test]
    fn files_without_a_usable_key_are_refused() {
        let refusal = |text: &str| parse(text).expect_err("no keys").to_string();
        assert!(refusal("").contains("has no key"));
        assert!(refusal("\n \n").contains("has no key"));
        assert!(refusal("secret").contains("line 1: a key of fewer than 32 characters"));
        assert!(refusal(&format!("{OLD}\nsecret")).contains("line 2"));
        assert!(refusal(&[OLD; 3].join("\n")).contains("has 3 lines"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_file_is_followed_and_keys_stay_while_it_is_unusable() {
        let directory = tempfile::tempdir().expect("temporary files can be made");
        let file = directory.path().join("key");
        fs::write(&file, OLD).expect("the file can be written");
        let (sender, mut written) = tokio::sync::mpsc::unbounded_channel();
        TunnelKeyFile::open(KeyFile::of(Some(file.clone())))
            .expect("the file has a key")
            .follow(move |keys| sender.send(keys.digests).expect("it is read"));
        let old = written.recv().await.expect("the first keys");
        fs::write(&file, "short").expect("the file can be written");
        tokio::time::sleep(INTERVAL * 2).await;
        fs::remove_file(&file).expect("the file can be removed");
        tokio::time::sleep(INTERVAL * 2).await;
        assert!(written.is_empty());
        fs::write(&file, format!("{NEW}\n{OLD}")).expect("the file can be written");
        let [new, other] = written.recv().await.expect("the next keys");
        assert_eq!([old[0], 0], old);
        assert_eq!(other, old[0]);
        assert_ne!(new, other);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_no_setting_names_may_appear_later_and_stays_in_use() {
        let directory = tempfile::tempdir().expect("temporary files can be made");
        let path = directory.path().join("key");
        let file = KeyFile { path: path.clone(), is_required: false };
        assert!(!file.is_in_use());
        let (sender, mut written) = tokio::sync::mpsc::unbounded_channel();
        let opened = TunnelKeyFile::open(file.clone()).expect("it may be missing");
        assert!(!opened.has_key());
        opened.follow(move |keys| sender.send(keys.digests).expect("it is read"));
        assert_eq!(written.recv().await, Some(Keys::default()), "keys of an earlier agent go");
        fs::write(&path, "short").expect("the file can be written");
        assert!(!TunnelKeyFile::open(file).expect("no setting names it").has_key());
        tokio::time::sleep(INTERVAL * 2).await;
        assert!(written.is_empty());
        fs::write(&path, NEW).expect("the file can be written");
        let [new, none] = written.recv().await.expect("the key");
        assert!(new != 0 && none == 0);
        fs::remove_file(&path).expect("the file can be removed");
        tokio::time::sleep(INTERVAL * 2).await;
        assert!(written.is_empty());
    }

    #[test]
    fn a_missing_file_that_a_setting_names_is_an_error() {
        let file = KeyFile::of(Some("/nonexistent/key".into()));
        assert!(file.is_in_use());
        let error = TunnelKeyFile::open(file).err().expect("no file");
        assert!(format!("{error:#}").starts_with("tunnel key file /nonexistent/key: "));
    }
}

//! The keys of tunnels between nodes, read from a file that is the same on all nodes.
//!
//! The file has one or two lines. The first key is sent; packets with either are accepted. So a key
//! is replaced without losing packets: append the new key on all nodes, swap the two on all nodes,
//! remove the old one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lb_common::layout::TunnelKey;
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

/// Writes the keys before it returns, and follows the file until the process ends. Without a file,
/// clears the keys of an earlier agent.
pub fn follow(file: Option<PathBuf>, write: impl Fn(&Secrets) + Send + 'static) -> Result<()> {
    let Some(file) = file else {
        write(&Secrets::default());
        return Ok(());
    };
    let keys = read(&file)?;
    write(&keys);
    tokio::spawn(keep_reading(file, keys, write));
    Ok(())
}

async fn keep_reading(file: PathBuf, mut current: Secrets, write: impl Fn(&Secrets)) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reported = String::new();
    loop {
        ticks.tick().await;
        match read(&file) {
            Ok(keys) if keys != current => {
                write(&keys);
                current = keys;
                reported.clear();
                tracing::info!(path = %file.display(), "tunnel keys changed");
            }
            Ok(_) => reported.clear(),
            Err(error) => {
                let error = format!("{error:#}");
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
        .with_context(|| format!("--tunnel-key-file {}", file.display()))
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
        follow(Some(file.clone()), move |keys| sender.send(keys.digests).expect("it is read"))
            .expect("the file has a key");
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

    #[test]
    fn without_a_file_no_key_is_used() {
        let written = std::sync::Arc::new(std::sync::Mutex::new(None));
        let copy = std::sync::Arc::clone(&written);
        follow(None, move |keys| *copy.lock().expect("no panic") = Some(keys.digests))
            .expect("no file");
        assert_eq!(*written.lock().expect("no panic"), Some(Keys::default()));
    }

    #[test]
    fn a_missing_file_is_named_in_the_error() {
        let error = read(Path::new("/nonexistent/key")).expect_err("no file");
        assert!(format!("{error:#}").starts_with("--tunnel-key-file /nonexistent/key: "));
    }
}

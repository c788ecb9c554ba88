//! The commit that an image is built from, and its version.

use std::env;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;

use super::layout::Labels;
use crate::process::{read_output, repository_root};

/// Of the workspace: its only place is the Cargo.toml at the root.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Digits of a commit in a version, a length that git never changes.
const SHORT_COMMIT_LENGTH: usize = 12;

/// The source of the image, for its labels.
pub struct ImageSource {
    /// The only time in the image.
    pub time: Timestamp,
    /// `None` outside of a git repository.
    pub revision: Option<String>,
    /// Of the commit.
    pub tags: Vec<String>,
}

impl ImageSource {
    pub fn find() -> Result<Self> {
        let git = |arguments: &[&str]| {
            read_output(Command::new("git").current_dir(repository_root()).args(arguments)).ok()
        };
        let commit = git(&["log", "--max-count=1", "--format=%H %ct"]);
        let commit = commit.as_deref().and_then(|line| line.split_once(' '));
        let seconds = match env::var("SOURCE_DATE_EPOCH") {
            Ok(seconds) => seconds,
            Err(_) => commit.map_or_else(|| "0".to_owned(), |(_, time)| time.to_owned()),
        };
        let parsed = seconds.parse().ok().and_then(|s| Timestamp::from_second(s).ok());
        let time = parsed.with_context(|| {
            format!("SOURCE_DATE_EPOCH={seconds} is not a number of seconds since 1970")
        })?;
        let changed = git(&["status", "--porcelain"]).is_some_and(|status| !status.is_empty());
        let revision = commit.map(|(hash, _)| {
            let suffix = if changed { "-modified" } else { "" };
            format!("{hash}{suffix}")
        });
        let tags = git(&["tag", "--points-at", "HEAD"]).unwrap_or_default();
        Ok(Self { time, revision, tags: tags.lines().map(str::to_owned).collect() })
    }

    /// As an image's tag and as `millrace --version`. Without the tag of a release, it has the commit: different for each,
    /// so that an upgrade pulls another image and restarts the pods.
    pub fn version(&self) -> String {
        let version = VERSION;
        let Some(revision) = &self.revision else { return version.to_owned() };
        if self.is_release() {
            return version.to_owned();
        }
        let (commit, modified) = revision.split_once('-').unwrap_or((revision, ""));
        let commit = commit.get(..SHORT_COMMIT_LENGTH).unwrap_or(commit);
        let separator = if modified.is_empty() { "" } else { "-" };
        format!("{version}-g{commit}{separator}{modified}")
    }

    /// Whether the commit has everything.
    pub fn is_committed(&self) -> bool {
        self.revision.as_ref().is_some_and(|revision| !revision.contains('-'))
    }

    /// Whether it is the commit of a release, with nothing changed.
    pub fn is_release(&self) -> bool {
        self.is_committed() && self.versions_of_tags().any(|version| version == VERSION)
    }

    /// Fails if the commit has the tag of another version only.
    pub fn check_tag(&self) -> Result<()> {
        let other = self.versions_of_tags().next().filter(|_| !self.is_release());
        ensure!(
            other.is_none(),
            "the commit has the tag v{}, and Cargo.toml the version {VERSION}: change one of them",
            other.unwrap_or_default()
        );
        Ok(())
    }

    /// The versions whose tags (`v1.2.3`) the commit has.
    fn versions_of_tags(&self) -> impl Iterator<Item = &str> {
        let versions = self.tags.iter().filter_map(|tag| tag.strip_prefix('v'));
        versions.filter(|version| version.starts_with(|first: char| first.is_ascii_digit()))
    }

    #[cfg(test)]
    pub fn of_commit(revision: &str, seconds: i64) -> Self {
        let time = Timestamp::from_second(seconds).unwrap();
        Self { time, revision: Some(revision.to_owned()), tags: Vec::new() }
    }

    pub fn labels(&self) -> Labels {
        let mut labels = Labels::from([
            ("title", "Millrace".to_owned()),
            (
                "description",
                "A Kubernetes Service load balancer whose data plane is eBPF".to_owned(),
            ),
            ("version", self.version()),
            ("licenses", "Apache-2.0".to_owned()),
            ("created", self.time.to_string()),
        ]);
        labels.extend(self.revision.clone().map(|revision| ("revision", revision)));
        labels
    }
}

//! Names that identify the process that created an object.

use std::fmt;
use std::fs;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// `mr-<pid>-<start>-<number>`: the prefix of all names of a topology.
///
/// Process ids are reused; with the start time they are unique until the next boot, which removes
/// everything anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    pid: u32,
    /// In clock ticks since boot.
    start: u64,
    number: u32,
}

impl Id {
    pub(super) fn next() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let id = Self::of_process(process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        id.context("/proc/self/stat has no start time; is /proc mounted?")
    }

    /// The id of a running process's topology.
    pub fn of_process(pid: u32, number: u32) -> Option<Self> {
        Some(Self { pid, start: start_of(pid)?, number })
    }

    /// The id at the beginning of a name, if there is one.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("mr-")?.splitn(4, '-');
        let pid = parts.next()?.parse().ok()?;
        let start = parts.next()?.parse().ok()?;
        let number = parts.next()?.parse().ok()?;
        Some(Self { pid, start, number })
    }

    /// Whether the process that created it has ended.
    pub(super) fn is_orphaned(self) -> bool {
        start_of(self.pid) != Some(self.start)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mr-{}-{}-{}", self.pid, self.start, self.number)
    }
}

/// The start time of a running process. See proc_pid_stat(5).
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything; the third field follows it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    // A zombie.
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(22 - 4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_contains_the_id() {
        let id = Id { pid: 12, start: 345, number: 6 };
        assert_eq!(id.to_string(), "mr-12-345-6");
        for (name, expected) in [
            ("mr-12-345-6", Some(id)),
            ("mr-12-345-6-nodeport-client-1", Some(id)),
            ("mr-12-345", None),
            ("mr-12-345-x", None),
            ("mr12-345-6", None),
            ("mrs-12-345-6", None),
            ("cni-12-345-6", None),
        ] {
            assert_eq!(Id::parse(name), expected, "{name}");
        }
    }

    #[test]
    fn a_process_is_its_number_and_its_start() {
        let own = Id::of_process(process::id(), 0).expect("this process lives");
        assert!(!own.is_orphaned());
        assert!(Id { start: own.start + 1, ..own }.is_orphaned(), "the number was given again");
        assert!(Id { pid: u32::MAX, ..own }.is_orphaned(), "there is no such process");
    }
}

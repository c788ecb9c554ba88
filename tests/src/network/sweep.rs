//! Taking networks away: this run's at its end, a killed run's at the next start.

use std::fs;
use std::path::{Path, PathBuf};

use super::command::run;

/// Where the tests' data planes are pinned.
pub fn pin_root() -> PathBuf {
    PathBuf::from("/sys/fs/bpf/millrace-test")
}

/// Removes what runs that are no more have left behind.
pub fn leftovers() {
    for name in names("/run/netns") {
        if owner(&name).is_some_and(|pid| !is_alive(pid)) {
            remove_host(&name);
        }
    }
    for name in names(pin_root()) {
        if owner(&name).is_some_and(|pid| !is_alive(pid)) {
            remove_pins(&pin_root().join(name));
        }
    }
}

/// Ends a host's programs and removes its namespace, with all devices in it.
pub fn remove_host(namespace: &str) {
    if let Ok(processes) = run("ip", &["netns", "pids", namespace]) {
        for process in processes.split_whitespace() {
            let _ = run("kill", &["-KILL", process]);
        }
    }
    let _ = run("ip", &["netns", "delete", namespace]);
}

pub fn remove_pins(directory: &Path) {
    // In a BPF filesystem `remove_dir_all` finds nothing it could not remove.
    let _ = fs::remove_dir_all(directory);
}

/// The process in a name such as `mr1234-0-client`.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("mr")?.split('-').next()?.parse().ok()
}

/// Whether a process lives that could have made it: a number may have been given again.
fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| {
        let this = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        name == this || TEST_PROGRAMS.iter().any(|known| name.starts_with(known))
    })
}

/// Beginnings of the names of programs that make networks.
const TEST_PROGRAMS: [&str; 6] = ["demo", "bench", "namespaces", "bad_input", "network", "restart"];

fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_names_owner_is_read() {
        assert_eq!(owner("mr1234-0-client"), Some(1234));
        assert_eq!(owner("mr77-3"), Some(77));
        assert_eq!(owner("default"), None);
        assert_eq!(owner("mrs-robinson"), None);
    }

    #[test]
    fn this_process_is_alive_and_an_impossible_one_is_not() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(u32::MAX));
    }
}

//! The addresses of the API servers in a file, for the next start.
//!
//! The file is either valid as a whole or ignored.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use lb_process::state_file::StateFile;

use super::MAX_LEARNED;

const NAME: &str = "api-servers";
/// An address with its port takes 48 bytes at most.
const MAX_SIZE: u64 = 4096;

#[derive(Clone, Debug)]
pub struct Memory(StateFile);

impl Memory {
    pub(crate) fn in_directory(directory: &Path) -> Self {
        Self(StateFile::new(directory, NAME, MAX_SIZE))
    }

    /// What was written last; nothing, if that can't be read.
    pub fn read(&self) -> BTreeSet<SocketAddr> {
        let read = self.0.read().and_then(|text| parse(&text.unwrap_or_default()));
        match read {
            Ok(addresses) => addresses,
            Err(error) => {
                let path = self.0.path();
                let (path, error) = (path.display(), format!("{error:#}"));
                tracing::warn!(%path, error, "remembered API servers ignored; the file is replaced");
                BTreeSet::new()
            }
        }
    }

    /// Without a file the agent works as well, unless it starts while its server is down.
    pub fn write(&self, addresses: &BTreeSet<SocketAddr>) {
        let mut text = String::new();
        for address in addresses {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{address}");
        }
        if let Err(error) = self.0.replace(&text) {
            let (path, error) = (self.0.path(), format!("{error:#}"));
            tracing::warn!(
                path = %path.display(),
                error,
                fix = "make --state-directory writable for the agent",
                "addresses of API servers not remembered"
            );
        }
    }
}

/// One address and port on each line.
fn parse(text: &str) -> Result<BTreeSet<SocketAddr>> {
    let mut addresses = BTreeSet::new();
    for (index, line) in text.lines().enumerate() {
        let address: SocketAddr = line.parse().with_context(|| format!("line {}", index + 1))?;
        if !is_usable(&address) {
            bail!("line {}: {address} is not the address of a server", index + 1);
        }
        addresses.insert(address);
    }
    ensure!(addresses.len() <= MAX_LEARNED, "more than {MAX_LEARNED} addresses");
    Ok(addresses)
}

fn is_usable(address: &SocketAddr) -> bool {
    let ip = address.ip();
    address.port() != 0 && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn directory_of(memory: &Memory) -> std::path::PathBuf {
        memory.0.path().parent().unwrap().to_owned()
    }

    fn addresses(all: &[&str]) -> BTreeSet<SocketAddr> {
        all.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::in_directory(&directory.path().join("a/state"));
        assert!(memory.read().is_empty());
        for all in [addresses(&["192.0.2.1:6443", "[2001:db8::1]:6443"]), addresses(&[])] {
            // A killed agent left it.
            fs::create_dir_all(directory_of(&memory)).unwrap();
            fs::write(directory_of(&memory).join(".api-servers.new"), "192").unwrap();
            memory.write(&all);
            assert_eq!(memory.read(), all);
            let mode = fs::metadata(memory.0.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert_eq!(fs::read_dir(directory_of(&memory)).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_no_failure() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "no directory").unwrap();
        let memory = Memory::in_directory(&file.join("state"));
        memory.write(&addresses(&["192.0.2.1:6443"]));
        assert!(memory.read().is_empty());
    }

    #[test]
    fn the_largest_list_fits() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::in_directory(directory.path());
        let longest = |number: usize| {
            format!("[2001:db8:1111:2222:3333:4444:5555:{:x}]:65535", 0xf000 + number)
        };
        let all: BTreeSet<SocketAddr> =
            (0..MAX_LEARNED).map(|number| longest(number).parse().unwrap()).collect();
        memory.write(&all);
        assert_eq!(memory.read(), all);
    }

    #[test]
    fn a_damaged_file_is_ignored_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::in_directory(directory.path());
        let too_many: String = (0..17).map(|number| format!("192.0.2.{number}:6443\n")).collect();
        for text in [
            "192.0.2.1:6443\n192.0.2.2:",
            "192.0.2.1:6443\n\n192.0.2.2:6443",
            "192.0.2.1:0",
            "127.0.0.1:6443",
            "[::]:6443",
            "224.0.0.1:6443",
            "api.example:6443",
            &too_many,
            &"a".repeat(1 << 20),
        ] {
            fs::write(memory.0.path(), text).unwrap();
            assert!(memory.read().is_empty(), "{text:.60}");
        }
        fs::write(memory.0.path(), [0xff, 0xfe]).unwrap();
        assert!(memory.read().is_empty());
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::in_directory(directory.path());
        let elsewhere = directory.path().join("elsewhere");
        fs::write(&elsewhere, "192.0.2.1:6443\n").unwrap();
        symlink(&elsewhere, memory.0.path()).unwrap();
        assert!(memory.read().is_empty());
        // The link is replaced, not followed.
        memory.write(&addresses(&["192.0.2.2:6443"]));
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "192.0.2.1:6443\n");
        assert_eq!(memory.read(), addresses(&["192.0.2.2:6443"]));
        fs::remove_file(memory.0.path()).unwrap();
        fs::create_dir(memory.0.path()).unwrap();
        assert!(memory.read().is_empty());
    }
}

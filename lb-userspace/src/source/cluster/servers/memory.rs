//! The addresses of the API servers in a file, for the next start.
//!
//! The file is input like any other: it is bounded, a regular file, and either valid as a whole or
//! ignored. It is replaced atomically, so a crash leaves the old or the new one.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

use super::MAX_LEARNED;

const NAME: &str = "api-servers";
/// An address with its port takes 48 bytes at most.
const MAX_SIZE: u64 = 4096;

#[derive(Clone, Debug)]
pub struct Memory {
    directory: PathBuf,
}

impl Memory {
    pub fn in_directory(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(NAME)
    }

    /// What was written last; nothing, if that can't be read.
    pub fn read(&self) -> BTreeSet<SocketAddr> {
        let path = self.path();
        match read(&path) {
            Ok(addresses) => addresses,
            Err(error) => {
                let (path, error) = (path.display(), format!("{error:#}"));
                tracing::warn!(%path, error, "remembered API servers ignored; the file is replaced");
                BTreeSet::new()
            }
        }
    }

    /// Without a file the agent works as well, unless it starts while its server is down.
    pub fn write(&self, addresses: &BTreeSet<SocketAddr>) {
        if let Err(error) = self.replace(addresses) {
            let (directory, error) = (self.directory.display(), format!("{error:#}"));
            tracing::warn!(
                state_directory = %directory,
                error,
                fix = "make --state-directory writable for the agent",
                "addresses of API servers not remembered"
            );
        }
    }

    fn replace(&self, addresses: &BTreeSet<SocketAddr>) -> Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let mut text = String::new();
        for address in addresses {
            writeln!(text, "{address}")?;
        }
        let temporary = self.directory.join(format!(".{NAME}.new"));
        // Left by an agent that was killed.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, self.path())?;
        Ok(())
    }
}

fn read(path: &Path) -> Result<BTreeSet<SocketAddr>> {
    // Neither follow a link nor wait for a pipe's writer.
    let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path);
    let file: File = match file {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        file => file?,
    };
    ensure!(file.metadata()?.is_file(), "not a regular file");
    let mut text = String::new();
    file.take(MAX_SIZE + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= MAX_SIZE, "larger than {MAX_SIZE} bytes");
    parse(&text)
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
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

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
            fs::create_dir_all(&memory.directory).unwrap();
            fs::write(memory.directory.join(".api-servers.new"), "192").unwrap();
            memory.write(&all);
            assert_eq!(memory.read(), all);
            let mode = fs::metadata(memory.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert_eq!(fs::read_dir(&memory.directory).unwrap().count(), 1);
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
            fs::write(memory.path(), text).unwrap();
            assert!(memory.read().is_empty(), "{text:.60}");
        }
        fs::write(memory.path(), [0xff, 0xfe]).unwrap();
        assert!(memory.read().is_empty());
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::in_directory(directory.path());
        let elsewhere = directory.path().join("elsewhere");
        fs::write(&elsewhere, "192.0.2.1:6443\n").unwrap();
        symlink(&elsewhere, memory.path()).unwrap();
        assert!(memory.read().is_empty());
        // The link is replaced, not followed.
        memory.write(&addresses(&["192.0.2.2:6443"]));
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "192.0.2.1:6443\n");
        assert_eq!(memory.read(), addresses(&["192.0.2.2:6443"]));
        fs::remove_file(memory.path()).unwrap();
        fs::create_dir(memory.path()).unwrap();
        assert!(memory.read().is_empty());
    }
}

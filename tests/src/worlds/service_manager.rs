//! A node whose services systemd starts: a systemd of its own as process 1, in namespaces of its own, which sees this
//! machine's files, and writes to memory.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::programs::agent::program;
use crate::worlds::topology::{Host, Process, SOON, run_to_end, wait_until};

/// The directory is `$1`, the agent's program `$2`. systemd gets its own API file systems, devices that do nothing, none of
/// this machine's own units, settings, state and journal, and the directory's `files`.
const START: &str = "\
set -e
root=$1/root memory=$1/memory
mkdir $root $memory
mount -t tmpfs tmpfs $memory
mkdir $memory/files $memory/work
mount -t overlay -o lowerdir=/,upperdir=$memory/files,workdir=$memory/work overlay $root
mount -t proc proc $root/proc
mount -t sysfs sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
mount -t bpf bpf $root/sys/fs/bpf
for folder in dev etc/millrace etc/systemd/system run tmp var/lib/millrace var/log/journal; do
    mkdir -p $root/$folder
    mount -t tmpfs -o mode=755 tmpfs $root/$folder
done
for device in null zero full random urandom; do cp -a /dev/$device $root/dev/; done
cp -r $1/files/. $root/
touch $root/usr/local/bin/millrace
mount --bind $2 $root/usr/local/bin/millrace
cd $root
pivot_root . mnt
umount -l mnt
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=basic.target --log-target=journal --show-status=no";

pub struct ServiceManager {
    /// Ends with all of its services when dropped.
    _unshare: Process,
    /// As this machine sees it.
    systemd: Pid,
}

impl ServiceManager {
    /// Boots it with these files, given by their path without the first slash.
    pub fn boot(node: &Host, directory: &Path, files: &[(&str, &str)]) -> Result<Self> {
        let directory = directory.join("service-manager");
        for (path, text) in files {
            let path = directory.join("files").join(path);
            fs::create_dir_all(path.parent().context("a file is in a directory")?)?;
            fs::write(path, text)?;
        }
        let mut command = node.command("unshare");
        command
            .args(["--mount", "--propagation", "private", "--uts", "--ipc", "--cgroup"])
            .args(["--pid", "--fork", "--kill-child", "sh", "-c", START, "service-manager"])
            .arg(&directory)
            .arg(program()?);
        let mut unshare = node.spawn(&mut command)?;
        unshare.wait_until_so("has started systemd", SOON, |unshare| {
            only_child(unshare.pid()).is_some_and(is_systemd)
        })?;
        let systemd = only_child(unshare.pid()).context("it has started systemd")?;
        let systemd = Pid::from_raw(systemd.try_into()?);
        let manager = Self { _unshare: unshare, systemd };
        wait_until("systemd has booted", SOON, || {
            manager.run(&["systemctl", "is-active", "basic.target"]).is_ok()
        })?;
        Ok(manager)
    }

    /// Runs a program beside the services.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"];
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.systemd.to_string()).args(namespaces).arg("--");
        run_to_end(command.args(words))
    }

    /// Writes a file of the node.
    pub fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = Path::new("/proc").join(self.systemd.to_string()).join("root").join(path);
        fs::create_dir_all(path.parent().context("a file is in a directory")?)?;
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// Has systemd do something with the agent's service. The error has the end of its log.
    pub fn systemctl(&self, words: &[&str]) -> Result<()> {
        let done = self.run(&[&["systemctl"], words, &["millrace"]].concat());
        done.map(drop).with_context(|| {
            let journal = self.journal().unwrap_or_default();
            let lines: Vec<&str> = journal.lines().rev().take(20).collect();
            lines.into_iter().rev().flat_map(|line| [line, "\n"]).collect::<String>()
        })
    }

    /// What systemd knows about the agent's service.
    pub fn property(&self, name: &str) -> Result<String> {
        let value = self.run(&["systemctl", "show", "millrace", "--value", "--property", name])?;
        Ok(value.trim().to_owned())
    }

    pub fn signal_service(&self, signal: Signal) -> Result<()> {
        self.systemctl(&["kill", "--signal", signal.as_str()])
    }

    /// The log of the agent's service.
    pub fn journal(&self) -> Result<String> {
        self.run(&["journalctl", "--unit", "millrace", "--output", "cat", "--no-pager"])
    }

    /// Waits until the log contains a text.
    pub fn wait_for_journal(&self, text: &str) -> Result<()> {
        wait_until(&format!("the journal has {text:?}"), SOON, || {
            self.journal().is_ok_and(|journal| journal.contains(text))
        })
        .with_context(|| self.journal().unwrap_or_default())
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        let _ = kill(self.systemd, Signal::SIGKILL);
    }
}

fn only_child(process: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    children.trim().parse().ok()
}

/// Not the shell that becomes systemd.
fn is_systemd(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.trim() == "systemd")
}

//! The file system of a node, in memory: programs and libraries of the machine read-only, everything else of its own.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chdir, pivot_root};

use super::{NodeSpecification, cgroups};

const NONE: Option<&str> = None;

/// Folders of programs and libraries, which may be symbolic links into /usr.
const SHARED: [&str; 6] = ["usr", "bin", "sbin", "lib", "lib32", "lib64"];
/// Files and folders below /etc that programs need.
const OF_ETC: [&str; 9] = [
    "alternatives",
    "group",
    "iproute2",
    "ld.so.cache",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "protocols",
    "services",
];
const DEVICES: [&str; 7] = ["full", "kmsg", "null", "random", "tty", "urandom", "zero"];

/// Settings of the whole machine that kubelet writes unless they have these values. A node has files instead.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("kernel/keys/root_maxbytes", "25000000"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
];

/// Makes the root at the folder `root` of the machine, and changes to it. Nothing else of the machine can be reached.
pub(crate) fn change_root(node: &NodeSpecification, root: &Path) -> Result<()> {
    // What is mounted from here on stays in this mount namespace.
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    fs::create_dir_all(root)?;
    mount(Some("node"), root, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
        .with_context(|| root.display().to_string())?;
    for folder in [
        "cluster/files",
        "cluster/images",
        "cluster/programs",
        "dev/mqueue",
        "dev/pts",
        "dev/shm",
        "etc/cni/net.d",
        "etc/kubernetes/manifests",
        "home",
        "opt/cni/bin",
        "old-root",
        "proc",
        "root",
        "run/lock",
        "sys",
        "tmp",
        "var/lib",
        "var/log",
        "var/tmp",
    ] {
        fs::create_dir_all(root.join(folder))?;
    }
    for folder in ["tmp", "var/tmp"] {
        fs::set_permissions(root.join(folder), Permissions::from_mode(0o1777))?;
    }
    symlink("/run", root.join("var/run"))?;
    for name in SHARED {
        share(Path::new("/"), name, root)?;
    }
    for name in OF_ETC {
        share(Path::new("/etc"), name, &root.join("etc"))?;
    }
    bind(&node.programs, &root.join("cluster/programs"), true)?;
    bind(&node.programs, &root.join("opt/cni/bin"), true)?;
    bind(&node.images, &root.join("cluster/images"), true)?;
    bind(&node.files, &root.join("cluster/files"), false)?;
    mount_kernel_file_systems(root)?;
    mount_devices(root)?;

    pivot_root(root, &root.join("old-root")).context("pivot_root")?;
    chdir("/")?;
    umount2("/old-root", MntFlags::MNT_DETACH)?;
    fs::remove_dir("/old-root")?;
    // As systemd does: kubelet and pods with mount propagation need it.
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SHARED, NONE)?;
    Ok(())
}

fn mount_kernel_file_systems(root: &Path) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let mount_new = |kind: &str, path: &str| {
        mount(Some(kind), &root.join(path), Some(kind), flags, NONE)
            .with_context(|| path.to_owned())
    };
    mount_new("proc", "proc")?;
    for (name, value) in KERNEL_SETTINGS {
        let file = root.join("run").join(name.replace('/', "."));
        fs::write(&file, format!("{value}\n"))?;
        let setting = root.join("proc/sys").join(name);
        if setting.exists() {
            bind(&file, &setting, false)?;
        }
    }
    mount_new("sysfs", "sys")?;
    mount_new("bpf", "sys/fs/bpf")?;
    cgroups::mount_hierarchies(root)
}

fn mount_devices(root: &Path) -> Result<()> {
    let devices = root.join("dev");
    for name in DEVICES {
        let device = Path::new("/dev").join(name);
        if device.exists() {
            File::create(devices.join(name))?;
            bind(&device, &devices.join(name), false)?;
        }
    }
    mount(
        Some("devpts"),
        &devices.join("pts"),
        Some("devpts"),
        MsFlags::empty(),
        Some("newinstance,ptmxmode=0666"),
    )?;
    mount(Some("tmpfs"), &devices.join("shm"), Some("tmpfs"), MsFlags::empty(), NONE)?;
    mount(Some("mqueue"), &devices.join("mqueue"), Some("mqueue"), MsFlags::empty(), NONE)?;
    for (name, to) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(to, devices.join(name))?;
    }
    Ok(())
}

/// Shares a file or folder of the machine, read-only, or repeats a symbolic link. One that does not exist is left out.
fn share(from: &Path, name: &str, to: &Path) -> Result<()> {
    let (source, target) = (from.join(name), to.join(name));
    let Ok(metadata) = fs::symlink_metadata(&source) else { return Ok(()) };
    if metadata.is_symlink() && !from.ends_with("etc") {
        return Ok(symlink(fs::read_link(&source)?, target)?);
    }
    if source.is_dir() {
        fs::create_dir_all(&target)?;
        bind(&source, &target, true)
    } else {
        // A copy: programs such as containers' init may replace files of /etc.
        fs::copy(&source, &target).map(drop).with_context(|| source.display().to_string())
    }
}

fn bind(source: &Path, target: &Path, read_only: bool) -> Result<()> {
    let at = || format!("{} at {}", source.display(), target.display());
    mount(Some(source), target, NONE, MsFlags::MS_BIND, NONE).with_context(at)?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(NONE, target, NONE, flags, NONE).with_context(at)?;
    }
    Ok(())
}

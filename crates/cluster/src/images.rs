//! Container images, made from programs of this machine and of the cluster without a container engine.
//!
//! Upstream's images come from registries. These replace them under the same names: agnhost with a shell and the tools
//! that the tests call in it, CoreDNS, and a pause container. nginx is replaced by agnhost's web server: no test wants more.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sha2::{Digest, Sha256};
use tests::worlds::topology::copy_program;

pub const PAUSE: &str = "registry.k8s.io/pause:3.10.1";
pub(crate) const COREDNS: &str = "registry.k8s.io/coredns/coredns:v1.14.7";
/// The name that does not depend on the version of Kubernetes.
pub(crate) const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:millrace";

/// The image of kube-proxy, of the version of Kubernetes.
pub(crate) fn kube_proxy_image(kubernetes: &str) -> String {
    format!("registry.k8s.io/kube-proxy:v{kubernetes}")
}

/// What upstream's images contain beside their program: busybox' commands, and these of this machine. The shell is bash:
/// that of busybox prefers its own `nc` and `ip`. Debian's busybox crashes in `wget -T`.
const TOOLS: [&str; 8] = ["curl", "dig", "getent", "ip", "nc", "nft", "wget", "bash"];
const BUSYBOX_LINKS: [&str; 32] = [
    "ls",
    "cat",
    "echo",
    "sleep",
    "nslookup",
    "hostname",
    "ps",
    "kill",
    "grep",
    "sed",
    "awk",
    "head",
    "tail",
    "date",
    "seq",
    "test",
    "true",
    "false",
    "mkdir",
    "rm",
    "touch",
    "cp",
    "mv",
    "id",
    "env",
    "timeout",
    "ping",
    "traceroute",
    "netstat",
    "ifconfig",
    "stat",
    "chmod",
];

/// An image with one layer.
struct Image<'a> {
    file: &'a str,
    names: Vec<String>,
    /// Programs of the cluster, which become `/NAME`.
    programs: &'a [&'a str],
    with_tools: bool,
    entrypoint: &'a [&'a str],
    command: &'a [&'a str],
}

/// Makes the images that are missing in a folder; returns their archives. `more_names` are the names under which the
/// conformance tests expect images.
pub(crate) fn make_images(
    folder: &Path,
    programs: &Path,
    kubernetes: &str,
    more_names: &[String],
) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)?;
    let named =
        |part: &'static str| more_names.iter().filter(move |name| name.contains(part)).cloned();
    let images = [
        Image {
            file: "pause.tar",
            names: [PAUSE.to_owned()].into_iter().chain(named("/pause:")).collect(),
            programs: &["agnhost"],
            with_tools: false,
            entrypoint: &["/agnhost"],
            command: &["pause"],
        },
        Image {
            file: "coredns.tar",
            names: vec![COREDNS.to_owned()],
            programs: &["coredns"],
            with_tools: false,
            entrypoint: &["/coredns"],
            command: &[],
        },
        Image {
            file: "kube-proxy.tar",
            names: vec![kube_proxy_image(kubernetes)],
            programs: &["kube-proxy"],
            with_tools: true,
            entrypoint: &["/kube-proxy"],
            command: &[],
        },
        Image {
            file: "agnhost.tar",
            names: [AGNHOST.to_owned()].into_iter().chain(named("/agnhost:")).collect(),
            programs: &["agnhost", "coredns"],
            with_tools: true,
            entrypoint: &["/agnhost"],
            command: &["pause"],
        },
        Image {
            file: "nginx.tar",
            names: named("/nginx:").collect(),
            programs: &["agnhost"],
            with_tools: false,
            entrypoint: &["/agnhost"],
            command: &["test-webserver"],
        },
        Image {
            file: "regression.tar",
            names: named("/regression-issue-74839:").collect(),
            programs: &["regression-issue-74839"],
            with_tools: false,
            entrypoint: &["/regression-issue-74839"],
            command: &[],
        },
        Image {
            file: "busybox.tar",
            names: named("/busybox:").chain(named("/glibc-dns-testing:")).collect(),
            programs: &[],
            with_tools: true,
            entrypoint: &[],
            command: &["sh"],
        },
    ];
    let mut archives = Vec::new();
    for image in images.iter().filter(|image| !image.names.is_empty()) {
        let archive = folder.join(image.file);
        if !is_current(&archive, image, programs) {
            make_image(image, programs, &archive)
                .with_context(|| format!("the image {} can't be made", image.file))?;
        }
        archives.push(archive);
    }
    Ok(archives)
}

/// Whether an archive has the image's names, and is newer than its programs and this one, which decides what is in it.
fn is_current(archive: &Path, image: &Image<'_>, programs: &Path) -> bool {
    let changed = |file: &Path| fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
    let is_newer = |program: &Path| changed(archive) > changed(program);
    std::env::current_exe().is_ok_and(|program| is_newer(&program))
        && image.programs.iter().all(|program| is_newer(&programs.join(program)))
        && names_in_archive(archive).is_ok_and(|found| found == image.names)
}

/// The names of the image in an archive of `docker save`'s format.
pub(crate) fn names_in_archive(archive: &Path) -> Result<Vec<String>> {
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--to-stdout", "--file"]).arg(archive).arg("manifest.json");
    let output = tar.output().context("tar can't be started")?;
    ensure!(
        output.status.success(),
        "{} is not an image archive: {}",
        archive.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let manifest: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let names = manifest[0]["RepoTags"].as_array().context("the archive names no image")?;
    Ok(names.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect())
}

fn make_image(image: &Image<'_>, programs: &Path, archive: &Path) -> Result<()> {
    let directory = tempfile::tempdir_in(archive.parent().context("a file is in a folder")?)?;
    let root = directory.path().join("root");
    for folder in ["etc", "tmp", "usr/bin", "bin"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")?;
    fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
    for program in image.programs {
        copy_program(&programs.join(program), &root.join(program))?;
    }
    if image.with_tools {
        add_tools(&root)?;
        // agnhost's servers with TLS read it.
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        fs::write(root.join("localhost.crt"), made.cert.pem())?;
        fs::write(root.join("localhost.key"), made.signing_key.serialize_pem())?;
    }
    let layer = directory.path().join("layer.tar");
    pack(&root, &layer, &["."])?;
    let digest = Sha256::digest(fs::read(&layer)?);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {
            "Entrypoint": image.entrypoint, "Cmd": image.command,
            "Env": ["PATH=/bin:/usr/bin:/sbin:/usr/sbin:/"],
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    fs::write(directory.path().join("config.json"), config.to_string())?;
    let manifest = json!([
        {"Config": "config.json", "RepoTags": image.names, "Layers": ["layer.tar"]}
    ]);
    fs::write(directory.path().join("manifest.json"), manifest.to_string())?;
    let unfinished = directory.path().join("image.tar");
    pack(directory.path(), &unfinished, &["manifest.json", "config.json", "layer.tar"])?;
    Ok(fs::rename(unfinished, archive)?)
}

fn pack(folder: &Path, archive: &Path, members: &[&str]) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--owner=0", "--group=0", "--numeric-owner", "--file"]).arg(archive);
    run(tar.arg("--directory").arg(folder).args(members))
}

/// Adds busybox, and programs of this machine with their libraries.
fn add_tools(root: &Path) -> Result<()> {
    let busybox = find("busybox")?;
    copy_program(&busybox, &root.join("bin/busybox"))?;
    let mut libraries = BTreeSet::new();
    libraries.extend(libraries_of(&busybox)?);
    for tool in TOOLS {
        let program = find(tool)?;
        libraries.extend(libraries_of(&program)?);
        copy_program(&program, &root.join("usr/bin").join(tool))?;
    }
    for library in libraries {
        let copy = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(copy.parent().context("a library is in a folder")?)?;
        copy_program(Path::new(&library), &copy)?;
    }
    // Without it nft prints protocols as numbers, and kube-proxy, when it starts again, removes all its elements.
    fs::copy("/etc/protocols", root.join("etc/protocols")).context("/etc/protocols")?;
    for name in BUSYBOX_LINKS {
        symlink("busybox", root.join("bin").join(name))?;
    }
    symlink("../usr/bin/bash", root.join("bin/sh"))?;
    Ok(())
}

/// The libraries of a program, with the dynamic linker; none if it is static.
fn libraries_of(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(program).output().context("ldd can't be started")?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = output.split_ascii_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths.map(str::to_owned).collect())
}

/// Finds a program of this machine, behind symbolic links.
fn find(program: &str) -> Result<PathBuf> {
    let folders = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
    let found =
        folders.iter().map(|folder| Path::new(folder).join(program)).find(|file| file.exists());
    found.with_context(|| format!("{program} is not installed"))?.canonicalize().map_err(Into::into)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?} can't be started"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

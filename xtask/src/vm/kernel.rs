//! The kernel to boot, from a Debian package that is unpacked, not installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::packages;
use crate::process::{find_program, is_missing, read_output};

pub struct Kernel {
    pub image: PathBuf,
    /// Directory of the modules: `kernel/net/…`.
    modules: PathBuf,
}

/// Kernels of Debian 12 without drivers for physical machines. Selected by number instead of the
/// archive's newest, because this is the oldest supported kernel.
const NAMES: &str = r"^linux-image-6\.1\.[0-9]+-[0-9]+-cloud-amd64$";

/// Unpacks the kernel of this package, or of one in the directory. If there is none, downloads it.
pub fn ensure_kernel(directory: &Path, package: Option<&Path>) -> Result<Kernel> {
    let package = match package {
        Some(package) => package.to_owned(),
        None => match packages_in(directory)?.pop() {
            Some(package) => package,
            None => download(directory)?,
        },
    };
    let unpacked = directory.join("kernel");
    unpack(&package, &unpacked)?;
    Kernel::find(&unpacked)
}

/// Does nothing if the package was the last one unpacked.
fn unpack(package: &Path, to: &Path) -> Result<()> {
    let metadata = fs::metadata(package).with_context(|| package.display().to_string())?;
    let identity = format!("{} {:?}", package.display(), metadata.modified()?);
    // Written last, so an interrupted run is repeated.
    let stamp = to.join("unpacked");
    if fs::read_to_string(&stamp).is_ok_and(|earlier| earlier == identity) {
        return Ok(());
    }
    remove(to)?;
    read_output(Command::new("dpkg-deb").arg("--extract").args([package, to]))?;
    fs::write(&stamp, identity).with_context(|| stamp.display().to_string())
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if !is_missing(&error) => Err(error).context(directory.display().to_string()),
        _ => Ok(()),
    }
}

/// Debian packages, ordered by name.
fn packages_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    paths.sort();
    Ok(paths)
}

/// Downloads the newest package with apt. Installs nothing.
fn download(directory: &Path) -> Result<PathBuf> {
    if find_program("apt-get").is_some() {
        packages::update_package_lists_unless(|| newest().map(|name| name.is_some()))?;
    }
    let name = newest().ok().flatten().with_context(|| {
        format!(
            "the package archives of this machine have no linux-image-6.1.*-cloud-amd64; Debian \
             12's have.\nPut such a package into {}, or give one by --kernel FILE",
            directory.display()
        )
    })?;
    let begun = directory.join("download");
    remove(&begun)?;
    let complete = packages::download_package(&name, &begun)?;
    let kept = directory.join(complete.file_name().unwrap_or_default());
    fs::rename(&complete, &kept).with_context(|| kept.display().to_string())?;
    Ok(kept)
}

/// The newest by version number.
fn newest() -> Result<Option<String>> {
    let listed = read_output(Command::new("apt-cache").args(["search", "--names-only", NAMES]))?;
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.max_by_key(|name| numbers(name)).map(str::to_owned))
}

/// The numbers in a name. Builds are compared as numbers: 6.1.0-9 comes before 6.1.0-56.
fn numbers(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

impl Kernel {
    fn find(unpacked: &Path) -> Result<Self> {
        let only = |directory: PathBuf, prefix: &str| -> Result<PathBuf> {
            let entries =
                fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
            let mut paths = entries.flatten().map(|entry| entry.path());
            let fits = |path: &PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
            };
            paths
                .find(fits)
                .with_context(|| format!("there is no {prefix}… in {}", directory.display()))
        };
        let image = only(unpacked.join("boot"), "vmlinuz-")?;
        // With a merged /usr, packages have their modules there.
        let modules = only(unpacked.join("lib/modules"), "")
            .or_else(|_| only(unpacked.join("usr/lib/modules"), ""))?;
        Ok(Self { image, modules })
    }

    /// The files of these modules and their dependencies, in the order in which they can be loaded.
    /// Without built-in modules.
    pub fn modules(&self, wanted: &[&str]) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        find_modules(&self.modules, &mut files)?;
        let built_in = fs::read_to_string(self.modules.join("modules.builtin"))?;
        let mut order = Order { files, built_in, seen: BTreeSet::new(), loaded: Vec::new() };
        for name in wanted {
            order.add(name)?;
        }
        Ok(order.loaded)
    }
}

struct Order {
    files: Vec<PathBuf>,
    built_in: String,
    seen: BTreeSet<String>,
    loaded: Vec<PathBuf>,
}

impl Order {
    fn add(&mut self, name: &str) -> Result<()> {
        if !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(path) = self.files.iter().find(|path| is_module(path, name)).cloned() else {
            if self.built_in.lines().any(|line| is_module(Path::new(line), name)) {
                return Ok(());
            }
            bail!("the kernel has no module {name}");
        };
        let content = fs::read(&path).with_context(|| path.display().to_string())?;
        for needed in depends(&content) {
            self.add(&needed)?;
        }
        self.loaded.push(path);
        Ok(())
    }
}

/// In file names and in lists of dependencies a minus may stand for an underscore.
fn is_module(path: &Path, name: &str) -> bool {
    let stem = path.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
    stem.strip_suffix(".ko") == Some(&name.replace('-', "_"))
}

fn find_modules(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find_modules(&entry.path(), found)?;
        } else {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// The dependencies in a module's section `.modinfo`, which consists of zero-terminated strings.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_found_by_number() {
        assert!(numbers("linux-image-6.1.0-9-cloud-amd64") < numbers("linux-image-6.1.0-56-cloud"));
    }

    #[test]
    fn an_existing_package_is_used_and_no_other_file() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = |name: &str| directory.path().join(name);
        for name in ["linux-image-b.deb", "linux-image-a.deb", "console.log"] {
            fs::write(path(name), "")?;
        }
        let expected = [path("linux-image-a.deb"), path("linux-image-b.deb")];
        assert_eq!(packages_in(directory.path())?, expected);
        Ok(())
    }

    #[test]
    fn the_dependencies_of_a_module_are_read() {
        assert_eq!(depends(b"x\0license=GPL\0depends=stp,llc\0name=bridge\0"), ["stp", "llc"]);
        assert!(depends(b"x\0license=GPL\0depends=\0name=llc\0").is_empty());
        assert!(depends(b"").is_empty());
    }

    #[test]
    fn modules_are_loaded_after_their_dependencies() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let modules = directory.path().to_owned();
        fs::create_dir(modules.join("net"))?;
        fs::write(modules.join("net/bridge.ko"), b"\0depends=stp,llc\0")?;
        fs::write(modules.join("net/stp.ko"), b"\0depends=llc\0")?;
        fs::write(modules.join("net/llc.ko"), b"\0depends=\0")?;
        fs::write(modules.join("net/wireguard.ko"), b"\0depends=lib-curve\0")?;
        fs::write(modules.join("net/lib-curve.ko"), b"\0depends=\0")?;
        fs::write(modules.join("modules.builtin"), "kernel/net/sch-fifo.ko\n")?;
        let kernel = Kernel { image: modules.join("vmlinuz"), modules };
        let found = kernel.modules(&["bridge", "llc", "sch_fifo", "wireguard"])?;
        let names: Vec<_> = found.iter().filter_map(|path| path.file_stem()).collect();
        assert_eq!(names, ["llc", "stp", "bridge", "lib-curve", "wireguard"]);
        let error = kernel.modules(&["veth"]).unwrap_err().to_string();
        assert!(error.contains("veth"), "{error}");
        Ok(())
    }
}

//! `cargo xtask image`: builds a container image of the agent without a container engine.
//!
//! It contains one static program and the files that it needs in `/etc`: no shell, no libraries, no
//! package manager. The same commit gives the same bytes, wherever and whenever it is built.

mod archive;
mod layout;
mod manifests;
mod materials;
mod notices;
mod program;
mod root;
mod source;

use std::env::consts::ARCH;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::packages;
use crate::process::{
    cargo, ensure_replaceable, is_root, repository_root as repository, run_command,
    target_directory,
};
use crate::test;
pub use archive::LayerArchive;
use layout::Image;
pub use notices::ensure_complete;
pub use root::{LICENCES, NOTICES};
pub use source::{ImageSource, VERSION};

/// Limit of the unpacked image in bytes, which `--test` checks. Its size depends on the compiler: nightly's programs are
/// a few percent larger than stable's.
const UNPACKED_LIMIT_BYTES: u64 = 36 << 20;

const ARCHIVE: &str = "millrace.tar";

#[derive(Debug, Default, Args)]
pub struct ImageOptions {
    /// Directory for the image, new or of an earlier image: millrace.tar, the same as the OCI layout oci/, the program,
    /// chart and manifests, licences and the bill of materials [default: target/image]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,

    /// Name and tag of the image [default: millrace, with version and commit as the tag]
    #[arg(long, value_name = "NAME:TAG")]
    name: Option<String>,

    /// Statically linked agent to put into the image, instead of building one; then there is no bill
    /// of materials
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,

    /// Then test it: start containers from it in network namespaces, without a container engine
    #[arg(long)]
    test: bool,
}

/// Where the image is without `--output`.
pub fn default_directory() -> PathBuf {
    target_directory().join("image")
}

pub fn build_image(options: &ImageOptions) -> Result<()> {
    // Fails before compiling for an architecture that the agent refuses.
    layout::architecture(ARCH)?;
    if let Some(directory) = &options.output {
        ensure_replaceable(directory, ARCHIVE)?;
    }
    let directory = options.output.clone().unwrap_or_else(default_directory);
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let directory = directory.canonicalize()?;
    let source = ImageSource::find()?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => program::build_static_program(&source.version())?,
    };
    let name = options.name.clone().unwrap_or_else(|| format!("millrace:{}", source.version()));
    let notices = notices::collect_notices()?;
    let image = assemble(&program, &source, &name, &notices)?;

    let layout = directory.join("oci");
    if layout.exists() {
        fs::remove_dir_all(&layout).with_context(|| layout.display().to_string())?;
    }
    for (path, content) in image.files() {
        let path = layout.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        fs::write(&path, content).with_context(|| path.display().to_string())?;
    }
    let archive = directory.join(ARCHIVE);
    let file = File::create(&archive).with_context(|| archive.display().to_string())?;
    let mut tar = LayerArchive::new(file, source.time);
    for (path, content) in image.files() {
        tar.file(path, 0o644, content)?;
    }
    tar.finish()?;

    let licences = directory.join(NOTICES);
    fs::write(&licences, &notices).with_context(|| licences.display().to_string())?;
    let bill = directory.join("millrace.cdx.json");
    if options.program.is_none() {
        fs::write(&bill, materials::list_materials(&source)?)
            .with_context(|| bill.display().to_string())?;
    }

    let copy = directory.join("millrace");
    // It may be the same file.
    let content = fs::read(&program).with_context(|| program.display().to_string())?;
    fs::write(&copy, content).with_context(|| copy.display().to_string())?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    let manifests = directory.join("deploy");
    manifests::write_manifests(&repository().join("deploy"), &manifests, &name)?;

    eprintln!("{name} is {}", image.digest());
    eprintln!(
        "  {}: {} MiB, unpacked {} MiB",
        archive.display(),
        mebibytes(&archive)?,
        image.unpacked() >> 20
    );
    eprintln!("  {}: the same as an OCI layout", layout.display());
    eprintln!("  {}: the program, for machines without containers", copy.display());
    eprintln!("  {}: the manifests and the chart, with this tag", manifests.display());
    eprintln!("  {}: the licences of all that is linked, also in the image", licences.display());
    if options.program.is_none() {
        eprintln!("  {}: its software bill of materials (CycloneDX)", bill.display());
    }
    eprintln!("Load it with one of");
    for loader in
        ["docker load --input", "podman load --input", "ctr --namespace k8s.io images import"]
    {
        eprintln!("  {loader} {}", archive.display());
    }
    if options.test {
        check_size(image.unpacked())?;
        start_containers(&layout)?;
    }
    Ok(())
}

/// Starts containers like the DaemonSet does.
fn start_containers(layout: &Path) -> Result<()> {
    packages::ensure_packages(&[&packages::DEMO, &packages::PEERS])?;
    let mut command = cargo();
    command.args(["test", "--package", "tests", "--test", "peers", "--", "container::"]);
    if !is_root() {
        command.env(test::runner_variable(), test::AS_ROOT);
    }
    run_command(command.env("MILLRACE_IMAGE", layout))
}

/// Fails if the image has become larger than nodes should have to download.
fn check_size(unpacked: u64) -> Result<()> {
    ensure!(
        unpacked <= UNPACKED_LIMIT_BYTES,
        "the unpacked image has {} MiB, more than the limit of {} MiB",
        unpacked >> 20,
        UNPACKED_LIMIT_BYTES >> 20
    );
    Ok(())
}

fn assemble(program: &Path, source: &ImageSource, name: &str, notices: &str) -> Result<Image> {
    let content = fs::read(program).with_context(|| program.display().to_string())?;
    program::check_is_static(&content).with_context(|| program.display().to_string())?;
    let mut layer = LayerArchive::new(Vec::new(), source.time);
    root::add_files(&mut layer, &content, notices)?;
    let layer = layer.finish()?;
    Image::new(&layer, name, &source.labels())
}

fn mebibytes(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path)?.len() >> 20)
}

#[cfg(test)]
mod tests;

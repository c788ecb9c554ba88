//! The root file system of a container.

use std::fs;
use std::io::Write;

use anyhow::{Context, Result};

use super::archive::LayerArchive;
use crate::process::repository_root;

/// Path of the program, also the image's entry point.
pub const PROGRAM: &str = "usr/bin/millrace";

/// Files of the repository: the licence, and the other one of the BPF programs.
pub const LICENCES: [&str; 2] = ["LICENSE", "LICENSE-GPL-2.0"];

const FILES: [(&str, &str); 3] = [
    ("etc/group", "root:x:0:\n"),
    // Where the C library looks up hosts. The container runtime writes the files.
    ("etc/nsswitch.conf", "hosts: files dns\n"),
    ("etc/passwd", "root:x:0:0:root:/:/usr/bin/millrace\n"),
];

/// Of everything that is linked into the program.
pub const NOTICES: &str = "THIRD-PARTY-NOTICES.txt";

/// Adds files in the order of their paths. No public certificate authorities: a pod gets those of
/// its cluster.
pub fn add_files<W: Write>(
    layer: &mut LayerArchive<W>,
    program: &[u8],
    notices: &str,
) -> Result<()> {
    for (path, content) in FILES {
        layer.file(path, 0o644, content.as_bytes())?;
    }
    layer.file(PROGRAM, 0o755, program)?;
    for name in LICENCES {
        let path = repository_root().join(name);
        let text = fs::read(&path).with_context(|| path.display().to_string())?;
        layer.file(&format!("usr/share/doc/millrace/{name}"), 0o644, &text)?;
    }
    layer.file(&format!("usr/share/doc/millrace/{NOTICES}"), 0o644, notices.as_bytes())
}

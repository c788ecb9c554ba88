use std::collections::BTreeMap;
use std::env;
use std::io::Read;
use std::process::{Command, Stdio};

use flate2::read::GzDecoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;

/// A minimal program: an ELF header that the kernel accepts. The program would crash.
fn program() -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    // Executable, for x86-64, version 1; no entry, no headers.
    for half in [2u16, 62] {
        header.extend(half.to_le_bytes());
    }
    header.extend(1u32.to_le_bytes());
    header.extend([0; 24]);
    header.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 0, 64, 0, 0] {
        header.extend(half.to_le_bytes());
    }
    header
}

fn source() -> ImageSource {
    ImageSource::of_commit("abc", 1_700_000_000)
}

fn image() -> BTreeMap<String, Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("millrace");
    fs::write(&path, program()).unwrap();
    let image = assemble(&path, &source(), "millrace:1", "notices").unwrap();
    image.files().map(|(path, content)| (path.to_owned(), content.to_owned())).collect()
}

fn json(files: &BTreeMap<String, Vec<u8>>, path: &str) -> Value {
    serde_json::from_slice(&files[path]).unwrap()
}

/// Follows a descriptor, and checks digest and size.
fn follow<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let content = &files[&format!("blobs/sha256/{digest}")];
    assert_eq!(descriptor["size"], content.len());
    let found: String = Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(found, digest);
    content
}

#[test]
fn files_follow_the_layout() {
    let files = image();
    assert_eq!(json(&files, "oci-layout")["imageLayoutVersion"], "1.0.0");
    let index = json(&files, "index.json");
    assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
    let manifest: Value = serde_json::from_slice(follow(&files, &index["manifests"][0])).unwrap();
    let config: Value = serde_json::from_slice(follow(&files, &manifest["config"])).unwrap();
    let mut layer = Vec::new();
    GzDecoder::new(follow(&files, &manifest["layers"][0])).read_to_end(&mut layer).unwrap();
    let unpacked: String = Sha256::digest(&layer).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{unpacked}"));
    assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/millrace");
    let labels = &config["config"]["Labels"];
    assert_eq!(labels["org.opencontainers.image.revision"], "abc");
    assert_eq!(labels["org.opencontainers.image.created"], "2023-11-14T22:13:20Z");
    assert_eq!(files.len(), 6, "three blobs, and what leads to them: {:?}", files.keys());

    let legacy = json(&files, "manifest.json");
    assert_eq!(legacy[0]["RepoTags"][0], "millrace:1");
    for path in [&legacy[0]["Config"], &legacy[0]["Layers"][0]] {
        assert!(files.contains_key(path.as_str().unwrap()), "{path}");
    }
}

#[test]
fn the_root_has_the_program_and_no_shell() {
    let files = image();
    let index = json(&files, "index.json");
    let manifest: Value = serde_json::from_slice(follow(&files, &index["manifests"][0])).unwrap();
    let mut archive = tar::Archive::new(GzDecoder::new(follow(&files, &manifest["layers"][0])));
    let mut found = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let header = entry.header().clone();
        assert_eq!(header.mtime().unwrap(), 1_700_000_000);
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
        let path = entry.path().unwrap().display().to_string();
        if path == "usr/bin/millrace" {
            assert_eq!(header.mode().unwrap(), 0o755);
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            assert_eq!(content, program());
        }
        found.push(path);
    }
    let expected = [
        "etc",
        "etc/group",
        "etc/nsswitch.conf",
        "etc/passwd",
        "usr",
        "usr/bin",
        "usr/bin/millrace",
        "usr/share",
        "usr/share/doc",
        "usr/share/doc/millrace",
        "usr/share/doc/millrace/LICENSE",
        "usr/share/doc/millrace/LICENSE-GPL-2.0",
        "usr/share/doc/millrace/THIRD-PARTY-NOTICES.txt",
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_image_is_reproducible() {
    assert_eq!(image(), image());
}

#[test]
fn other_programs_can_read_the_archive() {
    let mut tar = LayerArchive::new(Vec::new(), source().time);
    for (path, content) in image() {
        tar.file(&path, 0o644, &content).unwrap();
    }
    let bytes = tar.finish().unwrap();
    let mut command = Command::new("tar");
    let command = command.args(["--list", "--file", "-"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &bytes).unwrap();
    let listed = child.wait_with_output().unwrap();
    assert!(listed.status.success());
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("oci-layout\n") && listed.contains("manifest.json\n"), "{listed}");
}

#[test]
fn a_program_that_is_not_static_is_refused() {
    // The test program is linked dynamically, cargo's default.
    let content = fs::read(env::current_exe().unwrap()).unwrap();
    let error = program::check_is_static(&content).unwrap_err().to_string();
    assert!(error.contains("not static"), "{error}");
    assert!(program::check_is_static(b"#!/bin/sh\n").is_err());
}

#[test]
fn a_version_has_the_commit() {
    let at = |revision: Option<&str>| {
        ImageSource { revision: revision.map(str::to_owned), ..source() }.version()
    };
    let version = VERSION;
    let commit = "0123456789abcdef0123456789abcdef01234567";
    assert_eq!(at(Some(commit)), format!("{version}-g0123456789ab"));
    assert_eq!(
        at(Some(&format!("{commit}-modified"))),
        format!("{version}-g0123456789ab-modified")
    );
    assert_eq!(at(None), version);
    let tagged = |revision: &str, tags: &[&str]| ImageSource {
        revision: Some(revision.to_owned()),
        tags: tags.iter().map(|tag| tag.to_string()).collect(),
        ..source()
    };
    let tag = format!("v{version}");
    let release = tagged(commit, &["vfinal", &tag]);
    assert_eq!(release.version(), version);
    assert!(release.check_tag().is_ok());
    let modified = tagged(&format!("{commit}-modified"), &[&tag]);
    assert_eq!(modified.version(), format!("{version}-g0123456789ab-modified"));
    let other = tagged(commit, &["v9.9.9"]);
    assert_eq!(other.version(), format!("{version}-g0123456789ab"));
    assert!(other.check_tag().unwrap_err().to_string().contains("v9.9.9"));
}

//! The Services and EndpointSlices that an agent held when it ended, in a file of its state directory: the next agent
//! watches from their versions instead of reading all of them again.
//!
//! Invariants:
//! - The file is input: valid as a whole, of this boot, young, and of this cluster, or not used. Then all is listed.
//! - A file is read once. One that made an agent crash is not met by the next.
//! - The objects are never older than the versions beside them: what a watch from there repeats does no harm.
//!
//! The file has a header, a line of JSON for each object, and a checksum. Passwords and other Secrets are not in it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use lb_files::replace_private_until_reboot;
use lb_process::VERSION;
use lb_rules::model::{Kind, Object, ObjectRef};
use lb_rules::store::Store;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use serde::{Deserialize, Serialize};

use super::items::MAX_ITEM;
use super::position::is_version;
use super::received_object::ReceivedObject;

const NAME: &str = "objects";
/// Changes when the same text means something else.
const FORMAT: u32 = 1;
/// API servers keep changes for five minutes at most: etcd is compacted so often.
const LONGEST_AGE: Duration = Duration::from_secs(300);
/// A hundred thousand Services of ten endpoints take 110 MB.
const LARGEST_FILE: u64 = 1 << 30;

/// The versions up to which everything of a kind has been reported. A kind is missing until it is listed, and while one
/// of its objects cannot be read: its error would not be reported again.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportedVersions(Arc<Mutex<BTreeMap<Kind, String>>>);

impl ReportedVersions {
    pub fn set(&self, kind: Kind, version: Option<&str>) {
        let mut versions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match version {
            Some(version) => drop(versions.insert(kind, version.to_owned())),
            None => drop(versions.remove(&kind)),
        }
    }

    fn of(&self, kind: Kind) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&kind).cloned()
    }
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SavedVersions {
    pub services: String,
    pub slices: String,
}

/// When a file was written or is read. Clocks may be set; this one is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    boot: String,
    since_boot: Duration,
}

impl Moment {
    pub fn now() -> Result<Self> {
        const BOOT: &str = "/proc/sys/kernel/random/boot_id";
        let boot = fs::read_to_string(BOOT).context(BOOT)?.trim().to_owned();
        let uptime = fs::read_to_string("/proc/uptime").context("/proc/uptime")?;
        let seconds = uptime.split_whitespace().next().and_then(|text| text.parse().ok());
        let seconds = seconds.context("/proc/uptime: no number of seconds")?;
        Ok(Self { boot, since_boot: Duration::try_from_secs_f64(seconds)? })
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Header {
    format: u32,
    /// Another build may use fields that were not saved.
    build: String,
    boot: String,
    seconds_since_boot: u64,
    versions: SavedVersions,
    services: usize,
    slices: usize,
}

/// Saves the objects of an agent that ends.
pub struct ObjectSaver {
    file: ObjectFile,
    versions: ReportedVersions,
}

impl ObjectSaver {
    pub(super) fn new(file: ObjectFile, versions: ReportedVersions) -> Self {
        Self { file, versions }
    }

    /// The versions so far. Save only what a store holds that has taken in all events until now.
    pub fn versions(&self) -> Option<SavedVersions> {
        Some(SavedVersions {
            services: self.versions.of(Kind::Service)?,
            slices: self.versions.of(Kind::EndpointSlice)?,
        })
    }

    /// Without the file the next agent reads all objects from its API server.
    pub fn save(&self, versions: SavedVersions, store: &Store) {
        if store.uid(&cluster_service()).is_empty() {
            tracing::debug!(
                "objects not saved: without Service default/kubernetes, no cluster is known again"
            );
            return;
        }
        let written = Moment::now().and_then(|now| self.file.write(&now, versions, store));
        if let Err(error) = written {
            let (path, error) = (self.file.path.display(), format!("{error:#}"));
            tracing::info!(%path, error, "objects not saved; the next agent lists them");
        }
    }
}

/// What an agent has saved.
#[derive(Debug)]
pub(crate) struct SavedObjects {
    pub versions: SavedVersions,
    pub services: Vec<Object>,
    pub slices: Vec<Object>,
}

impl SavedObjects {
    /// The uid of the Service `default/kubernetes`, which each cluster has, and none has the same.
    pub fn cluster(&self) -> Option<&str> {
        let kubernetes = cluster_service();
        self.services.iter().find_map(|object| match object {
            Object::Service(service) if object.reference() == kubernetes => {
                service.metadata.uid.as_deref().filter(|uid| !uid.is_empty())
            }
            _ => None,
        })
    }
}

fn cluster_service() -> ObjectRef {
    ObjectRef::new(Kind::Service, Some("default"), Some("kubernetes"))
}

#[derive(Clone, Debug)]
pub(crate) struct ObjectFile {
    path: PathBuf,
}

impl ObjectFile {
    pub(crate) fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join(NAME) }
    }

    pub fn write(&self, now: &Moment, versions: SavedVersions, store: &Store) -> Result<()> {
        let header = Header {
            format: FORMAT,
            build: VERSION.to_owned(),
            boot: now.boot.clone(),
            seconds_since_boot: now.since_boot.as_secs(),
            versions,
            services: store.held_services().count(),
            slices: store.held_slices().count(),
        };
        replace_private_until_reboot(&self.path, |file| {
            let mut lines = WrittenLines {
                file: BufWriter::new(file),
                sum: DefaultHasher::new(),
                text: Vec::new(),
            };
            lines.write(|text| Ok(serde_json::to_writer(text, &header)?))?;
            for service in store.held_services() {
                lines.write(|text| Ok(serde_json::to_writer(text, service)?))?;
            }
            for slice in store.held_slices() {
                lines.write(|text| slice.write_json(text))?;
            }
            lines.end()
        })
    }

    /// Reads and removes the file; `None` if there is none.
    pub fn take(&self, now: &Moment) -> Result<Option<SavedObjects>> {
        let mut options = OpenOptions::new();
        // Neither follow a link nor wait for a pipe's writer.
        let file = options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(&self.path);
        let file = match file {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let metadata = file.metadata()?;
        ensure!(metadata.is_file(), "not a regular file");
        fs::remove_file(&self.path)?;
        ensure!(metadata.len() <= LARGEST_FILE, "larger than {} MiB", LARGEST_FILE >> 20);
        check_sum(&file)?;
        let mut lines = BufReader::new(file);
        lines.rewind()?;
        read(&mut lines, now).map(Some)
    }
}

struct WrittenLines<W: Write> {
    file: W,
    sum: DefaultHasher,
    text: Vec<u8>,
}

impl<W: Write> WrittenLines<W> {
    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<()> {
        self.text.clear();
        write(&mut self.text)?;
        self.text.push(b'\n');
        self.sum.write(&self.text);
        Ok(self.file.write_all(&self.text)?)
    }

    fn end(mut self) -> Result<()> {
        writeln!(self.file, "{:016x}", self.sum.finish())?;
        Ok(self.file.flush()?)
    }
}

/// Whether the last line is the sum of all others.
fn check_sum(file: &File) -> Result<()> {
    let (mut lines, mut sum) = (BufReader::new(file), DefaultHasher::new());
    let mut line = Vec::new();
    loop {
        read_line(&mut lines, &mut line)?;
        if lines.fill_buf()?.is_empty() {
            break;
        }
        sum.write(&line);
    }
    ensure!(line == format!("{:016x}\n", sum.finish()).as_bytes(), "incomplete or damaged");
    Ok(())
}

fn read(lines: &mut impl BufRead, now: &Moment) -> Result<SavedObjects> {
    let mut line = Vec::new();
    read_line(lines, &mut line)?;
    let header: Header = serde_json::from_slice(&line).context("header")?;
    let Header { format, build, boot, seconds_since_boot, versions, services, slices } = header;
    ensure!(format == FORMAT && build == VERSION, "of another version: {build}, format {format}");
    ensure!(boot == now.boot, "of another boot");
    let age = now.since_boot.checked_sub(Duration::from_secs(seconds_since_boot));
    ensure!(age.is_some_and(|age| age <= LONGEST_AGE), "older than {} s", LONGEST_AGE.as_secs());
    ensure!(is_version(&versions.services) && is_version(&versions.slices), "without versions");
    let mut read_all = |count: usize, read: fn(&[u8]) -> Result<Object>| -> Result<Vec<Object>> {
        // Not with the capacity that a file claims.
        let mut objects = Vec::new();
        for _ in 0..count {
            read_line(lines, &mut line)?;
            objects.push(read(&line)?);
        }
        Ok(objects)
    };
    Ok(SavedObjects {
        versions,
        services: read_all(services, read_service)?,
        slices: read_all(slices, read_slice)?,
    })
}

/// Fields that no rule uses were removed before it was saved.
fn read_service(text: &[u8]) -> Result<Object> {
    let service: Service = serde_json::from_slice(text).context("a Service")?;
    Ok(Object::Service(Box::new(service)))
}

fn read_slice(text: &[u8]) -> Result<Object> {
    ReceivedObject::read(Kind::EndpointSlice, text)?.decode(Kind::EndpointSlice)
}

fn read_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> Result<()> {
    line.clear();
    lines.take(MAX_ITEM as u64).read_until(b'\n', line)?;
    ensure!(line.ends_with(b"\n"), "incomplete, or an object is too large");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use serde_json::{Value, json};

    use super::*;

    fn moment(seconds: u64) -> Moment {
        Moment { boot: "boot-1".to_owned(), since_boot: Duration::from_secs(seconds) }
    }

    fn versions() -> SavedVersions {
        SavedVersions { services: "7".to_owned(), slices: "9".to_owned() }
    }

    fn service(name: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443, "protocol": "TCP"}]}
        })
    }

    fn slice(name: &str, address: &str) -> Value {
        json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": format!("uid-{name}"),
                "labels": {"kubernetes.io/service-name": "kubernetes"},
            },
            "addressType": "IPv4", "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": false}, "zone": "z"}]
        })
    }

    fn objects() -> [Object; 4] {
        [
            Object::read(Kind::Service, service("kubernetes")).unwrap(),
            Object::read(Kind::Service, service("web")).unwrap(),
            Object::read(Kind::EndpointSlice, slice("kubernetes", "192.0.2.1")).unwrap(),
            Object::read(Kind::EndpointSlice, slice("kubernetes-2", "192.0.2.2")).unwrap(),
        ]
    }

    fn store() -> Store {
        let mut store = Store::default();
        for object in objects() {
            store.apply(object);
        }
        store
    }

    /// A file that was written 100 s after the boot.
    fn written() -> (tempfile::TempDir, ObjectFile) {
        let directory = tempfile::tempdir().unwrap();
        let file = ObjectFile::in_directory(&directory.path().join("state"));
        file.write(&moment(100), versions(), &store()).unwrap();
        (directory, file)
    }

    fn refusal(file: &ObjectFile, now: &Moment) -> String {
        let error = file.take(now).unwrap_err();
        assert!(!file.path.exists(), "a refused file is removed");
        format!("{error:#}")
    }

    #[test]
    fn what_was_held_is_read_once_and_only_by_the_owner() {
        let (_directory, file) = written();
        assert_eq!(fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o600);
        let saved = file.take(&moment(130)).unwrap().unwrap();
        assert_eq!(saved.versions, versions());
        assert_eq!(saved.cluster(), Some("uid-kubernetes"));
        let [services, slices] = [&saved.services, &saved.slices];
        assert_eq!([&services[..], &slices[..]].concat(), objects());
        assert!(file.take(&moment(130)).unwrap().is_none());
    }

    #[test]
    fn a_file_of_another_boot_or_an_old_one_is_refused() {
        for (now, reason) in [
            (moment(401), "older than 300 s"),
            (moment(99), "older than 300 s"),
            (Moment { boot: "boot-2".to_owned(), ..moment(130) }, "of another boot"),
        ] {
            assert_eq!(refusal(&written().1, &now), reason);
        }
    }

    /// Each octet changed, and each length: nothing of a damaged file is used.
    #[test]
    fn a_damaged_file_is_refused_as_a_whole() {
        let (_directory, file) = written();
        let text = fs::read(&file.path).unwrap();
        for index in 0..text.len() {
            fs::write(&file.path, &text[..index]).unwrap();
            refusal(&file, &moment(130));
            let mut changed = text.clone();
            changed[index] ^= 1;
            fs::write(&file.path, changed).unwrap();
            refusal(&file, &moment(130));
        }
        fs::write(&file.path, [&text[..], b"x"].concat()).unwrap();
        refusal(&file, &moment(130));
    }

    /// A file with a valid sum may still be wrong: another version of the agent wrote it.
    #[test]
    fn a_file_of_another_format_is_refused() {
        let header = json!({
            "format": FORMAT, "build": VERSION, "boot": "boot-1", "secondsSinceBoot": 100, "services": 1, "slices": 0,
            "versions": {"services": "7", "slices": "9"}
        });
        let service = service("web");
        let (_directory, file) = written();
        let read = |header: &Value, service: &Value| {
            let out = File::create(&file.path).unwrap();
            let mut lines = WrittenLines { file: out, sum: DefaultHasher::new(), text: Vec::new() };
            for value in [header, service] {
                lines.write(|text| Ok(serde_json::to_writer(text, value)?)).unwrap();
            }
            lines.end().unwrap();
            file.take(&moment(130))
        };
        assert!(read(&header, &service).is_ok());
        for (pointer, value) in [
            ("/format", json!(FORMAT + 1)),
            ("/build", json!("0.0.1")),
            ("/services", json!(2)),
            ("/services", json!(u64::MAX)),
            ("/versions/slices", json!("0")),
            ("/versions", json!({"services": "7"})),
            ("/versions", json!({"services": "7", "slices": "9", "nodes": "9"})),
        ] {
            let mut header = header.clone();
            *header.pointer_mut(pointer).unwrap() = value;
            assert!(read(&header, &service).is_err(), "{header}");
        }
        let mut unreadable = service.clone();
        unreadable["spec"]["ports"] = json!([{"port": "http"}]);
        assert!(read(&header, &unreadable).is_err());
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let (directory, file) = written();
        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&file.path, &elsewhere).unwrap();
        symlink(&elsewhere, &file.path).unwrap();
        assert!(file.take(&moment(130)).is_err());
        assert!(elsewhere.exists());
        fs::remove_file(&file.path).unwrap();
        fs::create_dir(&file.path).unwrap();
        assert!(file.take(&moment(130)).is_err());
    }

    /// Of an endpoint with an address that can't be used, only the reason is held.
    #[test]
    fn objects_that_are_not_held_as_they_are_leave_no_file() {
        let (_directory, file) = written();
        let mut store = store();
        store.apply(Object::read(Kind::EndpointSlice, slice("odd", "127.0.0.1")).unwrap());
        let error = file.write(&moment(110), versions(), &store).unwrap_err().to_string();
        assert!(error.starts_with("EndpointSlice default/odd: "), "{error}");
    }
}

//! The directory in the BPF filesystem that holds one data plane: its maps, programs and links, and
//! notes about tc filters, which can't be pinned. A note is an empty directory: this filesystem has
//! no plain files.

use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use aya::Pod;
use aya::maps::{HashMap, Map, MapData};
use lb_common::layout::map;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::link::PinnedLink;

pub(super) const BPF_FILESYSTEM: &str = "/sys/fs/bpf";
pub(super) const LINKS: &str = "links";
pub(super) const FILTERS: &str = "filters";
/// Contains a directory for each set of loaded programs.
const PROGRAMS: &str = "programs";
/// Maps that were replaced by new ones, but that attached programs still need.
const SET_ASIDE: &str = "set-aside";
/// Beside the notes of an interface's filters: its qdisc was made by Millrace, too.
const QDISC: &str = "qdisc";

/// The pin directory, held by one agent at a time.
pub struct Pins {
    path: PathBuf,
    existed: bool,
    /// `None`: another agent holds the lock, and opening was forced.
    _lock: Option<Flock<File>>,
}

/// The result of opening a directory.
pub enum Opened {
    Here(Pins),
    /// By another agent; its process, if that is visible from here.
    InUse(Option<u32>),
}

impl Pins {
    /// Opens the directory, creating it if necessary, and locks it. The lock ends with the process.
    pub fn open(path: &Path) -> Result<Self> {
        match Self::try_open(path)? {
            Opened::Here(pins) => Ok(pins),
            Opened::InUse(holder) => bail!(
                "another agent{} is running on {}.\n\
                 Stop it first, or give a directory of its own with --pin-path",
                holder.map_or(String::new(), |process| format!(" (process {process})")),
                path.display()
            ),
        }
    }

    pub fn try_open(path: &Path) -> Result<Opened> {
        if path.starts_with(BPF_FILESYSTEM) {
            mount_bpf_filesystem()?;
        }
        let existed = path.exists();
        fs::create_dir_all(path).or_else(|error| refuse_directory(path, error))?;
        if statfs(path)
            .with_context(|| format!("{} can't be examined", path.display()))?
            .filesystem_type()
            != BPF_FS_MAGIC
        {
            // If this call made the directory, it is empty.
            let _ = fs::remove_dir(path);
            return Err(not_bpf_filesystem(path));
        }
        let lock = match lock(path)? {
            Ok(lock) => lock,
            Err(holder) => return Ok(Opened::InUse(holder)),
        };
        for directory in [LINKS, FILTERS] {
            fs::create_dir_all(path.join(directory))?;
        }
        Ok(Opened::Here(Self { path: path.to_owned(), existed, _lock: Some(lock) }))
    }

    /// Whether the directory existed before.
    pub fn existed(&self) -> bool {
        self.existed
    }

    /// Opens an existing directory, and creates nothing in it. `force`: even if an agent holds it.
    pub fn open_existing(path: &Path, force: bool) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        if statfs(path)
            .with_context(|| format!("{} can't be examined", path.display()))?
            .filesystem_type()
            != BPF_FS_MAGIC
        {
            return Err(not_bpf_filesystem(path));
        }
        let lock = match lock(path)? {
            Ok(lock) => Some(lock),
            Err(_) if force => None,
            Err(holder) => bail!(
                "an agent{} is running on {}, and would lose its attachments.\n\
                 Stop it first; with --force its Services are no longer served",
                holder.map_or(String::new(), |process| format!(" (process {process})")),
                path.display()
            ),
        };
        Ok(Some(Self { path: path.to_owned(), existed: true, _lock: lock }))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn map(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a pinned hash map.
    pub fn hash_map<K: Pod, V: Pod>(&self, name: &str) -> Result<HashMap<MapData, K, V>> {
        let path = self.map(name);
        let open = || HashMap::try_from(Map::from_map_data(MapData::from_pin(&path)?)?);
        open().with_context(|| format!("{} can't be opened", path.display()))
    }

    /// Moves the pin of a map to `SET_ASIDE`. If one of this name is there already, it is still in
    /// use by attached programs, and this map's programs were never attached.
    pub fn set_aside(&self, name: &str) -> Result<()> {
        let (path, aside) = (self.map(name), self.path.join(SET_ASIDE).join(name));
        if aside.exists() || !path.exists() {
            return remove_pin(&path);
        }
        fs::create_dir_all(self.path.join(SET_ASIDE))?;
        fs::rename(&path, &aside).with_context(|| format!("{} can't be set aside", path.display()))
    }

    /// To be called when the programs that needed these maps are detached.
    pub fn forget_set_aside(&self) -> Result<()> {
        let directory = self.path.join(SET_ASIDE);
        for name in names(&directory)? {
            remove_pin(&directory.join(name))?;
        }
        remove_note(&directory)
    }

    /// The directory of one set of programs.
    pub(crate) fn program_directory(&self, name: &str) -> PathBuf {
        self.path.join(PROGRAMS).join(name)
    }

    /// The names of all sets of programs.
    pub(crate) fn program_directories(&self) -> Result<Vec<String>> {
        names(&self.path.join(PROGRAMS))
    }

    /// Names and paths of the programs pinned in one of them.
    pub fn programs(&self, directory: &str) -> Result<Vec<(String, PathBuf)>> {
        let directory = self.program_directory(directory);
        Ok(names(&directory)?
            .into_iter()
            .map(|name| (name.clone(), directory.join(name)))
            .collect())
    }

    /// Unpins all programs. Programs that are attached, or in an array of stages, stay loaded.
    pub(crate) fn remove_programs(&self) -> Result<()> {
        remove_below(&self.path.join(PROGRAMS))
    }

    /// Names and paths of other pins beside the known maps.
    pub fn others(&self) -> Result<Vec<(String, PathBuf)>> {
        let others =
            names(&self.path)?.into_iter().map(|name| (name.clone(), self.path.join(name)));
        let is_other =
            |(name, path): &(String, PathBuf)| !map::ALL.contains(&name.as_str()) && !path.is_dir();
        Ok(others.filter(is_other).collect())
    }

    /// Names and paths of the pinned links.
    pub fn links(&self) -> Result<Vec<(String, PathBuf)>> {
        let directory = self.path.join(LINKS);
        let mut links: Vec<(String, PathBuf)> = names(&directory)?
            .into_iter()
            .map(|name| (name.clone(), directory.join(name)))
            .collect();
        links.sort();
        Ok(links)
    }

    /// Whether any attachments are recorded here.
    pub fn has_programs(&self) -> Result<bool> {
        Ok(!self.links()?.is_empty() || !self.devices_with_filters()?.is_empty())
    }

    pub fn link(&self, name: &str) -> PathBuf {
        self.path.join(LINKS).join(name)
    }

    /// Interfaces with notes.
    pub(crate) fn devices_with_filters(&self) -> Result<Vec<String>> {
        let mut devices: Vec<String> =
            names(&self.path.join(FILTERS))?.iter().map(|name| unescaped(name)).collect();
        devices.sort();
        Ok(devices)
    }

    pub(crate) fn has_filter(&self, device: &str, direction: &str) -> bool {
        self.note(device, direction).exists()
    }

    pub(crate) fn note_filter(&self, device: &str, direction: &str) -> Result<()> {
        let note = self.note(device, direction);
        fs::create_dir_all(&note).with_context(|| format!("{} can't be made", note.display()))
    }

    pub(crate) fn forget_filter(&self, device: &str, direction: &str) -> Result<()> {
        remove_note(&self.note(device, direction))
    }

    pub(crate) fn made_qdisc(&self, device: &str) -> bool {
        self.has_filter(device, QDISC)
    }

    pub(crate) fn note_qdisc(&self, device: &str) -> Result<()> {
        self.note_filter(device, QDISC)
    }

    /// Removes the last note of an interface.
    pub(crate) fn forget_qdisc(&self, device: &str) -> Result<()> {
        self.forget_filter(device, QDISC)?;
        remove_note(&self.path.join(FILTERS).join(escaped(device)))
    }

    fn note(&self, device: &str, what: &str) -> PathBuf {
        self.path.join(FILTERS).join(escaped(device)).join(what)
    }

    /// All pins below the directory. Another version may have had other maps and directories.
    pub fn pinned(&self) -> Result<Vec<PathBuf>> {
        let mut pinned = Vec::new();
        let mut directories = vec![self.path.clone()];
        while let Some(directory) = directories.pop() {
            for name in names(&directory)? {
                let path = directory.join(name);
                if path.is_dir() { directories.push(path) } else { pinned.push(path) }
            }
        }
        pinned.sort();
        Ok(pinned)
    }

    /// Removes everything: links first, so that no program runs without its maps. Filters must have
    /// been removed before.
    pub(super) fn remove(self) -> Result<()> {
        for (_, path) in self.links()? {
            remove_link(&path)?;
        }
        remove_below(&self.path)?;
        fs::remove_dir(&self.path)
            .with_context(|| format!("{} can't be removed", self.path.display()))
    }
}

fn remove_below(directory: &Path) -> Result<()> {
    for name in names(directory)? {
        let path = directory.join(name);
        if path.is_dir() {
            remove_below(&path)?;
            remove_note(&path)?;
        } else {
            remove_pin(&path)?;
        }
    }
    Ok(())
}

/// Detaches a pinned link, and removes its pin. Removing only the pin would leave the link attached
/// while any process has it open, and then until the kernel frees it. Attaching another program
/// there could fail meanwhile.
pub fn remove_link(path: &Path) -> Result<()> {
    // If it is no link, or of a kind that can't be detached, only the pin is removed.
    if let Ok(Some(link)) = PinnedLink::open(path) {
        let _ = link.detach();
    }
    remove_pin(path)
}

pub(crate) fn remove_pin(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(anyhow!(error).context(format!("{} can't be unpinned", path.display())))
        }
        _ => Ok(()),
    }
}

fn remove_note(path: &Path) -> Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(anyhow!(error).context(format!("{} can't be removed", path.display())))
        }
        _ => Ok(()),
    }
}

/// An interface's name in a BPF filesystem, which allows no dots; names of VLAN interfaces have
/// them.
pub fn escaped(device: &str) -> String {
    device.replace('.', "%2E")
}

pub(super) fn unescaped(name: &str) -> String {
    name.replace("%2E", ".")
}

/// Whether an agent holds a directory; its process, if that is visible from here.
pub fn agent_on(path: &Path) -> Result<Option<Option<u32>>> {
    if !path.exists() {
        return Ok(None);
    }
    Ok(lock(path)?.err())
}

/// The names in a directory; empty if it does not exist.
fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("{} can't be read", directory.display()))?,
    };
    let name = |entry: std::io::Result<fs::DirEntry>| {
        Ok(entry?.file_name().to_string_lossy().into_owned())
    };
    entries.map(name).collect()
}

/// `Err`: another process holds it; its id, if that is visible from here.
fn lock(path: &Path) -> Result<std::result::Result<Flock<File>, Option<u32>>> {
    let directory = File::open(path)?;
    let locked = directory.metadata()?;
    let is_there = |found: Metadata| (found.dev(), found.ino()) == (locked.dev(), locked.ino());
    match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
        // The previous holder may have removed the directory: then this lock is useless.
        Ok(lock) if fs::metadata(path).is_ok_and(is_there) => Ok(Ok(lock)),
        Ok(_) => Ok(Err(None)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(Err(holder_of(&locked))),
        Err((_, errno)) => {
            Err(anyhow!(errno).context(format!("{} can't be locked", path.display())))
        }
    }
}

/// The process that holds the lock on a directory, by the kernel's list.
pub(super) fn holder_of(directory: &Metadata) -> Option<u32> {
    holder_among(&fs::read_to_string("/proc/locks").ok()?, directory.dev(), directory.ino())
}

/// Inodes of two BPF filesystems may have the same number, so the device is compared, too.
fn holder_among(locks: &str, device: u64, inode: u64) -> Option<u32> {
    // The device numbers are hexadecimal, with at least two digits; the inode is decimal.
    let wanted = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        // "1: FLOCK  ADVISORY  WRITE 4242 00:1b:123 0 EOF"; a waiting process has "->" before the
        // kind.
        let kind = fields.nth(1)?;
        let pid = fields.nth(2)?.parse().ok()?;
        let file = fields.next()?;
        (kind == "FLOCK" && file == wanted).then_some(pid)
    })
}

/// Mounts the BPF filesystem at systemd's mount point, unless it is mounted already.
fn mount_bpf_filesystem() -> Result<()> {
    let is_mounted = statfs(BPF_FILESYSTEM).is_ok_and(|s| s.filesystem_type() == BPF_FS_MAGIC);
    if is_mounted {
        return Ok(());
    }
    mount(Some("bpf"), BPF_FILESYSTEM, Some("bpf"), MsFlags::empty(), None::<&str>).with_context(
        || {
            format!(
                "no BPF filesystem is mounted at {BPF_FILESYSTEM}, and it can't be mounted here.\n\
                 Run `mount -t bpf bpf {BPF_FILESYSTEM}` on the host; in a container, mount it \
                 from the host with mountPropagation: Bidirectional"
            )
        },
    )?;
    tracing::info!(path = %BPF_FILESYSTEM, "mounted the BPF file system");
    Ok(())
}

fn refuse_directory(path: &Path, error: std::io::Error) -> Result<()> {
    // bpffs refuses names with dots, and only reports "not permitted".
    if error.kind() == ErrorKind::PermissionDenied && path.to_string_lossy().contains('.') {
        bail!("{}: names in a BPF filesystem must not contain dots", path.display());
    }
    Err(anyhow!(error).context(format!("{} can't be made", path.display())))
}

fn not_bpf_filesystem(path: &Path) -> anyhow::Error {
    anyhow!(
        "{} is not on a BPF filesystem, so nothing can be pinned there.\n\
         Choose a --pin-path under {BPF_FILESYSTEM}, or mount one: mount -t bpf bpf DIRECTORY",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::makedev;

    use super::*;

    #[test]
    fn the_holder_is_found_by_device_and_inode() {
        const LOCKS: &str = "\
1: POSIX  ADVISORY  WRITE 10 00:1b:123 0 EOF
2: FLOCK  ADVISORY  WRITE 11 00:2b:123 0 EOF
3: FLOCK  ADVISORY  WRITE 12 00:1b:1123 0 EOF
4: FLOCK  ADVISORY  WRITE 13 00:1b:123 0 EOF
4: -> FLOCK  ADVISORY  WRITE 14 00:1b:123 0 EOF
5: FLOCK  ADVISORY  WRITE 15 103:12345:123 0 EOF
";
        let holder = |major, minor| holder_among(LOCKS, makedev(major, minor), 123);
        assert_eq!(holder(0, 0x1b), Some(13));
        assert_eq!(holder(0, 0x2b), Some(11));
        assert_eq!(holder(0x103, 0x12345), Some(15));
        assert_eq!(holder(0x1b, 0), None);
    }

    /// Reads the real /proc/locks, with whatever filesystem this runs on.
    #[test]
    fn the_holder_is_found_in_the_kernels_own_list() {
        let name = format!("millrace-lock-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a directory");
        let held = lock(&path).expect("it can be locked").expect("it is free");
        let holder = lock(&path).expect("it can be asked for").map(drop);
        drop(held);
        let free = lock(&path).expect("it can be locked").map(drop);
        fs::remove_dir(&path).expect("it is there");
        assert_eq!((holder, free), (Err(Some(std::process::id())), Ok(())));
    }
}

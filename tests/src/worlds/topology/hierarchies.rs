//! The mounted hierarchies of control groups: one of version 2, or several of version 1, or both.

use std::fs;
use std::io;
use std::path::PathBuf;

/// A mounted hierarchy of control groups.
#[derive(Debug, PartialEq, Eq)]
pub struct Hierarchy {
    pub mounted_at: PathBuf,
    /// The controllers of version 1, as mount options; none in the unified hierarchy.
    pub controllers: Option<String>,
}

impl Hierarchy {
    pub fn all_mounted() -> io::Result<Vec<Self>> {
        Ok(parse_mounts(&fs::read_to_string("/proc/self/mountinfo")?))
    }
}

/// See proc_pid_mountinfo(5).
fn parse_mounts(text: &str) -> Vec<Hierarchy> {
    let parse = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mounted_at = PathBuf::from(before.split(' ').nth(4)?);
        let mut after = after.split(' ');
        let kind = after.next()?;
        let options = after.nth(1)?;
        let controllers = match kind {
            "cgroup2" => None,
            "cgroup" => {
                let of_group = options.split(',').filter(|option| {
                    !matches!(*option, "rw" | "ro" | "xattr" | "clone_children" | "noprefix")
                        && !option.starts_with("release_agent=")
                });
                Some(of_group.collect::<Vec<_>>().join(","))
            }
            _ => return None,
        };
        Some(Hierarchy { mounted_at, controllers })
    };
    let mut all: Vec<Hierarchy> = Vec::new();
    for hierarchy in text.lines().filter_map(parse) {
        // The first mount of each: containers have others.
        if !all.iter().any(|other| other.controllers == hierarchy.controllers) {
            all.push(hierarchy);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hierarchy(path: &str, controllers: Option<&str>) -> Hierarchy {
        Hierarchy { mounted_at: path.into(), controllers: controllers.map(str::to_owned) }
    }

    #[test]
    fn hierarchies_of_both_versions_are_found_once() {
        let text = "\
24 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 24 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/agent,name=systemd
33 30 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
34 30 0:30 / /run/again rw,relatime - cgroup2 cgroup2 rw
";
        assert_eq!(
            parse_mounts(text),
            [
                hierarchy("/sys/fs/cgroup/cpu,cpuacct", Some("cpu,cpuacct")),
                hierarchy("/sys/fs/cgroup/systemd", Some("name=systemd")),
                hierarchy("/sys/fs/cgroup/unified", None),
            ]
        );
    }
}

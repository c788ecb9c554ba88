//! Which of our programs a packet meets at a device: as they are pinned, whether or not an agent
//! runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::loaded_programs;

use crate::kernel::Place;

/// By device, in the order in which a packet that arrives meets them.
pub type Attached = BTreeMap<String, Vec<Place>>;

/// The programs' names, of which the kernel keeps fifteen characters.
const PROGRAMS: [(&str, Place); 5] = [
    ("external_in", Place::ExternalIn),
    ("external_in_tc", Place::ExternalInTc),
    ("external_deferr", Place::ExternalDeferred),
    ("workload_in", Place::WorkloadIn),
    ("out", Place::Out),
];

/// What is attached to each device, as far as it is pinned.
pub fn attached(pin_path: &Path) -> Result<Attached> {
    let programs: BTreeMap<u32, String> = loaded_programs()
        .filter_map(Result::ok)
        .map(|program| (program.id(), String::from_utf8_lossy(program.name()).into_owned()))
        .collect();
    let mut attached = Attached::new();
    for (name, path) in entries(&pin_path.join("links"))? {
        let Some((device, _)) = device_of(&name) else { continue };
        let link = FdLink::from(
            PinnedLink::from_pin(&path)
                .with_context(|| format!("the link {} can't be opened", path.display()))?,
        );
        let program = programs.get(&link.info()?.program_id());
        let place = program.and_then(|name| PROGRAMS.iter().find(|(known, _)| known == name));
        if let Some((_, place)) = place {
            attached.entry(device).or_default().push(*place);
        }
    }
    for (name, path) in entries(&pin_path.join("filters"))? {
        let device = name.replace("%2E", ".");
        let places = attached.entry(device).or_default();
        let xdp = places.contains(&Place::ExternalIn);
        for (direction, _) in entries(&path)? {
            match direction.as_str() {
                "egress" => places.push(Place::Out),
                // Filters don't tell their programs.
                "ingress" if xdp => places.push(Place::ExternalDeferred),
                "ingress" => places.push(Place::ExternalInTc),
                _ => {}
            }
        }
    }
    for places in attached.values_mut() {
        // XDP is met first.
        places.sort_by_key(|place| std::cmp::Reverse(*place));
    }
    Ok(attached)
}

fn entries(directory: &Path) -> Result<Vec<(String, std::path::PathBuf)>> {
    let mut found = Vec::new();
    let listed = fs::read_dir(directory)
        .with_context(|| format!("{} can't be read", directory.display()))?;
    for entry in listed {
        let entry = entry?;
        found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    found.sort();
    Ok(found)
}

/// A link's pin is called by its device and its hook.
fn device_of(pin: &str) -> Option<(String, &str)> {
    const HOOKS: [&str; 4] = ["xdp-native", "xdp-generic", "ingress", "egress"];
    HOOKS.into_iter().find_map(|hook| {
        let device = pin.strip_suffix(hook)?.strip_suffix('-')?;
        Some((device.replace("%2E", "."), hook))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_tells_its_device() {
        let device = |pin| device_of(pin).map(|(device, _)| device);
        assert_eq!(device("eth0-xdp-native").as_deref(), Some("eth0"));
        assert_eq!(device("bond0%2E100-ingress").as_deref(), Some("bond0.100"));
        assert_eq!(device("cgroup-connect4"), None);
    }
}

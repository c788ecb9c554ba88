//! Scaffolding of the end-to-end tests: packets as text, the data plane with tables and packets,
//! and topologies of network namespaces with real servers and clients.

pub mod agent;
pub mod cluster;
pub mod container;
pub mod contents;
pub mod datapath;
pub mod figures;
pub mod generator;
pub mod load;
pub mod manifests;
pub mod one_node;
pub mod packet;
pub mod scenario;
pub mod topology;
pub mod watcher;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use anyhow::{Context, Result};

    /// Test programs that need neither root nor namespaces.
    const UNPRIVILEGED: [&str; 2] = ["datapath_host", "sockets_host"];

    #[test]
    fn all_other_test_programs_require_the_feature_privileged() -> Result<()> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let manifest = fs::read_to_string(directory.join("Cargo.toml"))?;
        let privileged: BTreeSet<String> = manifest
            .split("[[test]]")
            .filter(|section| section.contains("required-features = [\"privileged\"]"))
            .filter_map(|section| Some(section.split('"').nth(1)?.to_owned()))
            .collect();
        let mut expected = BTreeSet::new();
        for entry in fs::read_dir(directory.join("tests"))? {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).context("a name")?;
            if !UNPRIVILEGED.contains(&name) {
                expected.insert(name.to_owned());
            }
        }
        assert_eq!(privileged, expected);
        Ok(())
    }
}

//! Scaffolding of the end-to-end tests: packets as text, the data plane with tables and packets,
//! and topologies of network namespaces with real servers and clients.

pub mod agent;
pub mod announcers;
pub mod any_map;
pub mod api_server;
pub mod bgp;
pub mod bgp_daemons;
pub mod bird;
pub mod cluster;
pub mod container;
pub mod contents;
pub mod crowd;
pub mod datapath;
pub mod figures;
pub mod frr;
pub mod generator;
pub mod ingress;
pub mod load;
pub mod machine;
pub mod manifests;
pub mod one_node;
pub mod packet;
pub mod rack;
pub mod scenario;
pub mod tables;
pub mod topology;
pub mod upload;
pub mod watcher;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use anyhow::{Context, Result};

    /// A test that is not listed would run in the stage without root as well.
    #[test]
    fn every_test_program_runs_only_by_its_name() -> Result<()> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let manifest = fs::read_to_string(directory.join("Cargo.toml"))?;
        let listed: BTreeSet<String> = manifest
            .split("[[test]]")
            .skip(1)
            .filter(|section| section.contains("test = false"))
            .filter_map(|section| Some(section.split('"').nth(1)?.to_owned()))
            .collect();
        let mut programs = BTreeSet::new();
        for entry in fs::read_dir(directory.join("tests"))? {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).context("a name")?;
            programs.insert(name.to_owned());
        }
        assert_eq!(listed, programs);
        Ok(())
    }
}

//! `cargo xtask bench control`: the cost of updating the maps, by number of Services.
//!
//! Each size is measured in its own process with its own maps, with the agent's code from the text of
//! an object to the last written slot. No packet is sent, and no interface is changed.

mod measure;
mod memory;
mod objects;
mod plot;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use measure::Measured;

/// Measure the control plane: time and memory to program Services
///
/// A time starts when an object arrives and ends when it is programmed: it is stored, resolved and planned, and all
/// map writes have returned.
#[derive(Debug, Args)]
pub struct ControlPlaneOptions {
    /// Number of Services; several numbers are measured one after the other
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', default_value = "1000,10000,100000")]
    services: Vec<u32>,

    /// Number of endpoints of each Service
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    endpoints: u32,

    /// Output directory for the JSON and the plot [default: target/bench]
    #[arg(long, value_name = "DIRECTORY", default_value = crate::output::DIRECTORY, hide_default_value = true)]
    output: PathBuf,

    /// Measure one size in this process, and print the result as JSON
    #[arg(long, hide = true)]
    here: bool,
}

pub fn run_control_plane(options: &ControlPlaneOptions) -> Result<()> {
    if options.here {
        let services = *options.services.first().context("--here needs --services")?;
        println!(
            "{}",
            serde_json::to_string(&measure::measure_control_plane(services, options.endpoints)?)?
        );
        return Ok(());
    }
    let mut all = Vec::new();
    fs::create_dir_all(&options.output)?;
    let json = options.output.join("control.json");
    println!(
        "{:>9} {:>10} {:>10} {:>10} {:>11} {:>11} {:>11} {:>11} {:>9} {:>9} {:>9} {:>8}",
        "services",
        "read",
        "active",
        "restart",
        "endpoint",
        "(99 %)",
        "new one",
        "(99 %)",
        "memory",
        "(most)",
        "maps",
        "lacking"
    );
    for &services in &options.services {
        let measured = elsewhere(services, options.endpoints)?;
        println!(
            "{:>9} {:>8.0}ms {:>8.0}ms {:>8.0}ms {:>9.0}us {:>9.0}us {:>9.0}us {:>9.0}us {:>6.0}MiB {:>6.0}MiB {:>6.0}MiB {:>8}",
            measured.services,
            measured.read_ms,
            measured.programmed_ms,
            measured.restart_ms,
            measured.endpoint_us.median,
            measured.endpoint_us.worst_of_hundred,
            measured.creation_us.median,
            measured.creation_us.worst_of_hundred,
            measured.memory_mib,
            measured.peak_mib,
            measured.maps_mib,
            measured.lacking,
        );
        all.push(measured);
        fs::write(&json, serde_json::to_string_pretty(&all)? + "\n")?;
    }
    let plot = options.output.join("control.svg");
    fs::write(&plot, plot::plot_control_plane(&all))?;
    println!("{} and {}", json.display(), plot.display());
    let lacking: Vec<_> = all.iter().filter(|measured| measured.lacking > 0).collect();
    ensure!(
        lacking.is_empty(),
        "the maps are too small for {} Services",
        lacking.iter().map(|m| m.services.to_string()).collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

/// Measures one size in another process, so that memory can be attributed to it.
fn elsewhere(services: u32, endpoints: u32) -> Result<Measured> {
    let output = Command::new(std::env::current_exe()?)
        .args(["control", "--here", "--services", &services.to_string()])
        .args(["--endpoints", &endpoints.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "measuring {services} Services failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

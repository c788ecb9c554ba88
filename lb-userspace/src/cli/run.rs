use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::agent;
use crate::kernel::{Sizes, XdpMode};

#[derive(Debug, Args)]
pub struct Options {
    /// A file or directory of manifests: Services, EndpointSlices, Endpoints; may be repeated
    #[arg(long, value_name = "PATH", required = true)]
    manifests: Vec<PathBuf>,

    /// A device by which clients reach this node; may be repeated
    #[arg(long, value_name = "NAME", required = true)]
    device: Vec<String>,

    /// This node's name: which endpoints are local [default: the host's name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,

    /// An address on which NodePorts are open; may be repeated [default: the devices' own]
    #[arg(long, value_name = "ADDRESS")]
    nodeport_address: Vec<IpAddr>,

    /// Where XDP runs
    #[arg(long, value_enum, default_value_t)]
    xdp_mode: XdpMode,

    /// Room for so many connections of each address family; 40 bytes each (IPv6: 80)
    #[arg(long, value_name = "NUMBER", default_value_t = 524_288)]
    #[arg(value_parser = clap::value_parser!(u32).range(8..=134_217_728))]
    max_flows: u32,

    /// Detach and remove everything on exit; without it the kernel goes on forwarding
    #[arg(long)]
    cleanup_on_exit: bool,
}

pub fn run(options: Options, pin_path: &Path) -> Result<()> {
    let node_name = match options.node_name {
        Some(name) => name,
        None => nix::unistd::gethostname()
            .context("the host's name can't be read; give one with --node-name")?
            .to_string_lossy()
            .into_owned(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(agent::run(agent::Options {
        manifests: options.manifests,
        devices: options.device,
        node_name,
        nodeport_addresses: options.nodeport_address,
        xdp_mode: options.xdp_mode,
        sizes: Sizes::for_flows(options.max_flows),
        cleanup_on_exit: options.cleanup_on_exit,
        pin_path: pin_path.to_owned(),
    }))
}

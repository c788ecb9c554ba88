//! `millrace cleanup`: detaches all programs and removes all pins; with `--kube-proxy` it removes
//! kube-proxy's rules instead.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;
use lb_kernel::{Pins, require_root};
use lb_kube_proxy::KubeProxy;
use lb_process::ending::EndSignals;

use super::agent::build_runtime;
use super::output;

#[derive(Debug, Args)]
pub struct CleanupOptions {
    /// Print what would be detached and removed, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Clean up even if an agent is running
    ///
    /// The agent keeps running, but handles no packets any more.
    #[arg(long)]
    force: bool,

    /// Then wait for SIGTERM or SIGINT, for a DaemonSet that cleans all nodes
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,

    /// List what kube-proxy left on this node; with --yes, remove it instead
    ///
    /// These are its tables and chains in nftables and in iptables (nft variant), the jumps to
    /// them, its virtual servers of IPVS, the interface kube-ipvs0, and connection tracking entries
    /// with a translated destination. Rules of users, of the kubelet and of container runtimes stay.
    /// Nothing of Millrace is removed.
    #[arg(long)]
    kube_proxy: bool,

    /// Remove what --kube-proxy lists
    #[arg(long, requires = "kube_proxy", conflicts_with = "dry_run")]
    yes: bool,
}

pub fn run_cleanup(options: &CleanupOptions, pin_path: &Path) -> Result<()> {
    require_root()?;
    if !options.wait {
        return clean_up(options, pin_path);
    }
    let runtime = build_runtime()?;
    // Before anything is printed: whoever has read that may send a signal.
    let mut ending = runtime.block_on(async { EndSignals::new() })?;
    clean_up(options, pin_path)?;
    runtime.block_on(ending.requested());
    Ok(())
}

fn clean_up(options: &CleanupOptions, pin_path: &Path) -> Result<()> {
    if options.kube_proxy {
        return clean_up_after_kube_proxy(options);
    }
    let mut text = String::new();
    // Writing to a string can't fail.
    let mut print = |line: String| writeln!(text, "{line}").unwrap_or_default();
    let pins = Pins::open_existing(pin_path, options.force)?;
    let is_there = pins.is_some();
    let detached = match pins {
        Some(pins) if options.dry_run => {
            let attached = lb_kernel::list_attached(&pins)?;
            attached.iter().for_each(|name| print(format!("would detach {name}")));
            let (pinned, path) = (pins.pinned()?.len(), pin_path.display());
            print(format!("would remove {path} with {pinned} pins"));
            return output::write_text(&text);
        }
        Some(pins) => lb_kernel::remove_data_plane(pins)?,
        None if options.dry_run => {
            let stray = lb_kernel::list_stray_filters(pin_path)?;
            stray.iter().for_each(|name| print(format!("would detach {name}")));
            if stray.is_empty() {
                print(format!("nothing to clean up: {} does not exist", pin_path.display()));
            }
            return output::write_text(&text);
        }
        None => lb_kernel::remove_stray_filters(pin_path)?,
    };
    detached.iter().for_each(|name| print(format!("detached {name}")));
    if is_there {
        print(format!("removed {}", pin_path.display()));
    } else if detached.is_empty() {
        print(format!("nothing to clean up: {} does not exist", pin_path.display()));
    }
    output::write_text(&text)
}

fn clean_up_after_kube_proxy(options: &CleanupOptions) -> Result<()> {
    let found = KubeProxy::find()?;
    if options.yes {
        if let Some(process) = found.process
            && !options.force
        {
            bail!(
                "kube-proxy is running (process {process}) and would write its rules again; stop \
                 it first, or pass --force"
            );
        }
        found.remove()?;
    }
    let removals = found.removals();
    let verb = if options.yes { "removed" } else { "would remove" };
    let mut lines: Vec<String> = removals.iter().map(|what| format!("{verb} {what}")).collect();
    lines.extend(found.kept().iter().map(|what| format!("kept {what}")));
    if removals.is_empty() {
        lines.push("nothing of kube-proxy to remove".to_owned());
    } else if !options.yes {
        lines.push("pass --yes to remove it".to_owned());
    }
    output::write_text(&(lines.join("\n") + "\n"))
}

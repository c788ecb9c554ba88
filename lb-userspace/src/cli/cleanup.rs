//! `millrace cleanup`: detaches all programs and removes all pins.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use clap::Args;

use super::output;
use crate::kernel::{self, Pins, require_root};

#[derive(Debug, Args)]
pub struct Options {
    /// Print what would be detached and removed, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Clean up even if an agent is running
    ///
    /// The agent keeps running, but handles no packets any more.
    #[arg(long)]
    force: bool,
}

pub fn cleanup(options: &Options, pin_path: &Path) -> Result<()> {
    require_root()?;
    let mut said = String::new();
    // Writing to a text can't fail.
    let mut say = |line: String| writeln!(said, "{line}").unwrap_or_default();
    let pins = Pins::open_existing(pin_path, options.force)?;
    let is_there = pins.is_some();
    let detached = match pins {
        Some(pins) if options.dry_run => {
            let attached = kernel::attached(&pins)?;
            attached.iter().for_each(|name| say(format!("would detach {name}")));
            let (pinned, path) = (pins.pinned()?.len(), pin_path.display());
            say(format!("would remove {path} with {pinned} pins"));
            return output::write(&said);
        }
        Some(pins) => kernel::remove(pins)?,
        None if options.dry_run => {
            let stray = kernel::stray_filters(pin_path)?;
            stray.iter().for_each(|name| say(format!("would detach {name}")));
            if stray.is_empty() {
                say(format!("nothing to clean up: {} does not exist", pin_path.display()));
            }
            return output::write(&said);
        }
        None => kernel::remove_stray_filters(pin_path)?,
    };
    detached.iter().for_each(|name| say(format!("detached {name}")));
    if is_there {
        say(format!("removed {}", pin_path.display()));
    } else if detached.is_empty() {
        say(format!("nothing to clean up: {} does not exist", pin_path.display()));
    }
    output::write(&said)
}

//! `millrace announcements`.

use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;
use lb_announce::AddressView;
use serde::Serialize;

use super::options::check_readable;
use crate::cli::output::{self, Output, Row, format_age, list_first};

pub const EXAMPLES: &str = "\
Examples:
  millrace announcements
  millrace announcements -o wide
  Addresses that no node announces:
    millrace announcements -o json | jq -r '.[] | select(.holder == null) | .address'
  Follow moves:
    millrace announcements --watch

The command asks the agent of this node: run it in the agent's network namespace. For addresses
that other nodes hold, it shows what those nodes reported last.";

#[derive(Debug, Args)]
pub struct Announcements {
    #[command(flatten)]
    output: Output,
}

/// An address on an interface.
#[derive(Debug, Serialize)]
struct Announcement {
    interface: String,
    #[serde(flatten)]
    view: AddressView,
}

pub fn show_announcements(options: &Announcements, pin_path: &Path) -> Result<()> {
    check_readable(pin_path)?;
    output::show_rows(&options.output, || read_announcements(pin_path))
}

fn read_announcements(pin_path: &Path) -> Result<Vec<Announcement>> {
    let Some(report) = lb_status::ask_agent(pin_path)? else {
        bail!(
            "no agent answers in this network namespace. Its kernel may still announce addresses: \
             bpftool map dump pinned {}/ANNOUNCED",
            pin_path.display()
        );
    };
    let rows = report.announcements.into_iter().flat_map(|link| {
        let interface = link.interface;
        link.addresses
            .into_iter()
            .map(move |view| Announcement { interface: interface.clone(), view })
    });
    Ok(rows.collect())
}

impl Row for Announcement {
    const PLURAL: &'static str = "announced addresses";
    const HEADERS: &'static [&'static str] =
        &["ADDRESS", "SERVICES", "INTERFACE", "HOLDER", "SINCE", "EPOCH", "WHY-NOT-HERE"];
    const NARROW: usize = 5;

    fn cells(&self) -> Vec<String> {
        let AddressView { address, services, holder, epoch, held_seconds, why_not_here, .. } =
            &self.view;
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        vec![
            address.to_string(),
            list_first(services),
            self.interface.clone(),
            text(holder.clone()),
            text(held_seconds.map(format_age)),
            text(epoch.map(|epoch| epoch.to_string())),
            text(why_not_here.clone()),
        ]
    }

    fn name(&self) -> String {
        format!("{}@{}", self.view.address, self.interface)
    }
}

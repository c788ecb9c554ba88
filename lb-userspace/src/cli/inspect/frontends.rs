//! `millrace frontends`.

use std::path::Path;

use anyhow::Result;
use lb_inspect::Frontend;

use super::options::Named;
use crate::cli::output::{Row, list_first};

pub const EXAMPLES: &str = "\
Examples:
  millrace frontends
  millrace frontends shop/web -o wide
  The Service that uses an address:
    millrace frontends --no-headers | grep -w 203.0.113.10
  Frontends without backends:
    millrace frontends -o json | jq -r '.[] | select(.backends == []) | .address'";

pub fn show_frontends(options: &Named, pin_path: &Path) -> Result<()> {
    options.show(pin_path, lb_inspect::list_frontends)
}

impl Row for Frontend {
    const PLURAL: &'static str = "frontends";
    const HEADERS: &'static [&'static str] = &[
        "NAMESPACE",
        "SERVICE",
        "KIND",
        "ADDRESS",
        "PROTOCOL",
        "BACKENDS",
        "PORT",
        "FLOWS",
        "PACKETS-IN",
        "PACKETS-OUT",
    ];
    const NARROW: usize = 6;

    fn cells(&self) -> Vec<String> {
        vec![
            self.namespace.clone(),
            self.service.clone(),
            self.kind.to_owned(),
            self.address.clone(),
            self.protocol.to_owned(),
            list_first(&self.backends),
            self.port.clone(),
            self.traffic.new_flows.to_string(),
            self.traffic.forward_packets.to_string(),
            self.traffic.reverse_packets.to_string(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.address, self.protocol)
    }
}

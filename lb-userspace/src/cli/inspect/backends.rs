//! `millrace backends`.

use std::path::Path;

use anyhow::Result;
use lb_inspect::ListedBackend;

use super::options::Named;
use crate::cli::output::{Row, list_first};

pub const EXAMPLES: &str = "\
Examples:
  millrace backends
  millrace backends shop/web -o wide
  Backends that keep their connections and accept no new ones:
    millrace backends -o json | jq -r '.[] | select(.state == \"draining\") | .address'
  Follow changes:
    millrace backends shop/web --watch";

pub fn show_backends(options: &Named, pin_path: &Path) -> Result<()> {
    options.show(pin_path, lb_inspect::list_backends)
}

impl Row for ListedBackend {
    const PLURAL: &'static str = "backends";
    const HEADERS: &'static [&'static str] = &[
        "ADDRESS",
        "PROTOCOL",
        "STATE",
        "NODE",
        "SERVICES",
        "FLOWS",
        "SHARE",
        "PACKETS-IN",
        "PACKETS-OUT",
        "BYTES-IN",
        "BYTES-OUT",
        "INDEX",
        "GENERATION",
    ];
    const NARROW: usize = 6;

    fn cells(&self) -> Vec<String> {
        let node = match (self.local, self.node) {
            (true, _) => "this".to_owned(),
            (false, Some(node)) => node.to_string(),
            (false, None) => "other".to_owned(),
        };
        let mut services: Vec<String> =
            self.serves.iter().map(|s| format!("{}/{}", s.namespace, s.service)).collect();
        services.sort();
        services.dedup();
        let share = |s: &lb_inspect::Serves| f64::from(s.slots) * 100.0 / s.of_slots.max(1) as f64;
        let shares: Vec<String> =
            self.serves.iter().map(|serves| format!("{:.1}%", share(serves))).collect();
        vec![
            self.address.clone(),
            self.protocol.to_owned(),
            self.state.to_owned(),
            node,
            list_first(&services),
            self.traffic.new_flows.to_string(),
            list_first(&shares),
            self.traffic.forward_packets.to_string(),
            self.traffic.reverse_packets.to_string(),
            self.traffic.forward_bytes.to_string(),
            self.traffic.reverse_bytes.to_string(),
            self.index.to_string(),
            self.generation.to_string(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.address, self.protocol)
    }
}

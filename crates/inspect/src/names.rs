//! Names of service ports and interfaces, and weights of backends.

use std::path::Path;

use anyhow::Result;
use aya::maps::{HashMap, Map, MapData};
use lb_common::layout::{Member, ServicePortName, map};
use lb_kernel::Plain;
use nix::net::if_::if_indextoname;

use crate::trace::story::NameLookup;

/// Names of service ports in the maps, and present names of this machine's interfaces.
pub struct LiveNames {
    service_ports: HashMap<MapData, u32, Plain<ServicePortName>>,
    weights: HashMap<MapData, Plain<Member>, u32>,
}

impl LiveNames {
    pub fn open(pin_path: &Path) -> Result<Self> {
        let open = |name| MapData::from_pin(pin_path.join(name)).and_then(Map::from_map_data);
        Ok(Self {
            service_ports: open(map::SERVICE_NAMES)?.try_into()?,
            weights: open(map::WEIGHTS)?.try_into()?,
        })
    }
}

impl NameLookup for LiveNames {
    fn service_port(&self, index: u32) -> String {
        let Ok(Plain(name)) = self.service_ports.get(&index, 0) else {
            return format!("service port {index}");
        };
        let [namespace, service, port] =
            [name.namespace, name.service, name.port].map(|text| text.as_str().to_owned());
        let port = if port.is_empty() { port } else { format!(":{port}") };
        format!("{namespace}/{service}{port}")
    }

    fn device(&self, index: u32) -> String {
        match if_indextoname(index) {
            Ok(name) => name.to_string_lossy().into_owned(),
            Err(_) => format!("device {index}"),
        }
    }

    fn weight(&self, member: Member) -> Option<u32> {
        self.weights.get(&Plain(member), 0).ok()
    }
}

//! Names of service ports and interfaces.

use std::path::Path;

use anyhow::Result;
use aya::maps::{HashMap, Map, MapData};
use lb_common::layout::{ServicePortName, map};
use nix::net::if_::if_indextoname;

use crate::kernel::Plain;
use crate::trace::story::Names;

/// Names of service ports in the maps, and present names of this machine's interfaces.
pub struct LiveNames {
    /// `None`: maps of an earlier version have no names.
    service_ports: Option<HashMap<MapData, u32, Plain<ServicePortName>>>,
}

impl LiveNames {
    pub fn open(pin_path: &Path) -> Result<Self> {
        let service_ports = match MapData::from_pin(pin_path.join(map::SERVICE_NAMES)) {
            Ok(data) => Some(Map::from_map_data(data)?.try_into()?),
            Err(_) => None,
        };
        Ok(Self { service_ports })
    }
}

impl Names for LiveNames {
    fn service_port(&self, index: u32) -> String {
        let name = self.service_ports.as_ref().and_then(|names| names.get(&index, 0).ok());
        let Some(Plain(name)) = name else { return format!("service port {index}") };
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
}

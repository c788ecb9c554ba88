//! Names for the indexes of service ports, for people who inspect the maps.

use std::sync::Arc;

use lb_common::layout::{ServicePortName, Text};
use lb_rules::model::{AddressFamily, ServicePortKey};

use super::side_entry::SideEntry;

pub fn side_entry(service_port: u32, key: &ServicePortKey) -> SideEntry {
    SideEntry::Name { service_port, name: Arc::new(of(key)) }
}

pub fn of(key: &ServicePortKey) -> ServicePortName {
    ServicePortName {
        namespace: Text::new(&key.service.namespace),
        service: Text::new(&key.service.name),
        port: Text::new(&key.port),
        protocol: key.protocol.number(),
        family: match key.family {
            AddressFamily::V4 => 4,
            AddressFamily::V6 => 6,
        },
        reserved: [0; 2],
    }
}

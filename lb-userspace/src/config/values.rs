//! Values that settings of several parts have.

use std::net::SocketAddr;

use lb_rules::model::ServiceName;

/// Listen address; none if it is off.
#[derive(Clone, Copy, Debug)]
pub struct Address(pub Option<SocketAddr>);

pub fn address(text: &str) -> Result<Address, String> {
    match text {
        "off" | "" => Ok(Address(None)),
        _ => text.parse().map(|address| Address(Some(address))).map_err(|_| {
            "neither an address and port, such as 127.0.0.1:10249, nor `off`".to_owned()
        }),
    }
}

pub fn namespaced_name(text: &str) -> Result<ServiceName, String> {
    match text.split_once('/') {
        Some((namespace, name))
            if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
        {
            Ok(ServiceName::new(namespace, name))
        }
        _ => Err("not a namespace and name, such as kube-system/ingress".to_owned()),
    }
}

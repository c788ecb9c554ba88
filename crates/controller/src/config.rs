//! What the controller is configured with.

use lb_rules::ipam::{IpamSettings, Range};
use lb_rules::model::ServiceName;
use lb_source::cluster::Access;

#[derive(Clone, Debug)]
pub struct ControllerOptions {
    pub access: Access,
    pub settings: IpamSettings,
    /// Ranges of the setting.
    pub ranges: Vec<Range>,
    pub metallb_namespace: String,
    /// The Lease of the process that assigns; `None`: there is only this one.
    pub lease: Option<ServiceName>,
    /// The Secret that gets a tunnel key if it has none.
    pub tunnel_key_secret: Option<ServiceName>,
}

//! The settings of load balancer addresses: a part of the one list in `declared`.

use std::time::Duration;

use clap::{ArgAction, Args};
use lb_agent::HookTarget;
use lb_announce::ElectionTiming;
use lb_rules::ipam::{self, CLASS, Range};
use lb_rules::kinds::METALLB_NAMESPACE;
use lb_rules::model::ServiceName;

use super::values::{
    ListenAddress, namespaced_name, parse_listen_address, parse_milliseconds, parse_seconds,
};

/// Settings of pools of addresses and of their assignment.
#[derive(Clone, Debug, Args)]
pub struct LoadBalancerSettings {
    /// Addresses for Services of type LoadBalancer: a CIDR, a range or an address; may be repeated
    ///
    /// They form a pool in addition to the AddressPools, and all nodes announce them. The agents and the controller need
    /// the same value. Example: 192.0.2.0/28,198.51.100.10-198.51.100.20,2001:db8::/120
    #[arg(long, value_name = "RANGE", value_delimiter = ',', value_parser = Range::parse)]
    pub load_balancer_addresses: Vec<Range>,

    /// Value of spec.loadBalancerClass of the Services that get addresses; may be repeated
    #[arg(long, alias = "load-balancer-class", value_name = "CLASS", value_delimiter = ',', default_value = CLASS)]
    pub load_balancer_classes: Vec<String>,

    /// Leave Services without a spec.loadBalancerClass to another controller
    #[arg(long, alias = "load-balancer-class-required", value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub require_load_balancer_class: bool,

    /// Namespace of MetalLB's IPAddressPools and L2Advertisements; those in other namespaces are ignored
    #[arg(long, value_name = "NAMESPACE", default_value = METALLB_NAMESPACE)]
    pub metallb_namespace: String,
}

/// How the agent announces addresses. The same on all nodes.
#[derive(Clone, Debug, Args)]
pub struct AnnouncementSettings {
    /// Interval of the heartbeats by which nodes agree which of them announces an address, in milliseconds
    ///
    /// They are sent on interfaces with addresses to announce, as UDP to port 10245 of the groups ff02::1 and
    /// 224.0.0.1. With tunnel-key-file they are authenticated. The same value on all nodes.
    #[arg(long, value_name = "MILLISECONDS", default_value = "100")]
    #[arg(value_parser = parse_milliseconds(20..=10_000))]
    pub heartbeat_interval: u32,

    /// Number of missed heartbeats after which a node counts as failed, unless its kernel still answers
    #[arg(long, value_name = "NUMBER", default_value = "3")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=100))]
    pub heartbeat_misses: u32,

    /// How long the kernel answers for announced addresses after the agent has exited, in seconds
    ///
    /// A restart or upgrade of the agent within this time moves no address.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    #[arg(value_parser = parse_seconds(5..=3_600))]
    pub announcement_hold: u32,

    /// Server or program that the agent calls when this node takes or gives up an address, to move a floating address
    ///
    /// The agent posts JSON to a URL of this machine, without TLS, such as {"node": "a", "changes": [{"address":
    /// "192.0.2.1", "interface": "eth0", "state": "taken"}]}, or runs the program of an absolute path with it as input.
    /// It repeats what is not answered by a status of 2xx, or the exit code 0, within 10 seconds. The other state is
    /// released.
    #[arg(long, value_name = "URL|PATH")]
    pub announcement_hook: Option<HookTarget>,

    /// Give endpoints of dead nodes new connections
    ///
    /// Otherwise they get none while their Service has others.
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_dead_nodes: bool,
}

impl AnnouncementSettings {
    pub fn timing(&self) -> ElectionTiming {
        let interval = Duration::from_millis(self.heartbeat_interval.into());
        ElectionTiming {
            interval,
            silence: interval * self.heartbeat_misses,
            hold: Duration::from_secs(self.announcement_hold.into()),
            ..ElectionTiming::default()
        }
    }
}

/// Settings of the process that assigns addresses.
#[derive(Clone, Debug, Args)]
pub struct ControllerSettings {
    /// Lease whose holder assigns addresses
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "kube-system/millrace-controller")]
    #[arg(value_parser = namespaced_name)]
    pub controller_lease: ServiceName,

    /// Secret that the controller writes a tunnel key into, if it has none
    ///
    /// The Secret must exist; its field `key` is what the agents read as tunnel-key-file. The holder of the Lease
    /// reads it once, and keeps an existing key.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = namespaced_name)]
    pub tunnel_key_secret: Option<ServiceName>,

    /// Listen address for the controller's health checks /healthz, /livez and /readyz, or `off`
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:10252")]
    #[arg(value_parser = parse_listen_address)]
    pub controller_healthz_bind_address: ListenAddress,

    /// Listen address for the controller's /metrics, or `off`
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10251")]
    #[arg(value_parser = parse_listen_address)]
    pub controller_metrics_bind_address: ListenAddress,
}

impl LoadBalancerSettings {
    /// The part that decides which Services get addresses.
    pub fn assignment(&self) -> ipam::IpamSettings {
        ipam::IpamSettings {
            classes: self.load_balancer_classes.clone(),
            needs_class: self.require_load_balancer_class,
            is_alone: false,
        }
    }
}

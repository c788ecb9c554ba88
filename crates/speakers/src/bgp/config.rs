//! A BGP peer, whichever kind of object it comes from. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use lb_bgp::Family;
use lb_bgp::session::{BgpSessionConfig, PeerAs};
use lb_rules::ipam::{Selector, is_unset};
use lb_rules::kinds::{BGPPeer, MetallbBGPPeer, MetallbBGPPeerSpec, PASSWORDS};

use super::InvalidField;
use super::detection::DetectionConfig;

/// The TCP port of BGP.
pub(crate) const BGP_PORT: u16 = 179;
/// How long routers keep the routes of an agent that restarts, in seconds.
const DEFAULT_RESTART_SECONDS: u16 = 120;
/// The largest that fits into an OPEN message.
const MAX_RESTART_SECONDS: u16 = 4095;
/// `TCP_MD5SIG_MAXKEYLEN`.
pub(crate) const MAX_PASSWORD_OCTETS: usize = 80;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    pub location: PeerLocation,
    pub port: u16,
    pub local_as: u32,
    pub peer_as: PeerAs,
    /// The node's BGP identifier, if it is configured.
    pub identifier: Option<Ipv4Addr>,
    pub source: Option<IpAddr>,
    pub multihop: bool,
    /// The most hops to the peer (RFC 5082).
    pub ttl_security: Option<u8>,
    pub hold_time: u16,
    pub password: PasswordSource,
    /// Nodes that connect to it; empty: all.
    pub nodes: Vec<Selector>,
    pub restart_time: Option<u16>,
    pub passive: bool,
    pub bfd: BfdSetting,
    /// The families that the session carries at most.
    pub families: BTreeSet<Family>,
}

/// How a broken path is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BfdSetting {
    /// By the hold time only.
    None,
    Own(DetectionConfig),
    /// As an object of MetalLB of this name says.
    Profile(String),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerLocation {
    /// The interface is needed for link-local addresses only.
    Address(IpAddr, Option<String>),
    /// The only router on the link of an interface.
    Interface(String),
}

impl PeerLocation {
    /// The interface to a router whose address is found out.
    pub fn unnumbered(&self) -> Option<String> {
        match self {
            Self::Interface(name) => Some(name.clone()),
            Self::Address(..) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PasswordSource {
    None,
    Text(PasswordSecret),
    /// In the Secret with passwords.
    Key(String),
}

/// Never in a log.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PasswordSecret(pub Vec<u8>);

impl fmt::Debug for PasswordSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a password)")
    }
}

impl PeerConfig {
    /// A peer is used as a whole or not at all: the problem of a field is one of the peer.
    pub(crate) fn of_bgp_peer(object: &BGPPeer) -> Result<Self, InvalidField> {
        let spec = &object.spec;
        let peer_as = match spec.peer_asn {
            Some(number) => PeerAs::Number(number),
            None => PeerAs::External,
        };
        let restart_time = spec.graceful_restart_seconds.unwrap_or(DEFAULT_RESTART_SECONDS);
        if restart_time > MAX_RESTART_SECONDS {
            let message = format!("{restart_time} is more than {MAX_RESTART_SECONDS}");
            return Err(("spec.gracefulRestartSeconds", message));
        }
        let peer = Self {
            location: read_location(
                ("spec.address", spec.address.as_deref()),
                spec.interface.as_deref(),
            )?,
            port: spec.port.unwrap_or(BGP_PORT),
            local_as: spec.local_asn,
            peer_as,
            identifier: read_identifier("spec.routerID", spec.router_id.as_deref())?,
            source: read_address("spec.sourceAddress", spec.source_address.as_deref())?,
            multihop: spec.ebgp_multi_hop,
            ttl_security: spec.ttl_security_hops.filter(|hops| *hops > 0),
            hold_time: spec.hold_time_seconds.unwrap_or(BgpSessionConfig::DEFAULT_HOLD_TIME),
            password: spec.password_key.clone().map_or(PasswordSource::None, PasswordSource::Key),
            nodes: read_selectors("spec.nodeSelector", spec.node_selector.iter())?,
            restart_time: (restart_time > 0).then_some(restart_time),
            passive: spec.passive,
            bfd: match &spec.bfd {
                Some(bfd) => {
                    BfdSetting::Own(DetectionConfig::of_peer_bfd(bfd, spec.ttl_security_hops)?)
                }
                None => BfdSetting::None,
            },
            families: Family::ALL.into(),
        };
        peer.check_fields("spec.localASN", "spec.peerASN", "spec.holdTimeSeconds")
    }

    pub(crate) fn of_metallb_peer(object: &MetallbBGPPeer) -> Result<Self, InvalidField> {
        let spec = &object.spec;
        let peer_as =
            match (spec.peer_asn.filter(|number| *number > 0), spec.dynamic_asn.as_deref()) {
                (Some(number), _) => PeerAs::Number(number),
                (None, Some("internal")) => PeerAs::Internal,
                (None, Some("external")) => PeerAs::External,
                (None, _) => {
                    let message = "is missing, and dynamicASN is neither internal nor external";
                    return Err(("spec.peerASN", message.to_owned()));
                }
            };
        if spec.vrf.as_deref().is_some_and(|vrf| !vrf.is_empty()) {
            return Err(("spec.vrf", "sessions in a VRF are not supported".to_owned()));
        }
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let secret = spec.password_secret.as_ref().and_then(|secret| given(&secret.name));
        let password = match (given(&spec.password), secret) {
            (Some(text), _) => PasswordSource::Text(PasswordSecret(text.into_bytes())),
            (None, Some(name)) => PasswordSource::Key(name),
            (None, None) => PasswordSource::None,
        };
        let hold_time = match given(&spec.hold_time) {
            None => BgpSessionConfig::DEFAULT_HOLD_TIME,
            Some(text) => parse_seconds(&text).ok_or_else(|| {
                ("spec.holdTime", format!("{text:?} is not a duration of up to 65535s"))
            })?,
        };
        // Timers that this speaker chooses itself.
        let is_harmless = |name: &str| ["keepaliveTime", "connectTime"].contains(&name);
        let mut unknown = spec.unknown.iter();
        if let Some((name, _)) =
            unknown.find(|(name, value)| !is_harmless(name) && !is_unset(value))
        {
            let message = format!("{name} is not known to this version and may restrict");
            return Err(("spec", message));
        }
        let location = read_location(
            ("spec.peerAddress", spec.peer_address.as_deref()),
            spec.interface.as_deref(),
        )?;
        let peer = Self {
            families: session_families(spec, &location),
            location,
            port: spec.peer_port.filter(|port| *port > 0).unwrap_or(BGP_PORT),
            local_as: spec.local_asn.filter(|number| *number > 0).unwrap_or(spec.my_asn),
            peer_as,
            identifier: read_identifier("spec.routerID", spec.router_id.as_deref())?,
            source: read_address("spec.sourceAddress", spec.source_address.as_deref())?,
            multihop: spec.ebgp_multi_hop,
            ttl_security: None,
            hold_time,
            password,
            nodes: read_selectors("spec.nodeSelectors", spec.node_selectors.iter())?,
            restart_time: spec.enable_graceful_restart.then_some(DEFAULT_RESTART_SECONDS),
            passive: false,
            bfd: given(&spec.bfd_profile).map_or(BfdSetting::None, BfdSetting::Profile),
        };
        peer.check_fields("spec.myASN", "spec.peerASN", "spec.holdTime")
    }

    fn check_fields(
        self,
        local: &'static str,
        other: &'static str,
        hold: &'static str,
    ) -> Result<Self, InvalidField> {
        let zero = || "0 is no autonomous system (RFC 7607)".to_owned();
        match (&self.password, &self.location, self.source) {
            _ if self.local_as == 0 => Err((local, zero())),
            _ if self.peer_as == PeerAs::Number(0) => Err((other, zero())),
            _ if (1..3).contains(&self.hold_time) => {
                Err((hold, format!("{} s is neither 0 nor at least 3 s", self.hold_time)))
            }
            (PasswordSource::Text(text), ..) if text.0.len() > MAX_PASSWORD_OCTETS => {
                Err(("spec.password", format!("is longer than {MAX_PASSWORD_OCTETS} characters")))
            }
            (PasswordSource::Text(_) | PasswordSource::Key(_), PeerLocation::Interface(_), _) => {
                Err((
                    "spec.interface",
                    "a password needs the peer's address: set it beside the interface".to_owned(),
                ))
            }
            (_, PeerLocation::Address(address, _), Some(source))
                if address.is_ipv4() != source.is_ipv4() =>
            {
                let message = format!("{source} and the peer {address} are of two families");
                Err(("spec.sourceAddress", message))
            }
            _ => Ok(self),
        }
    }
}

/// The families of a session as MetalLB decides it: since 0.15 that of the peer's address, unless
/// `dualStackAddressFamily` is set. Earlier versions do not have the field, and carry both unless
/// `disableMP` is set.
fn session_families(spec: &MetallbBGPPeerSpec, location: &PeerLocation) -> BTreeSet<Family> {
    let carries_both = spec.dual_stack_address_family.unwrap_or(spec.disable_mp != Some(true));
    match location {
        PeerLocation::Address(IpAddr::V4(_), _) if !carries_both => [Family::Ipv4].into(),
        PeerLocation::Address(IpAddr::V6(_), _) if !carries_both => [Family::Ipv6].into(),
        PeerLocation::Address(..) | PeerLocation::Interface(_) => Family::ALL.into(),
    }
}

/// Why a password of the Secret can't be used.
pub(crate) fn find_password_problem(key: &str, found: Option<&[u8]>) -> Option<String> {
    let secret = format!("key {key:?} of the Secret {PASSWORDS}");
    match found.map(<[u8]>::len) {
        None => Some(format!("the password is missing: {secret} in the agent's namespace")),
        Some(0) => Some(format!("{secret} is empty")),
        Some(length) if length > MAX_PASSWORD_OCTETS => {
            Some(format!("{secret} is longer than {MAX_PASSWORD_OCTETS} characters"))
        }
        Some(_) => None,
    }
}

fn read_location(
    (field, address): (&'static str, Option<&str>),
    interface: Option<&str>,
) -> Result<PeerLocation, InvalidField> {
    let interface = interface.filter(|name| !name.is_empty()).map(str::to_owned);
    let is_link_local =
        |address: IpAddr| matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
    match (self::read_address(field, address)?, interface) {
        (Some(address), None) if is_link_local(address) => {
            Err((field, format!("{address} is link-local: name the interface, too")))
        }
        (Some(address), _) if address.is_unspecified() || address.is_multicast() => {
            Err((field, format!("{address} is no router's address")))
        }
        (Some(address), interface) => Ok(PeerLocation::Address(address, interface)),
        (None, Some(interface)) => Ok(PeerLocation::Interface(interface)),
        (None, None) => Err((field, "neither an address nor an interface is given".to_owned())),
    }
}

fn read_address(field: &'static str, text: Option<&str>) -> Result<Option<IpAddr>, InvalidField> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let address = text.parse().map_err(|_| (field, format!("{text:?} is not an address")))?;
    Ok(Some(address))
}

fn read_identifier(
    field: &'static str,
    text: Option<&str>,
) -> Result<Option<Ipv4Addr>, InvalidField> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    match text.parse::<Ipv4Addr>() {
        Ok(identifier) if !identifier.is_unspecified() => Ok(Some(identifier)),
        _ => Err((field, format!("{text:?} is not an IPv4 address other than 0.0.0.0"))),
    }
}

fn read_selectors<'a>(
    field: &'static str,
    selectors: impl Iterator<Item = &'a LabelSelector>,
) -> Result<Vec<Selector>, InvalidField> {
    let read = |selector| match Selector::read(selector) {
        (selector, None) => Ok(selector),
        (_, Some(problem)) => Err((field, problem)),
    };
    selectors.map(read).collect()
}

/// Whole seconds of a duration as Go writes it: `90s`, `1m30s`, `1h`.
fn parse_seconds(text: &str) -> Option<u16> {
    u16::try_from(lb_rules::duration::parse_go_duration(text)?.as_secs()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn own(spec: Value) -> Result<PeerConfig, InvalidField> {
        let object = json!({"apiVersion": "millrace.io/v1alpha1", "kind": "BGPPeer", "metadata": {"name": "a"}, "spec": spec});
        PeerConfig::of_bgp_peer(&serde_json::from_value(object).unwrap())
    }

    fn of_metallb(spec: Value) -> Result<PeerConfig, InvalidField> {
        let object = json!({"apiVersion": "metallb.io/v1beta2", "kind": "BGPPeer", "metadata": {"name": "a"}, "spec": spec});
        PeerConfig::of_metallb_peer(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn absent_fields_have_defaults() {
        let peer = own(json!({"address": "192.0.2.1", "localASN": 64512})).unwrap();
        assert_eq!(peer.location, PeerLocation::Address("192.0.2.1".parse().unwrap(), None));
        assert_eq!((peer.port, peer.hold_time, peer.restart_time), (179, 9, Some(120)));
        assert_eq!(peer.peer_as, PeerAs::External);
        let spec = json!({"peerAddress": "192.0.2.1", "myASN": 64512, "peerASN": 64513});
        let peer = of_metallb(spec).unwrap();
        assert_eq!((peer.port, peer.hold_time, peer.restart_time), (179, 9, None));
        let unnumbered = own(json!({"interface": "eth0", "localASN": 64512})).unwrap();
        assert_eq!(unnumbered.location, PeerLocation::Interface("eth0".to_owned()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = [
            (json!({"localASN": 1}), "spec.address"),
            (json!({"localASN": 1, "address": "router"}), "spec.address"),
            (json!({"localASN": 1, "address": "fe80::1"}), "spec.address"),
            (json!({"localASN": 1, "address": "0.0.0.0"}), "spec.address"),
            (json!({"localASN": 0, "address": "192.0.2.1"}), "spec.localASN"),
            (json!({"localASN": 1, "peerASN": 0, "address": "192.0.2.1"}), "spec.peerASN"),
            (
                json!({"localASN": 1, "address": "192.0.2.1", "holdTimeSeconds": 2}),
                "spec.holdTimeSeconds",
            ),
            (
                json!({"localASN": 1, "address": "192.0.2.1", "routerID": "0.0.0.0"}),
                "spec.routerID",
            ),
            (
                json!({"localASN": 1, "address": "192.0.2.1", "sourceAddress": "::1"}),
                "spec.sourceAddress",
            ),
            (
                json!({"localASN": 1, "address": "192.0.2.1", "gracefulRestartSeconds": 5000}),
                "spec.gracefulRestartSeconds",
            ),
            (json!({"localASN": 1, "interface": "eth0", "passwordKey": "a"}), "spec.interface"),
            (
                json!({"localASN": 1, "address": "192.0.2.1", "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}),
                "spec.nodeSelector",
            ),
        ];
        for (spec, field) in wrong {
            assert_eq!(own(spec.clone()).expect_err(&spec.to_string()).0, field, "{spec}");
        }
        let base = json!({"myASN": 1, "peerASN": 2, "peerAddress": "192.0.2.1"});
        for (field, value) in [
            ("vrf", json!("red")),
            ("holdTime", json!("soon")),
            ("holdTime", json!("2s")),
            ("password", json!("x".repeat(81))),
        ] {
            let mut spec = base.clone();
            spec[field] = value;
            assert_eq!(of_metallb(spec).unwrap_err().0, format!("spec.{field}"));
        }
    }

    #[test]
    fn a_session_of_metallb_carries_the_families_of_its_version() {
        use Family::{Ipv4, Ipv6};
        let base = json!({"myASN": 1, "peerASN": 2, "peerAddress": "192.0.2.1"});
        for (more, expected) in [
            // Since 0.15, which sets the default.
            (json!({"dualStackAddressFamily": false, "disableMP": false}), vec![Ipv4]),
            (json!({"dualStackAddressFamily": false, "peerAddress": "2001:db8::1"}), vec![Ipv6]),
            (json!({"dualStackAddressFamily": true, "disableMP": true}), vec![Ipv4, Ipv6]),
            // Before.
            (json!({}), vec![Ipv4, Ipv6]),
            (json!({"disableMP": false}), vec![Ipv4, Ipv6]),
            (json!({"disableMP": true}), vec![Ipv4]),
            (
                json!({"dualStackAddressFamily": false, "peerAddress": "", "interface": "eth0"}),
                vec![Ipv4, Ipv6],
            ),
        ] {
            let mut spec = base.clone();
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let families: Vec<Family> = of_metallb(spec).unwrap().families.into_iter().collect();
            assert_eq!(families, expected, "{more}");
        }
    }

    #[test]
    fn fields_of_other_versions_of_metallb() {
        let of = |more: Value| {
            let mut spec = json!({"myASN": 1, "peerASN": 2, "peerAddress": "192.0.2.1"});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of_metallb(spec)
        };
        assert_eq!(of(json!({"localASN": 64512})).unwrap().local_as, 64512);
        assert_eq!(of(json!({"localASN": 0})).unwrap().local_as, 1);
        assert!(of(json!({"keepaliveTime": "3s", "connectTime": "5s", "later": false})).is_ok());
        let (field, message) = of(json!({"laterSelectors": [{}]})).unwrap_err();
        assert!(field == "spec" && message.contains("laterSelectors is not known"), "{message}");
    }

    #[test]
    fn durations_are_those_of_go() {
        let read = ["90s", "1m30s", "1h", "1500ms", "", "90", "s", "1d", "99h", "-1s", "1.5s"];
        let expected =
            [Some(90), Some(90), Some(3600), Some(1), None, None, None, None, None, None, None];
        assert_eq!(read.map(parse_seconds), expected);
    }

    #[test]
    fn passwords_are_not_printed() {
        let peer = of_metallb(
            json!({"myASN": 1, "peerASN": 2, "peerAddress": "192.0.2.1", "password": "hunter2"}),
        );
        assert!(!format!("{peer:?}").contains("hunter2"));
    }
}

//! The BGP peers of this node, from the objects that define them. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::api::core::v1::Secret as ApiSecret;
use lb_rules::ipam::any_selects;
use lb_rules::kinds::{PASSWORDS, PeerServiceAdvertisement};
use lb_rules::model::{Kind, Node, Object, ObjectRef, Problem};
use sha2::{Digest, Sha256};

use super::InvalidField;
use super::config::{
    BfdSetting, PasswordSecret, PasswordSource, PeerConfig, PeerLocation, find_password_problem,
};
use super::detection::DetectionConfig;
use super::service_advertisement::ServiceAdvertisement;

/// All peers that objects define.
#[derive(Debug, Default)]
pub struct PeerObjects {
    objects: BTreeMap<ObjectRef, DefinedPeer>,
    /// MetalLB's profiles of BFD, by name.
    profiles: BTreeMap<String, Result<DetectionConfig, Problem>>,
    /// By the Secret's key.
    passwords: BTreeMap<String, Vec<u8>>,
}

/// What an object defines.
#[derive(Debug, PartialEq)]
struct DefinedPeer {
    /// Of two with one address, the older one is used. `None`, as of files: the oldest.
    created: Option<String>,
    read: Result<PeerConfig, Problem>,
    /// What it gets besides addresses of load balancers.
    advertisements: Vec<ServiceAdvertisement>,
    advertisement_problems: Vec<Problem>,
}

/// A peer that this node connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredPeer {
    pub peer: PeerConfig,
    pub identifier: Ipv4Addr,
    pub password: Option<PasswordSecret>,
    /// How a broken path is found.
    pub detection: Option<DetectionConfig>,
}

impl ConfiguredPeer {
    /// Whether a session of one is a session of the other: they differ in the detection of broken paths at most.
    pub(crate) fn has_session_of(&self, other: &Self) -> bool {
        let without = |it: &Self| {
            let peer = PeerConfig { bfd: BfdSetting::None, ..it.peer.clone() };
            Self { peer, detection: None, ..it.clone() }
        };
        without(self) == without(other)
    }
}

impl PeerObjects {
    /// Returns whether anything has changed.
    pub fn apply_object(&mut self, object: &Object) -> bool {
        let reference = object.reference();
        let (metadata, read) = match object {
            Object::BgpPeer(object) => (&object.metadata, PeerConfig::of_bgp_peer(object)),
            Object::MetallbBgpPeer(object) => {
                (&object.metadata, PeerConfig::of_metallb_peer(object))
            }
            Object::BfdProfile(profile) => {
                let read = DetectionConfig::of_profile(profile);
                let read =
                    read.map_err(|wrong| report_problem(&reference, wrong, "BFD is not used"));
                let before = self.profiles.insert(reference.name, read.clone());
                return before != Some(read);
            }
            Object::Secret(secret) if reference.name == PASSWORDS => {
                return replace_if_changed(&mut self.passwords, decode_secret(secret));
            }
            _ => return false,
        };
        let created = metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
        let read = read.map_err(|wrong| report_problem(&reference, wrong, "the peer is not used"));
        let (advertisements, advertisement_problems) = match object {
            Object::BgpPeer(object) => {
                read_service_advertisements(&reference, &object.spec.service_advertisements)
            }
            _ => (Vec::new(), Vec::new()),
        };
        let defined = DefinedPeer { created, read, advertisements, advertisement_problems };
        if self.objects.get(&reference) == Some(&defined) {
            return false;
        }
        self.objects.insert(reference, defined);
        true
    }

    /// Returns whether anything has changed.
    pub fn delete_object(&mut self, reference: &ObjectRef) -> bool {
        match reference.kind {
            Kind::Secret if reference.name == PASSWORDS => {
                replace_if_changed(&mut self.passwords, BTreeMap::new())
            }
            Kind::BfdProfile => self.profiles.remove(&reference.name).is_some(),
            _ => self.objects.remove(reference).is_some(),
        }
    }

    /// The peers of a node by name, and what is wrong with others.
    pub fn list_node_peers(
        &self,
        name: &str,
        node: Option<&Node>,
    ) -> (BTreeMap<String, ConfiguredPeer>, Vec<Problem>) {
        let labels = node.map(|node| node.labels.clone()).unwrap_or_default();
        let (mut peers, mut problems) = (BTreeMap::new(), Vec::new());
        let mut taken: BTreeMap<&PeerLocation, &ObjectRef> = BTreeMap::new();
        let mut objects: Vec<(&ObjectRef, &DefinedPeer)> = self.objects.iter().collect();
        objects.sort_by_key(|(reference, defined)| (&defined.created, *reference));
        for (reference, DefinedPeer { read, .. }) in objects {
            let peer = match read {
                // A router keeps one session with an address: two would end each other for ever.
                Ok(peer) if any_selects(&peer.nodes, &labels) => {
                    match taken.get(&peer.location) {
                        None => drop(taken.insert(&peer.location, reference)),
                        Some(other) => {
                            let message = format!("{} has the same router on this node", *other);
                            let field = match (&peer.location, reference.kind) {
                                (PeerLocation::Interface(_), _) => "spec.interface",
                                (_, Kind::MetallbBgpPeer) => "spec.peerAddress",
                                _ => "spec.address",
                            };
                            let wrong = (field, message);
                            problems.push(report_problem(reference, wrong, "the peer is not used"));
                            continue;
                        }
                    }
                    peer
                }
                Ok(_) => continue,
                Err(problem) => {
                    problems.push(problem.clone());
                    continue;
                }
            };
            let password = match self.password(&peer.password) {
                Ok(password) => password,
                Err(message) => {
                    let object = reference.to_string();
                    let field = "spec.passwordKey".to_owned();
                    problems.push(Problem { object, field, message });
                    continue;
                }
            };
            let identifier = peer.identifier.unwrap_or_else(|| choose_identifier(name, node));
            let detection = self.detection(reference, &peer.bfd).unwrap_or_else(|problem| {
                problems.push(problem);
                None
            });
            let configured = ConfiguredPeer { peer: peer.clone(), identifier, password, detection };
            peers.insert(name_peer(reference), configured);
        }
        (peers, problems)
    }

    /// Which cluster IPs and external IPs these peers get, and what is wrong with that.
    pub fn list_service_advertisements(
        &self,
        peers: &BTreeMap<String, ConfiguredPeer>,
    ) -> (Vec<ServiceAdvertisement>, Vec<Problem>) {
        let used = self.objects.iter().filter(|(object, _)| peers.contains_key(&name_peer(object)));
        let (mut advertisements, mut problems) = (Vec::new(), Vec::new());
        for (_, defined) in used {
            advertisements.extend(defined.advertisements.iter().cloned());
            problems.extend(defined.advertisement_problems.iter().cloned());
        }
        (advertisements, problems)
    }

    /// Names of all peers, also of those that can't be used.
    pub fn names(&self) -> BTreeSet<String> {
        self.objects.keys().map(name_peer).collect()
    }

    /// Names of peers that do not select a node.
    pub fn list_other_peers(&self, node: Option<&Node>) -> Vec<String> {
        let labels = node.map(|node| node.labels.clone()).unwrap_or_default();
        let selects = |defined: &DefinedPeer| {
            defined.read.as_ref().map_or(true, |peer| any_selects(&peer.nodes, &labels))
        };
        let others = self.objects.iter().filter(|(_, defined)| !selects(defined));
        others.map(|(reference, _)| name_peer(reference)).collect()
    }

    /// A session without BFD is better than none.
    fn detection(
        &self,
        peer: &ObjectRef,
        bfd: &BfdSetting,
    ) -> Result<Option<DetectionConfig>, Problem> {
        match bfd {
            BfdSetting::None => Ok(None),
            BfdSetting::Own(detection) => Ok(Some(*detection)),
            BfdSetting::Profile(name) => match self.profiles.get(name) {
                Some(profile) => profile.clone().map(Some),
                None => {
                    let message = format!("there is no BFDProfile {name:?} in this namespace");
                    Err(report_problem(peer, ("spec.bfdProfile", message), "BFD is not used"))
                }
            },
        }
    }

    fn password(&self, password: &PasswordSource) -> Result<Option<PasswordSecret>, String> {
        match password {
            PasswordSource::None => Ok(None),
            PasswordSource::Text(text) => Ok(Some(text.clone())),
            PasswordSource::Key(key) => {
                let found = self.passwords.get(key);
                match find_password_problem(key, found.map(Vec::as_slice)) {
                    Some(problem) => Err(problem),
                    None => Ok(found.cloned().map(PasswordSecret)),
                }
            }
        }
    }
}

fn read_service_advertisements(
    reference: &ObjectRef,
    specs: &[PeerServiceAdvertisement],
) -> (Vec<ServiceAdvertisement>, Vec<Problem>) {
    let (mut advertisements, mut problems) = (Vec::new(), Vec::new());
    for (index, spec) in specs.iter().enumerate() {
        let (read, wrong) = ServiceAdvertisement::read(&name_peer(reference), spec);
        advertisements.push(read);
        problems.extend(wrong.into_iter().map(|(field, message)| Problem {
            object: reference.to_string(),
            field: format!("spec.serviceAdvertisements[{index}].{field}"),
            message,
        }));
    }
    (advertisements, problems)
}

/// A field of an object, and what follows from its fault.
fn report_problem(
    object: &ObjectRef,
    (field, message): InvalidField,
    consequence: &str,
) -> Problem {
    Problem {
        object: object.to_string(),
        field: field.to_owned(),
        message: format!("{message}; {consequence}"),
    }
}

/// Peers of MetalLB have their namespace in front, so that no two have one name.
fn name_peer(reference: &ObjectRef) -> String {
    match reference.namespace.as_str() {
        "" => reference.name.clone(),
        namespace => format!("{namespace}/{}", reference.name),
    }
}

/// The node's first IPv4 address; without any, one that follows from its name.
fn choose_identifier(name: &str, node: Option<&Node>) -> Ipv4Addr {
    let addresses = node.iter().flat_map(|node| &node.addresses.0);
    let mut fours = addresses.filter_map(|address| match address {
        IpAddr::V4(address) if !address.is_unspecified() => Some(*address),
        _ => None,
    });
    fours.next().unwrap_or_else(|| {
        let digest = Sha256::digest(name);
        let (first, _) = digest.split_first_chunk().expect("SHA-256 has 32 octets");
        Ipv4Addr::from(u32::from_be_bytes(*first).max(1))
    })
}

/// `data`, and `stringData` as in manifests.
fn decode_secret(secret: &ApiSecret) -> BTreeMap<String, Vec<u8>> {
    let data = secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
    let texts = secret.string_data.iter().flatten();
    data.chain(texts.map(|(key, text)| (key.clone(), text.clone().into_bytes()))).collect()
}

fn replace_if_changed<T: PartialEq>(place: &mut T, value: T) -> bool {
    if *place == value {
        return false;
    }
    *place = value;
    true
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(value: Value) -> Object {
        let text = |field: &str| value[field].as_str().unwrap().to_owned();
        let kind = Kind::of(&text("apiVersion"), &text("kind")).unwrap();
        Object::read(kind, value).unwrap()
    }

    fn peer(name: &str, more: Value) -> Object {
        let mut spec = json!({"address": "192.0.2.1", "localASN": 64512});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object(
            json!({"apiVersion": "millrace.io/v1alpha1", "kind": "BGPPeer", "metadata": {"name": name}, "spec": spec}),
        )
    }

    fn secret(data: Value) -> Object {
        object(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": PASSWORDS, "namespace": "kube-system"}, "stringData": data}),
        )
    }

    fn node() -> Node {
        let node = object(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"rack": "1"}},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]}
        }));
        let Object::Node(node) = node else { panic!() };
        *node
    }

    #[test]
    fn a_node_has_the_peers_that_select_it() {
        let mut peers = PeerObjects::default();
        let rack = |number: &str| json!({"nodeSelector": {"matchLabels": {"rack": number}}});
        assert!(peers.apply_object(&peer("one", rack("1"))));
        assert!(!peers.apply_object(&peer("one", rack("1"))));
        assert!(peers.apply_object(&peer("two", rack("2"))));
        let (found, problems) = peers.list_node_peers("a", Some(&node()));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["one"]);
        assert_eq!(found["one"].identifier, Ipv4Addr::new(192, 0, 2, 7));
        assert_eq!(peers.list_other_peers(Some(&node())), ["two"]);
        assert!(problems.is_empty());
        assert!(peers.delete_object(&peer("one", rack("1")).reference()));
        assert!(peers.list_node_peers("a", Some(&node())).0.is_empty());
        // Nodes without addresses differ from each other.
        let identifiers = ["a", "b"].map(|name| choose_identifier(name, None));
        assert_ne!(identifiers[0], identifiers[1]);
    }

    /// A router keeps one session with an address.
    #[test]
    fn of_two_peers_with_one_address_the_older_one_is_used() {
        let of = |name: &str, created: &str, spec: Value| {
            object(json!({
                "apiVersion": "millrace.io/v1alpha1", "kind": "BGPPeer", "spec": spec,
                "metadata": {"name": name, "creationTimestamp": created},
            }))
        };
        let spec = |more: Value| {
            let mut spec = json!({"localASN": 64512});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let used = |peers: &PeerObjects| -> (Vec<String>, Vec<String>) {
            let (found, problems) = peers.list_node_peers("a", Some(&node()));
            (found.into_keys().collect(), problems.iter().map(ToString::to_string).collect())
        };
        for same in [
            json!({"address": "192.0.2.1"}),
            json!({"interface": "eth0"}),
            json!({"address": "fe80::1", "interface": "eth0"}),
        ] {
            let mut peers = PeerObjects::default();
            peers.apply_object(&of("a", "2026-01-02T00:00:00Z", spec(same.clone())));
            peers.apply_object(&of("b", "2026-01-01T00:00:00Z", spec(same.clone())));
            let (found, problems) = used(&peers);
            assert_eq!(found, ["b"], "{same}");
            let expected = "BGPPeer b has the same router on this node; the peer is not used";
            assert!(problems.len() == 1 && problems[0].contains(expected), "{problems:?}");
            assert!(problems[0].starts_with("BGPPeer a: spec."), "{problems:?}");
            // Not on nodes that the other one does not select.
            let rack = json!({"nodeSelector": {"matchLabels": {"rack": "2"}}});
            let mut elsewhere = spec(same);
            elsewhere.as_object_mut().unwrap().extend(rack.as_object().unwrap().clone());
            peers.apply_object(&of("b", "2026-01-01T00:00:00Z", elsewhere));
            assert_eq!(used(&peers), (vec!["a".to_owned()], Vec::new()));
        }
        let mut peers = PeerObjects::default();
        for (name, interface) in [("a", "eth0"), ("b", "eth1")] {
            let spec = spec(json!({"address": "fe80::1", "interface": interface}));
            peers.apply_object(&of(name, "2026-01-01T00:00:00Z", spec));
        }
        assert_eq!(used(&peers).0, ["a", "b"], "on two links");
    }

    #[test]
    fn a_peer_waits_for_its_password() {
        let mut peers = PeerObjects::default();
        peers.apply_object(&peer("one", json!({"passwordKey": "tor"})));
        peers.apply_object(&peer("two", json!({"address": "192.0.2.2"})));
        let (found, problems) = peers.list_node_peers("a", None);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["two"]);
        assert!(problems[0].to_string().contains("BGPPeer one: spec.passwordKey: the password"));
        for (length, is_used) in [(0, false), (1, true), (80, true), (81, false)] {
            peers.apply_object(&secret(json!({"tor": "x".repeat(length)})));
            assert_eq!(peers.list_node_peers("a", None).0.contains_key("one"), is_used, "{length}");
        }
        assert!(peers.delete_object(&secret(json!({})).reference()));
        assert!(!peers.list_node_peers("a", None).0.contains_key("one"));
    }

    #[test]
    fn a_peer_without_its_profile_is_used_without_bfd() {
        let mut peers = PeerObjects::default();
        peers.apply_object(&object(json!({
            "apiVersion": "metallb.io/v1beta2", "kind": "BGPPeer",
            "metadata": {"name": "tor", "namespace": "metallb-system"},
            "spec": {"myASN": 64512, "peerASN": 64513, "peerAddress": "192.0.2.1", "bfdProfile": "fast"},
        })));
        let configured = |peers: &PeerObjects| {
            let (mut found, problems) = peers.list_node_peers("a", None);
            (found.remove("metallb-system/tor").expect("it is used"), problems)
        };
        let (without, problems) = configured(&peers);
        assert_eq!(without.detection, None);
        assert!(
            problems[0].to_string().contains("there is no BFDProfile \"fast\""),
            "{problems:?}"
        );
        let profile = |spec: Value| {
            object(json!({
                "apiVersion": "metallb.io/v1beta1", "kind": "BFDProfile",
                "metadata": {"name": "fast", "namespace": "metallb-system"}, "spec": spec,
            }))
        };
        assert!(peers.apply_object(&profile(json!({"detectMultiplier": 5}))));
        assert!(!peers.apply_object(&profile(json!({"detectMultiplier": 5}))));
        let (with, problems) = configured(&peers);
        assert_eq!(with.detection.map(|found| found.config.multiplier), Some(5));
        assert!(problems.is_empty() && with != without && with.has_session_of(&without));
        assert!(peers.apply_object(&profile(json!({"detectMultiplier": 0}))));
        let (bad, problems) = configured(&peers);
        assert!(bad.detection.is_none() && problems.len() == 1, "{problems:?}");
        assert!(peers.delete_object(&profile(json!({})).reference()));
    }

    #[test]
    fn bad_peers_are_problems_and_the_others_are_used() {
        let mut peers = PeerObjects::default();
        peers.apply_object(&peer("bad", json!({"address": "router.example"})));
        peers.apply_object(&peer("good", json!({})));
        let (found, problems) = peers.list_node_peers("a", None);
        assert_eq!(found.len(), 1);
        assert!(problems[0].to_string().starts_with("BGPPeer bad: spec.address: "), "{problems:?}");
    }
}

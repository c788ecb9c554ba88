//! The objects, what they mean, and what a change affects.

mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lb_http::{HostPattern, UpstreamName};
use lb_proxy::HostTls;
use lb_rules::model::{Kind, Object, ObjectRef, Problem, ServiceName, trim_service};

use super::IngressRuleSettings;
use super::class::{Class, Classes};
use super::hosts::{Claims, HostClaim};
use super::named_secrets::{self, NamedSecrets, SecretUse};
use super::objects::IngressObjects;
use super::resolved::Resolved;
use super::upstreams::Upstreams;

/// All objects and their meaning.
#[derive(Debug)]
pub struct Model {
    objects: IngressObjects,
    classes: Classes,
    ingresses: BTreeMap<ServiceName, Box<Ingress>>,
    /// The meaning of the Ingresses that this controller serves.
    resolved: BTreeMap<ServiceName, Resolved>,
    hosts: BTreeMap<HostPattern, HostState>,
    /// By namespace, the hosts that belong to it.
    owned: BTreeMap<String, BTreeSet<HostPattern>>,
    /// By namespace, its Ingresses with a defaultBackend and without rules.
    defaults: BTreeMap<String, Vec<HostClaim>>,
    upstreams: Upstreams,
    /// The Ingresses that refer to an object.
    users: BTreeMap<Reference, BTreeSet<ServiceName>>,
    /// The last reported ones.
    problems: BTreeMap<ObjectRef, Vec<Problem>>,
    default_tls: Option<Arc<HostTls>>,
    dirty: Dirty,
}

#[derive(Debug, Default)]
struct HostState {
    claims: Claims,
    /// Namespace.
    owner: Option<String>,
    tls: Option<Arc<HostTls>>,
    problems: Vec<(ServiceName, Problem)>,
    has_rules: bool,
}

/// An object that Ingresses refer to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reference {
    Service(ServiceName),
    Secret(ServiceName),
}

impl Reference {
    fn is_secret(&self) -> bool {
        matches!(self, Self::Secret(_))
    }
}

/// What has to be computed again.
#[derive(Debug, Default)]
struct Dirty {
    ingresses: BTreeSet<ServiceName>,
    hosts: BTreeSet<HostPattern>,
    /// Services whose endpoints have changed.
    services: BTreeSet<ServiceName>,
    upstreams: BTreeSet<UpstreamName>,
    problems: BTreeSet<ObjectRef>,
    default_certificate: bool,
    /// An Ingress refers to a Secret that none did, or none does any more.
    other_secrets: bool,
}

impl Model {
    pub fn new(settings: IngressRuleSettings) -> Self {
        let mut objects = IngressObjects::default();
        objects.node.name = settings.node.clone();
        objects.settings = settings;
        Self {
            objects,
            classes: Classes::default(),
            ingresses: BTreeMap::new(),
            resolved: BTreeMap::new(),
            hosts: BTreeMap::new(),
            owned: BTreeMap::new(),
            defaults: BTreeMap::new(),
            upstreams: Upstreams::default(),
            users: BTreeMap::new(),
            problems: BTreeMap::new(),
            default_tls: None,
            dirty: Dirty { default_certificate: true, ..Dirty::default() },
        }
    }

    /// Adds or replaces an object. [`Self::settle`] computes what that changes.
    pub fn apply(&mut self, object: Object) {
        let reference = object.reference();
        let name = ServiceName::new(&reference.namespace, &reference.name);
        match object {
            Object::Ingress(ingress) => self.apply_ingress(name, ingress),
            Object::IngressClass(class) => {
                let read = Class::read(&class, &self.objects.settings);
                self.set_class(&reference.name, Some(read));
            }
            Object::Service(mut service) => {
                trim_service(&mut service);
                if self.objects.service(&name) != Some(&service) {
                    self.objects.services.insert(name.clone(), service);
                    self.service_changed(name);
                }
            }
            Object::EndpointSlice(slice) => {
                self.dirty.services.extend(self.objects.slices.apply(*slice));
            }
            Object::Secret(secret) => {
                let was_tls = self.objects.secrets.is_of_type_tls(&name);
                if self.objects.secrets.apply(&name, *secret) {
                    self.dirty.other_secrets |=
                        was_tls != self.objects.secrets.is_of_type_tls(&name);
                    self.secret_changed(name);
                }
            }
            Object::Node(node) if node.name == self.objects.settings.node => {
                self.set_zone(node.zone);
            }
            Object::Node(_)
            | Object::Endpoints(_)
            | Object::Namespace(_)
            | Object::AddressPool(_)
            | Object::IpAddressPool(_)
            | Object::L2Advertisement(_)
            | Object::BgpPeer(_)
            | Object::MetallbBgpPeer(_)
            | Object::BgpAdvertisement(_)
            | Object::Community(_)
            | Object::BfdProfile(_) => {}
        }
    }

    pub fn delete(&mut self, reference: &ObjectRef) {
        let name = ServiceName::new(&reference.namespace, &reference.name);
        match reference.kind {
            Kind::Ingress => {
                if self.ingresses.remove(&name).is_some() {
                    self.dirty.ingresses.insert(name);
                }
            }
            Kind::IngressClass => self.set_class(&reference.name, None),
            Kind::Service => {
                if self.objects.services.remove(&name).is_some() {
                    self.service_changed(name);
                }
            }
            Kind::EndpointSlice => self.dirty.services.extend(self.objects.slices.remove(&name)),
            Kind::Secret => {
                let was_tls = self.objects.secrets.is_of_type_tls(&name);
                if self.objects.secrets.remove(&name) {
                    self.dirty.other_secrets |= was_tls;
                    self.secret_changed(name);
                }
            }
            Kind::Node if reference.name == self.objects.settings.node => self.set_zone(None),
            Kind::Node
            | Kind::Endpoints
            | Kind::Namespace
            | Kind::AddressPool
            | Kind::IpAddressPool
            | Kind::L2Advertisement
            | Kind::BgpPeer
            | Kind::MetallbBgpPeer
            | Kind::BgpAdvertisement
            | Kind::Community
            | Kind::BfdProfile => {}
        }
    }

    fn apply_ingress(&mut self, name: ServiceName, mut ingress: Box<Ingress>) {
        trim(&mut ingress);
        if self.ingresses.get(&name) != Some(&ingress) {
            self.ingresses.insert(name.clone(), ingress);
            self.dirty.ingresses.insert(name);
        }
    }

    fn set_class(&mut self, name: &str, class: Option<Class>) {
        if self.classes.set(name, class) {
            self.dirty.ingresses.extend(self.ingresses.keys().cloned());
        }
    }

    fn service_changed(&mut self, name: ServiceName) {
        self.dirty.services.insert(name.clone());
        self.referring(&Reference::Service(name));
    }

    fn secret_changed(&mut self, name: ServiceName) {
        if self.objects.settings.default_certificate.as_ref() == Some(&name) {
            self.dirty.default_certificate = true;
        }
        self.referring(&Reference::Secret(name));
    }

    fn referring(&mut self, reference: &Reference) {
        self.dirty.ingresses.extend(self.users.get(reference).into_iter().flatten().cloned());
    }

    fn set_zone(&mut self, zone: Option<String>) {
        if self.objects.node.zone != zone {
            self.objects.node.zone = zone;
            self.dirty.services.extend(self.upstreams.services().cloned());
        }
    }

    /// The Secrets to watch by name: those that Ingresses of a served class or the settings refer to, whether they exist
    /// or not, and that are not known to be of type `kubernetes.io/tls`. Those are all watched.
    pub fn secrets(&self) -> NamedSecrets {
        let is_named = |secret: &ServiceName| !self.objects.secrets.is_of_type_tls(secret);
        let of_settings = self.objects.settings.default_certificate.iter();
        let of_settings = of_settings.map(|secret| (secret.clone(), SecretUse::SETTINGS));
        let of_ingresses = self.users.iter().filter_map(|(reference, users)| {
            let Reference::Secret(secret) = reference else { return None };
            let wish = |ingress: &ServiceName| {
                let resolved = self.resolved.get(ingress)?;
                Some(SecretUse {
                    is_certificate: !resolved.secrets.contains(secret),
                    is_of_ingress: true,
                    age: resolved.age,
                })
            };
            Some((secret.clone(), users.iter().filter_map(wish).min()?))
        });
        let wishes = of_settings.chain(of_ingresses).filter(|(secret, _)| is_named(secret));
        named_secrets::select_secrets(wishes)
    }
}

fn references(resolved: &Resolved) -> impl Iterator<Item = Reference> {
    let services = resolved.services.iter().cloned().map(Reference::Service);
    let secrets = resolved.secrets.iter().chain(&resolved.certificates);
    services.chain(secrets.cloned().map(Reference::Secret))
}

fn secret_ref(name: &ServiceName) -> ObjectRef {
    ObjectRef::new(Kind::Secret, Some(&name.namespace), Some(&name.name))
}

/// Removes unused fields of an Ingress: the controller holds all of a cluster.
fn trim(ingress: &mut Ingress) {
    let metadata = std::mem::take(&mut ingress.metadata);
    ingress.metadata = ObjectMeta {
        namespace: metadata.namespace,
        name: metadata.name,
        creation_timestamp: metadata.creation_timestamp,
        annotations: metadata.annotations,
        ..ObjectMeta::default()
    };
    ingress.status = None;
}

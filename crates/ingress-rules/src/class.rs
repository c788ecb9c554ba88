//! Which Ingresses this controller serves.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{Ingress, IngressClass};

use super::Settings;

const ANNOTATION: &str = "kubernetes.io/ingress.class";
const DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
/// `spec.controller` of ingress-nginx, and the name that its users write into the annotation.
const NGINX_CONTROLLER: &str = "k8s.io/ingress-nginx";
const NGINX_CLASS: &str = "nginx";

/// The IngressClasses of this controller, by name.
#[derive(Debug, Default)]
pub struct Classes(BTreeMap<String, Class>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    is_default: bool,
}

impl Class {
    /// `None`: it belongs to another controller.
    pub fn read(class: &IngressClass, settings: &Settings) -> Option<Self> {
        let controller = class.spec.as_ref()?.controller.as_deref()?;
        let is_served = controller == settings.controller
            || (settings.accept_nginx_classes && controller == NGINX_CONTROLLER);
        let default = class.metadata.annotations.as_ref().and_then(|all| all.get(DEFAULT));
        is_served.then(|| Self { is_default: default.is_some_and(|value| value == "true") })
    }
}

impl Classes {
    /// Whether it has changed.
    pub fn set(&mut self, name: &str, class: Option<Class>) -> bool {
        let before = match class {
            Some(class) => self.0.insert(name.to_owned(), class),
            None => self.0.remove(name),
        };
        before != class
    }

    /// The field counts; only if it is absent, the annotation does; and only if both are, the default class.
    pub fn has(&self, ingress: &Ingress, settings: &Settings) -> bool {
        let spec = ingress.spec.as_ref();
        if let Some(name) = spec.and_then(|spec| spec.ingress_class_name.as_deref()) {
            return self.0.contains_key(name);
        }
        let annotations = ingress.metadata.annotations.as_ref();
        let annotation = annotations.and_then(|all| all.get(ANNOTATION));
        match annotation.filter(|name| !name.is_empty()) {
            Some(name) => {
                *name == settings.class
                    || (settings.accept_nginx_classes && name == NGINX_CLASS)
                    || self.0.contains_key(name)
            }
            None => settings.serve_without_class || self.0.values().any(|class| class.is_default),
        }
    }
}

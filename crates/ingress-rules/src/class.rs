//! Which Ingresses this controller serves.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{Ingress, IngressClass};

use super::IngressRuleSettings;

const ANNOTATION: &str = "kubernetes.io/ingress.class";
const DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
/// `spec.controller` of ingress-nginx, and the name that its users write into the annotation.
const NGINX_CONTROLLER: &str = "k8s.io/ingress-nginx";
const NGINX_CLASS: &str = "nginx";

/// All IngressClasses, by name.
#[derive(Debug, Default)]
pub struct Classes(BTreeMap<String, Class>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Served { is_default: bool },
    OfAnotherController,
}

impl Class {
    pub fn read(class: &IngressClass, settings: &IngressRuleSettings) -> Self {
        let controller = class.spec.as_ref().and_then(|spec| spec.controller.as_deref());
        let is_served = controller.is_some_and(|controller| {
            controller == settings.controller
                || (settings.accept_nginx_classes && controller == NGINX_CONTROLLER)
        });
        if !is_served {
            return Self::OfAnotherController;
        }
        let default = class.metadata.annotations.as_ref().and_then(|all| all.get(DEFAULT));
        Self::Served { is_default: default.is_some_and(|value| value == "true") }
    }
}

impl Classes {
    /// Sets an IngressClass, or removes it. Returns whether it has changed.
    pub fn set(&mut self, name: &str, class: Option<Class>) -> bool {
        let before = match class {
            Some(class) => self.0.insert(name.to_owned(), class),
            None => self.0.remove(name),
        };
        before != class
    }

    /// Whether an Ingress is served. The field counts; only if it is absent, the annotation does; and only if both are,
    /// the default class.
    pub fn has(&self, ingress: &Ingress, settings: &IngressRuleSettings) -> bool {
        let spec = ingress.spec.as_ref();
        if let Some(name) = spec.and_then(|spec| spec.ingress_class_name.as_deref()) {
            return self.serves_name(name, settings);
        }
        let annotations = ingress.metadata.annotations.as_ref();
        let annotation = annotations.and_then(|all| all.get(ANNOTATION));
        match annotation.filter(|name| !name.is_empty()) {
            Some(name) => *name == settings.class || self.serves_name(name, settings),
            None => {
                let mut classes = self.0.values();
                settings.serve_without_class
                    || classes.any(|class| *class == Class::Served { is_default: true })
            }
        }
    }

    /// Uninstalling ingress-nginx deletes its IngressClass: its Ingresses must not lose their routes then.
    fn serves_name(&self, name: &str, settings: &IngressRuleSettings) -> bool {
        match self.0.get(name) {
            Some(class) => matches!(class, Class::Served { .. }),
            None => settings.accept_nginx_classes && name == NGINX_CLASS,
        }
    }
}

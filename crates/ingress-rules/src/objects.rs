//! The objects that rules refer to.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use lb_rules::model::{NodeContext, ServiceName, Slices};

use super::IngressRuleSettings;
use super::secrets::Secrets;

#[derive(Debug, Default)]
pub struct IngressObjects {
    pub settings: IngressRuleSettings,
    pub services: BTreeMap<ServiceName, Box<Service>>,
    pub slices: Slices,
    pub secrets: Secrets,
    /// This node.
    pub node: NodeContext,
}

impl IngressObjects {
    pub fn service(&self, name: &ServiceName) -> Option<&Service> {
        self.services.get(name).map(Box::as_ref)
    }
}

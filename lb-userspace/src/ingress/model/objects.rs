//! The objects that rules refer to.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;

use super::Settings;
use super::secrets::Secrets;
use crate::model::{NodeContext, ServiceName, Slices};

#[derive(Debug, Default)]
pub struct Objects {
    pub settings: Settings,
    pub services: BTreeMap<ServiceName, Box<Service>>,
    pub slices: Slices,
    pub secrets: Secrets,
    /// This node.
    pub node: NodeContext,
}

impl Objects {
    pub fn service(&self, name: &ServiceName) -> Option<&Service> {
        self.services.get(name).map(Box::as_ref)
    }
}

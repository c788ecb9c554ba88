//! A request to both servers, and what of the responses is compared.

use serde_json::Value;

use crate::conformance::api::client::ApiRequest;
use crate::conformance::api::fidelity::cases::{APPLY, JSON, JSON_PATCH, MERGE, STRATEGIC};

pub const NAMESPACE: &str = "/api/v1/namespaces/compared";
pub const SERVICES: &str = "/api/v1/namespaces/compared/services";
pub const CONFIG_MAPS: &str = "/api/v1/namespaces/compared/configmaps";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/compared/endpointslices";
pub const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/compared/ingresses";

/// A request to both servers, whose responses are compared.
pub struct Step {
    pub name: &'static str,
    pub request: ApiRequest,
    /// What later requests may refer to as `{name}`, by its JSON pointer in each server's response.
    pub captured: Vec<(&'static str, &'static str)>,
    pub compared: ComparedPart,
}

/// What must be equal beside the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedPart {
    Everything,
    /// What the embedded server says must be as in the real one, which may say more.
    WhatEmbeddedSays,
    Status,
    /// Nothing: it only prepares.
    Nothing,
}

impl Step {
    fn new(name: &'static str, method: &'static str, path: impl Into<String>) -> Self {
        let request = ApiRequest { method, path: path.into(), ..ApiRequest::default() };
        Self { name, request, captured: Vec::new(), compared: ComparedPart::Everything }
    }

    pub fn accept(mut self, accept: &'static str) -> Self {
        self.request.accept = accept;
        self
    }

    pub fn body(mut self, content_type: &'static str, body: impl Into<String>) -> Self {
        self.request.content_type = content_type;
        self.request.body = body.into();
        self
    }

    pub fn capture(mut self, name: &'static str, pointer: &'static str) -> Self {
        self.captured.push((name, pointer));
        self
    }

    pub fn compare(mut self, part: ComparedPart) -> Self {
        self.compared = part;
        self
    }
}

pub fn get(name: &'static str, path: impl Into<String>) -> Step {
    Step::new(name, "GET", path)
}

pub fn request(name: &'static str, method: &'static str, path: impl Into<String>) -> Step {
    Step::new(name, method, path)
}

pub fn post(name: &'static str, path: impl Into<String>, body: Value) -> Step {
    Step::new(name, "POST", path).body(JSON, body.to_string())
}

pub fn put(name: &'static str, path: impl Into<String>, body: Value) -> Step {
    Step::new(name, "PUT", path).body(JSON, body.to_string())
}

pub fn merge(name: &'static str, path: impl Into<String>, body: Value) -> Step {
    Step::new(name, "PATCH", path).body(MERGE, body.to_string())
}

pub fn strategic(name: &'static str, path: impl Into<String>, body: Value) -> Step {
    Step::new(name, "PATCH", path).body(STRATEGIC, body.to_string())
}

pub fn json_patch(name: &'static str, path: impl Into<String>, body: Value) -> Step {
    Step::new(name, "PATCH", path).body(JSON_PATCH, body.to_string())
}

pub fn apply(name: &'static str, path: impl Into<String>, body: Value) -> Step {
    Step::new(name, "PATCH", path).body(APPLY, body.to_string())
}

pub fn delete(name: &'static str, path: impl Into<String>) -> Step {
    Step::new(name, "DELETE", path)
}

pub fn delete_with(name: &'static str, path: impl Into<String>, body: Value) -> Step {
    Step::new(name, "DELETE", path).body(JSON, body.to_string())
}

//! Kinds that only the tests declare, as an embedder does: one of each scope.

// Columns have the same types.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, CustomResourceExt};
use lb_api::declared::KindDeclaration;
use lb_api::kinds::Violation;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A range of numbers that widgets are taken from.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug)]
#[kube(
    group = "test.example.com",
    version = "v1alpha1",
    kind = "Range",
    plural = "ranges",
    shortname = "rg",
    category = "numbers",
    status = "RangeStatus",
    printcolumn(
        name = "First",
        type_ = "integer",
        json_path = ".spec.first",
        description = "The first number"
    ),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Names", type_ = "string", json_path = ".spec.names", priority = 1),
    validation = "self.spec.first <= self.spec.last"
)]
#[serde(rename_all = "camelCase")]
pub struct RangeSpec {
    /// The first number of the range.
    #[schemars(range(min = 1, max = 65535))]
    pub first: i32,
    #[schemars(range(min = 1, max = 65535))]
    pub last: i32,
    #[serde(default)]
    pub mode: Mode,
    /// Whether numbers are taken without a request.
    #[serde(default = "yes")]
    pub auto_assign: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"), length(max = 4))]
    pub names: Vec<Name>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["name"]
    ))]
    pub peers: Vec<Peer>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default)]
pub enum Mode {
    #[default]
    Shared,
    Exclusive,
}

#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug)]
#[serde(transparent)]
pub struct Name(#[schemars(regex(pattern = r"^[a-z]+$"), length(max = 8))] pub String);

#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug)]
pub struct Peer {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "ipv4"))]
    pub address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
}

#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default)]
pub struct RangeStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<i32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"]
    ))]
    pub conditions: Vec<Condition>,
}

fn yes() -> bool {
    true
}

/// A thing with a number.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug)]
#[kube(
    group = "test.example.com",
    version = "v1alpha1",
    kind = "Widget",
    namespaced,
    category = "all"
)]
pub struct WidgetSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
}

pub fn all() -> Vec<KindDeclaration> {
    let ranges = KindDeclaration { definition: Range::crd(), check: Some(check) };
    vec![ranges, Widget::crd().into()]
}

/// The rule of the declaration.
fn check(range: &Value, _old: Option<&Value>) -> Vec<Violation> {
    let number = |field: &str| range["spec"][field].as_i64().unwrap_or_default();
    let spec = || range["spec"].clone();
    let detail = "failed rule: self.spec.first <= self.spec.last";
    let is_wrong = number("first") > number("last");
    is_wrong.then(|| Violation::invalid("spec", spec(), detail)).into_iter().collect()
}

//! API discovery: groups, versions and resources, aggregated or one by one.

use hyper::Response;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::respond::{self, ResponseBody};
use crate::kinds::{ApiKind, KindRegistry};

const VERBS: [&str; 7] = ["create", "delete", "get", "list", "patch", "update", "watch"];
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// The Kubernetes release whose API is implemented.
const MAJOR: &str = "1";
const MINOR: &str = "36";

pub(crate) fn server_version() -> Value {
    let version = env!("CARGO_PKG_VERSION");
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "gitVersion": format!("v{MAJOR}.{MINOR}.0+millrace.{version}"),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform()),
    })
}

/// The architecture's name in Go.
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(crate) fn list_paths(kinds: &KindRegistry) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for (group, version) in
        kinds.group_versions().into_iter().filter(|(group, _)| !group.is_empty())
    {
        paths.extend([format!("/apis/{group}"), format!("/apis/{group}/{version}")]);
    }
    for path in ["healthz", "livez", "openapi/v2", "openapi/v3", "readyz", "version"] {
        paths.push(format!("/{path}"));
    }
    json!({"paths": paths})
}

fn kinds_of(kinds: &KindRegistry, group: &str, version: &str) -> Vec<&'static ApiKind> {
    kinds.all().filter(|kind| (kind.group, kind.version) == (group, version)).collect()
}

/// `/api` or `/apis`: aggregated discovery if the client asks for it, otherwise the group names.
pub(crate) fn discover_groups(
    kinds: &KindRegistry,
    core: bool,
    accept: &str,
    pretty: bool,
) -> Response<ResponseBody> {
    let own = |group: &str| group.is_empty() == core;
    if let Some(version) = aggregated(accept) {
        let items: Vec<Value> = kinds
            .group_versions()
            .into_iter()
            .filter(|(group, _)| own(group))
            .map(|(group, version)| discovered_group(kinds, group, version))
            .collect();
        let list = json!({
            "kind": "APIGroupDiscoveryList",
            "apiVersion": format!("apidiscovery.k8s.io/{version}"),
            "metadata": {},
            "items": items,
        });
        let mut response = respond::respond_json(200, &list, pretty);
        let type_ =
            format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
        respond::set_header(&mut response, CONTENT_TYPE, &type_);
        return response;
    }
    let value = if core {
        json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        })
    } else {
        let names = kinds.group_versions().into_iter();
        let groups: Vec<Value> =
            names.filter_map(|(name, _)| describe_group(kinds, name)).collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    };
    respond::respond_json(200, &value, pretty)
}

/// The version of aggregated discovery, if the client prefers it to the plain form.
fn aggregated(accept: &str) -> Option<&'static str> {
    for offer in accept.split(',').map(str::trim) {
        let parameters: Vec<&str> = offer.split(';').map(str::trim).collect();
        if parameters.first() != Some(&"application/json") {
            continue;
        }
        if parameters.len() == 1 {
            return None;
        }
        let has = |parameter: &str| parameters.contains(&parameter);
        if has("g=apidiscovery.k8s.io") && has("as=APIGroupDiscoveryList") {
            if has("v=v2") {
                return Some("v2");
            }
            if has("v=v2beta1") {
                return Some("v2beta1");
            }
        }
    }
    None
}

/// In alphabetical order.
fn list_verbs(kind: &ApiKind) -> Vec<&'static str> {
    let mut verbs = VERBS.to_vec();
    if kind.rules.deletes_collections() {
        verbs.insert(2, "deletecollection");
    }
    verbs
}

fn discovered_group(kinds: &KindRegistry, group: &str, version: &str) -> Value {
    let resources: Vec<Value> =
        kinds_of(kinds, group, version).into_iter().map(discovered_resource).collect();
    json!({
        "metadata": {"name": group},
        "versions": [{"version": version, "freshness": "Current", "resources": resources}],
    })
}

fn discovered_resource(kind: &ApiKind) -> Value {
    let response_kind = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let mut resource = json!({
        "resource": kind.plural,
        "responseKind": response_kind,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": list_verbs(kind),
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        resource["categories"] = json!(kind.categories);
    }
    if kind.has_status {
        resource["subresources"] = json!([{
            "subresource": "status",
            "responseKind": response_kind,
            "verbs": STATUS_VERBS,
        }]);
    }
    resource
}

/// `/apis/{group}`
pub(crate) fn discover_group(kinds: &KindRegistry, name: &str) -> Option<Value> {
    let mut group = describe_group(kinds, name)?;
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

/// A group as it is in a list.
fn describe_group(kinds: &KindRegistry, name: &str) -> Option<Value> {
    let versions: Vec<Value> = kinds
        .group_versions()
        .into_iter()
        .filter(|(group, _)| *group == name && !group.is_empty())
        .map(|(group, version)| {
            json!({"groupVersion": format!("{group}/{version}"), "version": version})
        })
        .collect();
    let preferred = versions.first()?.clone();
    Some(json!({
        "name": name,
        "versions": versions,
        "preferredVersion": preferred,
    }))
}

/// `/api/v1`, `/apis/{group}/{version}`
pub(crate) fn discover_resources(
    kinds: &KindRegistry,
    group: &str,
    version: &str,
) -> Option<Value> {
    let kinds = kinds_of(kinds, group, version);
    let api_version = kinds.first()?.api_version();
    let mut resources = Vec::new();
    for kind in kinds {
        let mut resource = json!({
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list_verbs(kind),
        });
        if !kind.short_names.is_empty() {
            resource["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            resource["categories"] = json!(kind.categories);
        }
        resources.push(resource);
        if kind.has_status {
            resources.push(json!({
                "name": format!("{}/status", kind.plural),
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": STATUS_VERBS,
            }));
        }
    }
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api_version,
        "resources": resources,
    }))
}

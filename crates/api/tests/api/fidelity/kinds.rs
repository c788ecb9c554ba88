//! The kinds, and what the API reference says about each.

use serde_json::{Value, json};

/// A kind, and what the reference says about it.
pub struct Kind {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub namespaced: bool,
    /// Fields of a valid object besides the metadata.
    pub fields: Value,
    /// A PUT of a missing object creates it.
    pub creates: bool,
    /// A PUT without `resourceVersion` is allowed.
    pub unconditional: bool,
    /// A DELETE returns the object.
    pub returns_deleted: bool,
    pub has_status: bool,
    /// Has types in Kubernetes: strategic merge patches.
    pub typed: bool,
}

const KIND: Kind = Kind {
    api_version: "v1",
    kind: "",
    plural: "",
    namespaced: true,
    fields: Value::Null,
    creates: false,
    unconditional: true,
    returns_deleted: false,
    has_status: false,
    typed: true,
};

pub fn kinds() -> Vec<Kind> {
    let path = json!({"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web",
        "port": {"number": 80}}}});
    let event_time = "2026-01-02T03:04:05.000000Z";
    vec![
        Kind {
            kind: "ConfigMap",
            plural: "configmaps",
            fields: json!({"data": {"a": "b"}}),
            ..KIND
        },
        Kind {
            kind: "Endpoints",
            plural: "endpoints",
            fields: json!({"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 1}]}]}),
            creates: true,
            ..KIND
        },
        Kind {
            kind: "Event",
            plural: "events",
            fields: json!({"involvedObject": {"namespace": "default"}, "reason": "A"}),
            creates: true,
            ..KIND
        },
        Kind {
            kind: "Namespace",
            plural: "namespaces",
            namespaced: false,
            fields: json!({}),
            returns_deleted: true,
            has_status: true,
            ..KIND
        },
        Kind {
            kind: "Node",
            plural: "nodes",
            namespaced: false,
            fields: json!({}),
            has_status: true,
            ..KIND
        },
        Kind { kind: "Secret", plural: "secrets", fields: json!({"data": {"a": "eA=="}}), ..KIND },
        Kind {
            kind: "ServiceAccount",
            plural: "serviceaccounts",
            fields: json!({}),
            returns_deleted: true,
            ..KIND
        },
        Kind {
            kind: "Service",
            plural: "services",
            fields: json!({"spec": {"ports": [{"port": 80}]}}),
            creates: true,
            returns_deleted: true,
            has_status: true,
            ..KIND
        },
        Kind {
            api_version: "coordination.k8s.io/v1",
            kind: "Lease",
            plural: "leases",
            fields: json!({"spec": {"holderIdentity": "a"}}),
            creates: true,
            unconditional: false,
            ..KIND
        },
        Kind {
            api_version: "discovery.k8s.io/v1",
            kind: "EndpointSlice",
            plural: "endpointslices",
            fields: json!({"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}]}),
            ..KIND
        },
        Kind {
            api_version: "events.k8s.io/v1",
            kind: "Event",
            plural: "events",
            fields: json!({
                "regarding": {"namespace": "default"}, "reason": "A", "type": "Normal",
                "action": "a", "eventTime": event_time, "reportingController": "a.b/c",
                "reportingInstance": "d",
            }),
            creates: true,
            ..KIND
        },
        Kind {
            api_version: "networking.k8s.io/v1",
            kind: "Ingress",
            plural: "ingresses",
            fields: json!({"spec": {"rules": [{"http": {"paths": [path]}}]}}),
            has_status: true,
            ..KIND
        },
        Kind {
            api_version: "networking.k8s.io/v1",
            kind: "IngressClass",
            plural: "ingressclasses",
            namespaced: false,
            fields: json!({"spec": {"controller": "example.com/a"}}),
            ..KIND
        },
        Kind {
            api_version: "test.example.com/v1alpha1",
            kind: "Range",
            plural: "ranges",
            namespaced: false,
            fields: json!({"spec": {"first": 1, "last": 2}}),
            unconditional: false,
            has_status: true,
            typed: false,
            ..KIND
        },
        Kind {
            api_version: "test.example.com/v1alpha1",
            kind: "Widget",
            plural: "widgets",
            fields: json!({"spec": {}}),
            unconditional: false,
            typed: false,
            ..KIND
        },
    ]
}

impl Kind {
    pub fn collection(&self) -> String {
        let group = match self.api_version {
            "v1" => "/api/v1".to_owned(),
            version => format!("/apis/{version}"),
        };
        let namespace = if self.namespaced { "/namespaces/default" } else { "" };
        format!("{group}{namespace}/{}", self.plural)
    }

    pub fn object(&self, metadata: Value) -> Value {
        let mut object = json!({
            "apiVersion": self.api_version, "kind": self.kind, "metadata": metadata,
        });
        for (name, field) in self.fields.as_object().into_iter().flatten() {
            object[name] = field.clone();
        }
        object
    }
}

//! What both servers are asked to do.

#[derive(Debug, Clone)]
pub struct Load {
    pub services: usize,
    pub objects: usize,
    pub watchers: usize,
    pub clients: usize,
}

/// Changes that are sent to all watchers.
pub const CHANGES: usize = 50;

/// An object as a client writes it.
pub fn object(number: usize, version: usize) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": name(number), "namespace": "default",
            "labels": {"app.kubernetes.io/name": "bench", "version": version.to_string()},
        },
        "data": {"key": "x".repeat(500)},
    })
    .to_string()
}

pub fn name(number: usize) -> String {
    format!("object-{number:06}")
}

/// A Service of a usual size.
pub fn service(number: usize) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": name(number), "namespace": "default",
            "labels": {
                "app.kubernetes.io/name": name(number), "app.kubernetes.io/managed-by": "Helm",
                "app.kubernetes.io/instance": "bench", "helm.sh/chart": "bench-1.2.3",
            },
            "annotations": {"meta.helm.sh/release-name": "bench", "meta.helm.sh/release-namespace": "default"},
        },
        "spec": {
            "selector": {"app.kubernetes.io/name": name(number)},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        },
    })
    .to_string()
}

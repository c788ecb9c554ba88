//! Manifests of Services with their EndpointSlices, and of Ingresses, for tests in which most fields do not matter.

use serde_json::{Map, Value, json};

/// A Service, and for each address family of its endpoints an EndpointSlice.
#[derive(Clone)]
pub struct Service {
    name: String,
    spec: Map<String, Value>,
    status: Value,
    ports: Vec<Value>,
    targets: Vec<Value>,
    /// Address, and the endpoint.
    endpoints: Vec<(String, Value)>,
}

impl Service {
    /// A Service in the namespace `default`.
    pub fn new(name: &str, cluster_ips: &[&str]) -> Self {
        let spec = json!({"clusterIP": cluster_ips[0], "clusterIPs": cluster_ips});
        Self {
            name: name.to_owned(),
            spec: spec.as_object().cloned().unwrap_or_default(),
            status: json!({}),
            ports: Vec::new(),
            targets: Vec::new(),
            endpoints: Vec::new(),
        }
    }

    /// Sets a field of the spec.
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.spec.insert(field.to_owned(), value);
        self
    }

    /// Makes its type LoadBalancer, with these addresses.
    pub fn load_balancer(mut self, addresses: &[&str]) -> Self {
        let points: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
        self.status = json!({"loadBalancer": {"ingress": points}});
        self.with("type", json!("LoadBalancer"))
    }

    pub fn tcp(self, port: u16, target: u16) -> Self {
        self.port("TCP", port, target)
    }

    pub fn udp(self, port: u16, target: u16) -> Self {
        self.port("UDP", port, target)
    }

    pub fn sctp(self, port: u16, target: u16) -> Self {
        self.port("SCTP", port, target)
    }

    fn port(mut self, protocol: &str, port: u16, target: u16) -> Self {
        let name = format!("{}-{port}", protocol.to_lowercase());
        self.ports.push(json!({"name": name, "port": port, "protocol": protocol}));
        self.targets.push(json!({"name": name, "port": target, "protocol": protocol}));
        self
    }

    /// Sets `appProtocol` of the port added last.
    pub fn app_protocol(mut self, protocol: &str) -> Self {
        if let Some(port) = self.ports.last_mut() {
            port["appProtocol"] = json!(protocol);
        }
        self
    }

    /// Makes its type NodePort, with this NodePort for the port added last.
    pub fn node_port(mut self, node_port: u16) -> Self {
        if let Some(port) = self.ports.last_mut() {
            port["nodePort"] = json!(node_port);
        }
        self.spec.entry("type").or_insert(json!("NodePort"));
        self
    }

    /// Adds endpoints on the node of this name.
    pub fn on(mut self, node: &str, addresses: &[&str]) -> Self {
        for &address in addresses {
            let endpoint = json!({"addresses": [address], "nodeName": node});
            self.endpoints.push((address.to_owned(), endpoint));
        }
        self
    }

    /// Adds an endpoint whose pod on the tested node is shutting down, and does not serve any more.
    pub fn terminating(mut self, address: &str) -> Self {
        let conditions = json!({"ready": false, "serving": false, "terminating": true});
        let endpoint =
            json!({"addresses": [address], "nodeName": "node", "conditions": conditions});
        self.endpoints.push((address.to_owned(), endpoint));
        self
    }

    /// Adds endpoints whose node the slice does not name.
    pub fn somewhere(mut self, addresses: &[&str]) -> Self {
        for &address in addresses {
            self.endpoints.push((address.to_owned(), json!({"addresses": [address]})));
        }
        self
    }

    /// Adds endpoints on the node that is tested.
    pub fn here(self, addresses: &[&str]) -> Self {
        self.on("node", addresses)
    }

    /// Adds endpoints on another node.
    pub fn there(self, addresses: &[&str]) -> Self {
        self.on("other", addresses)
    }

    fn slice(&self, family: &str, of_family: impl Fn(&str) -> bool) -> Option<Value> {
        let endpoints: Vec<Value> = self
            .endpoints
            .iter()
            .filter(|(address, _)| of_family(address))
            .map(|(_, endpoint)| endpoint.clone())
            .collect();
        (!endpoints.is_empty()).then(|| {
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{}-{}", self.name, family.to_lowercase()),
                    "labels": {"kubernetes.io/service-name": self.name},
                },
                "addressType": family,
                "ports": self.targets,
                "endpoints": endpoints,
            })
        })
    }

    /// The Service and its EndpointSlices.
    pub fn documents(&self) -> impl Iterator<Item = Value> {
        let mut spec = self.spec.clone();
        spec.insert("ports".to_owned(), json!(self.ports));
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name},
            "spec": spec,
            "status": self.status,
        });
        let four = self.slice("IPv4", |address| !address.contains(':'));
        let six = self.slice("IPv6", |address| address.contains(':'));
        [Some(service), four, six].into_iter().flatten()
    }
}

/// The text of a file with these Services.
pub fn manifests(services: &[Service]) -> String {
    text(services.iter().flat_map(Service::documents))
}

/// The text of a file with these objects.
pub fn text(documents: impl IntoIterator<Item = Value>) -> String {
    documents.into_iter().map(|document| format!("---\n{document}\n")).collect()
}

/// An Ingress of the class `millrace` in the namespace `default`.
#[derive(Clone)]
pub struct Ingress {
    metadata: Value,
    spec: Map<String, Value>,
    rules: Vec<Value>,
}

impl Ingress {
    pub fn new(name: &str) -> Self {
        let metadata = json!({"name": name, "annotations": {}});
        let spec = Map::from_iter([("ingressClassName".to_owned(), json!("millrace"))]);
        Self { metadata, spec, rules: Vec::new() }
    }

    /// Sets a field of the spec.
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.spec.insert(field.to_owned(), value);
        self
    }

    /// Adds an annotation, without `ingress.millrace.io/`.
    pub fn annotated(mut self, name: &str, value: &str) -> Self {
        self.metadata["annotations"][format!("ingress.millrace.io/{name}")] = json!(value);
        self
    }

    /// Adds a rule for a host, or for any: type and text of a path, and the Service on port 80.
    pub fn host(mut self, host: Option<&str>, paths: &[(&str, &str, &str)]) -> Self {
        let paths: Vec<Value> = paths
            .iter()
            .map(|(kind, path, service)| {
                json!({"pathType": kind, "path": path, "backend": backend(service)})
            })
            .collect();
        let mut rule = json!({"http": {"paths": paths}});
        if let Some(host) = host {
            rule["host"] = json!(host);
        }
        self.rules.push(rule);
        self
    }

    pub fn default_backend(self, service: &str) -> Self {
        self.with("defaultBackend", backend(service))
    }

    pub fn tls(self, secret: &str, hosts: &[&str]) -> Self {
        self.with("tls", json!([{"hosts": hosts, "secretName": secret}]))
    }

    pub fn manifest(&self) -> String {
        let mut spec = self.spec.clone();
        if !self.rules.is_empty() {
            spec.insert("rules".to_owned(), json!(self.rules));
        }
        text([json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": self.metadata,
            "spec": spec,
        })])
    }
}

fn backend(service: &str) -> Value {
    json!({"service": {"name": service, "port": {"number": 80}}})
}

/// The IngressClass `millrace`.
pub fn ingress_class() -> String {
    text([json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {"name": "millrace"},
        "spec": {"controller": "millrace.io/ingress-controller"},
    })])
}

/// A Secret of the type kubernetes.io/tls.
pub fn tls_secret(name: &str, certificate: &str, key: &str) -> String {
    text([json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name},
        "stringData": {"tls.crt": certificate, "tls.key": key},
    })])
}

/// The dual-stack Service `here` without ports: the first pod of a [`OneNode`](crate::worlds::one_node::OneNode).
pub fn here() -> Service {
    Service::new("here", &["10.96.0.10", "fd00:10:96::a"])
        .load_balancer(&["203.0.113.10", "2001:db8:113::10"])
        .here(&["10.244.1.10", "fd00:10:244:1::10"])
}

/// The dual-stack Service `there` without ports: the
/// [`other_node`](crate::worlds::one_node::OneNode::other_node).
pub fn there() -> Service {
    Service::new("there", &["10.96.0.11", "fd00:10:96::b"])
        .load_balancer(&["203.0.113.11", "2001:db8:113::11"])
        .there(&["10.0.0.2", "fd00:a::2"])
}

//! What the operator of the controller decides, and no tenant can.

use lb_http::path::Slashes;
use lb_rules::model::ServiceName;

use super::snippets::SnippetReading;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngressRuleSettings {
    /// `spec.controller` of the IngressClasses to serve.
    pub controller: String,
    /// Whether IngressClasses of ingress-nginx are served, too.
    pub accept_nginx_classes: bool,
    /// Value of the annotation `kubernetes.io/ingress.class` that is served without an IngressClass.
    pub class: String,
    /// Whether Ingresses without a class are served, even if no served IngressClass is the default one.
    pub serve_without_class: bool,
    /// How rules see slashes that follow each other.
    pub slashes: Slashes,
    /// Whether several namespaces may have rules for one host.
    pub share_hosts: bool,
    /// Whether Services of type ExternalName are served.
    pub external_names: bool,
    /// Whether annotations may name Secrets of other namespaces.
    pub secrets_across_namespaces: bool,
    /// Whether connections can be forwarded without terminating TLS.
    pub passthrough: bool,
    /// Secret of type `kubernetes.io/tls` for hosts without a certificate of their own.
    pub default_certificate: Option<ServiceName>,
    /// Hosts outside the own namespace that `auth-url`, `jwt-keys-url` and `oidc-issuer` may name: `auth.example.org`, `*.example.org`.
    pub auth_hosts: Vec<String>,
    /// Whether `configuration-snippet` and `server-snippet` are read.
    pub snippets: SnippetReading,
    /// Most octets of a request's body, unless an annotation overrides it; `None`: no limit.
    pub max_body: Option<u64>,
    /// Domain of the cluster's Services.
    pub cluster_domain: String,
    /// This node, for topology hints. Empty: none, all endpoints are used.
    pub node: String,
}

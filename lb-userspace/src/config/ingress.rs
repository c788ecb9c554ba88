//! The settings of `millrace ingress`: a part of the one list in `declared`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args};
use ipnet::IpNet;
use lb_ingress::access_log::AccessLogFormat;
use lb_rules::model::ServiceName;

use super::tracing::TracingSettings;
use super::values::{ListenAddress, namespaced_name, parse_listen_address, parse_seconds};

/// Settings of the Ingress proxy.
#[derive(Clone, Debug, Args)]
pub struct IngressSettings {
    /// Listen address for HTTP; may be repeated
    ///
    /// Ports below 1,024 need no privileges if the sysctl net.ipv4.ip_unprivileged_port_start allows them, or if
    /// systemd or a running proxy passes the sockets. Sockets of systemd that are named http replace these addresses.
    #[arg(
        long,
        alias = "http-bind-address",
        value_name = "ADDRESS:PORT",
        value_delimiter = ',',
        default_value = "[::]:80"
    )]
    pub http_bind_addresses: Vec<SocketAddr>,

    /// Listen address for HTTPS; may be repeated
    ///
    /// Sockets of systemd that are named https replace these addresses.
    #[arg(
        long,
        alias = "https-bind-address",
        value_name = "ADDRESS:PORT",
        value_delimiter = ',',
        default_value = "[::]:443"
    )]
    pub https_bind_addresses: Vec<SocketAddr>,

    /// Listen address for the Ingress proxy's health checks /healthz, /livez and /readyz, or `off`
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:10254")]
    #[arg(value_parser = parse_listen_address)]
    pub ingress_healthz_bind_address: ListenAddress,

    /// Listen address for the Ingress proxy's /metrics, or `off`
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10253")]
    #[arg(value_parser = parse_listen_address)]
    pub ingress_metrics_bind_address: ListenAddress,

    /// Name in `spec.controller` of the IngressClasses to serve
    #[arg(long, value_name = "NAME", default_value = "millrace.io/ingress-controller")]
    pub ingress_controller: String,

    /// Value of the annotation kubernetes.io/ingress.class to serve, if there is no such IngressClass
    ///
    /// The annotation counts only for Ingresses without spec.ingressClassName.
    #[arg(long, value_name = "NAME", default_value = "millrace")]
    pub ingress_class: String,

    /// Serve IngressClasses of ingress-nginx, too
    ///
    /// For moving from ingress-nginx without changing an Ingress. The class name nginx is served without an IngressClass, too:
    /// uninstalling ingress-nginx deletes that. Set update-status to false as long as both run.
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub accept_nginx_classes: bool,

    /// Serve Ingresses without a class, even if no served IngressClass is the default one
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub serve_without_class: bool,

    /// Serve only the Ingresses of one namespace [default: of all namespaces]
    ///
    /// Services, EndpointSlices and Secrets of other namespaces are not watched either, so a Role is enough to read
    /// them.
    #[arg(long, value_name = "NAMESPACE")]
    pub watch_namespace: Option<String>,

    /// Let rules see `//` in paths as `/`
    ///
    /// The rule for `/admin` then gets `//admin`, too. False only if your endpoints tell the two apart: otherwise
    /// `//admin` reaches an endpoint that merges slashes by another rule, without the restrictions of `/admin`.
    /// Endpoints always get the slashes that the client sent.
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub merge_slashes: bool,

    /// Let several namespaces have rules for one host
    ///
    /// By default a host belongs to the namespace of its oldest Ingress, and rules of other
    /// namespaces for it are refused. Otherwise everyone who may create Ingresses could take requests of any host.
    #[arg(long, alias = "share-hosts", value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_shared_hosts: bool,

    /// Serve Services of type ExternalName
    ///
    /// By default they are refused: everyone who may create them could reach every host that the proxy can reach.
    #[arg(long, alias = "external-names", value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_external_names: bool,

    /// Let annotations name Secrets of other namespaces
    #[arg(long, alias = "secrets-across-namespaces", value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_cross_namespace_secrets: bool,

    /// Forward TLS connections without terminating them, where an annotation requests it
    #[arg(long, alias = "tls-passthrough", value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_tls_passthrough: bool,

    /// Honour what can be read without doubt of ingress-nginx's snippets
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_snippet_annotations: bool,

    /// Secret with the certificate for hosts without one of their own [default: such connections are refused]
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = namespaced_name)]
    pub default_certificate: Option<ServiceName>,

    /// Host outside the cluster that auth-url, jwt-keys-url, oidc-issuer, oidc-hosts and mirror-target may name, for example auth.example.org or *.example.org; may be repeated
    #[arg(long, alias = "auth-host", value_name = "HOST", value_delimiter = ',')]
    pub auth_hosts: Vec<String>,

    /// Maximum size of a request's body, unless an annotation overrides it: bytes, with k, m or g, or `off`
    ///
    /// Calls of gRPC to endpoints that speak HTTP/2 have no limit without an annotation: a call may be an endless stream.
    #[arg(long, value_name = "SIZE", default_value = "1m", value_parser = size)]
    pub max_body_size: Size,

    /// Domain of the cluster's Services
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// Proxies whose X-Forwarded-For, X-Forwarded-Proto and Forwarded are believed: a CIDR; may be repeated
    #[arg(long, alias = "trusted-proxy", value_name = "CIDR", value_delimiter = ',')]
    pub trusted_proxies: Vec<IpNet>,

    /// Load balancers whose connections begin with the PROXY protocol, version 1 or 2: a CIDR; may be repeated
    ///
    /// Connections of these load balancers without it are closed. From other addresses it is not accepted.
    #[arg(long, alias = "proxy-protocol-from", value_name = "CIDR", value_delimiter = ',')]
    pub proxy_protocol_sources: Vec<IpNet>,

    /// Service in front of the proxies, whose addresses are written to the status of Ingresses
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = namespaced_name)]
    pub publish_service: Option<ServiceName>,

    /// Address or host name that is written to the status of Ingresses, instead of those of a Service; may be repeated
    #[arg(long, alias = "status-address", value_name = "ADDRESS", value_delimiter = ',', value_parser = status_address)]
    pub status_addresses: Vec<String>,

    /// Write the status of Ingresses; false, for example, while another controller serves the same ones
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub update_status: bool,

    /// Lease whose holder writes the status of Ingresses
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "kube-system/millrace-ingress")]
    #[arg(value_parser = namespaced_name)]
    pub status_lease: ServiceName,

    /// Format of the access log on stdout
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub access_log: AccessLogFormat,

    #[command(flatten)]
    pub tracing: TracingSettings,

    /// File with the keys of TLS session tickets and affinity cookies, for several proxies [default: keys of its own]
    ///
    /// One key in each line, of at least 32 characters, as `openssl rand -base64 32` prints. Proxies with the same file
    /// resume each other's sessions and know each other's cookies, also after an upgrade. The first key is used, the
    /// others are accepted: to replace the key, put a new one in front, and remove the old one after twelve hours. A
    /// change is noticed within ten seconds, and so is a file that did not exist at the start.
    #[arg(long, value_name = "FILE")]
    pub session_key_file: Option<PathBuf>,

    /// Threads that serve requests [default: one for each CPU that the process may use]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,

    /// Maximum number of connections of clients
    #[arg(long, value_name = "NUMBER", default_value_t = 100_000)]
    pub max_connections: usize,

    /// Maximum number of connections of one client: an IPv4 address, or an IPv6 /64. Trusted proxies have no limit
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    pub max_connections_per_source: usize,

    /// Maximum number of requests of one client at the same time: an IPv4 address, or an IPv6 /64
    ///
    /// Further requests get status 429. Behind a trusted proxy, the client is the one that the proxy names; otherwise it
    /// is the other end of the connection. Raise the limit if a load balancer hides the addresses of clients.
    #[arg(long, value_name = "NUMBER", default_value_t = 2_000)]
    pub max_requests_per_source: usize,

    /// On SIGTERM, how long connections are still accepted, in seconds
    ///
    /// /readyz fails meanwhile, so that load balancers stop sending connections before the ports close.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = parse_seconds(0..=86_400))]
    pub shutdown_delay: u32,

    /// How long requests and WebSockets have to finish on shutdown, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = parse_seconds(0..=86_400))]
    pub shutdown_grace: u32,

    /// Unix socket for `millrace explain` and for upgrades: a path, or @name for an abstract one
    ///
    /// Only root and the proxy's own user are served. A new process takes over the listening sockets of the process
    /// that already uses this socket.
    #[arg(long, value_name = "SOCKET", default_value = "@millrace-ingress")]
    #[arg(value_parser = control_socket)]
    pub control_socket: String,
}

/// Bytes; none: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub Option<u64>);

fn size(text: &str) -> Result<Size, String> {
    if text == "off" {
        return Ok(Size(None));
    }
    let lower = text.to_ascii_lowercase();
    let (digits, shift) = match lower.strip_suffix(['k', 'm', 'g']) {
        Some(digits) if lower.ends_with('k') => (digits, 10),
        Some(digits) if lower.ends_with('m') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (&*lower, 0),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .map(|bytes| Size(Some(bytes)))
        .ok_or_else(|| "not a size such as 8m, nor `off`".to_owned())
}

fn status_address(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
    if text.is_empty() || !text.chars().all(fits) {
        return Err("neither an IP address nor a host name".to_owned());
    }
    Ok(text.to_owned())
}

/// The kernel's limit on the length of paths and names.
const LONGEST_SOCKET: usize = 107;

fn control_socket(text: &str) -> Result<String, String> {
    let is_named = text.strip_prefix('@').is_some_and(|name| !name.is_empty());
    if !(is_named || text.starts_with('/')) || text.len() > LONGEST_SOCKET {
        return Err("neither an absolute path nor @name, of up to 107 characters".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("0", Some(Some(0))),
            ("1m", Some(Some(1 << 20))),
            ("8K", Some(Some(8192))),
            ("2g", Some(Some(2 << 30))),
            ("off", Some(None)),
            ("", None),
            ("m", None),
            ("-1", None),
            ("99999999999g", None),
        ] {
            assert_eq!(size(text).ok(), expected.map(Size), "{text}");
        }
    }

    #[test]
    fn names_have_a_namespace() {
        assert_eq!(namespaced_name("a/b"), Ok(ServiceName::new("a", "b")));
        for text in ["a", "/a", "a/", "a/b/c", ""] {
            assert!(namespaced_name(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_control_socket_is_a_path_or_a_name() {
        for (text, fits) in
            [("@a", true), ("/run/a", true), ("@", false), ("a", false), ("", false)]
        {
            assert_eq!(control_socket(text).is_ok(), fits, "{text}");
        }
    }
}

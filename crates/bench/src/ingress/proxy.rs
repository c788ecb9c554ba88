//! The proxies that are compared. Each has one worker on one CPU, the same certificate and the same backend.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ::tests::programs::agent::program;
use ::tests::worlds::topology::{Certificate, Host, Process, SOON};
use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use super::backend::{ADDRESS, WEB, WEBSOCKET, accepts_connections};
use super::pinned;

/// The host that the proxies serve; the one in requests of [`crate::load`].
pub const HOST: &str = "web";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    Millrace,
    Nginx,
    Haproxy,
    Caddy,
}

impl ProxyKind {
    pub const ALL: [Self; 4] = [Self::Millrace, Self::Nginx, Self::Haproxy, Self::Caddy];

    pub fn name(self) -> &'static str {
        match self {
            Self::Millrace => "Millrace",
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Caddy => "Caddy",
        }
    }

    /// The name for `--only`; also the program's.
    pub fn key(self) -> &'static str {
        match self {
            Self::Millrace => "millrace",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Caddy => "caddy",
        }
    }

    fn addresses(self) -> ProxyPorts {
        let number = self as u16;
        ProxyPorts { http: 8000 + number, https: 8400 + number }
    }
}

/// Ports of a proxy on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub struct ProxyPorts {
    pub http: u16,
    pub https: u16,
}

/// A running proxy.
pub struct Proxy {
    pub kind: ProxyKind,
    pub addresses: ProxyPorts,
    process: Process,
}

impl Proxy {
    pub fn start(
        kind: ProxyKind,
        host: &Host,
        parent: &Path,
        certificate: &Certificate,
    ) -> Result<Self> {
        let directory = parent.join(kind.key());
        fs::create_dir(&directory)?;
        let addresses = kind.addresses();
        let mut command = match kind {
            ProxyKind::Millrace => {
                let file = directory.join("manifests.yaml");
                fs::write(&file, ingress_manifests(certificate)?)?;
                let program = program()?;
                let program = program.to_str().context("the program's path is not UTF-8")?;
                let mut command = pinned::pinned_proxy(host, program);
                command.args(["ingress", "--workers", "1", "--access-log", "off"]);
                // All clients have one address.
                command.args(["--max-connections-per-source", "20000"]);
                command.args(["--max-requests-per-source", "20000"]);
                command.arg("--manifests").arg(&file);
                command.arg(format!("--http-bind-address=127.0.0.1:{}", addresses.http));
                command.arg(format!("--https-bind-address=127.0.0.1:{}", addresses.https));
                command
            }
            ProxyKind::Nginx => {
                let file = directory.join("nginx.conf");
                fs::write(&file, nginx(&directory, addresses, certificate))?;
                let mut command = pinned::pinned_proxy(host, "nginx");
                command.args(["-e", "stderr", "-p"]).arg(&directory).arg("-c").arg(&file);
                command
            }
            ProxyKind::Haproxy => {
                let file = directory.join("haproxy.cfg");
                let pair = directory.join("pair.pem");
                let pem = [&certificate.certificate, &certificate.key].map(fs::read_to_string);
                let [chain, key] = pem;
                fs::write(&pair, chain? + &key?)?;
                fs::write(&file, haproxy(addresses, &pair))?;
                let mut command = pinned::pinned_proxy(host, "haproxy");
                command.arg("-db").arg("-f").arg(&file);
                command
            }
            ProxyKind::Caddy => {
                let file = directory.join("Caddyfile");
                fs::write(&file, caddy(addresses, certificate))?;
                let mut command = pinned::pinned_proxy(host, "caddy");
                command.env("GOMAXPROCS", "1").env("HOME", &directory);
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&file);
                command
            }
        };
        let mut process = host.spawn(&mut command)?;
        for port in [addresses.http, addresses.https] {
            let address = format!("127.0.0.1:{port}");
            process.wait_until_so("accepts connections", SOON, |_| {
                accepts_connections(host, &address)
            })?;
        }
        Ok(Self { kind, addresses, process })
    }

    /// CPU time of the process so far, with the kernel's work for it.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let clock: ClockId = clock_getcpuclockid(Pid::from_raw(self.process.pid() as i32))?;
        Ok(clock.now()?.into())
    }

    /// Memory of the process that no other one shares, in octets.
    pub fn memory(&self) -> Result<u64> {
        let path = format!("/proc/{}/smaps_rollup", self.process.pid());
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let kib = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")?.strip_suffix("kB"));
        Ok(kib.with_context(|| format!("no Pss_Anon in {path}"))?.trim().parse::<u64>()? << 10)
    }
}

fn nginx(directory: &Path, addresses: ProxyPorts, certificate: &Certificate) -> String {
    format!(
        "daemon off; master_process off; error_log stderr; pid {0}/pid;\n\
         events {{ worker_connections 19000; }}\n\
         http {{\n access_log off; keepalive_requests 1000000000; keepalive_timeout 300s;\n\
         client_body_temp_path {0}/body; proxy_temp_path {0}/proxy;\n\
         fastcgi_temp_path {0}/fastcgi; uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
         ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache shared:s:10m; ssl_session_tickets on;\n\
         map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}\n\
         upstream web {{ server {WEB}; keepalive 256; keepalive_requests 1000000000; }}\n\
         upstream ws {{ server {WEBSOCKET}; }}\n\
         server {{ listen 127.0.0.1:{1} backlog=4096; listen 127.0.0.1:{2} ssl http2 backlog=4096;\n\
         server_name {HOST}; ssl_certificate {3}; ssl_certificate_key {4};\n\
         proxy_http_version 1.1; proxy_set_header Host $host; proxy_max_temp_file_size 0;\n\
         proxy_set_header X-Forwarded-For $remote_addr;\n\
         location / {{ proxy_pass http://web; proxy_set_header Connection ''; }}\n\
         location /ws {{ proxy_pass http://ws; proxy_set_header Upgrade $http_upgrade;\n\
         proxy_set_header Connection $connection_upgrade; }} }}\n}}\n",
        directory.display(),
        addresses.http,
        addresses.https,
        certificate.certificate.display(),
        certificate.key.display(),
    )
}

fn haproxy(addresses: ProxyPorts, pair: &Path) -> String {
    format!(
        "global\n    maxconn 9900\n    nbthread 1\n\
         defaults\n    mode http\n    timeout connect 5s\n    timeout client 5m\n    \
         timeout server 5m\n    timeout tunnel 5m\n    option forwardfor\n    http-reuse always\n\
         frontend all\n    bind 127.0.0.1:{} backlog 4096\n    \
         bind 127.0.0.1:{} ssl crt {} alpn h2,http/1.1 backlog 4096\n    \
         use_backend ws if {{ path_beg /ws }} {{ hdr(host),field(1,:) -i {HOST} }}\n    \
         use_backend web if {{ hdr(host),field(1,:) -i {HOST} }}\n\
         backend web\n    server web {WEB} pool-max-conn 256\n\
         backend ws\n    server ws {WEBSOCKET}\n",
        addresses.http,
        addresses.https,
        pair.display(),
    )
}

fn caddy(addresses: ProxyPorts, certificate: &Certificate) -> String {
    let routes = format!(
        "handle /ws* {{\nreverse_proxy {WEBSOCKET}\n}}\nhandle {{\nreverse_proxy {WEB} {{\ntransport http {{\n\
         keepalive_idle_conns_per_host 256\n}}\n}}\n}}\n"
    );
    format!(
        "{{\nadmin off\nauto_https off\nservers {{\nprotocols h1 h2\n}}\n}}\n\
         http://{HOST}:{} {{\nbind 127.0.0.1\n{routes}}}\n\
         https://{HOST}:{} {{\nbind 127.0.0.1\ntls {} {}\n{routes}}}\n",
        addresses.http,
        addresses.https,
        certificate.certificate.display(),
        certificate.key.display(),
    )
}

fn ingress_manifests(certificate: &Certificate) -> Result<String> {
    let [chain, key] = [&certificate.certificate, &certificate.key].map(fs::read_to_string);
    let indented = |pem: &str| pem.trim_end().replace('\n', "\n    ");
    let (chain, key) = (indented(&chain?), indented(&key?));
    let service = |name: &str, address: &str| {
        let port = address.rsplit(':').next().unwrap_or_default();
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
             spec: {{clusterIP: None, ports: [{{name: http, port: {port}}}]}}\n\
             ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: {name}-a, labels: {{kubernetes.io/service-name: {name}}}}}\n\
             addressType: IPv4\nports: [{{name: http, port: {port}}}]\n\
             endpoints: [{{addresses: [{ADDRESS}], conditions: {{ready: true}}}}]\n"
        )
    };
    Ok(format!(
        "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: millrace}}\n\
         spec: {{controller: millrace.io/ingress-controller}}\n\
         ---\napiVersion: v1\nkind: Secret\nmetadata: {{name: bench}}\ntype: kubernetes.io/tls\n\
         stringData:\n  tls.crt: |\n    {chain}\n  tls.key: |\n    {key}\n\
         {web}{ws}---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: bench\n  \
         annotations: {{ingress.millrace.io/tls-redirect: \"false\"}}\n\
         spec:\n  ingressClassName: millrace\n  tls: [{{hosts: [{HOST}], secretName: bench}}]\n  \
         rules:\n  - host: {HOST}\n    http:\n      paths:\n      \
         - {{path: /, pathType: Prefix, backend: {{service: {{name: web, port: {{name: http}}}}}}}}\n      \
         - {{path: /ws, pathType: Prefix, backend: {{service: {{name: ws, port: {{name: http}}}}}}}}\n",
        web = service("web", WEB),
        ws = service("ws", WEBSOCKET),
    ))
}

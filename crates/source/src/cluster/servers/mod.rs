//! Addresses of the API servers, in the order in which they are tried.
//!
//! The server that accepted the last connection comes first, then those of the configuration, then
//! those that the cluster itself lists as the endpoints of `default/kubernetes`. These are
//! remembered in a file, so that a node can start while the configured server is down.
//!
//! Invariant: wherever a connection leads, the server proves the configured name before it gets a
//! request. An attacker that can change the list, in the cluster or on disk, can delay the agent,
//! but cannot become its API server. Without such a proof, learned addresses are not used.

mod connector;
mod memory;
#[cfg(test)]
mod tls_tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use axum::http::Uri;
use kube::Config;
use lb_rules::model::{Kind, Object, ServiceName, Slice};

use crate::Event;

pub use connector::Connector;
pub use memory::Memory;

/// A cluster has three or five API servers; more are not tried.
const MAX_LEARNED: usize = 16;
/// The Service of the API servers.
const SERVICE: (&str, &str) = ("default", "kubernetes");
const PORT_NAME: &str = "https";

/// One API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    is_tls: bool,
    /// The name that it must prove, as in a URL.
    name: String,
    /// Where to connect: an address or a name to look up.
    host: String,
    port: u16,
}

impl Server {
    /// `tls_name` is the name to prove, if not the host itself.
    fn of(url: &Uri, tls_name: Option<&str>) -> Result<Self> {
        let host = url.host().context("it has no host")?;
        let scheme = url.scheme_str().unwrap_or_default();
        ensure!(["http", "https"].contains(&scheme), "it begins with neither https:// nor http://");
        let is_tls = scheme == "https";
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Self {
            is_tls,
            name: tls_name.map_or_else(|| host.to_owned(), in_brackets),
            host: bare.to_owned(),
            port: url.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
        })
    }

    /// The same cluster's server at another address: it proves the same name.
    fn at(&self, address: SocketAddr) -> Self {
        Self { host: address.ip().to_string(), port: address.port(), ..self.clone() }
    }
}

/// As the host of a URL, where IPv6 addresses are in brackets.
fn in_brackets(name: &str) -> String {
    if name.parse::<Ipv6Addr>().is_ok() { format!("[{name}]") } else { name.to_owned() }
}

impl Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<IpAddr>() {
            Ok(address) => SocketAddr::new(address, self.port).fmt(f),
            Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

pub struct Servers {
    memory: Option<Memory>,
    state: Mutex<ServerList>,
}

/// Changes when requests need other connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generation(u64);

#[derive(Default)]
struct ServerList {
    configured: Vec<Server>,
    /// Whether servers prove their names.
    learns: bool,
    generation: Generation,
    /// Those that failed last are tried last, and of these the one that failed first comes first:
    /// servers that accept connections and are silent do not hide those behind them.
    failed: Vec<Server>,
    /// By slice of the Service `kubernetes`.
    slices: BTreeMap<ServiceName, BTreeSet<SocketAddr>>,
    learned: BTreeSet<SocketAddr>,
    last: Option<Server>,
}

impl Servers {
    /// `urls` has at least one.
    pub fn new(urls: &[Uri], config: &Config, memory: Option<Memory>) -> Result<Arc<Self>> {
        let learned = memory.as_ref().map(Memory::read).unwrap_or_default();
        let state = Mutex::new(ServerList { learned, ..ServerList::default() });
        let servers = Self { memory, state };
        servers.configure(urls, config)?;
        Ok(Arc::new(servers))
    }

    /// Follows a configuration that has changed.
    pub fn configure(&self, urls: &[Uri], config: &Config) -> Result<()> {
        let tls_name = config.tls_server_name.as_deref();
        let mut configured = Vec::new();
        for url in urls {
            let server = Server::of(url, tls_name).with_context(|| format!("API server {url}"))?;
            if !configured.contains(&server) {
                configured.push(server);
            }
        }
        let mut state = self.state();
        state.learns = !config.accept_invalid_certs && configured.iter().all(|s| s.is_tls);
        state.configured = configured;
        Ok(())
    }

    /// All servers, in the order in which to try them.
    pub fn candidates(&self) -> Vec<Server> {
        let mut state = self.state();
        let state = &mut *state;
        let named = state.configured.first().filter(|_| state.learns).into_iter();
        let learned = named.flat_map(|server| state.learned.iter().map(|at| server.at(*at)));
        let all: Vec<Server> = state.configured.iter().cloned().chain(learned).collect();
        // The configuration may have changed.
        state.failed.retain(|server| all.contains(server));
        state.last.take_if(|server| !all.contains(server));
        let mut candidates: Vec<Server> = Vec::new();
        for server in state.last.iter().chain(&all) {
            if !candidates.contains(server) && !state.failed.contains(server) {
                candidates.push(server.clone());
            }
        }
        candidates.extend(state.failed.iter().cloned());
        candidates
    }

    /// Records an attempt. The server counts as failed unless it accepts the connection, also if
    /// the attempt is cancelled.
    pub fn attempt<'a>(&'a self, server: &'a Server) -> Attempt<'a> {
        Attempt { servers: self, server, accepted: false }
    }

    pub fn generation(&self) -> Generation {
        self.state().generation
    }

    /// Moves on from the server that is connected since this generation, because it does not
    /// serve requests.
    pub fn avoid(&self, generation: Generation) {
        let mut state = self.state();
        let is_alone = state.configured.len() + state.learned.len() < 2;
        if state.generation != generation || is_alone {
            return;
        }
        if let Some(server) = state.last.take() {
            tracing::debug!(%server, "API server does not serve requests; trying others");
            state.fail(&server);
            state.generation.0 += 1;
        }
    }

    fn connected(&self, server: &Server) {
        let mut state = self.state();
        state.failed.retain(|failed| failed != server);
        let before = state.last.replace(server.clone());
        if before.is_some_and(|before| before != *server) {
            tracing::info!(%server, "connected to another API server");
        }
    }

    /// Follows the endpoints of the API servers.
    pub fn look_at(&self, event: &Event) {
        let mut state = self.state();
        if !state.learns {
            return;
        }
        match event {
            Event::Applied(Object::EndpointSlice(slice)) => match addresses(slice) {
                Some(addresses) => {
                    state.slices.insert(slice.name.clone(), addresses);
                }
                // A slice may leave the Service.
                None if state.slices.remove(&slice.name).is_none() => return,
                None => {}
            },
            Event::Deleted(reference) if reference.kind == Kind::EndpointSlice => {
                state.slices.remove(&ServiceName::new(&reference.namespace, &reference.name));
            }
            _ => return,
        }
        let learned = state.slices.values().flatten().copied().take(MAX_LEARNED).collect();
        // A cluster without API servers would not have said so: old addresses are better than none.
        if state.slices.values().all(BTreeSet::is_empty) || state.learned == learned {
            return;
        }
        state.learned.clone_from(&learned);
        // The disk may be slow.
        drop(state);
        if let Some(memory) = &self.memory {
            memory.write(&learned);
        }
    }

    fn state(&self) -> MutexGuard<'_, ServerList> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerList {
    fn fail(&mut self, server: &Server) {
        self.failed.retain(|failed| failed != server);
        self.failed.push(server.clone());
    }
}

/// A connection that is being made.
pub struct Attempt<'a> {
    servers: &'a Servers,
    server: &'a Server,
    accepted: bool,
}

impl Attempt<'_> {
    pub fn accepted(mut self) {
        self.accepted = true;
        self.servers.connected(self.server);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.accepted {
            self.servers.state().fail(self.server);
        }
    }
}

/// The addresses of API servers, if the slice is theirs.
fn addresses(slice: &Slice) -> Option<BTreeSet<SocketAddr>> {
    let (namespace, name) = SERVICE;
    if slice.service != Some(ServiceName::new(namespace, name)) {
        return None;
    }
    let port = slice.ports.iter().find(|port| &*port.name == PORT_NAME);
    let port = port.and_then(|port| u16::try_from(port.number?).ok()).filter(|port| *port != 0);
    let ready = slice.endpoints.iter().filter(|endpoint| endpoint.ready);
    let found = ready.filter_map(|e| Some(SocketAddr::new(*e.address.as_ref().ok()?, port?)));
    Some(found.collect())
}

#[cfg(test)]
mod tests {
    use lb_rules::model::ObjectRef;
    use serde_json::{Value, json};

    use super::*;

    fn servers(urls: &[&str], tls_name: Option<&str>, verifies: bool) -> Arc<Servers> {
        let urls: Vec<Uri> = urls.iter().map(|url| url.parse().unwrap()).collect();
        let mut config = Config::new(urls[0].clone());
        config.tls_server_name = tls_name.map(str::to_owned);
        config.accept_invalid_certs = !verifies;
        Servers::new(&urls, &config, None).unwrap()
    }

    fn slice(service: &str, addresses: &[&str]) -> Event {
        let endpoints: Vec<Value> =
            addresses.iter().map(|address| json!({"addresses": [address]})).collect();
        let slice = json!({
            "metadata": {
                "name": service, "namespace": "default",
                "labels": {"kubernetes.io/service-name": service}
            },
            "addressType": "IPv4",
            "ports": [{"name": "metrics", "port": 9}, {"name": "https", "port": 6443}],
            "endpoints": endpoints
        });
        Event::Applied(Object::read(Kind::EndpointSlice, slice).unwrap())
    }

    fn tried(servers: &Servers) -> Vec<String> {
        let all = servers.candidates();
        all.iter().map(|server| format!("{server} as {}", server.name)).collect()
    }

    #[test]
    fn configured_servers_come_first_and_learned_ones_prove_the_first_name() {
        let servers = servers(&["https://api.example:6443", "https://[fd00::1]"], None, true);
        servers.look_at(&slice("kubernetes", &["192.0.2.3", "192.0.2.2", "127.0.0.1", ""]));
        servers.look_at(&slice("web", &["192.0.2.9"]));
        assert_eq!(
            tried(&servers),
            [
                "api.example:6443 as api.example",
                "[fd00::1]:443 as [fd00::1]",
                "192.0.2.2:6443 as api.example",
                "192.0.2.3:6443 as api.example",
            ]
        );
        let last = servers.candidates().pop().unwrap();
        servers.connected(&last);
        assert_eq!(tried(&servers)[0], "192.0.2.3:6443 as api.example");
        assert_eq!(tried(&servers).len(), 4);
    }

    #[test]
    fn a_name_for_tls_is_what_every_server_proves() {
        let servers = servers(&["https://192.0.2.1:6443"], Some("api.example"), true);
        servers.look_at(&slice("kubernetes", &["192.0.2.2"]));
        let expected = ["192.0.2.1:6443 as api.example", "192.0.2.2:6443 as api.example"];
        assert_eq!(tried(&servers), expected);
    }

    #[test]
    fn without_proof_of_names_no_address_is_learned() {
        for (url, verifies) in [("http://192.0.2.1:8001", true), ("https://192.0.2.1", false)] {
            let servers = servers(&[url], None, verifies);
            servers.look_at(&slice("kubernetes", &["192.0.2.2"]));
            assert_eq!(tried(&servers).len(), 1, "{url}");
        }
    }

    #[test]
    fn addresses_follow_the_cluster_are_bounded_and_never_become_empty() {
        let servers = servers(&["https://api.example"], None, true);
        let many: Vec<String> =
            (0..1_000).map(|number| format!("10.0.{}.{}", number / 250, number % 250)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        servers.look_at(&slice("kubernetes", &many));
        assert_eq!(tried(&servers).len(), 1 + MAX_LEARNED);
        servers.look_at(&slice("kubernetes", &["192.0.2.7"]));
        assert_eq!(tried(&servers).len(), 2);
        servers.look_at(&slice("kubernetes", &[]));
        let reference = ObjectRef::new(Kind::EndpointSlice, Some("default"), Some("kubernetes"));
        servers.look_at(&Event::Deleted(reference));
        assert_eq!(tried(&servers)[1], "192.0.2.7:6443 as api.example");
    }

    #[test]
    fn those_that_failed_come_last_and_in_turn() {
        let urls = ["https://192.0.2.1", "https://192.0.2.2", "https://192.0.2.3"];
        let servers = servers(&urls, None, true);
        let order = || -> String {
            let all = servers.candidates();
            all.iter().map(|server| server.host.chars().last().unwrap()).collect()
        };
        let [a, b, c] = &servers.candidates()[..] else { panic!() };
        // Given up, or refused.
        drop(servers.attempt(a));
        assert_eq!(order(), "231");
        drop(servers.attempt(b));
        assert_eq!(order(), "312");
        servers.attempt(c).accepted();
        assert_eq!(order(), "312");
        // It accepts connections, and returns errors.
        servers.avoid(servers.generation());
        assert_eq!(order(), "123");
        servers.attempt(a).accepted();
        assert_eq!(order(), "123");
        servers.avoid(servers.generation());
        assert_eq!(order(), "231");
    }

    #[test]
    fn only_the_server_that_was_used_is_avoided() {
        let servers = servers(&["https://192.0.2.1", "https://192.0.2.2"], None, true);
        let [first, second] = &servers.candidates()[..] else { panic!() };
        servers.attempt(first).accepted();
        let used = servers.generation();
        servers.avoid(used);
        servers.attempt(second).accepted();
        // Another request failed at the first server, too.
        servers.avoid(used);
        assert_eq!(servers.candidates()[0], *second);
    }

    #[test]
    fn the_configuration_may_change() {
        let servers = servers(&["https://api.example"], None, true);
        servers.look_at(&slice("kubernetes", &["192.0.2.2"]));
        for server in &servers.candidates() {
            servers.attempt(server).accepted();
        }
        let url: Uri = "https://other.example".parse().unwrap();
        servers.configure(std::slice::from_ref(&url), &Config::new(url.clone())).unwrap();
        let expected = ["other.example:443 as other.example", "192.0.2.2:6443 as other.example"];
        assert_eq!(tried(&servers), expected);
        let url: Uri = "http://192.0.2.9".parse().unwrap();
        servers.configure(std::slice::from_ref(&url), &Config::new(url.clone())).unwrap();
        assert_eq!(tried(&servers), ["192.0.2.9:80 as 192.0.2.9"]);
    }

    #[test]
    fn what_is_no_url_of_a_server_is_refused() {
        for url in ["ftp://192.0.2.1", "/path", "192.0.2.1:6443"] {
            let url: Uri = url.parse().unwrap();
            assert!(
                Servers::new(std::slice::from_ref(&url), &Config::new(url.clone()), None).is_err(),
                "{url}"
            );
        }
    }
}

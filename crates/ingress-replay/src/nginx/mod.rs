//! Which rule ingress-nginx uses for a request: its servers and locations, without nginx.
//!
//! Differences from the API of Ingress that matter here: the paths of all namespaces are merged; one expression or
//! rewrite makes all paths of a host expressions, which match from the beginning and regardless of case; a path with a
//! slash at its end takes requests without it only by a redirect.

mod server;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::networking::v1::{Ingress, IngressRule};
use lb_ingress_rules::annotations::NGINX;
use lb_rules::model::ServiceName;

pub use server::{Location, NginxBackend, RequestHandling};
use server::{NginxServer, ROOT};

/// Server for requests that no other one matches.
const CATCH_ALL: &str = "_";

/// All that ingress-nginx serves.
#[derive(Debug, Default)]
pub struct Site {
    servers: BTreeMap<String, NginxServer>,
    /// Other names of servers.
    aliases: HashMap<String, String>,
    /// Servers with a location for an upstream, by its name in logs.
    upstreams: HashMap<String, Vec<String>>,
}

#[derive(Clone, Copy, Debug)]
pub struct MatchedServer<'a> {
    /// Name of the server.
    pub server: &'a str,
    /// All its paths are expressions.
    pub has_expressions: bool,
    pub outcome: RequestHandling<'a>,
}

impl Site {
    pub fn new<'a>(ingresses: impl IntoIterator<Item = &'a Ingress>) -> Self {
        let mut ingresses: Vec<&Ingress> =
            ingresses.into_iter().filter(|ingress| !flag(ingress, "canary")).collect();
        // The oldest first; of equal age, the greatest name.
        ingresses.sort_by(|a, b| {
            let age =
                |ingress: &Ingress| ingress.metadata.creation_timestamp.as_ref().map(|time| time.0);
            let name = |ingress: &Ingress| ServiceName::of(&ingress.metadata).to_string();
            age(a).cmp(&age(b)).then_with(|| name(b).cmp(&name(a)))
        });
        let mut locations = default_locations(&ingresses);
        for ingress in &ingresses {
            add_paths(&mut locations, ingress);
        }
        let mut site = Self::default();
        for (host, own) in locations {
            let server = NginxServer::new(own);
            for backend in server.locations.iter().filter_map(|own| own.backend.as_ref()) {
                let servers = site.upstreams.entry(backend.upstream()).or_default();
                if servers.last() != Some(&host) {
                    servers.push(host.clone());
                }
            }
            site.servers.insert(host, server);
        }
        site.add_aliases(&ingresses);
        site
    }

    /// The first Ingress of a host that has aliases decides about them.
    fn add_aliases(&mut self, ingresses: &[&Ingress]) {
        let mut decided = BTreeMap::new();
        for ingress in ingresses {
            let Some(aliases) = annotation(ingress, "server-alias") else { continue };
            for (host, _) in rules(ingress) {
                decided.entry(host).or_insert(aliases);
            }
        }
        for (host, aliases) in decided {
            for alias in aliases.split(',').map(|alias| alias.trim().to_ascii_lowercase()) {
                if !alias.is_empty() && !self.servers.contains_key(&alias) {
                    self.aliases.entry(alias).or_insert_with(|| host.clone());
                }
            }
        }
    }

    /// `host` is in lower case, without port. `path`: as nginx reads it.
    pub fn find(&self, host: &str, path: &[u8]) -> Option<MatchedServer<'_>> {
        let wildcard = host
            .split_once('.')
            .filter(|(label, _)| {
                label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
            })
            .map(|(_, suffix)| format!("*.{suffix}"));
        let alias = || self.aliases.get(host).or_else(|| self.alias_by_suffix(host));
        let name = Some(host)
            .filter(|host| self.servers.contains_key(*host))
            .or_else(|| alias().map(String::as_str))
            .or(wildcard.as_deref().filter(|host| self.servers.contains_key(*host)))
            .unwrap_or(CATCH_ALL);
        self.find_in(name, path)
    }

    /// nginx's own wildcards stand for any number of labels; the longest counts.
    fn alias_by_suffix(&self, host: &str) -> Option<&String> {
        let suffixes = host.match_indices('.').map(|(dot, _)| &host[dot..]);
        let mut aliases = suffixes.map(|suffix| self.aliases.get(&format!("*{suffix}")));
        aliases.find_map(|server| server)
    }

    /// Under the locations of this server.
    pub fn find_in(&self, server: &str, path: &[u8]) -> Option<MatchedServer<'_>> {
        let (name, server) = self.servers.get_key_value(server)?;
        let has_expressions = server.has_expressions();
        Some(MatchedServer { server: name, has_expressions, outcome: server.find(path) })
    }

    /// The servers that have locations for an upstream.
    pub(crate) fn servers_of(&self, upstream: &str) -> &[String] {
        self.upstreams.get(upstream).map_or(&[], Vec::as_slice)
    }
}

/// Each host's location `/`, before any rule has it.
fn default_locations(ingresses: &[&Ingress]) -> BTreeMap<String, Vec<Location>> {
    let root = |ingress: Option<&Ingress>, backend| Location {
        path: ROOT.to_owned(),
        is_exact: false,
        ingress: ingress.map_or_else(|| ServiceName::new("", ""), |i| ServiceName::of(&i.metadata)),
        ingress_path: String::new(),
        backend,
        is_default: true,
        has_expression: ingress.is_some_and(|ingress| has_expression(ingress, ROOT)),
    };
    let mut locations = BTreeMap::from([(CATCH_ALL.to_owned(), vec![root(None, None)])]);
    for ingress in ingresses {
        let name = ServiceName::of(&ingress.metadata);
        let spec = ingress.spec.as_ref();
        let service = spec.and_then(|spec| spec.default_backend.as_ref()?.service.as_ref());
        let backend = service.and_then(|service| NginxBackend::of(&name.namespace, service));
        let has_rules = rules(ingress).next().is_some();
        if let Some(catch_all) = locations.get_mut(CATCH_ALL).and_then(|own| own.first_mut())
            && catch_all.is_default
            && backend.is_some()
            && !has_rules
        {
            *catch_all = Location {
                is_default: false,
                has_expression: flag(ingress, "use-regex"),
                ..root(Some(ingress), backend.clone())
            };
        }
        for (host, _) in rules(ingress) {
            locations.entry(host).or_insert_with(|| vec![root(Some(ingress), backend.clone())]);
        }
    }
    locations
}

fn add_paths(locations: &mut BTreeMap<String, Vec<Location>>, ingress: &Ingress) {
    let name = ServiceName::of(&ingress.metadata);
    for (host, rule) in rules(ingress) {
        let Some(own) = locations.get_mut(&host) else { continue };
        for path in rule.http.iter().flat_map(|http| &http.paths) {
            let Some(service) = &path.backend.service else { continue };
            let text = path.path.as_deref().filter(|path| !path.is_empty()).unwrap_or(ROOT);
            // The type of its own equals Prefix.
            let is_exact = path.path_type == "Exact";
            let location = Location {
                path: text.to_owned(),
                is_exact,
                ingress: name.clone(),
                ingress_path: text.to_owned(),
                backend: NginxBackend::of(&name.namespace, service),
                is_default: false,
                has_expression: has_expression(ingress, text),
            };
            // The first location with the path is the only one that is compared.
            match own.iter_mut().find(|own| own.path == text) {
                Some(other) if other.is_exact == is_exact && other.is_default => *other = location,
                Some(other) if other.is_exact == is_exact => {}
                _ => own.push(location),
            }
        }
    }
}

/// Whether it makes all paths of its host expressions.
fn has_expression(ingress: &Ingress, path: &str) -> bool {
    flag(ingress, "use-regex")
        || annotation(ingress, "rewrite-target").is_some_and(|to| !to.is_empty() && to != path)
}

fn rules(ingress: &Ingress) -> impl Iterator<Item = (String, &IngressRule)> {
    let rules = ingress.spec.iter().flat_map(|spec| spec.rules.iter().flatten());
    rules.map(|rule| {
        let host = rule.host.as_deref().unwrap_or_default().to_ascii_lowercase();
        (if host.is_empty() { CATCH_ALL.to_owned() } else { host }, rule)
    })
}

fn annotation<'a>(ingress: &'a Ingress, name: &str) -> Option<&'a str> {
    let annotations = ingress.metadata.annotations.as_ref()?;
    annotations.get(&format!("{NGINX}{name}")).map(|value| value.trim())
}

fn flag(ingress: &Ingress, name: &str) -> bool {
    annotation(ingress, name)
        .is_some_and(|value| ["1", "t", "T", "true", "TRUE", "True"].contains(&value))
}

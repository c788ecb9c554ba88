//! Which rule ingress-nginx uses for a request: its servers and locations, without nginx.
//!
//! Differences from the API of Ingress that matter here: the paths of all namespaces are merged; one expression or
//! rewrite makes all paths of a host expressions, which match from the beginning and regardless of case; a path with a
//! slash at its end takes requests without it only by a redirect.

use std::collections::{BTreeMap, HashMap, HashSet};

use k8s_openapi::api::networking::v1::{Ingress, IngressRule, IngressServiceBackend};
use regex::bytes::{Regex, RegexBuilder};

use crate::ingress::model::annotations::NGINX;
use crate::model::ServiceName;

/// Server for requests that no other one matches.
const CATCH_ALL: &str = "_";
const ROOT: &str = "/";
/// Of one compiled expression.
const MOST_OCTETS: usize = 1 << 20;

/// All that ingress-nginx serves.
#[derive(Debug, Default)]
pub struct Site {
    servers: BTreeMap<String, Server>,
    /// Other names of servers.
    aliases: HashMap<String, String>,
    /// Servers with a location for an upstream, by its name in logs.
    upstreams: HashMap<String, Vec<String>>,
}

#[derive(Debug)]
struct Server {
    locations: Vec<Location>,
    lookup: Lookup,
}

#[derive(Clone, Debug)]
pub struct Location {
    /// As nginx's configuration has it.
    path: String,
    is_exact: bool,
    /// The Ingress that it belongs to, and the path there.
    pub ingress: ServiceName,
    pub ingress_path: String,
    /// `None`: the controller's own, which replies with 404.
    pub backend: Option<Backend>,
    /// Replaced by the first rule for the path.
    is_default: bool,
    has_expression: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    pub service: ServiceName,
    pub port: String,
}

/// How the locations of a server are found; numbers are positions.
#[derive(Debug)]
enum Lookup {
    Paths {
        exact: HashMap<Vec<u8>, usize>,
        /// They end with a slash.
        prefixes: HashMap<Vec<u8>, usize>,
    },
    /// Tried one after another. `None`: an expression that can't be compiled here.
    Expressions(Vec<Option<Regex>>),
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    Location(&'a Location),
    /// 301 to the same path with a slash at its end.
    SlashAppended,
    /// No location matches.
    NotFound,
    /// Depends on an expression of PCRE.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Name of the server.
    pub server: &'a str,
    /// All its paths are expressions.
    pub has_expressions: bool,
    pub outcome: Outcome<'a>,
}

impl Backend {
    fn of(namespace: &str, service: &IngressServiceBackend) -> Option<Self> {
        let port = service.port.as_ref()?;
        let number = port.number.filter(|number| *number > 0).map(|number| number.to_string());
        let port = number.or_else(|| port.name.clone().filter(|name| !name.is_empty()))?;
        Some(Self { service: ServiceName::new(namespace, &service.name), port })
    }

    /// Its name in logs.
    pub fn upstream(&self) -> String {
        format!("{}-{}-{}", self.service.namespace, self.service.name, self.port)
    }
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
            let server = Server::new(own);
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
    pub fn find(&self, host: &str, path: &[u8]) -> Option<Found<'_>> {
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
    pub fn find_in(&self, server: &str, path: &[u8]) -> Option<Found<'_>> {
        let (name, server) = self.servers.get_key_value(server)?;
        let has_expressions = matches!(server.lookup, Lookup::Expressions(_));
        Some(Found { server: name, has_expressions, outcome: server.find(path) })
    }

    /// The servers that have locations for an upstream.
    pub fn servers_of(&self, upstream: &str) -> &[String] {
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
        let backend = service.and_then(|service| Backend::of(&name.namespace, service));
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
                backend: Backend::of(&name.namespace, service),
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

impl Server {
    fn new(mut locations: Vec<Location>) -> Self {
        locations.sort_by(|a, b| {
            let key = |location: &Location| (location.path.len(), location.path.clone());
            key(b).cmp(&key(a))
        });
        let locations = with_exact_ones(locations);
        let lookup = if locations.iter().any(|location| location.has_expression) {
            Lookup::Expressions(locations.iter().map(|own| expression(&own.path)).collect())
        } else {
            let select = |is_exact: bool| {
                let mut selected = HashMap::new();
                for (index, own) in locations.iter().enumerate() {
                    if own.is_exact == is_exact {
                        selected.entry(own.path.clone().into_bytes()).or_insert(index);
                    }
                }
                selected
            };
            Lookup::Paths { exact: select(true), prefixes: select(false) }
        };
        Self { locations, lookup }
    }

    fn find(&self, path: &[u8]) -> Outcome<'_> {
        let found = match &self.lookup {
            Lookup::Expressions(expressions) => {
                let mut found = None;
                for (index, expression) in expressions.iter().enumerate() {
                    match expression {
                        None => return Outcome::Unknown,
                        Some(expression) if expression.is_match(path) => {
                            found = Some(index);
                            break;
                        }
                        Some(_) => {}
                    }
                }
                found
            }
            Lookup::Paths { exact, prefixes } => match exact.get(path) {
                Some(index) => Some(*index),
                None if !path.ends_with(b"/") && prefixes.contains_key(&[path, b"/"].concat()) => {
                    return Outcome::SlashAppended;
                }
                None => {
                    let ends = (1..=path.len()).rev().filter(|end| path[end - 1] == b'/');
                    ends.filter_map(|end| prefixes.get(&path[..end])).next().copied()
                }
            },
        };
        match found.and_then(|index| self.locations.get(index)) {
            Some(location) if location.backend.is_some() => Outcome::Location(location),
            _ => Outcome::NotFound,
        }
    }
}

/// A prefix becomes a location that ends with a slash, and one for the path itself. With expressions it stays.
fn with_exact_ones(locations: Vec<Location>) -> Vec<Location> {
    let exact: HashSet<String> =
        locations.iter().filter(|own| own.is_exact).map(|own| own.path.clone()).collect();
    let mut all = Vec::with_capacity(locations.len());
    for location in locations {
        if location.path == ROOT || location.is_exact || location.has_expression {
            all.push(location);
            continue;
        }
        let own = Location { is_exact: true, ..location.clone() };
        let slash = if location.path.ends_with('/') { "" } else { "/" };
        let path = format!("{}{slash}", location.path);
        all.push(Location { path, ..location });
        if !exact.contains(&own.path) {
            all.push(own);
        }
    }
    all
}

fn expression(path: &str) -> Option<Regex> {
    RegexBuilder::new(&format!("^{path}"))
        .case_insensitive(true)
        .unicode(false)
        .size_limit(MOST_OCTETS)
        .dfa_size_limit(MOST_OCTETS)
        .build()
        .ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backend(service: &str) -> Value {
        json!({"service": {"name": service, "port": {"name": "http"}}})
    }

    fn ingress(name: &str, age: u32, annotations: &[(&str, &str)], spec: &Value) -> Ingress {
        let annotations: BTreeMap<String, &str> =
            annotations.iter().map(|(name, value)| (format!("{NGINX}{name}"), *value)).collect();
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": name, "annotations": annotations,
                "creationTimestamp": format!("2026-01-{age:02}T00:00:00Z")},
            "spec": spec
        }))
        .unwrap()
    }

    /// Rules as host, type, path and Service.
    fn rules(rules: &[(&str, &str, &str, &str)]) -> Value {
        let rules = rules.iter().map(|(host, kind, path, service)| {
            json!({"host": host, "http": {"paths": [
                {"path": path, "pathType": kind, "backend": backend(service)}]}})
        });
        json!({"rules": rules.collect::<Vec<_>>()})
    }

    fn expect(ingresses: &[Ingress], cases: &[(&str, &str, &str)]) {
        let site = Site::new(ingresses);
        for (host, path, expected) in cases {
            let found = site.find(host, path.as_bytes()).unwrap();
            let actual = match found.outcome {
                Outcome::Location(location) => &*location.backend.as_ref().unwrap().service.name,
                Outcome::SlashAppended => "301",
                Outcome::NotFound => "404",
                Outcome::Unknown => "unknown",
            };
            assert_eq!(actual, *expected, "{host}{path}");
        }
    }

    const PREFIX: &str = "Prefix";
    const OWN: &str = "ImplementationSpecific";

    #[test]
    fn the_longest_prefix_by_elements() {
        let spec = rules(&[
            ("a", PREFIX, "/a", "a"),
            ("a", OWN, "/a/b/", "b"),
            ("a", "Exact", "/a/c", "exact"),
            ("a", PREFIX, "/a/c", "c"),
        ]);
        expect(
            &[ingress("i", 1, &[], &spec)],
            &[
                ("a", "/", "404"),
                ("a", "/a", "a"),
                ("a", "/ab", "404"),
                ("a", "/A", "404"),
                ("a", "/a/b", "301"),
                ("a", "/a/b/c", "b"),
                ("a", "/a/c", "exact"),
                ("a", "/a/c/", "c"),
                ("b", "/a", "404"),
            ],
        );
    }

    #[test]
    fn one_expression_makes_all_paths_of_a_host_expressions() {
        let plain = rules(&[
            ("a", "Exact", "/exact", "exact"),
            ("a", PREFIX, "/pre", "prefix"),
            ("b", PREFIX, "/pre", "b"),
        ]);
        let expression = rules(&[("a", OWN, "/x|/unanchored", "x"), ("a", OWN, "/v[0-9]+$", "v")]);
        expect(
            &[
                ingress("plain", 1, &[], &plain),
                ingress("regex", 2, &[("use-regex", "true")], &expression),
            ],
            &[
                ("a", "/EXACTLY", "exact"),
                ("a", "/prefix", "prefix"),
                ("a", "/v1", "v"),
                ("a", "/v1/", "404"),
                ("a", "/pre/unanchored", "x"),
                ("b", "/prefix", "404"),
            ],
        );
        let rewrite = |target| {
            ingress("i", 1, &[("rewrite-target", target)], &rules(&[("a", PREFIX, "/a", "a")]))
        };
        expect(&[rewrite("/")], &[("a", "/ab", "a")]);
        let pcre = rules(&[("a", OWN, "/(?!a)", "pcre"), ("a", OWN, "/longest", "l")]);
        expect(
            &[ingress("i", 1, &[("use-regex", "true")], &pcre)],
            &[("a", "/longest", "l"), ("a", "/a", "unknown")],
        );
    }

    #[test]
    fn the_oldest_has_a_path_and_the_first_of_a_host_its_default() {
        let with_default = |spec: Value, service| {
            let mut spec = spec;
            spec["defaultBackend"] = backend(service);
            spec
        };
        let path = |service| rules(&[("a", PREFIX, "/a", service)]);
        expect(
            &[
                ingress("young", 3, &[], &with_default(path("young"), "young-default")),
                ingress("old", 2, &[], &with_default(path("old"), "old-default")),
                ingress("rest", 4, &[], &with_default(json!({}), "rest")),
                ingress("rest2", 5, &[], &with_default(json!({}), "rest2")),
            ],
            &[("a", "/a", "old"), ("a", "/b", "old-default"), ("b", "/", "rest")],
        );
        // Of equal age, the greatest name.
        let (a, b) = (ingress("a", 1, &[], &path("a")), ingress("b", 1, &[], &path("b")));
        expect(&[a, b], &[("a", "/a", "b")]);
    }

    #[test]
    fn hosts_by_name_alias_and_wildcard() {
        let aliases = [("server-alias", "alias, *.many, other")];
        expect(
            &[
                ingress("a", 1, &aliases, &rules(&[("a", PREFIX, "/", "a")])),
                ingress("w", 2, &[], &rules(&[("*.W", PREFIX, "/", "w")])),
                ingress("other", 3, &[], &rules(&[("other", PREFIX, "/", "other")])),
                ingress("any", 4, &[], &rules(&[("", PREFIX, "/", "any")])),
            ],
            &[
                ("alias", "/", "a"),
                ("x.y.many", "/", "a"),
                ("many", "/", "any"),
                ("x.w", "/", "w"),
                ("x.y.w", "/", "any"),
                ("x y.w", "/", "any"),
                ("other", "/", "other"),
                ("", "/", "any"),
            ],
        );
    }
}

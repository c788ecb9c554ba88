//! The locations of one server, and which one nginx uses for a path.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::networking::v1::IngressServiceBackend;
use lb_rules::model::ServiceName;
use regex::bytes::{Regex, RegexBuilder};

pub(crate) const ROOT: &str = "/";
/// The most octets of one compiled expression.
const MOST_OCTETS: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct NginxServer {
    pub locations: Vec<Location>,
    lookup: Lookup,
}

#[derive(Clone, Debug)]
pub struct Location {
    /// As nginx's configuration has it.
    pub(super) path: String,
    pub(super) is_exact: bool,
    /// The Ingress that it belongs to, and the path there.
    pub ingress: ServiceName,
    pub ingress_path: String,
    /// `None`: the controller's own, which replies with 404.
    pub backend: Option<NginxBackend>,
    /// Replaced by the first rule for the path.
    pub(super) is_default: bool,
    pub(super) has_expression: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NginxBackend {
    pub service: ServiceName,
    pub port: String,
}

/// How the locations of a server are found; numbers are positions.
#[derive(Debug)]
enum Lookup {
    Paths {
        exact: HashMap<Vec<u8>, usize>,
        /// Paths that end with a slash.
        prefixes: HashMap<Vec<u8>, usize>,
    },
    /// Tried one after another. `None`: an expression that can't be compiled here.
    Expressions(Vec<Option<Regex>>),
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub enum RequestHandling<'a> {
    Location(&'a Location),
    /// 301 to the same path with a slash at its end.
    SlashAppended,
    /// No location matches.
    NotFound,
    /// Depends on an expression of PCRE.
    Unknown,
}

impl NginxBackend {
    pub(super) fn of(namespace: &str, service: &IngressServiceBackend) -> Option<Self> {
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

impl NginxServer {
    pub fn new(mut locations: Vec<Location>) -> Self {
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

    /// Whether all its paths are expressions.
    pub(crate) fn has_expressions(&self) -> bool {
        matches!(self.lookup, Lookup::Expressions(_))
    }

    pub fn find(&self, path: &[u8]) -> RequestHandling<'_> {
        let found = match &self.lookup {
            Lookup::Expressions(expressions) => {
                let mut found = None;
                for (index, expression) in expressions.iter().enumerate() {
                    match expression {
                        None => return RequestHandling::Unknown,
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
                    return RequestHandling::SlashAppended;
                }
                None => {
                    let ends = (1..=path.len()).rev().filter(|end| path[end - 1] == b'/');
                    ends.filter_map(|end| prefixes.get(&path[..end])).next().copied()
                }
            },
        };
        match found.and_then(|index| self.locations.get(index)) {
            Some(location) if location.backend.is_some() => RequestHandling::Location(location),
            _ => RequestHandling::NotFound,
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

//! What identities may do: four fixed roles, by the group in the certificate.
//!
//! Invariants:
//! - A client without a known group may do nothing but ask who it is.
//! - A role is a list of rules, which `kubectl auth can-i` prints: it cannot differ from what is
//!   enforced.

use std::borrow::Cow;

use crate::kinds::{KindRegistry, Subresource};
use crate::operations::RequestTarget;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientRole {
    /// May do everything.
    Administrator,
    /// Reads Services, slices, Nodes, Namespaces and declared kinds; writes Events, and the status of Services
    /// and declared kinds.
    Agent,
    /// Reads Ingresses, Services, slices, and Secrets that it needs; writes Events, the status of Ingresses, and
    /// Leases in `PROXY_NAMESPACE`.
    Proxy,
    /// Reads everything except Secrets.
    Viewer,
}

/// Verbs on resources of API groups. `*` stands for all.
#[derive(Debug, Clone)]
pub struct RoleRule {
    pub verbs: &'static [&'static str],
    pub groups: Cow<'static, [&'static str]>,
    /// With `/status` for the subresource.
    pub resources: &'static [&'static str],
    /// `None`: in all of them, and outside.
    pub namespace: Option<&'static str>,
}

/// Where proxies hold the Lease that elects their leader.
pub(crate) const PROXY_NAMESPACE: &str = "kube-system";

const fn rule(
    verbs: &'static [&'static str],
    groups: &'static [&'static str],
    resources: &'static [&'static str],
) -> RoleRule {
    RoleRule { verbs, groups: Cow::Borrowed(groups), resources, namespace: None }
}

impl RoleRule {
    pub(crate) fn applies_in(&self, namespace: Option<&str>) -> bool {
        self.namespace.is_none() || self.namespace == namespace
    }

    fn allows(&self, verb: &str, group: &str, resource: &str) -> bool {
        let has = |list: &[&str], one: &str| list.contains(&"*") || list.contains(&one);
        let is_status = resource.ends_with("/status") && self.resources.contains(&ANY_STATUS);
        has(self.verbs, verb)
            && has(&self.groups, group)
            && (has(self.resources, resource) || is_status)
    }
}

const READ: &[&str] = &["get", "list", "watch"];
const REPORT: &[&str] = &["create", "patch", "update"];
const STATUS: &[&str] = &["get", "patch", "update"];
const LOCK: &[&str] = &["create", "get", "list", "patch", "update", "watch"];
/// The status of all resources of a group.
const ANY_STATUS: &str = "*/status";
const EVENTS: RoleRule = rule(REPORT, &["", "events.k8s.io"], &["events"]);
const SLICES: RoleRule = rule(READ, &["discovery.k8s.io"], &["endpointslices"]);

/// Paths that every client may read: discovery, schemas and health.
pub(crate) const OPEN_PATHS: [&str; 8] =
    ["/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi/*", "/readyz"];
/// `/version` and what is in a role besides.
const VERSION_PATH: &str = "/version";
pub(crate) const METRICS_PATH: &str = "/metrics";

impl ClientRole {
    pub const ALL: [Self; 4] = [Self::Administrator, Self::Agent, Self::Proxy, Self::Viewer];

    pub fn name(self) -> &'static str {
        match self {
            Self::Administrator => "administrator",
            Self::Agent => "agent",
            Self::Proxy => "proxy",
            Self::Viewer => "viewer",
        }
    }

    /// In certificates.
    pub fn group(self) -> &'static str {
        match self {
            // Kubernetes' name.
            Self::Administrator => "system:masters",
            Self::Agent => "millrace:agents",
            Self::Proxy => "millrace:proxies",
            Self::Viewer => "millrace:viewers",
        }
    }

    pub(crate) fn of_groups(groups: &[String]) -> Option<Self> {
        Self::ALL.into_iter().find(|role| groups.iter().any(|group| group == role.group()))
    }

    /// Includes the declared kinds of the server.
    pub fn rules(self, kinds: &KindRegistry) -> Vec<RoleRule> {
        let mut rules = self.fixed_rules().to_vec();
        let groups = kinds.declared_groups();
        if groups.is_empty() {
            return rules;
        }
        let mut add = |verbs, resources| {
            let groups = Cow::Owned(groups.clone());
            rules.push(RoleRule { verbs, groups, resources, namespace: None });
        };
        match self {
            Self::Administrator | Self::Proxy => {}
            Self::Viewer => add(READ, &["*"]),
            Self::Agent => {
                add(READ, &["*"]);
                add(STATUS, &[ANY_STATUS]);
            }
        }
        rules
    }

    fn fixed_rules(self) -> &'static [RoleRule] {
        const NETWORKING: &[&str] = &["networking.k8s.io"];
        match self {
            Self::Administrator => const { &[rule(&["*"], &["*"], &["*"])] },
            Self::Agent => {
                const {
                    &[
                        rule(READ, &[""], &["namespaces", "nodes", "services"]),
                        SLICES,
                        EVENTS,
                        rule(STATUS, &[""], &["services/status"]),
                    ]
                }
            }
            Self::Proxy => {
                const {
                    &[
                        rule(READ, &[""], &["secrets", "services"]),
                        SLICES,
                        rule(READ, NETWORKING, &["ingressclasses", "ingresses"]),
                        EVENTS,
                        rule(STATUS, NETWORKING, &["ingresses/status"]),
                        RoleRule {
                            verbs: LOCK,
                            groups: Cow::Borrowed(&["coordination.k8s.io"]),
                            resources: &["leases"],
                            namespace: Some(PROXY_NAMESPACE),
                        },
                    ]
                }
            }
            Self::Viewer => {
                const {
                    &[
                        rule(
                            READ,
                            &[""],
                            &[
                                "configmaps",
                                "endpoints",
                                "events",
                                "namespaces",
                                "nodes",
                                "serviceaccounts",
                                "services",
                            ],
                        ),
                        rule(
                            READ,
                            &[
                                "coordination.k8s.io",
                                "discovery.k8s.io",
                                "events.k8s.io",
                                "networking.k8s.io",
                            ],
                            &["*"],
                        ),
                    ]
                }
            }
        }
    }

    pub fn allows(
        self,
        kinds: &KindRegistry,
        verb: &str,
        group: &str,
        resource: &str,
        namespace: Option<&str>,
    ) -> bool {
        let rules = self.rules(kinds);
        rules.iter().any(|rule| rule.applies_in(namespace) && rule.allows(verb, group, resource))
    }

    /// Whether only some Secrets are visible (`secrets`).
    pub(crate) fn sees_needed_secrets_only(self) -> bool {
        self == Self::Proxy
    }

    /// Whether more of the target's objects than their status may be changed.
    pub fn may_change(self, kinds: &KindRegistry, target: &RequestTarget) -> bool {
        let RequestTarget { kind, namespace, .. } = target;
        let changes =
            |verb| self.allows(kinds, verb, kind.group, kind.plural, namespace.as_deref());
        changes("update") || changes("patch")
    }

    /// For paths that are not resources.
    pub(crate) fn allows_path(self, verb: &str, path: &str) -> bool {
        if self == Self::Administrator {
            return true;
        }
        let matches = |pattern: &str| match pattern.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == pattern,
        };
        verb == "get" && self.paths().into_iter().any(matches)
    }

    pub fn paths(self) -> Vec<&'static str> {
        match self {
            Self::Administrator => vec!["*"],
            Self::Viewer => [&OPEN_PATHS[..], &[VERSION_PATH, METRICS_PATH]].concat(),
            Self::Agent | Self::Proxy => [&OPEN_PATHS[..], &[VERSION_PATH]].concat(),
        }
    }
}

/// The resource of a request, with its subresource.
pub(crate) fn name_resource(target: &RequestTarget) -> String {
    match target.subresource {
        Subresource::None => target.kind.plural.to_owned(),
        Subresource::Status => format!("{}/status", target.kind.plural),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_may_do_what_their_clients_need_and_no_more() {
        use ClientRole::{Administrator, Agent, Proxy, Viewer};
        let networking = "networking.k8s.io";
        for (verb, group, resource, allowed) in [
            ("list", "", "services", vec![Administrator, Agent, Proxy, Viewer]),
            (
                "watch",
                "discovery.k8s.io",
                "endpointslices",
                vec![Administrator, Agent, Proxy, Viewer],
            ),
            ("list", "", "nodes", vec![Administrator, Agent, Viewer]),
            ("list", "", "secrets", vec![Administrator, Proxy]),
            ("create", "", "secrets", vec![Administrator]),
            ("create", "", "services", vec![Administrator]),
            ("delete", "", "services", vec![Administrator]),
            ("create", "", "events", vec![Administrator, Agent, Proxy]),
            ("patch", "events.k8s.io", "events", vec![Administrator, Agent, Proxy]),
            ("delete", "", "events", vec![Administrator]),
            ("patch", "", "services/status", vec![Administrator, Agent]),
            ("patch", networking, "ingresses/status", vec![Administrator, Proxy]),
            ("patch", networking, "ingresses", vec![Administrator]),
            ("list", networking, "ingresses", vec![Administrator, Proxy, Viewer]),
            ("list", "coordination.k8s.io", "leases", vec![Administrator, Viewer]),
            ("list", "apps", "deployments", vec![Administrator]),
        ] {
            let kinds = KindRegistry::default();
            let allows =
                |role: &ClientRole| role.allows(&kinds, verb, group, resource, Some("default"));
            let actual: Vec<ClientRole> = ClientRole::ALL.into_iter().filter(allows).collect();
            assert_eq!(actual, allowed, "{verb} {group} {resource}");
        }
    }

    #[test]
    fn a_proxy_writes_leases_in_one_namespace_only() {
        let kinds = KindRegistry::default();
        let updates = |namespace: Option<&str>| {
            ClientRole::Proxy.allows(&kinds, "update", "coordination.k8s.io", "leases", namespace)
        };
        assert!(updates(Some(PROXY_NAMESPACE)));
        assert!(!updates(Some("default")) && !updates(None));
    }

    #[test]
    fn every_role_reads_discovery_and_only_administrators_read_backups() {
        for (path, allowed) in [
            ("/api", 4),
            ("/apis/networking.k8s.io/v1", 4),
            ("/version", 4),
            ("/readyz", 4),
            ("/metrics", 2),
            ("/millrace/backup", 1),
        ] {
            let count = ClientRole::ALL.iter().filter(|role| role.allows_path("get", path)).count();
            assert_eq!(count, allowed, "{path}");
        }
    }

    #[test]
    fn the_group_of_the_certificate_decides() {
        for role in ClientRole::ALL {
            assert_eq!(
                ClientRole::of_groups(&["other".to_owned(), role.group().to_owned()]),
                Some(role)
            );
        }
        assert_eq!(ClientRole::of_groups(&["others".to_owned()]), None);
    }
}

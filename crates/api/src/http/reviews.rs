//! What `kubectl auth whoami` and `can-i` ask: who the client is, and what it may do.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::identity::ClientIdentity;
use super::roles::ClientRole;
use crate::codec::format_time;
use crate::kinds::KindRegistry;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessReview {
    /// `SelfSubjectReview`
    Subject,
    /// `SelfSubjectAccessReview`
    Access,
    /// `SelfSubjectRulesReview`
    Rules,
}

impl AccessReview {
    pub(crate) fn of_resource(group: &str, version: &str, resource: &str) -> Option<Self> {
        match (group, version, resource) {
            ("authentication.k8s.io", "v1", "selfsubjectreviews") => Some(Self::Subject),
            ("authorization.k8s.io", "v1", "selfsubjectaccessreviews") => Some(Self::Access),
            ("authorization.k8s.io", "v1", "selfsubjectrulesreviews") => Some(Self::Rules),
            _ => None,
        }
    }

    pub fn definition(self) -> &'static str {
        match self {
            Self::Subject => "io.k8s.api.authentication.v1.SelfSubjectReview",
            Self::Access => "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
            Self::Rules => "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
        }
    }

    /// The review with its status.
    pub fn evaluate(
        self,
        kinds: &KindRegistry,
        client: &ClientIdentity,
        request: &Value,
        now: Timestamp,
    ) -> Value {
        let spec = &request["spec"];
        match self {
            Self::Subject => json!({
                "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
                "metadata": {"creationTimestamp": format_time(now)},
                "status": {"userInfo": {"username": client.user, "groups": list_groups(client)}},
            }),
            Self::Access => json!({
                "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
                "metadata": {"creationTimestamp": null},
                "spec": spec, "status": access(kinds, client, spec),
            }),
            Self::Rules => json!({
                "kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1",
                "metadata": {"creationTimestamp": null},
                "spec": spec, "status": list_rules(kinds, client.role(), spec),
            }),
        }
    }
}

fn list_groups(client: &ClientIdentity) -> Vec<&str> {
    let authenticated = std::iter::once("system:authenticated");
    client.groups.iter().map(String::as_str).chain(authenticated).collect()
}

fn access(kinds: &KindRegistry, client: &ClientIdentity, spec: &Value) -> Value {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let Some(role) = client.role() else {
        return json!({"allowed": false, "reason": "the client has no role"});
    };
    let resource = &spec["resourceAttributes"];
    let allowed = if resource.is_object() {
        let name = match resource["subresource"].as_str() {
            None | Some("") => text(&resource["resource"]),
            Some(subresource) => format!("{}/{subresource}", text(&resource["resource"])),
        };
        let namespace = resource["namespace"].as_str().filter(|namespace| !namespace.is_empty());
        role.allows(kinds, &text(&resource["verb"]), &text(&resource["group"]), &name, namespace)
    } else {
        let path = &spec["nonResourceAttributes"];
        role.allows_path(&text(&path["verb"]), &text(&path["path"]))
    };
    json!({"allowed": allowed, "reason": format!("role {}", role.name())})
}

/// The rules that apply in the namespace that the client asks about.
fn list_rules(kinds: &KindRegistry, role: Option<ClientRole>, spec: &Value) -> Value {
    let resources: Vec<Value> = role
        .map(|role| role.rules(kinds))
        .unwrap_or_default()
        .into_iter()
        .filter(|rule| rule.applies_in(spec["namespace"].as_str()))
        .map(|rule| {
            json!({"verbs": rule.verbs, "apiGroups": rule.groups, "resources": rule.resources})
        })
        .collect();
    let paths = role.map(ClientRole::paths).unwrap_or_default();
    let verbs = if role == Some(ClientRole::Administrator) { "*" } else { "get" };
    json!({
        "resourceRules": resources,
        "nonResourceRules": [{"verbs": [verbs], "nonResourceURLs": paths}],
        "incomplete": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_learns_its_name_and_groups() {
        let client = ClientIdentity::new("eve", ClientRole::Viewer);
        let reviewed = AccessReview::Subject.evaluate(
            &KindRegistry::default(),
            &client,
            &json!({}),
            Timestamp::UNIX_EPOCH,
        );
        let user = json!({
            "username": "eve", "groups": ["millrace:viewers", "system:authenticated"],
        });
        assert_eq!(reviewed["status"]["userInfo"], user);
    }

    #[test]
    fn access_is_what_is_enforced() {
        let viewer = ClientIdentity::new("eve", ClientRole::Viewer);
        let nobody = ClientIdentity { user: "nobody".to_owned(), groups: Vec::new() };
        let list = |resource: &str| json!({"spec": {"resourceAttributes": {"verb": "list", "resource": resource}}});
        let path =
            |path: &str| json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": path}}});
        for (client, request, expected) in [
            (&viewer, list("services"), true),
            (&viewer, list("secrets"), false),
            (&viewer, path("/metrics"), true),
            (&viewer, path("/millrace/backup"), false),
            (&nobody, list("services"), false),
            (&nobody, path("/version"), false),
        ] {
            let reviewed = AccessReview::Access.evaluate(
                &KindRegistry::default(),
                client,
                &request,
                Timestamp::UNIX_EPOCH,
            );
            assert_eq!(reviewed["status"]["allowed"], expected, "{} {request}", client.user);
        }
    }
}

//! Which Secrets a proxy sees: certificates, and each other one by its name while an Ingress refers to it.
//!
//! Invariant: a proxy cannot make an Ingress refer to a Secret. It may write only the status of Ingresses, which
//! leaves their annotations as they are (`Target::keeps_metadata`).

use serde_json::Value;

use super::roles::ClientRole;
use crate::failure::ApiFailure;
use crate::kinds;
use crate::operations::options::QueryParameters;
use crate::operations::selectors::ObjectSelector;
use crate::operations::{self, Api, RequestTarget};

/// The Secrets that a request may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecretVisibility {
    All,
    /// Secrets of type `kubernetes.io/tls`.
    Certificates,
    /// No Secret of the name in the request.
    Nothing,
}

/// The type of Secrets with certificates.
const TLS_SECRET_TYPE: &str = "kubernetes.io/tls";
pub(crate) const TLS_FIELD_SELECTOR: &str = "type=kubernetes.io/tls";
pub(crate) const VISIBILITY_EXPLANATION: &str =
    "only Secrets of type kubernetes.io/tls, and by name those that Ingresses refer to";
/// The end of the names of annotations that refer to Secrets, such as `nginx.ingress.kubernetes.io/auth-secret`.
const SECRET_ANNOTATION_SUFFIX: &str = "-secret";

pub(crate) fn decide_visibility(
    api: &Api,
    role: ClientRole,
    target: &RequestTarget,
    query: &QueryParameters,
) -> Result<SecretVisibility, ApiFailure> {
    if !role.sees_needed_secrets_only() || target.kind.kind != "Secret" {
        return Ok(SecretVisibility::All);
    }
    let fields = query.first_value("fieldSelector");
    let selected = ObjectSelector::parse(target.kind, "", fields)?;
    let name = target.name.as_deref().or_else(|| selected.required_name());
    let (Some(namespace), Some(name)) = (target.namespace.as_deref(), name) else {
        return Ok(SecretVisibility::Certificates);
    };
    if is_referred_to(api, namespace, name)? {
        return Ok(SecretVisibility::All);
    }
    let stored = api.storage().get(&operations::storage_key(target.kind, Some(namespace), name));
    let is_certificate = stored.is_some_and(|stored| is_certificate(&stored.object()));
    Ok(if is_certificate { SecretVisibility::Certificates } else { SecretVisibility::Nothing })
}

fn is_certificate(secret: &Value) -> bool {
    secret["type"] == TLS_SECRET_TYPE
}

fn is_referred_to(api: &Api, namespace: &str, name: &str) -> Result<bool, ApiFailure> {
    let kind = kinds::find_kind("networking.k8s.io/v1", "Ingress")
        .ok_or_else(|| ApiFailure::internal("the kind Ingress is missing"))?;
    let all = api.storage().list(&operations::storage_prefix(kind, None), None, None, usize::MAX);
    // The latest revision is never gone.
    let all = all.map_err(|_| ApiFailure::internal("the Ingresses cannot be read"))?;
    let mut all = all.objects.iter();
    Ok(all.any(|(_, ingress)| refers_to(&ingress.metadata(), namespace, name)))
}

/// `metadata`: of an Ingress.
fn refers_to(metadata: &Value, namespace: &str, name: &str) -> bool {
    let annotations = metadata["annotations"].as_object().into_iter().flatten();
    let mut values = annotations
        .filter(|(key, _)| key.ends_with(SECRET_ANNOTATION_SUFFIX))
        .filter_map(|(_, value)| value.as_str());
    values.any(|value| match value.split_once('/') {
        Some(parts) => parts == (namespace, name),
        None => value == name && metadata["namespace"] == namespace,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_for_secrets_refer_to_them_by_name_or_with_a_namespace() {
        for (annotation, value, expected) in [
            ("nginx.ingress.kubernetes.io/auth-secret", "users", true),
            ("ingress.millrace.io/auth-tls-secret", "shop/users", true),
            ("nginx.ingress.kubernetes.io/auth-secret", "other/users", false),
            ("nginx.ingress.kubernetes.io/auth-secret", "users2", false),
            ("nginx.ingress.kubernetes.io/auth-realm", "users", false),
        ] {
            let ingress = json!({
                "namespace": "shop", "name": "web", "annotations": {annotation: value},
            });
            assert_eq!(refers_to(&ingress, "shop", "users"), expected, "{annotation}: {value}");
            assert!(!refers_to(&ingress, "default", "users"), "{annotation}: {value}");
        }
    }
}

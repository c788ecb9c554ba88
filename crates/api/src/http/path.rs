//! Parses the path of a request.

use super::reviews::AccessReview;
use crate::kinds::{ApiKind, KindRegistry, Subresource};
use crate::operations::RequestTarget;

#[derive(Debug)]
pub(crate) enum ApiPath {
    /// `/`: the list of paths.
    Index,
    Version,
    /// `/livez`: whether a restart would help.
    Live,
    /// `/healthz`, `/readyz`: whether reads and writes succeed.
    Ready,
    Metrics,
    /// A snapshot of all objects.
    Backup,
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/{group}`
    Group(String),
    /// `/api/v1`, `/apis/{group}/{version}`
    Resources {
        group: String,
        version: String,
    },
    /// A list that clients request before something else, and that is always empty here.
    /// With its API version and kind.
    Empty(&'static str, &'static str),
    OpenApi2,
    OpenApi3,
    /// `/openapi/v3/api/v1`, `/openapi/v3/apis/{group}/{version}`
    OpenApi3Of {
        group: String,
        version: String,
    },
    Review(AccessReview),
    Objects {
        target: RequestTarget,
        watch: bool,
    },
}

impl ApiPath {
    /// `None` if the path does not exist.
    pub fn parse(kinds: &KindRegistry, path: &str) -> Option<Self> {
        let decoded: Vec<String> = path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(percent_decode)
            .collect::<Option<_>>()?;
        let segments: Vec<&str> = decoded.iter().map(String::as_str).collect();
        match segments.as_slice() {
            [] => Some(Self::Index),
            ["version"] => Some(Self::Version),
            ["livez", ..] => Some(Self::Live),
            ["healthz" | "readyz", ..] => Some(Self::Ready),
            ["metrics"] => Some(Self::Metrics),
            ["millrace", "backup"] => Some(Self::Backup),
            // Requested by `kubectl describe node`.
            ["api", "v1", "pods"] => Some(Self::Empty("v1", "PodList")),
            // kubectl requests this before it reports an unknown kind.
            ["apis", "apiextensions.k8s.io", "v1", "customresourcedefinitions"] => {
                Some(Self::Empty("apiextensions.k8s.io/v1", "CustomResourceDefinitionList"))
            }
            ["openapi", "v2"] => Some(Self::OpenApi2),
            ["openapi", "v3"] => Some(Self::OpenApi3),
            ["openapi", "v3", "api", version] => {
                Some(Self::OpenApi3Of { group: String::new(), version: (*version).to_owned() })
            }
            ["openapi", "v3", "apis", group, version] => Some(Self::OpenApi3Of {
                group: (*group).to_owned(),
                version: (*version).to_owned(),
            }),
            ["api"] => Some(Self::CoreVersions),
            ["apis"] => Some(Self::Groups),
            ["apis", group] => Some(Self::Group((*group).to_owned())),
            ["api", version] => {
                Some(Self::Resources { group: String::new(), version: (*version).to_owned() })
            }
            ["apis", group, version] => {
                Some(Self::Resources { group: (*group).to_owned(), version: (*version).to_owned() })
            }
            ["apis", group, version, resource]
                if AccessReview::of_resource(group, version, resource).is_some() =>
            {
                AccessReview::of_resource(group, version, resource).map(Self::Review)
            }
            ["api", version, rest @ ..] => parse_objects(kinds, "", version, rest),
            ["apis", group, version, rest @ ..] => parse_objects(kinds, group, version, rest),
            _ => None,
        }
    }
}

fn parse_objects(
    kinds: &KindRegistry,
    group: &str,
    version: &str,
    segments: &[&str],
) -> Option<ApiPath> {
    let (watch, segments) = match segments {
        ["watch", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let kind = |plural: &str| kinds.find(group, version, plural);
    let target = match segments {
        ["namespaces", namespace, plural, rest @ ..]
            if !is_subresource(plural) || kind("namespaces").is_none() =>
        {
            let kind = kind(plural).filter(|kind| kind.namespaced)?;
            parse_target(kind, Some(namespace), rest)?
        }
        [plural, rest @ ..] => {
            let kind = kind(plural)?;
            // A namespaced object cannot be named without its namespace.
            if kind.namespaced && !rest.is_empty() {
                return None;
            }
            parse_target(kind, None, rest)?
        }
        [] => return None,
    };
    Some(ApiPath::Objects { target, watch })
}

fn parse_target(
    kind: &'static ApiKind,
    namespace: Option<&str>,
    rest: &[&str],
) -> Option<RequestTarget> {
    let (name, subresource) = match rest {
        [] => (None, Subresource::None),
        [name] => (Some((*name).to_owned()), Subresource::None),
        [name, "status"] if kind.has_status => (Some((*name).to_owned()), Subresource::Status),
        _ => return None,
    };
    Some(RequestTarget {
        kind,
        namespace: namespace.map(str::to_owned),
        name,
        subresource,
        keeps_metadata: false,
    })
}

/// Subresources of Namespaces: `/api/v1/namespaces/default/status` does not list a kind `status`.
fn is_subresource(segment: &str) -> bool {
    matches!(segment, "status" | "finalize")
}

/// Percent-decoding.
fn percent_decode(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        if *byte == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*byte);
            rest = after;
        }
    }
    // An encoded slash must not become part of a key. No name contains one.
    String::from_utf8(bytes).ok().filter(|segment| !segment.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &str) -> Option<String> {
        match ApiPath::parse(&KindRegistry::default(), path)? {
            ApiPath::Objects { target, watch } => Some(format!(
                "{}{} {} {}{}",
                if watch { "watch " } else { "" },
                target.kind.plural,
                target.namespace.unwrap_or_else(|| "*".to_owned()),
                target.name.unwrap_or_else(|| "*".to_owned()),
                if target.subresource == Subresource::Status { " status" } else { "" },
            )),
            other => Some(format!("{other:?}")),
        }
    }

    #[test]
    fn paths_name_objects() {
        for (path, expected) in [
            ("/api/v1/namespaces", Some("namespaces * *")),
            ("/api/v1/namespaces/default", Some("namespaces * default")),
            ("/api/v1/namespaces/default/status", Some("namespaces * default status")),
            ("/api/v1/namespaces/default/secrets", Some("secrets default *")),
            ("/api/v1/namespaces/default/secrets/a%2Db", Some("secrets default a-b")),
            ("/api/v1/secrets", Some("secrets * *")),
            ("/api/v1/secrets/a", None),
            ("/api/v1/watch/namespaces/default/secrets/a", Some("watch secrets default a")),
            ("/api/v1/watch/nodes", Some("watch nodes * *")),
            ("/api/v1/namespaces/default/secrets/a/status", None),
            ("/api/v1/namespaces/default/nodes", None),
            ("/apis/coordination.k8s.io/v1/namespaces/a/leases/b", Some("leases a b")),
            ("/apis/coordination.k8s.io/v1/leases", Some("leases * *")),
            ("/apis/coordination.k8s.io/v2/leases", None),
            ("/api/v1/pods", Some("Empty(\"v1\", \"PodList\")")),
            ("/api/v1/namespaces/default/pods", None),
            ("/api/v1/namespaces/a/secrets/b%2Fc", None),
            ("/api/v1/namespaces/a/secrets/%zz", None),
            ("/nothing", None),
        ] {
            assert_eq!(named(path).as_deref(), expected, "{path}");
        }
    }
}

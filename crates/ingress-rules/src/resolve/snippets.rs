//! The locations of `server-snippet`, whose requests all Ingresses of a host deny.

use std::sync::Arc;

use http::StatusCode;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use k8s_openapi::api::networking::v1::IngressSpec;
use lb_http::policy::TlsRedirect;
use lb_http::{Action, PathPattern, Route, RoutePolicy};

use super::super::annotations::NGINX;
use super::super::resolved::DeniedLocation;
use super::super::snippets::SnippetLocation;
use super::Resolver;

impl Resolver<'_> {
    /// Reads the locations. Those that can't be honoured close the rules, and are not in the way of others.
    pub fn read_denied_locations(&mut self, spec: &IngressSpec) -> Vec<DeniedLocation> {
        let locations = self.draft.server_snippet.locations.clone();
        if locations.is_empty() || self.draft.canary.enabled {
            return Vec::new();
        }
        if spec.rules.as_deref().unwrap_or_default().is_empty() {
            self.close_for_location("a location needs rules with hosts");
            return Vec::new();
        }
        let route = self.deny_everyone();
        let mut denied = Vec::new();
        for location in &locations {
            match find_location_patterns(location) {
                Ok(patterns) => denied.extend(patterns.into_iter().map(|path| DeniedLocation {
                    path,
                    is_preferred: location.is_preferred,
                    route: route.clone(),
                })),
                Err(why) => self.close_for_location(&format!("location {} {why}", location.path)),
            }
        }
        denied
    }

    fn close_for_location(&mut self, why: &str) {
        let key = format!("{NGINX}server-snippet");
        self.problem(
            &format!("metadata.annotations[{key}]"),
            format!("{why}; the rules answer 503"),
        );
        self.closed.get_or_insert_with(|| format!("{key} can't be honoured: {why}").into());
    }

    /// By its policy, so that a canary that joins it is denied, too.
    fn deny_everyone(&self) -> Arc<Route> {
        let everyone = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
        let policy = RoutePolicy {
            tls_redirect: TlsRedirect::Never,
            denied_sources: everyone.to_vec(),
            access_log: self.policy.access_log,
            ..RoutePolicy::default()
        };
        Arc::new(Route {
            owner: self.owner.clone(),
            action: Action::Respond {
                status: StatusCode::FORBIDDEN,
                reason: "location of server-snippet".into(),
            },
            canaries: Vec::new(),
            policy: Arc::new(policy),
        })
    }
}

/// nginx compares prefixes by characters, rules by elements. An expression does what nginx does, but for the case of
/// letters.
fn find_location_patterns(location: &SnippetLocation) -> Result<Vec<PathPattern>, String> {
    let path: Arc<str> = location.path.clone().into();
    if location.is_exact {
        return Ok(vec![PathPattern::Exact(path)]);
    }
    let expression = PathPattern::regex(&regex::escape(&path));
    Ok(vec![expression.map_err(|error| error.to_string())?, PathPattern::Prefix(path)])
}

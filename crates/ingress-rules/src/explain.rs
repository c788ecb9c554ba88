//! Why a request goes where it goes, by the functions that serve requests. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use jiff::Timestamp;
use lb_http::admission::{AdmittedRequest, ClientCertificate, Rejected, admit_request};
use lb_http::balance::{Balancer, Pick};
use lb_http::hash_key::HashInput;
use lb_http::policy::{Balance, HashKey, KeyPart};
use lb_http::respond::Facts;
use lb_http::table::{MatchReason, MatchedRule, WhyShadowed};
use lb_http::{Action, Rejection, Route, UpstreamName, canary, host, path};
use lb_proxy::{Config, HostTls};
use serde::{Deserialize, Serialize};

/// The default of the proxy.
const TLS_PORT: u16 = 443;

/// A request that need not be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedRequest {
    /// With scheme, host and path.
    pub url: String,
    pub method: String,
    pub headers: Vec<(String, String)>,
    /// The client's address.
    pub client: IpAddr,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// As it is matched: in lower case, without port.
    pub host: String,
    /// As it is matched and forwarded.
    pub path: String,
    /// How the connection is served; absent without TLS.
    pub tls: Option<ExplainedTls>,
    /// Why the request is refused before it is routed.
    pub refused: Option<String>,
    pub rule: Option<ExplainedRule>,
    /// What the rule does with the request.
    pub outcome: String,
    /// Ingresses that get a part of such requests, with their shares.
    pub canaries: Vec<String>,
    pub upstream: Option<Upstream>,
    /// The other rules that match, in the order in which they would be used.
    pub losing_rules: Vec<LosingRule>,
    /// Annotations of the rule's Ingress, and of the canary that gets the request.
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedRule {
    /// Namespace and name.
    pub ingress: String,
    pub host: String,
    pub path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LosingRule {
    #[serde(flatten)]
    pub rule: ExplainedRule,
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedTls {
    /// The pattern that the name in SNI matches; absent: the connection is refused.
    pub host: Option<String>,
    /// The names in the certificate.
    pub names: Vec<String>,
    pub expires: Option<Timestamp>,
    pub summary: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstream {
    /// Namespace, Service and port.
    pub service: String,
    pub protocol: String,
    /// How an endpoint is chosen.
    pub balance: String,
    pub endpoints: Vec<SocketAddr>,
    /// Endpoints that get no new requests.
    pub draining: Vec<SocketAddr>,
    /// The endpoint of this request, if it is not random.
    pub chosen: Option<SocketAddr>,
}

/// A request that was taken apart.
struct ParsedRequest {
    is_tls: bool,
    method: Method,
    authority: String,
    uri: String,
    raw_path: String,
    headers: HeaderMap,
}

impl ExplainedRequest {
    fn parse(&self) -> Result<ParsedRequest> {
        let uri: Uri = self.url.parse().with_context(|| format!("{}: not a URL", self.url))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => bail!("{}: not a URL that begins with http:// or https://", self.url),
        };
        let authority = uri.authority().context("the URL has no host")?.to_string();
        ensure!(!authority.contains('@'), "the URL has a user in it; use --header");
        let method = Method::from_bytes(self.method.as_bytes()).context("not a method")?;
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let wrong = || format!("header {name}: not valid");
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).with_context(wrong)?,
                HeaderValue::from_str(value).with_context(wrong)?,
            );
        }
        let target = uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let raw_path = uri.path().to_owned();
        Ok(ParsedRequest { is_tls, method, authority, raw_path, uri: target, headers })
    }
}

/// `annotations`: those of an Ingress, by namespace and name. `random` stands for the proxy's random number.
pub fn explain_request(
    config: &Config,
    annotations: impl Fn(&str, &str) -> Arc<BTreeMap<String, String>>,
    request: &ExplainedRequest,
) -> Result<Explanation> {
    let parsed = request.parse()?;
    let mut explanation = Explanation::default();
    // A `Host` header may differ from the name in SNI.
    let named = parsed.headers.get(http::header::HOST).and_then(|name| name.to_str().ok());
    let sni = host::normalize_host(&parsed.authority);
    let host = named.map_or_else(|| host::normalize_host(&parsed.authority), host::normalize_host);
    let (host, path) = match (host, path::normalize_path(&parsed.raw_path)) {
        (Ok(host), Ok(path)) => (host, path),
        (Err(error), _) => {
            explanation.refused = Some(format!("400: {error}"));
            return Ok(explanation);
        }
        (_, Err(error)) => {
            explanation.refused = Some(format!("400: {error}"));
            return Ok(explanation);
        }
    };
    explanation.host = host.to_string();
    explanation.path = path.to_string();
    if parsed.is_tls {
        explanation.tls = Some(explain_tls(config, sni.as_deref().unwrap_or_default()));
    }
    if let Some(ExplainedTls { host: None, summary, .. }) = &explanation.tls {
        explanation.refused = Some(summary.clone());
        return Ok(explanation);
    }
    let found = config.table.explain(Some(&host), &path);
    explanation.losing_rules = found
        .lost
        .iter()
        .map(|lost| LosingRule { rule: rule_of(&lost.rule), reason: reason(&lost.reason) })
        .collect();
    let Some(rule) = found.matched else {
        explanation.outcome = match found.owner {
            Some(owner) => format!("404: no path of host {owner} matches"),
            None => "404: no rule for this host".to_owned(),
        };
        return Ok(explanation);
    };
    explanation.rule = Some(rule_of(&rule));
    let (route, canaries) = choose_canary(rule.route, &parsed.headers);
    explanation.canaries = canaries;
    for owner in [&rule.route.owner, &route.owner] {
        let own = annotations(&owner.namespace, &owner.name);
        explanation.annotations.extend(
            own.iter()
                .filter(|(name, _)| is_ours(name))
                .map(|(name, value)| (name.clone(), value.clone())),
        );
    }
    let subject = HashInput {
        client: request.client,
        host: &host,
        uri: &parsed.uri,
        path: &path,
        headers: &parsed.headers,
    };
    let authority = host::Authority::parse(named.unwrap_or(&parsed.authority)).ok();
    let facts = Facts {
        client: request.client,
        is_tls: parsed.is_tls,
        host_uses_tls: config.own_tls(Some(&host)).is_some_and(|(_, tls)| tls.is_wanted()),
        tls_port: TLS_PORT,
        method: &parsed.method,
        authority: authority.as_ref(),
        path: &path,
        query: parsed.uri.split_once('?').map(|(_, query)| query),
        headers: &parsed.headers,
    };
    // That of a client which has what the host demands.
    let certificate = ClientCertificate { is_verified: true, is_demanded: false };
    explanation.outcome = match (admit_request(route, &facts, certificate), &route.action) {
        (Err(rejected), Action::Respond { reason, .. })
            if matches!(rejected.rejection, Rejection::UnservedRule(_)) =>
        {
            format!("{}: {reason}", rejected.rejection.status().as_u16())
        }
        (Err(rejected), _) => describe(&rejected),
        (Ok(AdmittedRequest { upstream, .. }), _) => {
            let shown = explain_upstream(config, upstream, route, &subject);
            let outcome = outcome(&shown, rule.route, route);
            explanation.upstream = Some(shown);
            outcome
        }
    };
    Ok(explanation)
}

/// A response of the proxy itself.
fn describe(Rejected { rejection, headers }: &Rejected) -> String {
    let status = rejection.status();
    let location = headers.get(http::header::LOCATION);
    match location.and_then(|location| location.to_str().ok()) {
        Some(location) => format!("{}: redirected to {location}", status.as_u16()),
        None => format!("{}: decided by annotations", status.as_u16()),
    }
}

fn outcome(upstream: &Upstream, main: &Arc<Route>, route: &Arc<Route>) -> String {
    let by = match Arc::ptr_eq(main, route) {
        true => String::new(),
        false => format!(", by canary {}", route.owner),
    };
    let name = &upstream.service;
    match (upstream.endpoints.as_slice(), upstream.chosen) {
        ([], _) if upstream.draining.is_empty() => {
            format!("503: {name} has no ready endpoints{by}")
        }
        ([], _) => format!("503: all endpoints of {name} are draining{by}"),
        (_, Some(endpoint)) => format!("forwarded to {endpoint} of {name}{by}"),
        (all, None) => format!("forwarded to one of {} endpoints of {name}{by}", all.len()),
    }
}

/// Annotations of others do not matter.
fn is_ours(annotation: &str) -> bool {
    annotation.starts_with("ingress.millrace.io/")
        || annotation.starts_with("nginx.ingress.kubernetes.io/")
}

fn rule_of(rule: &MatchedRule<'_>) -> ExplainedRule {
    ExplainedRule {
        ingress: rule.route.owner.to_string(),
        host: rule.host.to_string(),
        path: rule.path.to_string(),
    }
}

fn reason(reason: &MatchReason<'_>) -> String {
    match reason {
        MatchReason::Host => "a more specific host owns the request".to_owned(),
        MatchReason::Path => "another path of the host is exact, or longer".to_owned(),
        MatchReason::Shadowed(WhyShadowed::By(route)) => {
            format!("ingress {} has the same host and path, and is older", route.owner)
        }
        MatchReason::Shadowed(WhyShadowed::InvalidPath(error)) => format!("never matches: {error}"),
        MatchReason::Shadowed(WhyShadowed::TooManyExpressions) => {
            "the host has too many regular expressions".to_owned()
        }
    }
}

fn explain_tls(config: &Config, sni: &str) -> ExplainedTls {
    let refused = || {
        let summary = "no certificate for this name: the connection is refused".to_owned();
        ExplainedTls { summary, ..ExplainedTls::default() }
    };
    let Some((pattern, tls)) = config.tls_of(Some(sni)) else { return refused() };
    let host = Some(pattern.to_string());
    match &**tls {
        HostTls::Terminate { certificate, clients } => {
            let clients = match clients {
                None => "",
                Some(clients) if clients.optional => "; clients may present a certificate",
                Some(_) => "; clients must present a certificate",
            };
            ExplainedTls {
                host,
                names: certificate.names.clone(),
                expires: Timestamp::from_second(certificate.not_after).ok(),
                summary: format!("terminated here{clients}"),
            }
        }
        HostTls::Passthrough(passthrough) => {
            let upstream = &passthrough.upstream;
            let summary = format!("passed through to {upstream}: no rule for paths applies");
            ExplainedTls { host, summary, ..ExplainedTls::default() }
        }
        HostTls::WithoutCertificate { .. } => refused(),
    }
}

/// The route that gets the request, and the shares of canaries that chance decides about.
fn choose_canary<'a>(route: &'a Arc<Route>, headers: &HeaderMap) -> (&'a Arc<Route>, Vec<String>) {
    // The same for the lowest and the highest random number: nothing is left to chance.
    let (low, high) =
        (canary::choose_route(route, headers, 0), canary::choose_route(route, headers, u64::MAX));
    if Arc::ptr_eq(low, high) {
        return (low, Vec::new());
    }
    let shares = route.canaries.iter().filter(|canary| canary.weight > 0);
    let shares = shares.map(|canary| {
        format!("{}: {} of {} requests", canary.route.owner, canary.weight, canary.weight_total)
    });
    (high, shares.collect())
}

fn explain_upstream(
    config: &Config,
    name: &UpstreamName,
    route: &Route,
    subject: &HashInput<'_>,
) -> Upstream {
    let upstream = config.upstreams.get(name).cloned().unwrap_or_default();
    let addresses = |endpoints: &[lb_http::UpstreamEndpoint]| {
        endpoints.iter().map(|endpoint| endpoint.address).collect::<Vec<_>>()
    };
    let (endpoints, draining) = (addresses(&upstream.endpoints), addresses(&upstream.draining));
    let hash = route.policy.balance.hash(subject);
    let chosen = match (&route.policy.balance, hash) {
        (_, Some(hash)) => {
            let now = Instant::now();
            let pick = Pick { now, random: 0, hash: Some(hash), affinity: None, tried: &[] };
            let guard = Balancer::new(Arc::default(), &upstream, now).choose(&pick);
            guard.map(|guard| guard.address())
        }
        _ => endpoints.first().copied().filter(|_| endpoints.len() == 1),
    };
    let balance = match (&route.policy.balance, hash) {
        (Balance::LeastOfTwo, _) => {
            "of two random endpoints, the one with fewer requests".to_owned()
        }
        (Balance::Hash(key), Some(_)) => format!("by hash of {}", key_text(key)),
        (Balance::Hash(key), None) => {
            format!("random: the request has nothing of {}", key_text(key))
        }
    };
    let balance = match &route.policy.affinity {
        Some(cookie) => format!("by cookie {}; without it, {balance}", cookie.name),
        None => balance,
    };
    let protocol = format!("{:?}", name.protocol).to_lowercase();
    Upstream { service: name.to_string(), protocol, balance, endpoints, draining, chosen }
}

/// As it is written in annotations.
fn key_text(HashKey(parts): &HashKey) -> String {
    let part = |part: &KeyPart| match part {
        KeyPart::Text(text) => text.to_string(),
        KeyPart::ClientAddress => "$remote_addr".to_owned(),
        KeyPart::Host => "$host".to_owned(),
        KeyPart::Uri => "$request_uri".to_owned(),
        KeyPart::Path => "$uri".to_owned(),
        KeyPart::Header(name) => format!("$http_{}", name.as_str().replace('-', "_")),
        KeyPart::Cookie(name) => format!("$cookie_{name}"),
        KeyPart::QueryArgument(name) => format!("$arg_{name}"),
    };
    parts.iter().map(part).collect()
}

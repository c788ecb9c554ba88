//! What a route does in addition, in the words of nginx: ordered rules for sources, headers that are set, added or
//! removed, and responses that are returned at once.
//!
//! Invariant: the order is nginx's. A returned response comes before everything, also before sources are judged; the
//! first rule that names a source decides; headers are changed in order, and added ones come last.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::LOCATION;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use ipnet::IpNet;

use crate::host::Authority;
use crate::respond::{Facts, fill_template};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnippetRules {
    pub returned: Option<ReturnedResponse>,
    /// After the lists of the policy.
    pub sources: Vec<SourceRule>,
    /// Headers for endpoints, instead of the client's.
    pub request_headers: Vec<(HeaderName, HeaderTemplate)>,
    /// Headers of endpoints that clients do not get.
    pub hidden_headers: Vec<HeaderName>,
    pub response_headers: Vec<HeaderChange>,
    pub added_headers: Vec<AddedHeader>,
}

/// A response without an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub enum ReturnedResponse {
    /// The location has variables, as those of redirects.
    Redirect { status: StatusCode, location: Arc<str> },
    /// `None`: the text of the status.
    Text { status: StatusCode, media_type: HeaderValue, text: Option<Arc<str>> },
}

/// Allows or denies some clients. `None`: all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRule {
    pub network: Option<IpNet>,
    pub is_allowed: bool,
}

/// A change of a response's headers.
#[derive(Clone, Debug, PartialEq)]
pub enum HeaderChange {
    Set(HeaderName, HeaderTemplate),
    Clear(HeaderName),
}

/// A header beside those of the same name.
#[derive(Clone, Debug, PartialEq)]
pub struct AddedHeader {
    pub name: HeaderName,
    pub value: HeaderTemplate,
    /// Whether responses of all statuses get it, and not only those that succeed or redirect.
    pub always: bool,
}

/// A value with variables. An empty one stands for no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTemplate(pub Vec<TemplatePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    Text(Arc<str>),
    Variable(HeaderVariable),
}

/// The variables of nginx whose meaning is the same here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderVariable {
    /// `$remote_addr`
    ClientAddress,
    /// `$scheme`
    Scheme,
    /// `$request_method`
    Method,
    /// `$host`, without port. Only for endpoints.
    Host,
    /// `$http_host`, as the client has sent it. Only for endpoints.
    HttpHost,
}

/// What templates of headers are filled from.
#[derive(Clone, Copy, Debug)]
pub struct HeaderFacts<'a> {
    pub client: IpAddr,
    pub is_tls: bool,
    pub method: &'a Method,
    /// As the client has sent it.
    pub host: Option<&'a HeaderValue>,
}

impl HeaderTemplate {
    pub fn text(text: &str) -> Self {
        match text {
            "" => Self(Vec::new()),
            text => Self(vec![TemplatePart::Text(text.into())]),
        }
    }

    /// `None`: the value is empty, or none of a header.
    fn fill(&self, facts: &HeaderFacts) -> Option<HeaderValue> {
        let mut octets = Vec::new();
        for part in &self.0 {
            match part {
                TemplatePart::Text(text) => octets.extend_from_slice(text.as_bytes()),
                TemplatePart::Variable(HeaderVariable::ClientAddress) => {
                    octets.extend_from_slice(facts.client.to_canonical().to_string().as_bytes());
                }
                TemplatePart::Variable(HeaderVariable::Scheme) => {
                    octets.extend_from_slice(if facts.is_tls { b"https" } else { b"http" });
                }
                TemplatePart::Variable(HeaderVariable::Method) => {
                    octets.extend_from_slice(facts.method.as_str().as_bytes());
                }
                TemplatePart::Variable(HeaderVariable::Host) => {
                    let host = facts.host.and_then(|host| host.to_str().ok());
                    if let Some(Ok(authority)) = host.map(Authority::parse) {
                        octets.extend_from_slice(authority.host.as_bytes());
                    }
                }
                TemplatePart::Variable(HeaderVariable::HttpHost) => {
                    octets.extend_from_slice(facts.host.map_or(b"", |host| host.as_bytes()));
                }
            }
        }
        HeaderValue::from_bytes(&octets).ok().filter(|value| !value.is_empty())
    }
}

impl ReturnedResponse {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Redirect { status, .. } | Self::Text { status, .. } => *status,
        }
    }

    /// Its headers, but for those of the body.
    pub(crate) fn headers(&self, facts: &Facts) -> HeaderMap {
        let location = match self {
            Self::Redirect { location, .. } => {
                HeaderValue::from_bytes(fill_template(location, facts).as_bytes()).ok()
            }
            Self::Text { .. } => None,
        };
        location.into_iter().map(|location| (LOCATION, location)).collect()
    }
}

impl SnippetRules {
    /// What the first rule that names the client says. `None`: none does.
    pub(crate) fn judge_source(&self, client: IpAddr) -> Option<bool> {
        let names =
            |rule: &&SourceRule| rule.network.is_none_or(|network| network.contains(&client));
        self.sources.iter().find(names).map(|rule| rule.is_allowed)
    }

    /// Changes what an endpoint gets.
    pub fn change_request(&self, facts: &HeaderFacts, headers: &mut HeaderMap) {
        for (name, _) in &self.request_headers {
            headers.remove(name);
        }
        for (name, value) in &self.request_headers {
            if let Some(value) = value.fill(facts) {
                headers.append(name, value);
            }
        }
    }

    /// Removes headers of an endpoint's response.
    pub fn hide_headers(&self, headers: &mut HeaderMap) {
        for name in &self.hidden_headers {
            headers.remove(name);
        }
    }

    /// Changes what the client gets, whoever the response is from.
    pub fn change_response(
        &self,
        status: StatusCode,
        facts: &HeaderFacts,
        headers: &mut HeaderMap,
    ) {
        for change in &self.response_headers {
            match change {
                HeaderChange::Set(name, value) => match value.fill(facts) {
                    Some(value) => drop(headers.insert(name, value)),
                    None => drop(headers.remove(name)),
                },
                HeaderChange::Clear(name) => drop(headers.remove(name)),
            }
        }
        // Those for which nginx adds headers.
        const ADDED_TO: [u16; 10] = [200, 201, 204, 206, 301, 302, 303, 304, 307, 308];
        let is_usual = ADDED_TO.contains(&status.as_u16());
        for added in self.added_headers.iter().filter(|added| added.always || is_usual) {
            if let Some(value) = added.value.fill(facts) {
                headers.append(&added.name, value);
            }
        }
    }

    pub fn sets_request_header(&self, name: &HeaderName) -> bool {
        self.request_headers.iter().any(|(known, _)| known == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HeaderName {
        text.parse().unwrap()
    }

    fn variables(parts: &[HeaderVariable]) -> HeaderTemplate {
        HeaderTemplate(parts.iter().map(|part| TemplatePart::Variable(*part)).collect())
    }

    fn facts<'a>(host: Option<&'a HeaderValue>) -> HeaderFacts<'a> {
        HeaderFacts { client: [192, 0, 2, 1].into(), is_tls: true, method: &Method::PUT, host }
    }

    fn lines(headers: &HeaderMap) -> Vec<String> {
        let mut lines: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn the_first_rule_that_names_a_source_decides() {
        let rule = |network: &str, is_allowed| SourceRule {
            network: (network != "all").then(|| network.parse().unwrap()),
            is_allowed,
        };
        let rules = SnippetRules {
            sources: vec![
                rule("192.0.2.7/32", false),
                rule("192.0.2.0/24", true),
                rule("192.0.2.9/32", false),
            ],
            ..SnippetRules::default()
        };
        let cases = [("192.0.2.7", Some(false)), ("192.0.2.9", Some(true)), ("198.51.100.1", None)];
        for (client, expected) in cases {
            assert_eq!(rules.judge_source(client.parse().unwrap()), expected, "{client}");
        }
        let mut closed = rules.clone();
        closed.sources.push(rule("all", false));
        assert_eq!(closed.judge_source("198.51.100.1".parse().unwrap()), Some(false));
        assert_eq!(closed.judge_source("2001:db8::1".parse().unwrap()), Some(false));
    }

    #[test]
    fn requests_lose_what_clients_say_about_these_headers() {
        let host = HeaderValue::from_static("A.org:8080");
        let rules = SnippetRules {
            request_headers: vec![
                (name("x-user"), HeaderTemplate::text("")),
                (name("x-host"), variables(&[HeaderVariable::Host])),
                (name("x-sent"), variables(&[HeaderVariable::HttpHost])),
                (name("x-twice"), HeaderTemplate::text("1")),
                (name("x-twice"), variables(&[HeaderVariable::Scheme, HeaderVariable::Method])),
            ],
            ..SnippetRules::default()
        };
        let mut headers = HeaderMap::new();
        for (header, value) in [("x-user", "root"), ("x-twice", "3"), ("x-other", "4")] {
            headers.insert(header, HeaderValue::from_static(value));
        }
        rules.change_request(&facts(Some(&host)), &mut headers);
        let expected = [
            "x-host: a.org",
            "x-other: 4",
            "x-sent: A.org:8080",
            "x-twice: 1",
            "x-twice: httpsPUT",
        ];
        assert_eq!(lines(&headers), expected);
        assert!(rules.sets_request_header(&name("x-user")));
    }

    #[test]
    fn responses_are_changed_in_order_and_added_headers_come_last() {
        let added = |header: &str, always| AddedHeader {
            name: name(header),
            value: HeaderTemplate::text("new"),
            always,
        };
        let rules = SnippetRules {
            hidden_headers: vec![name("x-hidden")],
            response_headers: vec![
                HeaderChange::Set(name("x-a"), variables(&[HeaderVariable::ClientAddress])),
                HeaderChange::Set(name("x-b"), HeaderTemplate::text("1")),
                HeaderChange::Clear(name("x-b")),
                HeaderChange::Set(name("x-c"), HeaderTemplate::text("")),
            ],
            added_headers: vec![added("x-d", false), added("x-e", true)],
            ..SnippetRules::default()
        };
        for (status, expected) in [
            (200, vec!["x-a: 192.0.2.1", "x-d: new", "x-d: old", "x-e: new"]),
            (403, vec!["x-a: 192.0.2.1", "x-d: old", "x-e: new"]),
        ] {
            let mut headers: HeaderMap = ["x-a", "x-b", "x-c", "x-d", "x-hidden"]
                .into_iter()
                .map(|header| (name(header), HeaderValue::from_static("old")))
                .collect();
            rules.hide_headers(&mut headers);
            rules.change_response(status.try_into().unwrap(), &facts(None), &mut headers);
            assert_eq!(lines(&headers), expected, "{status}");
        }
    }
}

//! The access log: one entry for each request, as data, as JSON and as a line of text.

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method};
use jiff::Timestamp;
use lb_http::Route;
use serde::{Serialize, Serializer};

/// Workers collect entries, so that the thread that writes them wakes up less often than requests arrive.
pub type Batch = Vec<AccessLogEntry>;

/// A request that ended. What it shares with the request is not copied.
#[derive(Clone, Debug, Serialize)]
pub struct AccessLogEntry {
    pub time: Timestamp,
    /// The client's address: of the connection, or as a trusted proxy reports it.
    pub client: IpAddr,
    /// The connection's other end.
    pub peer: SocketAddr,
    #[serde(serialize_with = "text_of_method")]
    pub method: Method,
    #[serde(serialize_with = "text_of_header", skip_serializing_if = "Option::is_none")]
    pub host: Option<HeaderValue>,
    /// Path and query as the client sent them.
    #[serde(serialize_with = "text_of_uri", skip_serializing_if = "Option::is_none")]
    pub uri: Option<PathAndQuery>,
    pub protocol: &'static str,
    pub tls: bool,
    pub status: u16,
    /// Octets of the request's body.
    #[serde(rename = "received_bytes")]
    pub received: u64,
    /// Octets of the response's body.
    #[serde(rename = "sent_bytes")]
    pub sent: u64,
    #[serde(rename = "duration_seconds", serialize_with = "seconds")]
    pub duration: Duration,
    /// Absent if no rule matched.
    #[serde(rename = "ingress", serialize_with = "owner", skip_serializing_if = "Option::is_none")]
    pub route: Option<Arc<Route>>,
    /// The endpoint that replied, or was tried last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<SocketAddr>,
    /// Endpoints that were tried.
    pub tries: u32,
    /// Why the proxy replied itself, or the exchange was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    #[serde(serialize_with = "text_of_header", skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<HeaderValue>,
    #[serde(serialize_with = "text_of_header", skip_serializing_if = "Option::is_none")]
    pub referer: Option<HeaderValue>,
}

fn seconds<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64((duration.as_secs_f64() * 1e6).round() / 1e6)
}

fn text_of_method<S: Serializer>(method: &Method, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(method.as_str())
}

// serde passes references to fields.
#[expect(clippy::ref_option)]
fn text_of_header<S: Serializer>(value: &Option<HeaderValue>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&text(value.as_ref()))
}

#[expect(clippy::ref_option)]
fn text_of_uri<S: Serializer>(uri: &Option<PathAndQuery>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(uri.as_ref().map_or("", PathAndQuery::as_str))
}

#[expect(clippy::ref_option)]
fn owner<S: Serializer>(route: &Option<Arc<Route>>, to: S) -> Result<S::Ok, S::Error> {
    match route {
        Some(route) => to.collect_str(&route.owner),
        None => to.serialize_none(),
    }
}

/// Headers may contain octets that are not UTF-8.
fn text(value: Option<&HeaderValue>) -> Cow<'_, str> {
    value.map_or(Cow::Borrowed("-"), |value| String::from_utf8_lossy(value.as_bytes()))
}

impl AccessLogEntry {
    /// One line of JSON, without a newline.
    pub fn to_json(&self) -> String {
        // Serializing cannot fail: all keys are text, and nothing that is written refuses.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The combined format of Apache and nginx, followed by host, duration, owner, endpoint and reason. Whatever a client
/// sent is escaped, so that it cannot forge fields or lines.
impl Display for AccessLogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} - - [", self.client)?;
        write!(f, "{}", self.time.strftime("%d/%b/%Y:%H:%M:%S +0000"))?;
        f.write_str("] \"")?;
        escape(f, self.method.as_str())?;
        f.write_char(' ')?;
        escape(f, self.uri.as_ref().map_or("-", PathAndQuery::as_str))?;
        write!(f, " {}\" {} {} \"", self.protocol, self.status, self.sent)?;
        escape(f, &text(self.referer.as_ref()))?;
        f.write_str("\" \"")?;
        escape(f, &text(self.user_agent.as_ref()))?;
        f.write_str("\" \"")?;
        escape(f, &text(self.host.as_ref()))?;
        write!(f, "\" {:.6} ", self.duration.as_secs_f64())?;
        match &self.route {
            Some(route) => write!(f, "{} ", route.owner)?,
            None => f.write_str("- ")?,
        }
        match self.endpoint {
            Some(endpoint) => write!(f, "{endpoint} ")?,
            None => f.write_str("- ")?,
        }
        f.write_str(self.reason.unwrap_or("-"))
    }
}

fn escape(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            c if c.is_control() => write!(f, "\\x{:02x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use lb_http::{Action, RouteOwner};

    use super::*;

    fn entry() -> AccessLogEntry {
        let status = StatusCode::NOT_FOUND;
        let route = Route {
            owner: RouteOwner { namespace: "default".into(), name: "web".into() },
            action: Action::Respond { status, reason: "".into() },
            canaries: Vec::new(),
            policy: Arc::default(),
        };
        AccessLogEntry {
            time: Timestamp::from_second(1_700_000_000).unwrap(),
            client: [192, 0, 2, 1].into(),
            peer: ([192, 0, 2, 1], 4711).into(),
            method: Method::GET,
            host: Some(HeaderValue::from_static("example.org")),
            uri: Some(PathAndQuery::from_static("/a?b")),
            protocol: "HTTP/1.1",
            tls: true,
            status: 200,
            received: 0,
            sent: 12,
            duration: Duration::from_micros(1_500),
            route: Some(Arc::new(route)),
            endpoint: Some(([10, 0, 0, 1], 8080).into()),
            tries: 1,
            reason: None,
            user_agent: Some(HeaderValue::from_bytes(b"curl \"8\"\xff\t").unwrap()),
            referer: None,
        }
    }

    #[test]
    fn a_client_cannot_forge_fields_or_lines() {
        assert_eq!(
            entry().to_string(),
            "192.0.2.1 - - [14/Nov/2023:22:13:20 +0000] \"GET /a?b HTTP/1.1\" 200 12 \"-\" \
             \"curl \\\"8\\\"\u{fffd}\\x09\" \"example.org\" 0.001500 default/web 10.0.0.1:8080 -"
        );
    }

    #[test]
    fn json_has_the_fields_that_exist() {
        let json: serde_json::Value = serde_json::from_str(&entry().to_json()).unwrap();
        assert_eq!(json["ingress"], "default/web");
        assert_eq!(json["duration_seconds"], 0.0015);
        assert_eq!(json["uri"], "/a?b");
        assert_eq!(json["method"], "GET");
        assert!(json.get("reason").is_none());
        assert!(json.get("referer").is_none());
    }
}

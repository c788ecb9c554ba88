//! What the API server returns: refusals, bodies of lists, and events of watches.
//!
//! All of it is bounded, in size and in time: something else than an API server may answer.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::Request;
use axum::http::header::{HeaderMap, RETRY_AFTER};
use futures::StreamExt;
use kube::Client;
use kube::core::Status;
use kube::core::response::StatusDetails;
use lb_rules::model::{Kind, SentSlice};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use super::lines::Lines;
use super::received_object::ReceivedObject;
use super::trouble::{Trouble, is_cut_off, one_line, root_cause};

/// The longest silence while a response is expected.
const PATIENCE: Duration = Duration::from_secs(60);
/// The largest body of a refusal in bytes. A `Status` has less than one kilobyte.
const MAX_REFUSAL: usize = 64 << 10;
/// How much is read of a body that does not matter, in bytes.
const MAX_SKIPPED: usize = 64 << 10;
/// Octets of a response that is not of the API, for its report.
const LONGEST_QUOTE: usize = 500;

/// Sends a request; its response's body, if the server accepts the request.
pub async fn send(client: &Client, request: Request<Vec<u8>>) -> Result<BodyDataStream, Trouble> {
    let response = in_time(client.send(request.map(From::from))).await?.map_err(Trouble::of)?;
    let (parts, body) = response.into_parts();
    let mut body = Body::new(body).into_data_stream();
    if parts.status.is_success() {
        return Ok(body);
    }
    let mut text = Vec::new();
    while text.len() < MAX_REFUSAL
        && let Some(Ok(bytes)) = in_time(body.next()).await?
    {
        text.extend_from_slice(&bytes);
    }
    Err(Trouble::of_status(refusal(parts.status.as_u16(), &parts.headers, &text)))
}

/// The next bytes of a list; nothing at its end.
pub async fn next(body: &mut BodyDataStream) -> Result<Option<Bytes>, Trouble> {
    let bytes = in_time(body.next()).await?.transpose();
    bytes.map_err(|error| Trouble::Failed(root_cause(&error)))
}

/// Reads the rest of a body that does not matter, so that its connection serves further requests.
pub async fn skip(body: &mut BodyDataStream) -> Result<(), Trouble> {
    let mut read = 0;
    // Of a longer one the connection is closed.
    while read < MAX_SKIPPED
        && let Some(bytes) = next(body).await?
    {
        read += bytes.len();
    }
    Ok(())
}

async fn in_time<T>(response: impl Future<Output = T>) -> Result<T, Trouble> {
    timeout(PATIENCE, response).await.map_err(|_| Trouble::NoAnswer(PATIENCE))
}

/// The response of the server, or of whatever replies in its place.
fn refusal(code: u16, headers: &HeaderMap, body: &[u8]) -> Box<Status> {
    let mut status: Status = serde_json::from_slice(body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(body);
        Status { message: text.trim().to_owned(), ..Status::default() }
    });
    if status.code == 0 {
        status.code = code;
    }
    let retry_after = headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
    if let Some(seconds) = retry_after {
        let details = status.details.get_or_insert_with(|| StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        });
        details.retry_after_seconds = details.retry_after_seconds.max(seconds);
    }
    Box::new(status)
}

/// An event of a watch.
#[derive(Debug, PartialEq)]
pub enum WatchEvent {
    Applied(ReceivedObject),
    Deleted(Value),
    /// Everything up to this version has been sent. `ends_list`: all objects, too.
    Bookmark {
        version: Option<String>,
        ends_list: bool,
    },
}

/// The changes that a watch reports.
pub struct Changes {
    kind: Kind,
    body: BodyDataStream,
    bytes: Bytes,
    lines: Lines,
}

const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

impl Changes {
    pub fn of(kind: Kind, body: BodyDataStream) -> Self {
        Self { kind, body, bytes: Bytes::new(), lines: Lines::default() }
    }

    /// The next change; nothing at the end of the watch, even if that is in the middle of an
    /// event: the next watch begins with that event.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, Trouble> {
        loop {
            while self.bytes.is_empty() {
                self.bytes = match self.body.next().await {
                    Some(Ok(bytes)) => bytes,
                    Some(Err(error)) if !is_cut_off(&error) => {
                        return Err(Trouble::Failed(root_cause(&error)));
                    }
                    Some(Err(_)) | None => return Ok(None),
                };
            }
            if let Some(line) = self.lines.next(&mut self.bytes)?
                && let Some(change) = parse(self.kind, &line)?
            {
                return Ok(Some(change));
            }
        }
    }
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    object: Value,
}

/// An event with a slice that is read at once.
#[derive(Deserialize)]
struct SliceEvent<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    object: SentSlice,
}

fn parse_slice(line: &[u8]) -> Option<WatchEvent> {
    let event: SliceEvent<'_> = serde_json::from_slice(line).ok()?;
    let is_applied = matches!(&*event.kind, "ADDED" | "MODIFIED");
    is_applied.then(|| WatchEvent::Applied(ReceivedObject::Slice(Box::new(event.object))))
}

/// A line of a watch. Empty lines and types of a newer API are no changes.
fn parse(of: Kind, line: &[u8]) -> Result<Option<WatchEvent>, Trouble> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    if of == Kind::EndpointSlice
        && let Some(change) = parse_slice(line)
    {
        return Ok(Some(change));
    }
    let Event { kind, object } = match serde_json::from_slice(line) {
        Ok(event) => event,
        // Some servers and proxies end a watch with a bare status.
        Err(error) => match serde_json::from_slice::<Status>(line) {
            Ok(status) if status.code != 0 => return Err(Trouble::of_status(Box::new(status))),
            _ => {
                let start = &line[..line.len().min(LONGEST_QUOTE)];
                let text = one_line(&String::from_utf8_lossy(start));
                let cause = format!("not an event of the Kubernetes API ({error}): {text}");
                return Err(Trouble::Failed(cause));
            }
        },
    };
    Ok(match kind.as_str() {
        "ADDED" | "MODIFIED" => Some(WatchEvent::Applied(object.into())),
        "DELETED" => Some(WatchEvent::Deleted(object)),
        "BOOKMARK" => {
            let metadata = &object["metadata"];
            let version = metadata["resourceVersion"].as_str().map(str::to_owned);
            let ends_list = !metadata["annotations"][INITIAL_EVENTS_END].is_null();
            Some(WatchEvent::Bookmark { version, ends_list })
        }
        "ERROR" => {
            let status = serde_json::from_value(object);
            let status =
                status.map_err(|error| format!("the server's error can't be read: {error}"));
            return Err(Trouble::of_status(Box::new(status?)));
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use serde_json::json;

    use super::*;

    #[test]
    fn refusals_include_the_time_to_wait() {
        let after = |value: &'static str| {
            HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))])
        };
        let status = json!({"kind": "Status", "code": 429, "details": {"retryAfterSeconds": 3}});
        let status = status.to_string();
        for (headers, body, expected) in [
            (after("7"), "Too many requests, please try again later.", 7),
            (after("7"), &*status, 7),
            (after("1"), &*status, 3),
            (HeaderMap::new(), &*status, 3),
            (after("Wed, 21 Oct 2026 07:28:00 GMT"), "", 0),
            (after("-1"), "", 0),
            // The wait is bounded.
            (after("4000000000"), "", 60),
        ] {
            let trouble = Trouble::of_status(refusal(429, &headers, body.as_bytes()));
            assert_eq!(trouble.retry_after().as_secs(), expected, "{headers:?} {body}");
        }
    }

    #[test]
    fn what_is_no_status_is_quoted_in_one_short_line() {
        let page = format!("<html>\n<title>Bad\tgateway</title>{}", "\u{1b}[31m<p>".repeat(10_000));
        let trouble = Trouble::of_status(refusal(502, &HeaderMap::new(), page.as_bytes()));
        let message = trouble.describe();
        assert!(
            message.starts_with("the API server returned 502: <html> <title>Bad gateway"),
            "{message}"
        );
        assert!(message.len() < 600 && !message.contains(char::is_control), "{message}");
        let trouble = Trouble::of_status(refusal(410, &HeaderMap::new(), &[0xff, 0xfe]));
        assert!(matches!(trouble, Trouble::Expired));
    }

    async fn changes(lines: &[&str]) -> (Vec<WatchEvent>, Result<(), Trouble>) {
        let mut changes =
            Changes::of(Kind::Service, Body::from(lines.join("\n")).into_data_stream());
        let mut found = Vec::new();
        loop {
            match changes.next().await {
                Ok(Some(change)) => found.push(change),
                Ok(None) => return (found, Ok(())),
                Err(trouble) => return (found, Err(trouble)),
            }
        }
    }

    #[tokio::test]
    async fn a_watch_that_ends_within_an_event_ends_before_it() {
        let body = [r#"{"type": "ADDED", "object": 1}"#, r#"{"type": "ADDED", "obj"#];
        let (found, end) = changes(&body).await;
        assert_eq!(found, [WatchEvent::Applied(json!(1).into())]);
        assert!(end.is_ok());
    }

    #[tokio::test]
    async fn bookmarks_may_have_no_version() {
        let (found, end) = changes(&[
            r#"{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}"#,
            r#"{"type": "BOOKMARK", "object": {}}"#,
            "",
            r#"{"type": "OF A NEWER API"}"#,
            r#"{"object": {"metadata": {"annotations": {"k8s.io/initial-events-end": "true"}}}, "type": "BOOKMARK"}"#,
            "",
        ])
        .await;
        let bookmark = |version: Option<&str>, ends_list| WatchEvent::Bookmark {
            version: version.map(str::to_owned),
            ends_list,
        };
        let expected = [bookmark(Some("7"), false), bookmark(None, false), bookmark(None, true)];
        assert_eq!(found, expected);
        assert!(end.is_ok());
    }

    #[tokio::test]
    async fn errors_in_a_watch_keep_their_status() {
        for line in [
            r#"{"type": "ERROR", "object": {"kind": "Status", "code": 410}}"#,
            r#"{"kind": "Status", "code": 410}"#,
        ] {
            let (_, end) = changes(&[line, ""]).await;
            assert!(matches!(end, Err(Trouble::Expired)), "{end:?}");
        }
        for line in ["<html>", "{}", r#"{"type": "ERROR", "object": "no"}"#, "\u{0}"] {
            let (found, end) = changes(&[line, ""]).await;
            assert!(found.is_empty());
            assert!(matches!(end, Err(Trouble::Failed(_))), "{line}: {end:?}");
        }
    }
}

//! The history of slots between agents: one whose maps are new asks others for the changes before it, and each answers
//! on its health port.
//!
//! Untrusted input: anyone who reaches the health port may ask, and gets nothing without the tunnel key; one request is
//! answered at a time. The reply comes from whatever machine has a node's address: it has a limit, and
//! [`plan`](crate::plan::KnownHistory) takes from it only what belongs to this node's own tables.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lb_common::hash::mix;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::announce::Keys;
use crate::plan::KnownHistory;

const PATH: &str = "/slot-history";
/// Derived keys differ from those that other protocols derive from the same secret.
const PURPOSE: &[u8] = b"millrace slot history 1";
const SCHEME: &str = "Millrace ";
/// So many nodes are asked: one may have joined as lately as this one.
const ENOUGH: usize = 3;
const MOST_TRIES: usize = 8;
const CONNECT: Duration = Duration::from_secs(2);
const REPLY: Duration = Duration::from_secs(10);
/// Twice what a full map takes.
const MOST_OCTETS: usize = 32 << 20;

/// For the agent's loop.
pub enum Exchange {
    /// Another agent asks.
    Asked(oneshot::Sender<Vec<KnownHistory>>),
    /// Others have answered.
    Learned(Vec<KnownHistory>),
}

/// The keys of the exchange.
pub fn keys(secrets: &[String]) -> Keys {
    Keys::derive_for(PURPOSE, secrets)
}

#[derive(Clone)]
struct Shared {
    keys: watch::Receiver<Keys>,
    agent: mpsc::UnboundedSender<Exchange>,
    room: Arc<Semaphore>,
}

/// The route for other agents.
pub fn route(keys: watch::Receiver<Keys>, agent: mpsc::UnboundedSender<Exchange>) -> Router {
    let shared = Shared { keys, agent, room: Arc::new(Semaphore::new(1)) };
    Router::new().route(PATH, get(answer)).with_state(shared)
}

async fn answer(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    if !is_authorized(&shared.keys.borrow(), &headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let Ok(_one) = shared.room.try_acquire() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let (reply, known) = oneshot::channel();
    let _ = shared.agent.send(Exchange::Asked(reply));
    let Ok(known) = known.await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    match spawn_blocking(move || serde_json::to_vec(&known)).await {
        Ok(Ok(text)) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Proves that the sender has the tunnel key.
fn authorization(keys: &Keys) -> String {
    let mut sealed = PATH.as_bytes().to_vec();
    keys.seal(&mut sealed);
    let tag = sealed[PATH.len()..].iter().map(|octet| format!("{octet:02x}"));
    format!("{SCHEME}{}", tag.collect::<String>())
}

fn is_authorized(keys: &Keys, headers: &HeaderMap) -> bool {
    let tag = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let tag = tag.and_then(|value| value.strip_prefix(SCHEME)).and_then(|digits| {
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        let octet = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
        rest.is_empty().then(|| pairs.iter().map(octet).collect::<Option<Vec<u8>>>()).flatten()
    });
    let sealed = tag.map(|tag| [PATH.as_bytes(), &tag].concat());
    keys.authenticate() && sealed.is_some_and(|sealed| keys.open(&sealed) == Some(PATH.as_bytes()))
}

/// Asks other nodes, in an order that differs from node to node, on the port that this agent has, too.
pub async fn ask_others(
    mut nodes: Vec<IpAddr>,
    port: u16,
    keys: Keys,
    agent: mpsc::UnboundedSender<Exchange>,
) {
    let seed = getrandom::u64().unwrap_or_default();
    nodes.sort_by_cached_key(|node| match node {
        IpAddr::V4(address) => mix(seed ^ u64::from(address.to_bits())),
        IpAddr::V6(address) => mix(seed ^ address.to_bits() as u64),
    });
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT));
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    let authorization = authorization(&keys);
    let mut answered = 0;
    for node in nodes.into_iter().take(MOST_TRIES) {
        let asked = ask(&client, SocketAddr::new(node, port), &authorization);
        match timeout(REPLY, asked).await.context("no reply in time").flatten() {
            Ok(known) => {
                answered += 1;
                let _ = agent.send(Exchange::Learned(known));
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::debug!(%node, error, "no slot history from another node");
            }
        }
        if answered == ENOUGH {
            break;
        }
    }
    if answered == 0 {
        tracing::info!(
            port,
            "no node has sent its slot history; connections that routers move here may be reset"
        );
    }
}

async fn ask(
    client: &Client<HttpConnector, Body>,
    node: SocketAddr,
    authorization: &str,
) -> Result<Vec<KnownHistory>> {
    let request = Request::get(format!("http://{node}{PATH}"))
        .header(AUTHORIZATION, authorization)
        .body(Body::empty())?;
    let response = client.request(request).await?;
    ensure!(response.status() == StatusCode::OK, "{}", response.status());
    let text = to_bytes(Body::new(response.into_body()), MOST_OCTETS).await?;
    Ok(spawn_blocking(move || serde_json::from_slice(&text)).await??)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const KEY: &str = "5f4dcc3b5aa765d61d8327deb882cf99";

    fn known() -> Vec<KnownHistory> {
        vec![KnownHistory {
            service_port: "default/web:http/TCP/IPv4".to_owned(),
            slots: 1_031,
            owners: vec!["10.244.0.1:80".parse().unwrap()],
            rows: vec![vec![17, 0, 300]],
        }]
    }

    /// A node that answers, if it lets the asking one: its address, and what it was asked.
    async fn serve(router: Router) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    async fn learn(port: u16, key: &str) -> Option<Vec<KnownHistory>> {
        let (agent, mut learned) = mpsc::unbounded_channel();
        ask_others(vec![IpAddr::from([127, 0, 0, 1])], port, keys(&[key.to_owned()]), agent).await;
        match learned.recv().await? {
            Exchange::Learned(known) => Some(known),
            Exchange::Asked(_) => panic!("it asks nobody here"),
        }
    }

    #[tokio::test]
    async fn nodes_with_the_key_learn_what_another_knows_and_others_nothing() {
        let (agent, mut asked) = mpsc::unbounded_channel();
        let (_keep, keys) = watch::channel(keys(&["another".to_owned(), KEY.to_owned()]));
        let address = serve(route(keys, agent)).await;
        let answers = tokio::spawn(async move {
            let mut count = 0;
            while let Some(Exchange::Asked(reply)) = asked.recv().await {
                count += 1;
                let _ = reply.send(known());
                if count == 2 {
                    break;
                }
            }
        });
        assert_eq!(learn(address.port(), "wrong").await, None);
        assert_eq!(learn(address.port(), KEY).await, Some(known()));
        assert_eq!(learn(address.port(), "another").await, Some(known()), "the next key");
        answers.await.unwrap();
    }

    #[tokio::test]
    async fn a_node_without_a_key_answers_nobody() {
        let (agent, _asked) = mpsc::unbounded_channel();
        let (_keep, keys) = watch::channel(Keys::default());
        let address = serve(route(keys, agent)).await;
        assert_eq!(learn(address.port(), KEY).await, None);
        let with = |value: &str| HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
        let none = Keys::default();
        for value in ["", "Millrace ", "Millrace 0", "Millrace zz", "Basic 00"] {
            assert!(!is_authorized(&none, &with(value)), "{value}");
        }
        let zeros = format!("{SCHEME}{}", "00".repeat(16));
        assert!(!is_authorized(&none, &with(&zeros)), "no key must not mean no check");
    }

    #[tokio::test]
    async fn replies_that_are_no_history_or_too_long_are_refused() {
        let endless = || async { Body::from(vec![b' '; MOST_OCTETS + 1]) };
        let garbage = || async { "[{\"servicePort\": 7}]" };
        let failing = || async { StatusCode::NOT_FOUND };
        for router in [
            Router::new().route(PATH, get(endless)),
            Router::new().route(PATH, get(garbage)),
            Router::new().route(PATH, get(failing)),
        ] {
            let address = serve(router).await;
            assert_eq!(learn(address.port(), KEY).await, None);
        }
    }
}

//! The history of slots between agents: one that knows none asks others for the changes before it, and each answers on its
//! health port.
//!
//! Untrusted input: anyone who reaches the health port may ask, and gets nothing without the tunnel key. A request is
//! accepted once by a node, and for some minutes, so one that was seen on the way is of little use; answers are not encrypted.
//! An answer is used only if it is sealed by the same key for this request; it has a limit, and
//! [`plan`](lb_plan::KnownHistory) takes from it only what belongs to this node's own tables.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::stream;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lb_announce::SealKeys;
use lb_common::hash::mix;
use lb_plan::KnownHistory;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

const PATH: &str = "/slot-history";
/// Derived keys differ from those that other protocols derive from the same secret.
const PURPOSE: &[u8] = b"millrace slot history 1";
const SCHEME: &str = "Millrace ";
/// Answers that contain a history; several, since a node may have joined lately itself.
const ENOUGH: usize = 3;
/// Of each round; on many nodes no agent may run.
const MOST_TRIES: usize = 30;
/// Pauses before each round. There is another one as long as nothing was learned: the nodes that are asked may be
/// starting, too.
const ROUNDS: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(30), Duration::from_secs(120)];
const CONNECT: Duration = Duration::from_secs(2);
const REPLY: Duration = Duration::from_secs(10);
/// An agent that is starting does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// An answer takes time of the agent's loop, and memory until it is sent.
const BETWEEN_ANSWERS: Duration = Duration::from_secs(1);
/// What a full map takes.
const MOST_OCTETS: usize = 16 << 20;
/// How far the clocks of nodes may differ, in seconds.
const CLOCKS_DIFFER: u64 = 300;
const CHUNK: usize = 64 << 10;

/// For the agent's loop.
pub enum Exchange {
    /// Another agent asks.
    Asked(oneshot::Sender<Vec<KnownHistory>>),
    /// Others have answered.
    Learned(Vec<KnownHistory>),
}

/// The keys of the exchange.
pub fn exchange_keys(secrets: &[String]) -> SealKeys {
    SealKeys::derive_for(PURPOSE, secrets)
}

#[derive(Clone)]
struct ExchangeContext {
    keys: watch::Receiver<SealKeys>,
    agent: mpsc::UnboundedSender<Exchange>,
    room: Arc<Semaphore>,
    /// How long the agent's loop may take.
    patience: Duration,
    admitted: Arc<Mutex<Admitted>>,
}

#[derive(Default)]
struct Admitted {
    last: Option<Instant>,
    /// Of requests that would be accepted if they were repeated.
    stamps: BTreeSet<Stamp>,
}

/// What distinguishes a request: when it was made, in seconds, and a random number.
type Stamp = (u64, u128);

/// The route for other agents.
pub fn exchange_route(
    keys: watch::Receiver<SealKeys>,
    agent: mpsc::UnboundedSender<Exchange>,
) -> Router {
    Router::new().route(PATH, get(answer)).with_state(ExchangeContext::new(keys, agent))
}

async fn answer(State(shared): State<ExchangeContext>, headers: HeaderMap) -> Response {
    let stamp = stamp_of(&shared.keys.borrow(), &headers);
    let stamp = stamp.filter(|(time, _)| time.abs_diff(unix_seconds()) <= CLOCKS_DIFFER);
    let Some(stamp) = stamp else { return StatusCode::UNAUTHORIZED.into_response() };
    let Some(permit) = shared.admit(stamp) else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let (reply, known) = oneshot::channel();
    let _ = shared.agent.send(Exchange::Asked(reply));
    let Ok(Ok(known)) = timeout(shared.patience, known).await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let keys = shared.keys.borrow().clone();
    let sealed = spawn_blocking(move || {
        let mut message = octets(stamp).to_vec();
        serde_json::to_writer(&mut message, &known).ok()?;
        keys.append_seal(&mut message);
        Some(Bytes::from(message).split_off(STAMP))
    });
    match sealed.await {
        Ok(Some(text)) => sent_with(text, permit).into_response(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl ExchangeContext {
    fn new(keys: watch::Receiver<SealKeys>, agent: mpsc::UnboundedSender<Exchange>) -> Self {
        let (room, admitted) = (Arc::new(Semaphore::new(1)), Arc::default());
        Self { keys, agent, room, patience: PATIENCE, admitted }
    }

    /// Whether there is room for an answer now, and the request is not repeated.
    fn admit(&self, stamp: Stamp) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.room).try_acquire_owned().ok()?;
        let mut admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        let too_soon = admitted.last.is_some_and(|last| last.elapsed() < BETWEEN_ANSWERS);
        if too_soon || admitted.stamps.contains(&stamp) {
            return None;
        }
        // One a second at most, so these are few.
        let oldest = unix_seconds().saturating_sub(CLOCKS_DIFFER);
        admitted.stamps = admitted.stamps.split_off(&(oldest, 0));
        admitted.stamps.insert(stamp);
        admitted.last = Some(Instant::now());
        Some(permit)
    }
}

/// The wall clock, in seconds.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Holds the permit until all is sent.
fn sent_with(text: Bytes, permit: OwnedSemaphorePermit) -> Body {
    Body::from_stream(stream::unfold((text, permit), |(mut rest, permit)| async move {
        let chunk = rest.split_to(rest.len().min(CHUNK));
        (!chunk.is_empty()).then_some((Ok::<_, Infallible>(chunk), (rest, permit)))
    }))
}

const STAMP: usize = 24;

/// As they are sent, and as an answer is sealed with them.
fn octets((time, number): Stamp) -> [u8; STAMP] {
    let mut octets = [0; STAMP];
    octets[..8].copy_from_slice(&time.to_be_bytes());
    octets[8..].copy_from_slice(&number.to_be_bytes());
    octets
}

/// Proves that the sender has the tunnel key.
fn authorization(keys: &SealKeys, stamp: Stamp) -> String {
    let mut sealed = [PATH.as_bytes(), &octets(stamp)].concat();
    keys.append_seal(&mut sealed);
    let digits = sealed[PATH.len()..].iter().map(|octet| format!("{octet:02x}"));
    format!("{SCHEME}{}", digits.collect::<String>())
}

/// The stamp of a request whose sender has the key.
fn stamp_of(keys: &SealKeys, headers: &HeaderMap) -> Option<Stamp> {
    let digits = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix(SCHEME)?;
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    let octet = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let sealed: Vec<u8> = pairs.iter().map(octet).collect::<Option<_>>()?;
    let sealed = [PATH.as_bytes(), &sealed].concat();
    // Without a key everything would be accepted.
    let message = keys.authenticate().then(|| keys.open_sealed(&sealed)).flatten()?;
    let (time, number) = message.strip_prefix(PATH.as_bytes())?.split_first_chunk()?;
    Some((u64::from_be_bytes(*time), u128::from_be_bytes(number.try_into().ok()?)))
}

/// Asks other nodes, in an order that differs from node to node, on the port that this agent has, too.
pub(crate) async fn ask_others(
    mut nodes: Vec<IpAddr>,
    port: u16,
    keys: SealKeys,
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
    let (mut answered, mut learned) = (false, 0);
    let mut next = nodes.iter().cycle();
    for pause in ROUNDS {
        sleep(pause).await;
        for node in next.by_ref().take(nodes.len().min(MOST_TRIES)) {
            let asked = ask(&client, SocketAddr::new(*node, port), &keys);
            match timeout(REPLY, asked).await.context("no reply in time").flatten() {
                Ok(known) => {
                    answered = true;
                    if !known.is_empty() {
                        learned += 1;
                        let _ = agent.send(Exchange::Learned(known));
                    }
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::debug!(%node, error, "no slot history from another node");
                }
            }
            if learned == ENOUGH {
                return;
            }
        }
        if learned > 0 {
            return;
        }
    }
    if !answered && !nodes.is_empty() {
        tracing::info!(
            port,
            "no node has sent its slot history; connections that routers move here may be reset"
        );
    }
}

async fn ask(
    client: &Client<HttpConnector, Body>,
    node: SocketAddr,
    keys: &SealKeys,
) -> Result<Vec<KnownHistory>> {
    let mut number = [0; 16];
    getrandom::fill(&mut number)?;
    let stamp = (unix_seconds(), u128::from_be_bytes(number));
    let request = Request::get(format!("http://{node}{PATH}"))
        .header(AUTHORIZATION, authorization(keys, stamp))
        .body(Body::empty())?;
    let response = client.request(request).await?;
    ensure!(response.status() == StatusCode::OK, "{}", response.status());
    let text = to_bytes(Body::new(response.into_body()), MOST_OCTETS).await?;
    let keys = keys.clone();
    let read = spawn_blocking(move || {
        let sealed = [&octets(stamp), &text[..]].concat();
        let message =
            keys.open_sealed(&sealed).context("the answer is not sealed by the tunnel key")?;
        Ok(serde_json::from_slice(&message[STAMP..])?)
    });
    read.await?
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
            rows: vec![17, 1, 0, 300],
        }]
    }

    async fn serve(router: Router) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    async fn learn(port: u16, key: &str) -> Option<Vec<KnownHistory>> {
        let (agent, mut learned) = mpsc::unbounded_channel();
        ask_others(
            vec![IpAddr::from([127, 0, 0, 1])],
            port,
            exchange_keys(&[key.to_owned()]),
            agent,
        )
        .await;
        match learned.recv().await? {
            Exchange::Learned(known) => Some(known),
            Exchange::Asked(_) => panic!("it asks nobody here"),
        }
    }

    /// One request; what it gets, or why nothing.
    async fn ask_once(address: SocketAddr, key: &str) -> Result<Vec<KnownHistory>, String> {
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        let asked = ask(&client, address, &exchange_keys(&[key.to_owned()])).await;
        asked.map_err(|error| format!("{error:#}"))
    }

    /// A node that knows something, and a key for its keys.
    async fn node(secrets: &[&str]) -> SocketAddr {
        let secrets: Vec<String> = secrets.iter().map(|&secret| secret.to_owned()).collect();
        let keys = if secrets.is_empty() { SealKeys::default() } else { exchange_keys(&secrets) };
        let (_, keys) = watch::channel(keys);
        let (agent, mut asked) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Exchange::Asked(reply)) = asked.recv().await {
                let _ = reply.send(known());
            }
        });
        serve(exchange_route(keys, agent)).await
    }

    #[tokio::test]
    async fn nodes_with_the_key_learn_what_another_knows_and_others_nothing() {
        let address = node(&["another", KEY]).await;
        assert_eq!(ask_once(address, "wrong").await.unwrap_err(), "401 Unauthorized");
        assert_eq!(ask_once(address, "").await.unwrap_err(), "401 Unauthorized");
        // It seals by its current key, which the asking one must accept.
        assert_eq!(ask_once(address, "another").await, Ok(known()));
        let one = node(&[KEY]).await;
        assert_eq!(learn(one.port(), KEY).await, Some(known()));
    }

    fn shared() -> (ExchangeContext, mpsc::UnboundedReceiver<Exchange>) {
        let (_, keys) = watch::channel(exchange_keys(&[KEY.to_owned()]));
        let (agent, asked) = mpsc::unbounded_channel();
        (ExchangeContext::new(keys, agent), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_answers_once_a_second_and_a_request_once() {
        let (shared, _asked) = shared();
        let stamp = |number| (unix_seconds(), number);
        let first = stamp(1);
        let permit = shared.admit(first);
        assert!(permit.is_some());
        sleep(BETWEEN_ANSWERS).await;
        assert!(shared.admit(stamp(2)).is_none(), "the first answer is not sent yet");
        drop(permit);
        assert!(shared.admit(first).is_none(), "a request that was seen is repeated");
        assert!(shared.admit(stamp(2)).is_some());
        assert!(shared.admit(stamp(3)).is_none(), "too soon");
        sleep(BETWEEN_ANSWERS).await;
        assert!(shared.admit(stamp(3)).is_some());
    }

    #[tokio::test]
    async fn requests_of_another_time_are_refused() {
        let (shared, _asked) = shared();
        let keys = exchange_keys(&[KEY.to_owned()]);
        for time in
            [0, unix_seconds() - 2 * CLOCKS_DIFFER, unix_seconds() + 2 * CLOCKS_DIFFER, u64::MAX]
        {
            let value = authorization(&keys, (time, 7));
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(stamp_of(&keys, &headers), Some((time, 7)));
            let answer = answer(State(shared.clone()), headers).await;
            assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        }
    }

    #[tokio::test]
    async fn a_node_without_a_key_answers_nobody() {
        let address = node(&[]).await;
        assert_eq!(ask_once(address, KEY).await.unwrap_err(), "401 Unauthorized");
        let with = |value: &str| HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
        let zeros = format!("{SCHEME}{}", "00".repeat(STAMP + 16));
        for value in ["", "Millrace ", "Millrace 0", "Millrace zz", "Basic 00", &zeros] {
            for keys in [SealKeys::default(), exchange_keys(&[KEY.to_owned()])] {
                assert_eq!(stamp_of(&keys, &with(value)), None, "{value}");
            }
        }
        assert_eq!(stamp_of(&exchange_keys(&[KEY.to_owned()]), &HeaderMap::new()), None);
    }

    #[tokio::test]
    async fn an_agent_that_is_starting_does_not_keep_others_waiting() {
        let (shared, _asked) = shared();
        let shared = ExchangeContext { patience: Duration::from_millis(10), ..shared };
        let address = serve(Router::new().route(PATH, get(answer)).with_state(shared)).await;
        assert_eq!(ask_once(address, KEY).await.unwrap_err(), "503 Service Unavailable");
    }

    #[tokio::test]
    async fn answers_that_are_not_sealed_for_this_request_or_too_long_are_refused() {
        let text = serde_json::to_vec(&known()).unwrap();
        let mut sealed_for_another = [&[7; STAMP], &text[..]].concat();
        exchange_keys(&[KEY.to_owned()]).append_seal(&mut sealed_for_another);
        let sealed_for_another = sealed_for_another.split_off(STAMP);
        for body in [Vec::new(), text, sealed_for_another, vec![b' '; MOST_OCTETS + 1]] {
            let length = body.len();
            let body = Bytes::from(body);
            let answer = move || async move { body };
            let address = serve(Router::new().route(PATH, get(answer))).await;
            let error = ask_once(address, KEY).await.unwrap_err();
            let expected = match length > MOST_OCTETS {
                true => "length limit exceeded: length limit exceeded",
                false => "the answer is not sealed by the tunnel key",
            };
            assert_eq!(error, expected, "{length} octets");
        }
        let failing = Router::new().route(PATH, get(|| async { StatusCode::NOT_FOUND }));
        let address = serve(failing).await;
        assert_eq!(ask_once(address, KEY).await.unwrap_err(), "404 Not Found");
    }
}

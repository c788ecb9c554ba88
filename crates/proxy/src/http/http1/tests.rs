//! The connection and hyper's server make the same requests and responses of the same octets, however these are cut into
//! parts. Differences that are meant:
//! - A response after which the connection is closed always says so (RFC 9112, 9.6), also to HTTP/1.0.
//! - A response that ends with the connection does not promise to keep it open.
//! - `close` in a `Connection` that is no text otherwise counts: hyper overlooks all of it.
//! - An empty line among trailers that ends with LF alone is an error: hyper drops what follows it.

use std::collections::VecDeque;
use std::time::Duration;

use http::{Method, Request};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tokio::io::ReadBuf;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use super::*;

/// A client that sends these parts, one a read. As TLS does, its stream holds back octets until it is flushed.
#[derive(Clone)]
struct ScriptedClient(Rc<RefCell<ScriptState>>);

struct ScriptState {
    parts: VecDeque<Bytes>,
    closes: bool,
    /// Octets that the client takes with each write.
    most_written: usize,
    written: Vec<u8>,
    held_back: Vec<u8>,
    /// Only every second write and every second part come at once.
    has_write_waited: bool,
    has_read_waited: bool,
    is_shut_down: bool,
    is_reset: bool,
    reader: Option<Waker>,
}

impl ScriptedClient {
    fn new(parts: &[Bytes], most_written: usize) -> Self {
        Self(Rc::new(RefCell::new(ScriptState {
            parts: parts.iter().filter(|part| !part.is_empty()).cloned().collect(),
            closes: false,
            most_written,
            written: Vec::new(),
            held_back: Vec::new(),
            has_write_waited: false,
            has_read_waited: false,
            is_shut_down: false,
            is_reset: false,
            reader: None,
        })))
    }

    fn send(&self, octets: &'static str) {
        self.0.borrow_mut().parts.push_back(octets.into());
        self.wake_reader();
    }

    fn close(&self) {
        self.0.borrow_mut().closes = true;
        self.wake_reader();
    }

    fn wake_reader(&self) {
        if let Some(reader) = self.0.borrow_mut().reader.take() {
            reader.wake();
        }
    }

    fn written(&self) -> Vec<u8> {
        self.0.borrow().written.clone()
    }
}

impl AsyncRead for ScriptedClient {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.borrow_mut();
        let Some(mut part) = state.parts.pop_front() else {
            state.reader = Some(cx.waker().clone());
            return if state.closes { Poll::Ready(Ok(())) } else { Poll::Pending };
        };
        state.has_read_waited = !state.has_read_waited;
        if state.has_read_waited {
            cx.waker().wake_by_ref();
            state.parts.push_front(part);
            return Poll::Pending;
        }
        to.put_slice(&part.split_to(part.len().min(to.remaining())));
        if !part.is_empty() {
            state.parts.push_front(part);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ScriptedClient {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.borrow_mut();
        state.has_write_waited = !state.has_write_waited;
        if state.has_write_waited {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let count = from.len().min(state.most_written);
        state.held_back.extend_from_slice(&from[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.borrow_mut();
        let mut held_back = std::mem::take(&mut state.held_back);
        state.written.append(&mut held_back);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().is_shut_down = true;
        self.poll_flush(cx)
    }
}

impl ResetOnClose for ScriptedClient {
    fn reset_on_close(&self) {
        self.0.borrow_mut().is_reset = true;
    }
}

/// The body of a response.
#[derive(Clone, Debug)]
struct ReplyBody {
    data: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    has_length: bool,
    has_waited: bool,
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.has_waited = !self.has_waited;
        if self.has_waited {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let data = self.data.pop_front().map(Frame::data);
        let frame = data.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.data.iter().map(|part| part.len() as u64).sum();
        if self.has_length { SizeHint::with_exact(length) } else { SizeHint::default() }
    }
}

/// What the server does with a request.
#[derive(Clone, Debug)]
struct ScriptedReply {
    reads: Reads,
    status: u16,
    headers: Vec<&'static str>,
    states_length: bool,
    body: ReplyBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// The body, before it replies.
    First,
    /// The body, after it has replied.
    Later,
    Nothing,
}

#[derive(Clone, Debug)]
struct ScriptedExchange {
    parts: Vec<Bytes>,
    most_written: usize,
    replies: Vec<ScriptedReply>,
}

#[derive(Clone, Debug, PartialEq)]
struct Seen {
    method: Method,
    uri: String,
    version: Version,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    is_complete: bool,
}

/// What the server has seen of one connection.
type Log = Rc<RefCell<Vec<Seen>>>;

async fn collect<B: Body<Data = Bytes> + Unpin>(mut body: B, log: Log, number: usize) {
    loop {
        let next = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let seen = &mut log.borrow_mut()[number];
        match next {
            None => {
                seen.is_complete = true;
                return;
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => seen.body.extend_from_slice(&data),
                Err(frame) => seen.trailers = frame.into_trailers().ok(),
            },
            Some(Err(_)) => return,
        }
    }
}

async fn serve<B: Body<Data = Bytes> + Unpin + 'static>(
    replies: Rc<Vec<ScriptedReply>>,
    log: Log,
    parts: Parts,
    body: B,
) -> Result<Response<ReplyBody>, Infallible> {
    let number = log.borrow().len();
    log.borrow_mut().push(Seen {
        method: parts.method,
        uri: parts.uri.to_string(),
        version: parts.version,
        headers: parts.headers,
        body: Vec::new(),
        trailers: None,
        is_complete: false,
    });
    let reply = &replies[number % replies.len()];
    // As no exchange with an endpoint ends at once.
    yield_now().await;
    match reply.reads {
        Reads::First => collect(body, log, number).await,
        Reads::Later => drop(spawn_local(collect(body, log, number))),
        Reads::Nothing => drop(body),
    }
    let mut response = Response::new(reply.body.clone());
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap();
    let headers = response.headers_mut();
    for line in &reply.headers {
        let (name, value) = line.split_once(": ").unwrap();
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if reply.states_length {
        let length = reply.body.data.iter().map(Bytes::len).sum::<usize>();
        headers.insert("content-length", HeaderValue::from(length));
    }
    Ok(response)
}

#[derive(Clone, Debug, PartialEq)]
struct ServedBytes {
    seen: Vec<Seen>,
    written: String,
    /// Before the client closed it.
    is_closed: bool,
}

const LIMITS: HeadLimits = HeadLimits { octets: 1_000, headers: 8 };

async fn outcome(
    exchange: &ScriptedExchange,
    serve_script: impl AsyncFnOnce(ScriptedClient, Rc<Vec<ScriptedReply>>, Log) + 'static,
) -> ServedBytes {
    let script = ScriptedClient::new(&exchange.parts, exchange.most_written);
    let log = Log::default();
    let (replies, seen) = (Rc::new(exchange.replies.clone()), log.clone());
    let stream = script.clone();
    let mut task = spawn_local(async move { serve_script(stream, replies, seen).await });
    // Time passes only when every task waits.
    let has_ended = timeout(Duration::from_millis(1), &mut task).await.is_ok();
    let is_closed = has_ended || script.0.borrow().is_shut_down;
    if !has_ended {
        script.close();
        timeout(Duration::from_secs(1), &mut task).await.expect("connection hangs").unwrap();
    }
    sleep(Duration::from_millis(1)).await;
    let seen = std::mem::take(&mut *log.borrow_mut());
    let written = String::from_utf8(script.written()).unwrap();
    ServedBytes { seen, written, is_closed }
}

async fn by_hyper(exchange: &ScriptedExchange) -> ServedBytes {
    outcome(exchange, async |script, replies, log: Log| {
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let (parts, body) = request.into_parts();
            serve(replies.clone(), log.clone(), parts, body)
        });
        let mut builder = http1::Builder::new();
        builder.max_header_size(LIMITS.octets).max_buf_size(8 << 10).max_headers(LIMITS.headers);
        builder.header_read_timeout(None);
        let _ = builder.serve_connection(TokioIo::new(script), service).await;
    })
    .await
}

async fn by_connection(exchange: &ScriptedExchange) -> ServedBytes {
    outcome(exchange, async |script, replies, log: Log| {
        let mut connection =
            Http1Connection::new(script, LIMITS, Rc::default(), move |parts, body, _| {
                serve(replies.clone(), log.clone(), parts, body)
            });
        std::future::poll_fn(|cx| connection.poll_serve(cx)).await;
    })
    .await
}

/// The responses, with their headers in order and without their dates.
fn responses(outcome: &ServedBytes) -> Vec<String> {
    let mut starts: Vec<_> = outcome.written.match_indices("HTTP/1.").map(|(at, _)| at).collect();
    starts.push(outcome.written.len());
    let texts = starts.windows(2).map(|ends| &outcome.written[ends[0]..ends[1]]);
    let count = starts.len() - 1;
    let normal = texts.enumerate().map(|(number, text)| {
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let is_last = number + 1 == count;
        let is_meant = |line: &&str| {
            let is_difference = is_last && line.starts_with("connection: ");
            !is_difference && !line.starts_with("date: ")
        };
        let mut lines: Vec<_> = head.split("\r\n").filter(is_meant).collect();
        lines.sort();
        format!("{}\n\n{body}", lines.join("\n"))
    });
    normal.collect()
}

fn may_have_lf_in_trailers(octets: &[u8]) -> bool {
    let chunked = b"hunked";
    octets.windows(chunked.len()).any(|part| part == chunked)
        && octets.windows(2).any(|part| part == b"\n\n")
}

fn octets() -> impl Strategy<Value = Vec<u8>> {
    let line = select(vec![
        "GET / HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\n",
        "POST /a?b=c HTTP/1.1\r\n",
        "POST /a?b=c HTTP/1.1\r\n",
        "POST /a?b=c HTTP/1.1\r\n",
        "HEAD /h HTTP/1.1\r\n",
        "GET /o HTTP/1.0\r\n",
        "POST /o HTTP/1.0\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "GET http://a.test/x HTTP/1.1\r\n",
        "get / HTTP/1.1\r\n",
        "GET  / HTTP/1.1\r\n",
        "GET /\u{e9} HTTP/1.1\r\n",
        "GET /a b HTTP/1.1\r\n",
        "GET / HTTP/1.1\n",
        "GET / HTTP/2.0\r\n",
        "GET /\r\n",
        "\r\nGET /e HTTP/1.1\r\n",
        "\n\nGET /e HTTP/1.1\r\n",
        "G\0T / HTTP/1.1\r\n",
    ]);
    let header = select(vec![
        "Host: a.test\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 0\r\n",
        "Content-Length: 05\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 6\r\n",
        "Content-Length: 18446744073709551615\r\n",
        "Content-Length: 18446744073709551613\r\n",
        "Content-Length:\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, Chunked\r\n",
        "Transfer-Encoding: chunked, gzip\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: \u{b}chunked\r\n",
        "Connection: close\r\n",
        "Connection: keep-alive\r\n",
        "Connection: keep-alive\r\n",
        "Connection: a, Close\r\n",
        "Expect: 100-continue\r\n",
        "Expect: 100-Continue\r\n",
        "Expect: wonders\r\n",
        "TE: trailers\r\n",
        "TE: gzip, Trailers\r\n",
        "X-A: b\r\n",
        "X-A:  c \t\r\n",
        "X-\u{e9}: c\r\n",
        "X-B: \u{e9}\r\n",
        "X-B: d\n",
        "X-B: d\rX-C: e\r\n",
        " folded\r\n",
        "X-C : d\r\n",
        "no header\r\n",
    ]);
    let body = select(vec![
        "",
        "hello",
        "hello",
        "5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n",
        "A ;x=\"y\"\r\n0123456789\r\n",
        "5;\n\r\nhello\r\n",
        "5\nhello\n",
        "+5\r\nhello\r\n",
        "0x5\r\nhello\r\n",
        "5\r\nhelloX\r\n",
        "fffffffffffffffff\r\n",
        "0\r\n\r\n",
        "0\r\nX-T: u\r\n\r\n",
        "0\r\nX-T: u\nX-U: v\r\n\r\n",
        "0\r\nno trailer\r\n\r\n",
        "0\r\n\n",
    ]);
    let message = (line, prop::collection::vec(header, 0..5), prop::collection::vec(body, 0..3))
        .prop_map(|(line, headers, body)| {
            [&[line], &*headers, &["\r\n"], &*body].concat().concat()
        });
    let change = prop::option::weighted(0.15, (any::<Index>(), select(b"\r\n :;0a\0".to_vec())));
    let cut = prop::option::weighted(0.15, any::<Index>());
    (prop::collection::vec(message, 1..4), change, cut).prop_map(|(messages, change, cut)| {
        let mut octets = messages.concat().into_bytes();
        if let Some((at, octet)) = change {
            let at = at.index(octets.len());
            octets[at] = octet;
        }
        if let Some(cut) = cut {
            octets.truncate(cut.index(octets.len()));
        }
        octets
    })
}

fn reply() -> impl Strategy<Value = ScriptedReply> {
    let reads = select(vec![Reads::First, Reads::First, Reads::Later, Reads::Nothing]);
    let status = select(vec![200, 200, 200, 404, 204, 304, 500, 299]);
    let headers = select(vec![
        vec![],
        vec!["x-r: s"],
        vec!["connection: close"],
        vec!["trailer: x-t", "date: then"],
        vec!["trailer: X-T, x-u, content-length", "x-r: s"],
    ]);
    let data = prop::collection::vec("[a-z]{1,20}", 0..4);
    let names = ["x-t", "x-u", "content-length"].map(HeaderName::from_static).to_vec();
    let trailers = prop::option::of(prop::collection::vec(select(names), 1..3));
    let large = any::<[bool; 3]>();
    let parts = (reads, status, headers, data, trailers, large);
    parts.prop_map(|(reads, status, headers, data, trailers, [large, has_length, states])| {
        let value = HeaderValue::from_static("v");
        let trailers = trailers.filter(|_| !has_length).map(|names| {
            names.into_iter().map(|name| (name, value.clone())).collect::<HeaderMap>()
        });
        let mut data: VecDeque<_> = data.into_iter().map(Bytes::from).collect();
        if large && let Some(first) = data.front_mut() {
            *first = first.repeat(200).into();
        }
        let body = ReplyBody { data, trailers, has_length, has_waited: false };
        // Hyper writes a length for a body that it does not send.
        let may_state = has_length && !body.is_end_stream() && ![204, 304].contains(&status);
        let states_length = states && may_state;
        ScriptedReply { reads, status, headers, states_length, body }
    })
}

fn exchange() -> impl Strategy<Value = ScriptedExchange> {
    let cuts = prop::collection::vec(any::<Index>(), 0..8);
    let replies = prop::collection::vec(reply(), 1..4);
    (octets(), cuts, 1usize..2_000, replies).prop_map(
        |(octets, mut cuts, most_written, replies)| {
            let mut rest = Bytes::from(octets);
            let mut parts = Vec::new();
            while let Some(cut) = cuts.pop().filter(|_| !rest.is_empty()) {
                parts.push(rest.split_to(cut.index(rest.len())));
            }
            parts.push(rest);
            ScriptedExchange { parts, most_written, replies }
        },
    )
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, future)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(4_000),
        max_global_rejects: u32::MAX,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn the_server_agrees_with_hyper(exchange in exchange()) {
        prop_assume!(!may_have_lf_in_trailers(&exchange.parts.concat()));
        let (connection, mut hyper) =
            run(async { (by_connection(&exchange).await, by_hyper(&exchange).await) });
        for (number, (ours, theirs)) in connection.seen.iter().zip(&mut hyper.seen).enumerate() {
            // A body that is read after its response may lose its end to the next head: hyper adds that head's error to
            // it, or drops its trailers.
            let is_later =
                exchange.replies[number % exchange.replies.len()].reads == Reads::Later;
            if is_later && ours.is_complete && ours.body == theirs.body {
                theirs.is_complete = true;
                theirs.trailers = theirs.trailers.take().or_else(|| ours.trailers.clone());
            }
        }
        let (ours, theirs) = (responses(&connection), responses(&hyper));
        // What is left of a body that nobody reads is there at once, or the connection ends: who looks when decides.
        let unread = hyper.seen.iter().enumerate().position(|(number, _)| {
            exchange.replies[number % exchange.replies.len()].reads == Reads::Nothing
        });
        let agree = connection.seen == hyper.seen
            && ours == theirs
            && connection.is_closed == hyper.is_closed;
        if let Some(number) = unread && !agree {
            let compared = number + 1;
            prop_assert_eq!(&connection.seen[..compared], &hyper.seen[..compared]);
            return Ok(());
        }
        prop_assert_eq!(&connection.seen, &hyper.seen, "left: the connection, right: hyper");
        prop_assert_eq!(&ours, &theirs, "left: the connection, right: hyper");
        prop_assert_eq!(connection.is_closed, hyper.is_closed);
    }
}

/// A server that gets each request's body, and replies when the test says so.
struct Held {
    script: ScriptedClient,
    bodies: Rc<RefCell<Vec<UploadBody<ScriptedClient>>>>,
    replies: Rc<tokio::sync::Notify>,
    ended: Rc<RefCell<usize>>,
    connection: tokio::task::JoinHandle<Closed>,
}

/// Counts its end.
struct CountedDrop(Rc<RefCell<usize>>);

impl Drop for CountedDrop {
    fn drop(&mut self) {
        *self.0.borrow_mut() += 1;
    }
}

impl Held {
    fn start(octets: &'static str, most_written: usize) -> Self {
        let script = ScriptedClient::new(&[octets.into()], most_written);
        let bodies = Rc::<RefCell<Vec<_>>>::default();
        let replies = Rc::<tokio::sync::Notify>::default();
        let ended = Rc::<RefCell<usize>>::default();
        let (kept, notify, counter) = (bodies.clone(), replies.clone(), ended.clone());
        let mut server =
            Http1Connection::new(script.clone(), LIMITS, Rc::default(), move |_, body, _| {
                kept.borrow_mut().push(body);
                let (notify, counted) = (notify.clone(), CountedDrop(counter.clone()));
                async move {
                    let _counted = counted;
                    notify.notified().await;
                    let data = VecDeque::from([Bytes::from_static(b"ok")]);
                    let body =
                        ReplyBody { data, trailers: None, has_length: true, has_waited: false };
                    Ok::<_, Infallible>(Response::new(body))
                }
            });
        let connection =
            spawn_local(async move { std::future::poll_fn(|cx| server.poll_serve(cx)).await });
        Self { script, bodies, replies, ended, connection }
    }

    /// Waits until every task waits.
    async fn settle(&self) {
        sleep(Duration::from_millis(1)).await;
    }

    fn statuses(&self) -> Vec<String> {
        let written = String::from_utf8(self.script.written()).unwrap();
        written.split("HTTP/1.1 ").skip(1).map(|text| text[..3].to_owned()).collect()
    }
}

#[test]
fn a_client_that_goes_ends_its_exchange() {
    run(async {
        let held = Held::start("GET / HTTP/1.1\r\n\r\n", 1_000);
        held.settle().await;
        assert_eq!((held.bodies.borrow().len(), *held.ended.borrow()), (1, 0));
        held.script.close();
        held.settle().await;
        assert_eq!(*held.ended.borrow(), 1);
        assert!(held.connection.is_finished() && held.script.written().is_empty());
    });
}

/// Otherwise what one client sends would be served before its connection is read again, without bound.
#[test]
fn a_client_that_sends_ahead_is_not_read() {
    run(async {
        let held = Held::start("GET / HTTP/1.1\r\n\r\n", 1_000);
        held.settle().await;
        for _ in 0..100 {
            held.script.send("GET / HTTP/1.1\r\n\r\n");
        }
        held.settle().await;
        // One look shows whether the client is still there.
        assert!(held.script.0.borrow().parts.len() >= 99);
        assert_eq!(held.bodies.borrow().len(), 1);
        for number in 1..=101 {
            held.replies.notify_one();
            held.settle().await;
            assert_eq!(held.statuses().len(), number);
        }
    });
}

/// A body that another task forwards would keep the socket of a client that was cut off.
#[test]
fn a_connection_that_is_dropped_leaves_its_stream_to_nobody() {
    run(async {
        let held = Held::start("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab", 1_000);
        held.settle().await;
        let body = held.bodies.borrow_mut().pop().unwrap();
        let log = Log::default();
        log.borrow_mut().push(Seen {
            method: Method::POST,
            uri: String::new(),
            version: Version::HTTP_11,
            headers: HeaderMap::new(),
            body: Vec::new(),
            trailers: None,
            is_complete: false,
        });
        let forwarder = spawn_local(collect(body, log.clone(), 0));
        held.settle().await;
        assert!(Rc::strong_count(&held.script.0) > 1 && !forwarder.is_finished());
        held.connection.abort();
        held.settle().await;
        assert!(forwarder.is_finished());
        assert_eq!((&*log.borrow()[0].body, log.borrow()[0].is_complete), (&b"ab"[..], false));
        assert_eq!(Rc::strong_count(&held.script.0), 1);
    });
}

#[test]
fn a_body_ends_with_its_exchange() {
    run(async {
        let held = Held::start(
            "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nabPOST / HTTP/1.1\r\nContent-Length: 2\r\n\r\ncd",
            1_000,
        );
        held.settle().await;
        let mut first = held.bodies.borrow_mut().pop().unwrap();
        let frame = std::future::poll_fn(|cx| Pin::new(&mut first).poll_frame(cx)).await;
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "ab");
        held.replies.notify_one();
        held.settle().await;
        assert_eq!(held.bodies.borrow().len(), 1);
        assert!(first.is_end_stream() && first.size_hint().exact() == Some(0));
        let frame = std::future::poll_fn(|cx| Pin::new(&mut first).poll_frame(cx)).await;
        assert!(frame.is_none());
        // The end of the first body is not that of the second.
        drop(first);
        let mut second = held.bodies.borrow_mut().pop().unwrap();
        let frame = std::future::poll_fn(|cx| Pin::new(&mut second).poll_frame(cx)).await;
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "cd");
    });
}

#[test]
fn a_body_that_nobody_reads_ends_the_connection() {
    run(async {
        let held = Held::start("POST / HTTP/1.1\r\nContent-Length: 50\r\n\r\nGET /", 1_000);
        held.settle().await;
        held.bodies.borrow_mut().clear();
        held.settle().await;
        held.replies.notify_one();
        held.script.send(" HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n");
        held.settle().await;
        assert_eq!(held.statuses(), ["200"]);
        assert!(held.script.0.borrow().is_shut_down);
        let written = String::from_utf8(held.script.written()).unwrap();
        assert!(written.contains("connection: close\r\n"), "{written}");
    });
}

/// A client that goes on sending must get the response, but holds the connection for no longer than that needs.
#[test]
fn what_comes_after_the_end_is_discarded_with_a_limit() {
    run(async {
        let held = Held::start("POST / HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n", 1_000);
        held.settle().await;
        held.bodies.borrow_mut().clear();
        held.replies.notify_one();
        held.settle().await;
        assert!(held.script.0.borrow().is_shut_down);
        let part: &str = Box::leak("x".repeat(4_096).into_boxed_str());
        for _ in 0..100 {
            held.script.send(part);
        }
        held.settle().await;
        let left = held.script.0.borrow().parts.len();
        assert_eq!(left, 100 - MOST_DISCARDED / part.len());
        assert!(!held.connection.is_finished());
        sleep(LINGER_LIMIT).await;
        assert!(held.connection.is_finished());
        assert_eq!(held.statuses(), ["200"]);
    });
}

#[test]
fn a_client_that_closes_is_not_waited_for() {
    run(async {
        let held = Held::start("POST / HTTP/1.1\r\nContent-Length: 50\r\n\r\n", 1_000);
        held.settle().await;
        held.bodies.borrow_mut().clear();
        held.replies.notify_one();
        held.settle().await;
        held.script.close();
        held.settle().await;
        assert!(held.connection.is_finished());
    });
}

/// `100 Continue` would invite the client to send what nobody reads.
#[test]
fn a_final_response_follows_no_interim_one_for_a_dropped_body() {
    run(async {
        let head = "POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
        let script = ScriptedClient::new(&[head.into()], 1_000);
        let mut server = Http1Connection::new(
            script.clone(),
            LIMITS,
            Rc::default(),
            |_, mut body: UploadBody<ScriptedClient>, _| {
                let mut cx = Context::from_waker(Waker::noop());
                assert!(Pin::new(&mut body).poll_frame(&mut cx).is_pending());
                let data = VecDeque::from([Bytes::from_static(b"no")]);
                let body = ReplyBody { data, trailers: None, has_length: true, has_waited: false };
                std::future::ready(Ok(Response::new(body)))
            },
        );
        std::future::poll_fn(|cx| server.poll_serve(cx)).await;
        let written = String::from_utf8(script.written()).unwrap();
        assert!(written.starts_with("HTTP/1.1 200 "), "{written}");
        assert!(written.contains("connection: close\r\n"), "{written}");
    });
}

/// An endpoint must not fill the proxy's memory, whatever the client takes.
#[test]
fn long_interim_responses_are_left_out() {
    run(async {
        let held = Held::start("GET / HTTP/1.1\r\n\r\n", 100_000);
        held.settle().await;
        for octets in [60_000, 5_000, 5_000, 3_000] {
            let value = HeaderValue::from_bytes(&vec![b'x'; octets]).unwrap();
            let headers = HeaderMap::from_iter([(http::header::LINK, value)]);
            held.bodies.borrow()[0].send_interim(StatusCode::EARLY_HINTS, headers);
        }
        held.replies.notify_one();
        held.settle().await;
        assert_eq!(held.statuses(), ["103", "103", "200"]);
        assert!(held.script.written().len() < 9_000);
    });
}

/// The client must not take what came for the whole body.
#[test]
fn a_response_that_breaks_off_is_not_ended() {
    struct Breaks(bool);

    impl Body for Breaks {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            let frame = match std::mem::replace(&mut self.0, true) {
                false => Ok(Frame::data("part".into())),
                true => Err(io::Error::other("broken")),
            };
            Poll::Ready(Some(frame))
        }
    }

    run(async {
        for (version, end, is_reset) in [("1.1", "4\r\npart\r\n", false), ("1.0", "part", true)] {
            let head = format!("GET / HTTP/{version}\r\n\r\n");
            let script = ScriptedClient::new(&[head.into()], 1_000);
            let mut server =
                Http1Connection::new(script.clone(), LIMITS, Rc::default(), |_, _, _| {
                    std::future::ready(Ok(Response::new(Breaks(false))))
                });
            std::future::poll_fn(|cx| server.poll_serve(cx)).await;
            let written = String::from_utf8(script.written()).unwrap();
            assert!(written.ends_with(&format!("\r\n\r\n{end}")), "{written}");
            assert_eq!(script.0.borrow().is_reset, is_reset);
        }
    });
}

#[test]
fn an_idle_connection_holds_no_buffer() {
    run(async {
        let script = ScriptedClient::new(&["GET / HTTP/1.1\r\n\r\n".into()], 1_000);
        let mut server = Http1Connection::new(script.clone(), LIMITS, Rc::default(), |_, _, _| {
            let data = VecDeque::from([Bytes::from(vec![b'x'; 5_000])]);
            let body = ReplyBody { data, trailers: None, has_length: true, has_waited: false };
            std::future::ready(Ok(Response::new(body)))
        });
        let waits =
            timeout(Duration::from_millis(1), std::future::poll_fn(|cx| server.poll_serve(cx)));
        assert!(waits.await.is_err());
        assert!(script.written().ends_with(b"xxx"));
        assert_eq!(server.output.text.capacity(), 0);
        assert_eq!(server.incoming.0.borrow().read_buffer.input.capacity(), 0);
        // An idle client costs this and its socket.
        assert!(size_of_val(&server) <= 320, "{}", size_of_val(&server));
        let shared = size_of::<Http1ServerState<WatchedStream>>();
        assert!(shared <= 448, "{shared}");
    });
}

#[test]
fn an_upgraded_stream_begins_where_the_request_ended() {
    run(async {
        let head = "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nearly";
        let script = ScriptedClient::new(&[head.into()], 10);
        let upgraded = Rc::new(RefCell::new(None));
        let slot = upgraded.clone();
        let mut server =
            Http1Connection::new(script.clone(), LIMITS, Rc::default(), move |_, _, upgraded| {
                *slot.borrow_mut() = upgraded;
                let mut response = Response::new(ReplyBody {
                    data: VecDeque::new(),
                    trailers: None,
                    has_length: true,
                    has_waited: false,
                });
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                std::future::ready(Ok(response))
            });
        let closed = std::future::poll_fn(|cx| server.poll_serve(cx)).await;
        assert_eq!(closed, Closed::Normally);
        assert!(script.written().starts_with(b"HTTP/1.1 101 "));
        let upgraded = upgraded.borrow_mut().take().unwrap();
        let stream = upgraded.await.unwrap();
        assert_eq!(stream.prefix, "early");
    });
}

#[test]
fn a_change_of_protocol_that_the_client_has_not_asked_for_is_an_error() {
    run(async {
        let script = ScriptedClient::new(&["GET / HTTP/1.1\r\n\r\n".into()], 1_000);
        for status in [101, 103] {
            let script = script.clone();
            let mut server =
                Http1Connection::new(script.clone(), LIMITS, Rc::default(), move |_, _, _| {
                    let data = VecDeque::from([Bytes::from_static(b"octets")]);
                    let body =
                        ReplyBody { data, trailers: None, has_length: true, has_waited: false };
                    let mut response = Response::new(body);
                    *response.status_mut() = StatusCode::from_u16(status).unwrap();
                    std::future::ready(Ok(response))
                });
            script.send("GET / HTTP/1.1\r\n\r\n");
            std::future::poll_fn(|cx| server.poll_serve(cx)).await;
        }
        let written = String::from_utf8(script.written()).unwrap();
        assert_eq!(written.matches("HTTP/1.1 500 ").count(), 2, "{written}");
        assert!(!written.contains("octets"));
    });
}

//! Changes of addresses, and the servers and programs that get them.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::http::StatusCode;
use axum::routing::{MethodRouter, post};
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::program::tests::write_program;
use super::*;

/// A server that replies with these codes, in this order, then with 200.
struct HookServer {
    url: HookTarget,
    received: mpsc::UnboundedReceiver<Value>,
    /// Lets a reply without a code be sent, as 503.
    gate: Arc<Notify>,
}

async fn serve(replies: &[Option<StatusCode>]) -> HookServer {
    let (sender, received) = mpsc::unbounded_channel();
    let replies = Arc::new(Mutex::new(replies.iter().copied().rev().collect::<Vec<_>>()));
    let gate = Arc::new(Notify::new());
    let opened = Arc::clone(&gate);
    let answer = move |Json(body): Json<Value>| async move {
        sender.send(body).unwrap();
        let reply = replies.lock().unwrap().pop().unwrap_or(Some(StatusCode::OK));
        match reply {
            Some(status) => status,
            None => {
                opened.notified().await;
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    };
    HookServer { url: listen(post(answer)).await, received, gate }
}

/// A server that refuses every request with this address.
async fn serve_without(unknown: IpAddr) -> HookServer {
    let (sender, received) = mpsc::unbounded_channel();
    let unknown = json!(unknown);
    let answer = move |Json(body): Json<Value>| async move {
        let mut changes = body["changes"].as_array().unwrap().iter();
        let is_refused = changes.any(|change| change["address"] == unknown);
        sender.send(body).unwrap();
        if is_refused { StatusCode::BAD_REQUEST } else { StatusCode::OK }
    };
    HookServer { url: listen(post(answer)).await, received, gate: Arc::default() }
}

async fn listen(handler: MethodRouter) -> HookTarget {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/move", listener.local_addr().unwrap()).parse().unwrap();
    let router = Router::new().route("/move", handler);
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

impl HookServer {
    /// Receives a message as often as it is repeated, then another one. On a busy machine a reply may come too late.
    async fn receive_after(&mut self, repeated: &Value, next: &Value) {
        loop {
            let message = self.received.recv().await.unwrap();
            if message == *next {
                return;
            }
            assert_eq!(message, *repeated);
        }
    }
}

fn start(server: &HookServer, limit: Duration) -> (HeldAddresses, Waits) {
    start_with(server.url.clone(), limit)
}

fn start_with(target: HookTarget, limit: Duration) -> (HeldAddresses, Waits) {
    let (sender, changes) = mpsc::unbounded_channel();
    let waits = Waits::default();
    let hook = AnnouncementHook {
        request_limit: limit,
        waits: waits.clone(),
        ..AnnouncementHook::new("node-a", target)
    };
    tokio::spawn(hook.deliver_changes(changes));
    (HeldAddresses::reported_to(Some(sender)), waits)
}

#[test]
fn only_a_server_of_this_machine_without_user_or_a_program_is_a_hook() {
    for text in ["http://127.0.0.1:8080/move?a=b", "http://[::1]:80/", "http://localhost/", "/a"] {
        assert!(text.parse::<HookTarget>().is_ok(), "{text}");
    }
    for text in [
        "",
        "127.0.0.1:80",
        "https://127.0.0.1/",
        "http:///a",
        "http://user:pass@127.0.0.1/",
        "a/b",
    ] {
        assert!(text.parse::<HookTarget>().is_err(), "{text}");
    }
    for text in [
        "http://192.0.2.1/",
        "http://localhost.example.com/",
        "http://127.0.0.1.example.com/",
        "http://[2001:db8::1]/",
    ] {
        let why = text.parse::<HookTarget>().unwrap_err();
        assert!(why.contains("another machine"), "{text}: {why}");
    }
}

async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_program_gets_each_change_until_it_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    // It fails twice; its environment has nothing of the agent's.
    let script = "cat > input; echo >> input; cat input >> log; env | cut -d= -f1 >> names\n\
                  [ $(wc -l < log) -gt 2 ]";
    let (mut held, waits) = start_with(
        HookTarget::Program(write_program(directory.path(), script)),
        Duration::from_secs(600),
    );
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    held.note_announced(2, "eth0", address(1));
    until(|| read("log").lines().count() == 3).await;
    until(|| waits.long(Instant::now() + lb_waits::LONG_WAIT).is_empty()).await;
    held.note_withdrawn(2, address(1));
    until(|| read("log").lines().count() == 4).await;
    let log: Vec<Value> =
        read("log").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (taken, released) = (message(&[(1, "taken")]), message(&[(1, "released")]));
    assert_eq!(log, [taken.clone(), taken.clone(), taken, released]);
    let names = read("names");
    let is_set_by_a_shell = |name: &str| ["PATH", "PWD", "OLDPWD", "SHLVL", "_"].contains(&name);
    assert!(names.lines().all(is_set_by_a_shell), "{names}");
}

#[test]
fn the_end_of_the_agent_does_not_wait_for_a_program() {
    let directory = tempfile::tempdir().unwrap();
    let script = "touch started; while [ ! -e go ]; do sleep 0.02; done; touch ended";
    let target = HookTarget::Program(write_program(directory.path(), script));
    let limit = Duration::from_secs(30);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (mut held, _) = start_with(target, limit);
        held.note_announced(2, "eth0", address(1));
        until(|| directory.path().join("started").exists()).await;
    });
    let begin = Instant::now();
    drop(runtime);
    assert!(begin.elapsed() < limit / 2);
    // Until it ends, no other program runs.
    fs::write(directory.path().join("go"), "").unwrap();
    while !directory.path().join("ended").exists() {
        assert!(begin.elapsed() < limit * 10, "the program does not see the file");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn logs_do_not_show_the_secrets_of_a_url() {
    let url: Uri = "http://user:secret@127.0.0.1:8080/move?token=secret".parse().unwrap();
    assert_eq!(without_secrets(&url), "http://127.0.0.1:8080/move");
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn message(changes: &[(u8, &str)]) -> Value {
    let describe = |(last, state): &(u8, &str)| json!({"address": address(*last), "interface": "eth0", "state": state});
    json!({"node": "node-a", "changes": changes.iter().map(describe).collect::<Vec<_>>()})
}

#[tokio::test]
async fn a_change_is_sent_until_the_server_accepts_it() {
    let refused = Some(StatusCode::SERVICE_UNAVAILABLE);
    let mut server = serve(&[refused, None, refused]).await;
    let (mut held, waits) = start(&server, Duration::from_millis(200));
    let (taken, released) = (message(&[(1, "taken")]), message(&[(1, "released")]));
    held.note_announced(2, "eth0", address(1));
    for _ in 0..4 {
        assert_eq!(server.received.recv().await.as_ref(), Some(&taken));
    }
    // Deadlines in the kernel are extended all the time.
    held.note_announced(2, "eth0", address(1));
    held.note_withdrawn(2, address(9));
    held.note_withdrawn(2, address(1));
    server.receive_after(&taken, &released).await;
    held.note_announced(2, "eth0", address(1));
    server.receive_after(&released, &taken).await;
    // Of two nodes that held it, this one has kept it.
    held.repeat(2, address(9));
    held.repeat(2, address(1));
    server.receive_after(&taken, &taken).await;
    // Accepted in the end.
    while !waits.long(Instant::now() + lb_waits::LONG_WAIT).is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_changes_meanwhile_is_sent_together_as_it_is_last() {
    let mut server = serve(&[None]).await;
    let (mut held, _) = start(&server, Duration::from_secs(600));
    held.note_announced(2, "eth0", address(1));
    assert_eq!(server.received.recv().await, Some(message(&[(1, "taken")])));
    held.note_withdrawn(2, address(1));
    held.note_announced(2, "eth0", address(2));
    held.note_withdrawn(2, address(2));
    held.note_announced(2, "eth0", address(3));
    server.gate.notify_one();
    let last = message(&[(1, "released"), (2, "released"), (3, "taken")]);
    assert_eq!(server.received.recv().await, Some(last));
}

#[tokio::test]
async fn a_change_that_the_server_refuses_delays_no_other() {
    let unknown = address(4);
    let mut server = serve_without(unknown).await;
    let (mut held, waits) = start(&server, Duration::from_secs(600));
    let mut missing: BTreeSet<IpAddr> = (1..=9).map(address).collect();
    missing.iter().for_each(|address| held.note_announced(2, "eth0", *address));
    missing.remove(&unknown);
    let sent = |message: &Value| -> Vec<IpAddr> {
        let changes = message["changes"].as_array().unwrap().iter();
        changes.map(|change| serde_json::from_value(change["address"].clone()).unwrap()).collect()
    };
    while !missing.is_empty() {
        let addresses = sent(&server.received.recv().await.unwrap());
        if !addresses.contains(&unknown) {
            assert!(addresses.iter().all(|one| missing.remove(one)), "sent again: {addresses:?}");
        }
    }
    let refused = message(&[(4, "taken")]);
    for _ in 0..3 {
        assert_eq!(server.received.recv().await.as_ref(), Some(&refused));
    }
    held.note_withdrawn(2, address(1));
    server.receive_after(&refused, &message(&[(1, "released")])).await;
    assert_eq!(waits.long(Instant::now() + lb_waits::LONG_WAIT).len(), 1);
}

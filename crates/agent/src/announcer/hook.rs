//! Calls an HTTP server on this machine, or runs a program, when this node takes or gives up an address, for example to
//! move a floating address of a provider. Below, the server is either, and a request is a call or a run.
//!
//! # Invariants
//! - While the agent runs, every change is sent until the server accepts it: at least once, and of an address the last
//!   one last. A server that refuses a request refuses all changes in it. A change that it refuses by itself delays no
//!   other. A process that starts sends all addresses that it announces.
//! - The election never waits for the server.
//! - At most one request is under way, and an address waits at most once.
//! - Nothing of it leaves this machine: HTTP is without TLS.
//! - A program has no capabilities. When it has ended, nothing of its process group is left, not even zombies: in a
//!   container the agent is process 1, which gets all orphans.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lb_kernel::privileges::give_up_capabilities;
use lb_process::backoff::Backoff;
use lb_waits::{Resource, Wait, Waits};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getsid, setsid};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

/// The time that the server has for a request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// How often the end of a program is looked for.
const PROGRAM_POLL: Duration = Duration::from_millis(20);
/// The time that killed processes have to end.
const KILL_LIMIT: Duration = Duration::from_secs(1);
/// Where programs find others.
const PROGRAM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Changes in one request.
const MOST_CHANGES: usize = 1_000;

/// What a hook calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookTarget {
    /// A server on this machine: HTTP without TLS.
    Server(Uri),
    /// A program, by its absolute path.
    Program(PathBuf),
}

impl FromStr for HookTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self::Program(text.into()));
        }
        let url = text.parse::<Uri>().ok().filter(|url| {
            let is_without_user = url.authority().is_some_and(|at| !at.as_str().contains('@'));
            url.scheme_str() == Some("http") && is_without_user
        });
        let url = url.ok_or(
            "neither a URL such as http://127.0.0.1:8080/addresses, without TLS and without a user, nor the absolute \
             path of a program",
        )?;
        if !is_loopback(&url) {
            return Err("names another machine, which the agent would call without TLS: name a \
                        server at 127.0.0.1, [::1] or localhost, or a program"
                .to_owned());
        }
        Ok(Self::Server(url))
    }
}

impl Display for HookTarget {
    /// As logs may show it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(url) => f.write_str(&without_secrets(url)),
            Self::Program(path) => path.display().fmt(f),
        }
    }
}

fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or(host == "localhost", |address| address.is_loopback())
}

/// An address that this node has taken or given up on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressChange {
    pub interface: String,
    pub address: IpAddr,
    /// Whether this node announces it now.
    pub is_held: bool,
}

impl AddressChange {
    fn describe(&self) -> Value {
        let state = if self.is_held { "taken" } else { "released" };
        json!({"address": self.address, "interface": self.interface, "state": state})
    }
}

/// The addresses that this node announces.
#[derive(Default)]
pub struct HeldAddresses {
    /// By index of the interface, with its name.
    held: BTreeMap<(u32, IpAddr), String>,
    hook: Option<mpsc::UnboundedSender<AddressChange>>,
}

impl HeldAddresses {
    pub(crate) fn reported_to(hook: Option<mpsc::UnboundedSender<AddressChange>>) -> Self {
        Self { held: BTreeMap::new(), hook }
    }

    /// The kernel answers for the address, perhaps as before.
    pub(crate) fn note_announced(&mut self, device: u32, interface: &str, address: IpAddr) {
        if self.held.contains_key(&(device, address)) {
            return;
        }
        self.held.insert((device, address), interface.to_owned());
        self.send(AddressChange { interface: interface.to_owned(), address, is_held: true });
    }

    /// Another node may have taken the address, too, but has given it up.
    pub fn repeat(&self, device: u32, address: IpAddr) {
        if let Some(interface) = self.held.get(&(device, address)) {
            self.send(AddressChange { interface: interface.clone(), address, is_held: true });
        }
    }

    /// The kernel does not answer any more.
    pub(crate) fn note_withdrawn(&mut self, device: u32, address: IpAddr) {
        if let Some(interface) = self.held.remove(&(device, address)) {
            self.send(AddressChange { interface, address, is_held: false });
        }
    }

    fn send(&self, change: AddressChange) {
        if let Some(hook) = &self.hook {
            // It ends with the process.
            let _ = hook.send(change);
        }
    }
}

/// Changes that the server has not accepted, of each address the last one.
#[derive(Default)]
struct WaitingChanges {
    /// By interface and address.
    changes: BTreeMap<(String, IpAddr), AddressChange>,
    /// Refused by themselves: they are sent alone, and after all others.
    refused: VecDeque<AddressChange>,
}

impl WaitingChanges {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.refused.is_empty()
    }

    fn insert(&mut self, change: AddressChange) {
        let key = (change.interface.clone(), change.address);
        self.refused.retain(|refused| (&refused.interface, refused.address) != (&key.0, key.1));
        self.changes.insert(key, change);
    }

    fn take_batch(&mut self, most: usize) -> Vec<AddressChange> {
        if self.changes.is_empty() {
            return self.refused.pop_front().into_iter().collect();
        }
        let count = most.min(self.changes.len());
        let batch = (0..count).filter_map(|_| self.changes.pop_first());
        batch.map(|(_, change)| change).collect()
    }
}

/// Delivers changes to a server.
pub(crate) struct AnnouncementHook {
    node_name: String,
    target: HookTarget,
    request_limit: Duration,
    waits: Waits,
    client: Client<HttpConnector, Body>,
}

impl AnnouncementHook {
    pub fn new(node_name: &str, target: HookTarget) -> Self {
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self {
            node_name: node_name.to_owned(),
            target,
            request_limit: REQUEST_LIMIT,
            waits: Waits::of_process(),
            client,
        }
    }

    /// Runs until the sender is dropped.
    pub(crate) async fn deliver_changes(self, mut changes: mpsc::UnboundedReceiver<AddressChange>) {
        let mut waiting = WaitingChanges::default();
        let (mut backoff, mut failing, mut batch_size) = (Backoff::default(), None, MOST_CHANGES);
        loop {
            if waiting.is_empty() {
                (failing, batch_size) = (None, MOST_CHANGES);
                let Some(change) = changes.recv().await else { return };
                waiting.insert(change);
            }
            while let Ok(change) = changes.try_recv() {
                waiting.insert(change);
            }
            let mut batch = waiting.take_batch(batch_size);
            let Err(error) = self.send_changes(&batch).await else {
                backoff = Backoff::default();
                batch_size = (batch_size * 2).min(MOST_CHANGES);
                continue;
            };
            self.report(&error, batch.len(), &mut failing);
            if batch.len() > 1 {
                // Perhaps the server refuses only one of them: fewer are sent soon.
                (backoff, batch_size) = (Backoff::default(), batch.len() / 2);
                batch.into_iter().for_each(|change| waiting.insert(change));
            } else {
                waiting.refused.extend(batch.pop());
            }
            tokio::select! {
                () = sleep(backoff.next_delay()) => {}
                Some(change) = changes.recv() => waiting.insert(change),
            }
        }
    }

    async fn send_changes(&self, changes: &[AddressChange]) -> Result<()> {
        let changes: Vec<Value> = changes.iter().map(|change| change.describe()).collect();
        let body = json!({"node": self.node_name, "changes": changes}).to_string();
        match &self.target {
            HookTarget::Server(url) => self.post(url, body).await,
            HookTarget::Program(path) => {
                let (path, limit) = (path.clone(), self.request_limit);
                let (ended, result) = oneshot::channel();
                let run = move || drop(ended.send(run_program(&path, &body, limit)));
                // None of the runtime's: on exit, the runtime would wait for the program.
                let thread = thread::Builder::new().name("announcement-hook".to_owned());
                thread.spawn(run).context("no thread can be started")?;
                result.await.context("the thread that runs the program has ended")?
            }
        }
    }

    async fn post(&self, url: &Uri, body: String) -> Result<()> {
        let request = Request::post(url.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))?;
        let response = timeout(self.request_limit, self.client.request(request)).await;
        let response = response.context("no response in time")??;
        ensure!(response.status().is_success(), "the server answered {}", response.status());
        Ok(())
    }

    /// Logs each cause once.
    fn report(&self, error: &anyhow::Error, changes: usize, failing: &mut Option<(Wait, String)>) {
        let cause = format!("{error:#}");
        let (wait, logged) = failing.get_or_insert_with(|| {
            let subject = format!("the announcement hook {}", self.target);
            (self.waits.begin(Resource::Hook, subject), String::new())
        });
        wait.explain(cause.clone());
        if *logged != cause {
            let target = &self.target;
            tracing::warn!(%target, changes, error = cause, "announcement hook failed; retrying");
            *logged = cause;
        }
    }
}

/// Only one program runs at a time: [`reap_orphans`] must not see the leader of another group.
static ONE_PROGRAM: Mutex<()> = Mutex::new(());

/// Runs a program with the request as its input, without the agent's environment and capabilities. What it prints as
/// errors is in the agent's log. Fails if it does not succeed within the limit. When this returns, the program and its
/// children have ended.
fn run_program(path: &Path, request: &str, limit: Duration) -> Result<()> {
    let _one = ONE_PROGRAM.lock().unwrap_or_else(PoisonError::into_inner);
    reap_orphans();
    let mut group = ProgramGroup::start(path, request)?;
    let deadline = Instant::now() + limit;
    while !group.has_ended()? {
        if Instant::now() >= deadline {
            group.end()?;
            bail!("the program did not end in time, and was killed");
        }
        thread::sleep(PROGRAM_POLL);
    }
    let status = group.end()?;
    ensure!(status.success(), "the program ended with {status}");
    Ok(())
}

/// A program and its children, in a session of their own. They are killed when this is dropped.
struct ProgramGroup {
    leader: Child,
    /// The process group, which has the id of its leader.
    id: Pid,
    has_ended: bool,
}

impl ProgramGroup {
    fn start(path: &Path, request: &str) -> Result<Self> {
        let mut command = Command::new(path);
        command.env_clear().env("PATH", PROGRAM_PATH);
        command.stdin(memory_file(request)?).stdout(Stdio::null());
        let prepare = || {
            setsid()?;
            give_up_capabilities()
        };
        // SAFETY: the closure only makes system calls.
        unsafe { command.pre_exec(prepare) };
        let leader = command.spawn().context("the program cannot be started")?;
        let id = Pid::from_raw(leader.id() as i32);
        Ok(Self { leader, id, has_ended: false })
    }

    /// Whether the leader has ended. It is not reaped yet, so no other process gets its id.
    fn has_ended(&self) -> io::Result<bool> {
        peek_ended(Id::Pid(self.id)).map(|ended| ended.is_some())
    }

    /// Kills what still runs, and reaps all.
    fn end(&mut self) -> Result<ExitStatus> {
        self.has_ended = true;
        // The leader was not reaped: the group is its own.
        let _ = killpg(self.id, Signal::SIGKILL);
        let deadline = Instant::now() + KILL_LIMIT;
        let status = loop {
            if let Some(status) = self.leader.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < deadline, "the program was killed, and does not end");
            thread::sleep(PROGRAM_POLL);
        };
        let group = Pid::from_raw(-self.id.as_raw());
        loop {
            // Its children are now those of process 1, which may be this one.
            while let Ok(status) = waitpid(group, Some(WaitPidFlag::WNOHANG))
                && status != WaitStatus::StillAlive
            {}
            let is_empty = killpg(self.id, None).is_err();
            if is_empty || Instant::now() >= deadline {
                return Ok(status);
            }
            thread::sleep(PROGRAM_POLL);
        }
    }
}

impl Drop for ProgramGroup {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.end();
        }
    }
}

/// Reaps ended children in other sessions than this process: former programs left them there, or did not end in time.
/// Whatever else the agent starts is in its own session, and is waited for by its owner.
fn reap_orphans() {
    let own = getsid(None);
    while let Ok(Some(id)) = peek_ended(Id::All)
        && getsid(Some(id)) != own
    {
        let _ = waitpid(id, Some(WaitPidFlag::WNOHANG));
    }
}

/// A child that has ended, without reaping it.
fn peek_ended(which: Id) -> io::Result<Option<Pid>> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    Ok(waitid(which, flags)?.pid())
}

/// A file without a name that contains the text. Nobody has to write while a program reads it, or does not.
fn memory_file(text: &str) -> Result<File> {
    let descriptor = memfd_create(c"request", MFdFlags::MFD_CLOEXEC);
    let mut file = File::from(descriptor.context("no memory for the request")?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// A URL as logs may show it: its query or user may be a secret.
fn without_secrets(url: &Uri) -> String {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let server = authority.rsplit_once('@').map_or(authority, |(_, server)| server);
    format!("{}://{server}{}", url.scheme_str().unwrap_or_default(), url.path())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Arc, Mutex};

    use axum::http::StatusCode;
    use axum::routing::{MethodRouter, post};
    use axum::{Json, Router};
    use tokio::net::TcpListener;
    use tokio::sync::Notify;

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
        for text in
            ["http://127.0.0.1:8080/move?a=b", "http://[::1]:80/", "http://localhost/", "/a"]
        {
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

    /// A program that does this with its input.
    fn program(directory: &Path, script: &str) -> HookTarget {
        let path = directory.join("hook");
        fs::write(&path, format!("#!/bin/sh\ncd {}\n{script}\n", directory.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        HookTarget::Program(path)
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
        let (mut held, waits) =
            start_with(program(directory.path(), script), Duration::from_secs(600));
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap_or_default();
        held.note_announced(2, "eth0", address(1));
        until(|| read("log").lines().count() == 3).await;
        until(|| waits.long(Instant::now() + lb_waits::LONG).is_empty()).await;
        held.note_withdrawn(2, address(1));
        until(|| read("log").lines().count() == 4).await;
        let log: Vec<Value> =
            read("log").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (taken, released) = (message(&[(1, "taken")]), message(&[(1, "released")]));
        assert_eq!(log, [taken.clone(), taken.clone(), taken, released]);
        let names = read("names");
        let is_set_by_a_shell =
            |name: &str| ["PATH", "PWD", "OLDPWD", "SHLVL", "_"].contains(&name);
        assert!(names.lines().all(is_set_by_a_shell), "{names}");
    }

    /// Waits for the process whose id a program has written.
    fn is_gone(file: &Path) -> bool {
        let id = fs::read_to_string(file).unwrap();
        assert!(!id.trim().is_empty());
        !Path::new("/proc").join(id.trim()).exists()
    }

    /// As process 1 of a container does.
    fn adopt_orphans() {
        nix::sys::prctl::set_child_subreaper(true).unwrap();
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        adopt_orphans();
        let directory = tempfile::tempdir().unwrap();
        let HookTarget::Program(path) =
            program(directory.path(), "sleep 600 & echo $! > child; sleep 600")
        else {
            panic!("a program")
        };
        let child = directory.path().join("child");
        // The time limit begins before the child exists.
        while !fs::read_to_string(&child).is_ok_and(|text| text.ends_with('\n')) {
            let error = run_program(&path, "{}", Duration::from_millis(200)).unwrap_err();
            assert!(error.to_string().contains("was killed"), "{error:#}");
        }
        assert!(is_gone(&child));
        let missing = run_program(Path::new("/nonexistent"), "{}", Duration::from_secs(600));
        assert!(missing.unwrap_err().to_string().contains("cannot be started"));
    }

    #[test]
    fn nothing_is_left_of_a_program_that_has_ended() {
        adopt_orphans();
        let directory = tempfile::tempdir().unwrap();
        for (end, is_success) in [("exit 0", true), ("exit 1", false)] {
            let script = format!("sleep 600 & echo $! > child; {end}");
            let HookTarget::Program(path) = program(directory.path(), &script) else {
                panic!("a program")
            };
            let result = run_program(&path, "{}", Duration::from_secs(600));
            assert_eq!(result.is_ok(), is_success, "{result:?}");
            assert!(is_gone(&directory.path().join("child")), "{end}");
        }
        // In a session of its own it goes on; when it has ended, the next run reaps it.
        let HookTarget::Program(path) = program(
            directory.path(),
            "setsid sh -c 'echo $$ > escaped; exec sleep 0.1' & while [ ! -s escaped ]; do sleep 0.01; done",
        ) else {
            panic!("a program")
        };
        run_program(&path, "{}", Duration::from_secs(600)).unwrap();
        let escaped = directory.path().join("escaped");
        while !is_gone(&escaped) {
            reap_orphans_alone();
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn reap_orphans_alone() {
        let _one = ONE_PROGRAM.lock().unwrap_or_else(PoisonError::into_inner);
        reap_orphans();
    }

    #[test]
    fn a_program_has_no_capabilities_and_reads_all_of_a_large_request() {
        let directory = tempfile::tempdir().unwrap();
        let script = "wc -c > size; grep -E 'Cap(Inh|Prm|Eff|Amb)|NoNewPrivs' /proc/self/status > privileges";
        let HookTarget::Program(path) = program(directory.path(), script) else {
            panic!("a program")
        };
        run_program(&path, &"x".repeat(1 << 20), Duration::from_secs(600)).unwrap();
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(read("size").trim(), (1 << 20).to_string());
        let none = "0000000000000000";
        let expected = format!(
            "CapInh:\t{none}\nCapPrm:\t{none}\nCapEff:\t{none}\nCapAmb:\t{none}\nNoNewPrivs:\t1\n"
        );
        assert_eq!(read("privileges"), expected);
    }

    #[test]
    fn the_end_of_the_agent_does_not_wait_for_a_program() {
        let directory = tempfile::tempdir().unwrap();
        let script = "touch started; while [ ! -e go ]; do sleep 0.02; done; touch ended";
        let target = program(directory.path(), script);
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
        while !waits.long(Instant::now() + lb_waits::LONG).is_empty() {
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
            changes
                .map(|change| serde_json::from_value(change["address"].clone()).unwrap())
                .collect()
        };
        while !missing.is_empty() {
            let addresses = sent(&server.received.recv().await.unwrap());
            if !addresses.contains(&unknown) {
                assert!(
                    addresses.iter().all(|one| missing.remove(one)),
                    "sent again: {addresses:?}"
                );
            }
        }
        let refused = message(&[(4, "taken")]);
        for _ in 0..3 {
            assert_eq!(server.received.recv().await.as_ref(), Some(&refused));
        }
        held.note_withdrawn(2, address(1));
        server.receive_after(&refused, &message(&[(1, "released")])).await;
        assert_eq!(waits.long(Instant::now() + lb_waits::LONG).len(), 1);
    }
}

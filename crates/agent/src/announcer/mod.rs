//! Announces the addresses of load balancers: runs the elections ([`lb_announce`]) on this
//! node's interfaces, in a thread of its own.
//!
//! Invariant: the thread never waits for the agent's loop, for the API server or for a lock that
//! other threads hold for long, nor for a hook. A late heartbeat would look like a failure of this node.
//!
//! Tests: `tests/tests/nodes/announcements.rs`.

mod beat;
mod hook;
mod node_watch;
mod perform;
mod post;
mod sockets;
mod state;
mod wanted;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::{pending, select_all};
use lb_announce::{ElectionTiming, NodeLiveness, SealKeys, Time};
use lb_kernel::Announcements;
use lb_kernel::privileges::Privileges;
use lb_network::AnnouncingLink;
use lb_process::notices::Notices;
use lb_status::Condition;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot, watch};

pub use beat::Beat;
pub use hook::HookTarget;
pub use node_watch::NodesByName;
pub use wanted::{Announcing, Wanted};

use beat::BeatWatch;
use hook::{AnnouncementHook, HeldAddresses};
use node_watch::{NodeWatch, WatchedNodes};
use perform::{Performer, read_deadline_clock};
use state::AnnouncerState;

/// How long a shutdown waits for other nodes to take over.
const FAREWELL: Duration = Duration::from_secs(4);

/// What the thread needs.
pub struct Start {
    pub node_name: String,
    pub timing: ElectionTiming,
    pub kernel: Announcements,
    pub links: watch::Receiver<Vec<AnnouncingLink>>,
    pub keys: watch::Receiver<SealKeys>,
    pub notices: Arc<dyn Notices>,
    pub condition: Arc<Condition>,
    pub privileges: Privileges,
    pub hook: Option<HookTarget>,
    /// Whether nodes may count as dead.
    pub may_find_dead_nodes: bool,
}

/// The agent's side of the thread.
pub(crate) struct Announcer {
    wanted: watch::Sender<Option<Arc<Wanted>>>,
    nodes: watch::Sender<NodesByName>,
    watched: watch::Receiver<WatchedNodes>,
    beat: Beat,
    leave: Option<oneshot::Sender<oneshot::Sender<()>>>,
}

/// The thread's side. What the agent publishes waits until it starts.
pub struct Orders {
    wanted: watch::Receiver<Option<Arc<Wanted>>>,
    nodes: watch::Receiver<NodesByName>,
    watched: watch::Sender<WatchedNodes>,
    beat: Beat,
    leave: oneshot::Receiver<oneshot::Sender<()>>,
}

impl Orders {
    /// Starts the thread, which continues what an earlier agent announced.
    pub(crate) fn start_announcer(self, start: Start) -> Result<()> {
        let main = Handle::current();
        let run = move || {
            if let Err(error) = start.privileges.once_attached() {
                tracing::warn!(error = format!("{error:#}"), "capabilities not dropped");
            }
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    if let Err(error) = runtime.block_on(run_announcer(start, self, main)) {
                        tracing::error!(error = format!("{error:#}"), "announcements ended");
                    }
                }
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "announcements not started");
                }
            }
        };
        thread::Builder::new()
            .name("announcer".to_owned())
            .spawn(run)
            .context("the thread that announces addresses can't be started")?;
        Ok(())
    }
}

impl Announcer {
    pub fn new() -> (Self, Orders) {
        let (publish, wanted) = watch::channel(None);
        let (ask, leave) = oneshot::channel();
        let (publish_nodes, nodes) = watch::channel(NodesByName::new());
        let (publish_watched, watched) = watch::channel(WatchedNodes::default());
        let beat = Beat::default();
        let orders = Orders { wanted, nodes, watched: publish_watched, beat: beat.clone(), leave };
        let announcer =
            Self { wanted: publish, nodes: publish_nodes, watched, beat, leave: Some(ask) };
        (announcer, orders)
    }

    /// Where the agent's loop publishes the addresses of all nodes.
    pub(crate) fn node_publisher(&self) -> watch::Sender<NodesByName> {
        self.nodes.clone()
    }

    /// The other nodes, and which of them are dead by all signs.
    pub(crate) fn watched_nodes(&self) -> watch::Receiver<WatchedNodes> {
        self.watched.clone()
    }

    pub(crate) fn publisher(&self) -> watch::Sender<Option<Arc<Wanted>>> {
        self.wanted.clone()
    }

    /// What the agent's loop renews while it runs.
    pub fn beat(&self) -> Beat {
        self.beat.clone()
    }

    /// Waits until other nodes have taken over all addresses, but not for long.
    pub async fn hand_over(&mut self) {
        let (left, has_left) = oneshot::channel();
        if self.leave.take().is_some_and(|leave| leave.send(left).is_ok()) {
            let _ = tokio::time::timeout(FAREWELL, has_left).await;
        }
    }
}

async fn run_announcer(start: Start, orders: Orders, main: Handle) -> Result<()> {
    let Orders { mut wanted, nodes, watched, beat, leave } = orders;
    let Start { node_name, timing, kernel, mut links, mut keys, notices, condition, hook, .. } =
        start;
    let liveness = start.may_find_dead_nodes.then(|| NodeLiveness::new(timing));
    let mut node_watch = NodeWatch::new(liveness, nodes, watched, main.clone());
    let performer = Performer::new(kernel)?;
    let held = HeldAddresses::reported_to(hook.map(|url| {
        let (changes, taken) = mpsc::unbounded_channel();
        main.spawn(AnnouncementHook::new(&node_name, url).deliver_changes(taken));
        changes
    }));
    let mut state = AnnouncerState::new(node_name, timing, performer, notices, condition, main)
        .with_beat(BeatWatch::new(beat))
        .with_held(held);
    state.set_keys(keys.borrow_and_update().clone());
    state.set_links(&links.borrow_and_update());
    let mut leave = Some(leave);
    loop {
        let due = state.due().min(node_watch.due());
        // What arrives from the link comes last, so that a flood of it delays nothing else.
        tokio::select! {
            biased;
            changed = links.changed() => match changed {
                Ok(()) => state.set_links(&links.borrow_and_update()),
                Err(_) => return Ok(()),
            },
            changed = wanted.changed() => match changed {
                Ok(()) => state.set_wanted(wanted.borrow_and_update().clone()),
                Err(_) => return Ok(()),
            },
            Ok(()) = keys.changed() => state.set_keys(keys.borrow_and_update().clone()),
            asked = asked_to_leave(&mut leave) => state.leave(asked),
            () = node_watch.take_result() => {}
            () = until(due) => {}
            () = state.readable() => {}
        }
        state.pass_time();
        node_watch.follow_nodes(|| state.node_signs());
        // The runtime looks for other events only when it is given the time.
        tokio::task::yield_now().await;
    }
}

async fn asked_to_leave(
    leave: &mut Option<oneshot::Receiver<oneshot::Sender<()>>>,
) -> oneshot::Sender<()> {
    let asked = match leave.as_mut() {
        Some(waiting) => waiting.await.ok(),
        None => pending().await,
    };
    *leave = None;
    match asked {
        Some(asked) => asked,
        None => pending().await,
    }
}

async fn until(due: Time) {
    tokio::time::sleep(due.saturating_sub(read_deadline_clock()).min(Duration::from_secs(3_600)))
        .await;
}

/// Returns when something has arrived on one of the interfaces; never if there are none.
async fn any_readable<'a>(sockets: impl Iterator<Item = &'a sockets::Sockets>) {
    let waiting: Vec<_> = sockets.map(|sockets| Box::pin(sockets.readable())).collect();
    if waiting.is_empty() {
        pending().await
    } else {
        let _ = select_all(waiting).await;
    }
}

/// The elections, by the index of their interface.
type Links = BTreeMap<u32, state::OnLink>;

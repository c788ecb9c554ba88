//! Removes the startup taint from the agent's Node, so that pods start there only once Services work.
//!
//! Invariant: a taint that can't be removed delays nothing else: it is retried, and what is wrong is in the log, in an
//! Event of the Node and among the waits of the process.

use std::sync::Arc;
use std::time::Duration;

use json_patch::Patch as Operations;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use lb_process::backoff::Backoff;
use lb_process::notices::{Notice, NoticeObject, NoticeReason, Notices};
use lb_rules::model::{Kind, ObjectRef};
use lb_waits::{Resource, Wait, Waits};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::trouble::{Trouble, one_line};

const PATIENCE: Duration = Duration::from_secs(10);
/// The time after which the watch should have reported a change.
const WATCH_LAG: Duration = Duration::from_secs(60);

/// What is known of the agent's own Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTaints {
    pub uid: String,
    /// The keys, in the order of the object.
    pub keys: Vec<String>,
}

/// Removals that fail, one after the other.
struct Failure {
    wait: Wait,
    /// The cause that was reported last.
    reported: String,
    since: Instant,
}

/// Removes one taint from one Node.
pub struct StartupTaint {
    client: Client,
    node_name: String,
    key: String,
    notices: Arc<dyn Notices>,
    waits: Waits,
    watch_lag: Duration,
}

impl StartupTaint {
    pub fn new(client: Client, node_name: &str, key: &str, notices: Arc<dyn Notices>) -> Self {
        let (node_name, key) = (node_name.to_owned(), key.to_owned());
        let waits = Waits::of_process();
        Self { client, node_name, key, notices, waits, watch_lag: WATCH_LAG }
    }

    /// Notes here what it waits for, instead of among the waits of the process.
    pub fn with_waits(self, waits: Waits) -> Self {
        Self { waits, ..self }
    }

    /// Expects changes from the watch within this time.
    pub fn with_watch_lag(self, watch_lag: Duration) -> Self {
        Self { watch_lag, ..self }
    }

    /// Removes the taint whenever the Node has it, until the sender is dropped.
    pub async fn remove_whenever_there(self, mut taints: watch::Receiver<NodeTaints>) {
        let mut backoff = Backoff::default();
        let mut failing: Option<Failure> = None;
        loop {
            let seen = taints.borrow_and_update().clone();
            let patch = build_taint_patch(&seen.keys, &self.key);
            // If the watch reports a removal and the next addition together, it reports no change.
            let mut delay = patch.is_some().then_some(self.watch_lag);
            let removed = match patch {
                Some(patch) => self.patch_node(patch).await,
                None => Ok(()),
            };
            match removed {
                Ok(()) => (failing, backoff) = (None, Backoff::default()),
                Err(trouble) => {
                    self.report(&trouble, &seen.uid, &mut failing);
                    delay = Some(backoff.next_delay());
                }
            }
            tokio::select! {
                () = sleep(delay.unwrap_or_default()), if delay.is_some() => {}
                changed = taints.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn patch_node(&self, operations: Value) -> Result<(), Trouble> {
        let operations: Operations = serde_json::from_value(operations)
            .map_err(|error| Trouble::Failed(error.to_string()))?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Json::<()>(operations);
        let parameters = PatchParams::default();
        let sent = nodes.patch_metadata(&self.node_name, &parameters, &patch);
        match timeout(PATIENCE, sent).await {
            Ok(Ok(_)) => {
                tracing::info!(node = self.node_name, taint = self.key, "startup taint removed");
                Ok(())
            }
            Ok(Err(error)) => Err(Trouble::of(error)),
            Err(_) => Err(Trouble::NoAnswer(PATIENCE)),
        }
    }

    /// Reports each cause once.
    fn report(&self, trouble: &Trouble, uid: &str, failing: &mut Option<Failure>) {
        let cause = match trouble {
            Trouble::Refused(status) if status.code == 403 => format!(
                "{}; grant it by startupTaint.enabled of the chart, or the component startup-taint",
                one_line(&status.message)
            ),
            trouble => trouble.describe(),
        };
        let resource =
            if trouble.is_of_permissions() { Resource::Permission } else { Resource::ApiServer };
        let Failure { wait, reported, since } = failing.get_or_insert_with(|| {
            let subject = format!("removal of the taint {} from this Node", self.key);
            let wait = self.waits.begin(resource, subject);
            Failure { wait, reported: String::new(), since: Instant::now() }
        });
        wait.is_for(resource);
        wait.explain(cause.clone());
        // If another client changed the taints meanwhile, the watch reports them. Admission policies refuse with the
        // same status.
        let is_outdated = since.elapsed() < self.watch_lag
            && matches!(trouble, Trouble::Refused(status) if [409, 422].contains(&status.code));
        if cause == *reported || is_outdated {
            return;
        }
        let reference = ObjectRef::new(Kind::Node, None, Some(&self.node_name));
        self.notices.post(Notice {
            about: Some(NoticeObject { reference, uid: uid.to_owned() }),
            reason: NoticeReason::TaintNotRemoved,
            message: format!("the startup taint {} is not removed: {cause}", self.key),
        });
        *reported = cause;
    }
}

/// Removes all taints with a key; `None` if there is none. The server changes nothing if the taints are others.
fn build_taint_patch(keys: &[String], unwanted: &str) -> Option<Value> {
    let indexes = keys.iter().enumerate().filter(|(_, key)| *key == unwanted);
    // From the last one: a removal moves those behind it.
    let operations = indexes.rev().flat_map(|(index, key)| {
        [
            json!({"op": "test", "path": format!("/spec/taints/{index}/key"), "value": key}),
            json!({"op": "remove", "path": format!("/spec/taints/{index}")}),
        ]
    });
    let operations: Vec<Value> = operations.collect();
    (!operations.is_empty()).then_some(Value::Array(operations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_taints_of_the_key_are_removed_and_no_other() {
        let keys = ["a", "unwanted", "b", "unwanted"].map(str::to_owned);
        let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
        let taints: Vec<Value> = keys.iter().map(|key| taint(key)).collect();
        let mut node = json!({"spec": {"taints": taints}});
        let patch = build_taint_patch(&keys, "unwanted").unwrap();
        let operations: Operations = serde_json::from_value(patch).unwrap();
        json_patch::patch(&mut node, &operations).unwrap();
        assert_eq!(node["spec"]["taints"], json!([taint("a"), taint("b")]));
        assert!(json_patch::patch(&mut node, &operations).is_err(), "the taints are others now");
        assert_eq!(build_taint_patch(&keys, "c"), None);
    }
}

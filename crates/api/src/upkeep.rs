//! What the store needs from time to time: recovery after a failed write, snapshots, and the expiry
//! of Events.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::kinds::{self, ApiKind};
use super::operations::{self, Api, ApiRequest};
use super::storage::snapshot;

const RECOVERY_INTERVAL: Duration = Duration::from_secs(1);
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(600);
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);
/// The default of API servers.
const EVENT_LIFETIME: SignedDuration = SignedDuration::from_hours(1);
const MANAGER: &str = "millrace-event-expiry";

pub(crate) async fn run_upkeep(api: Api, snapshots: std::path::PathBuf) {
    let path = snapshots.join(snapshot::SNAPSHOT_FILE);
    tokio::join!(recover(&api), take_snapshots(&api, path), expire(&api));
}

/// Readiness does not depend on whether a client writes.
async fn recover(api: &Api) {
    let mut times = every(RECOVERY_INTERVAL);
    loop {
        times.tick().await;
        if api.storage().figures().failure.is_some() {
            api.storage().try_recover().await;
        }
    }
}

async fn take_snapshots(api: &Api, path: std::path::PathBuf) {
    let mut times = every(SNAPSHOT_INTERVAL);
    let mut last = 0;
    loop {
        times.tick().await;
        if let Err(error) = api.storage().erase_old_secrets().await {
            let error = format!("{error:#}");
            tracing::warn!(error, "deleted Secrets not erased from the store; retrying later");
        }
        if api.storage().revision() == last {
            continue;
        }
        let (storage, path) = (api.storage().clone(), path.clone());
        match spawn_blocking(move || snapshot::save_snapshot(&storage, &path)).await {
            Ok(Ok(revision)) => last = revision,
            Ok(Err(error)) => {
                tracing::warn!(error = format!("{error:#}"), "snapshot not written");
            }
            Err(_) => {}
        }
    }
}

async fn expire(api: &Api) {
    let Some(kind) = kinds::find_kind("v1", "Event") else {
        return;
    };
    let mut times = every(EXPIRY_INTERVAL);
    loop {
        times.tick().await;
        let now = Timestamp::now();
        let Ok(page) =
            api.storage().list(&operations::storage_prefix(kind, None), None, None, usize::MAX)
        else {
            continue;
        };
        for (_, stored) in page.objects {
            let event = stored.object();
            if has_expired(&event, now) {
                // It may have been deleted or renewed meanwhile.
                let _ = api.delete(deletion(kind, &event)).await;
            }
        }
    }
}

fn every(period: Duration) -> tokio::time::Interval {
    let mut times = interval(period);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    times
}

/// An Event lives for an hour after it was last reported.
fn has_expired(event: &Value, now: Timestamp) -> bool {
    let times = [
        &event["metadata"]["creationTimestamp"],
        &event["eventTime"],
        &event["lastTimestamp"],
        &event["series"]["lastObservedTime"],
    ];
    let last = times
        .into_iter()
        .filter_map(|time| time.as_str()?.parse::<Timestamp>().ok())
        // A client's clock may be ahead.
        .filter(|time| *time <= now)
        .max();
    last.is_some_and(|last| now.duration_since(last) >= EVENT_LIFETIME)
}

fn deletion(kind: &'static ApiKind, event: &Value) -> ApiRequest {
    let text = |field: &str| event["metadata"][field].as_str().map(str::to_owned);
    let options = serde_json::json!({
        "preconditions": {"uid": text("uid"), "resourceVersion": text("resourceVersion")},
    });
    ApiRequest::about(event, kind, MANAGER, "application/json", &options)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_expires_an_hour_after_its_last_report() {
        let created = "2026-01-02T03:00:00Z";
        let later = "2026-01-02T03:30:00.000000Z";
        let plain = json!({"metadata": {"creationTimestamp": created}});
        let repeated = json!({"metadata": {"creationTimestamp": created}, "lastTimestamp": later});
        let series = json!({"metadata": {"creationTimestamp": created},
            "series": {"lastObservedTime": later}});
        let ahead = json!({"metadata": {"creationTimestamp": created},
            "lastTimestamp": "2036-01-01T00:00:00Z"});
        for (event, now, expected) in [
            (&plain, "2026-01-02T03:59:59Z", false),
            (&plain, "2026-01-02T04:00:00Z", true),
            (&repeated, "2026-01-02T04:00:00Z", false),
            (&repeated, "2026-01-02T04:30:00Z", true),
            (&series, "2026-01-02T04:00:00Z", false),
            (&ahead, "2026-01-02T04:00:00Z", true),
        ] {
            assert_eq!(has_expired(event, now.parse().unwrap()), expected, "{event} at {now}");
        }
    }
}

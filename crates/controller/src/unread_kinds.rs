//! Reports kinds of MetalLB that Millrace does not read, if there are objects of them.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;
use lb_source::cluster::list_unread_metallb_kinds;
use tokio::time::{sleep, timeout};

use super::metrics::AssignmentMetrics;

/// Kinds are installed rarely.
const INTERVAL: Duration = Duration::from_secs(600);
const LIMIT: Duration = Duration::from_secs(60);

/// Logs each kind once. Never ends.
pub(crate) async fn report_unread_kinds(
    client: Client,
    namespace: String,
    metrics: AssignmentMetrics,
) {
    let mut reported = BTreeSet::new();
    loop {
        match timeout(LIMIT, list_unread_metallb_kinds(&client, &namespace)).await {
            Ok(Ok(kinds)) => {
                for kind in kinds.difference(&reported) {
                    let (name, has_objects) = (&kind.kind, kind.has_objects);
                    if has_objects && !kind.is_report() {
                        let fix =
                            "docs/loadbalancer.md, \"Migrate from MetalLB\", has what replaces it";
                        tracing::warn!(
                            kind = name,
                            fix,
                            "objects of an unread kind of MetalLB have no effect"
                        );
                    } else {
                        tracing::info!(kind = name, has_objects, "kind of MetalLB not read");
                    }
                }
                metrics.set_unread_kinds(kinds.iter().map(|kind| kind.kind.clone()).collect());
                reported.extend(kinds);
            }
            Ok(Err(error)) => {
                let error = format!("{error:#}");
                tracing::debug!(error, "kinds of MetalLB not listed; trying again later");
            }
            Err(_) => tracing::debug!("kinds of MetalLB not listed in time; trying again later"),
        }
        sleep(INTERVAL).await;
    }
}

//! Responses that are not sent to the client.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::time::Duration;

use http_body::Body;
use tokio::time::timeout;

use crate::upstream::{EndpointResponseBody, Lease};

/// Most octets that are read to use the connection again. A new one costs less than more of them.
const MOST: u64 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(1);

/// Reads the rest of a short response, so that its connection can serve the next request. Others are cut off.
pub(crate) fn discard_body(body: EndpointResponseBody, lease: Lease) {
    if body.is_end_stream() {
        return lease.finish();
    }
    if body.size_hint().lower() > MOST {
        return;
    }
    tokio::task::spawn_local(async move {
        if let Ok(true) = timeout(PATIENCE, is_short(body)).await {
            lease.finish();
        }
    });
}

async fn is_short(body: EndpointResponseBody) -> bool {
    let mut body = pin!(body);
    let mut rest = MOST;
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => {
                let count = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(less) = rest.checked_sub(count) else { return false };
                rest = less;
            }
        }
    }
}

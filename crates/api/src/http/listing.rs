//! Sends a list in chunks, so that neither its text nor its objects are ever in memory as a whole.

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use jiff::Timestamp;
use serde_json::Value;
use tokio::task::{spawn_blocking, yield_now};

use super::respond::{self, ResponseBody};
use super::shares::UserShare;
use super::turns::ExpensivePermit;
use crate::failure::ApiFailure;
use crate::kinds::ApiKind;
use crate::operations::list::ObjectListing;
use crate::operations::render::ResponseShape;

/// The approximate size of a chunk in bytes. An object is never split.
const CHUNK_BYTES: usize = 64 << 10;

/// `held` is kept until the last chunk is sent.
pub(crate) async fn respond_with_list(
    listing: ObjectListing,
    kind: &'static ApiKind,
    shape: ResponseShape,
    pretty: bool,
    held: (UserShare, Option<ExpensivePermit>),
) -> Result<Response<ResponseBody>, ApiFailure> {
    let now = Timestamp::now();
    if pretty {
        let text = spawn_blocking(move || {
            let value = shape.render(kind, listing.into_value(), now);
            respond::respond_json(200, &value, true)
        });
        return text.await.map_err(|_| ApiFailure::internal("the list failed"));
    }
    let (share, turn) = held;
    // The expensive part is over: the rest is sent as fast as the client reads.
    drop(turn);
    let (head, tail) = list_envelope(&listing, kind, shape, now);
    let chunks = ListChunks { listing, kind, shape, now, head: Some(head), tail: Some(tail) };
    let frames = stream::unfold((chunks, share), |(mut chunks, share)| async move {
        let chunk = chunks.next()?;
        yield_now().await;
        Some((Ok(Frame::data(Bytes::from(chunk))), (chunks, share)))
    });
    let mut response = respond::respond_full(200, respond::JSON_CONTENT_TYPE, Bytes::new());
    *response.body_mut() = StreamBody::new(frames).boxed_unsync();
    Ok(response)
}

struct ListChunks {
    listing: ObjectListing,
    kind: &'static ApiKind,
    shape: ResponseShape,
    now: Timestamp,
    head: Option<String>,
    tail: Option<&'static str>,
}

impl ListChunks {
    fn next(&mut self) -> Option<String> {
        let is_first = self.head.is_some();
        let mut chunk = self.head.take().unwrap_or_default();
        if self.shape == ResponseShape::Whole {
            let items = self.listing.take_items_text(CHUNK_BYTES);
            if items.is_empty() {
                chunk.push_str(self.tail.take()?);
            } else {
                if !is_first {
                    chunk.push(',');
                }
                chunk.push_str(&items);
            }
            return Some(chunk);
        }
        let items = self.listing.take_items(CHUNK_BYTES);
        if items.is_empty() {
            chunk.push_str(self.tail.take()?);
            return Some(chunk);
        }
        let items = match rendered(items, self) {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        for (index, item) in items.iter().enumerate() {
            if index > 0 || !is_first {
                chunk.push(',');
            }
            chunk.push_str(&item.to_string());
        }
        Some(chunk)
    }
}

fn rendered(items: Vec<Value>, chunks: &ListChunks) -> Value {
    let list = serde_json::json!({"metadata": {}, "items": items});
    chunks.shape.render(chunks.kind, list, chunks.now)[chunks.shape.items()].take()
}

/// The text before and after the items.
fn list_envelope(
    listing: &ObjectListing,
    kind: &'static ApiKind,
    shape: ResponseShape,
    now: Timestamp,
) -> (String, &'static str) {
    let mut list = shape.render(kind, listing.empty_list(), now);
    if let Some(fields) = list.as_object_mut() {
        fields.remove(shape.items());
    }
    let mut head = list.to_string();
    // A list always has other fields before the items.
    head.pop();
    head.push_str(&format!(",{:?}:[", shape.items()));
    (head, "]}\n")
}

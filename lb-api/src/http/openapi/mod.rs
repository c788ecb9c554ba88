//! The OpenAPI documents, for `kubectl explain` and for clients that check the server's abilities.
//!
//! The documents depend only on the kinds and the schemas, and are built once.

mod definitions;
mod operations;
mod protobuf;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use bytes::Bytes;
use hyper::Response;
use hyper::header::{ACCEPT, ETAG, HeaderMap, IF_NONE_MATCH, VARY};
use serde_json::{Map, Value, json};

use super::discovery::group_versions;
use super::respond::{self, Body, JSON};
use crate::kinds;

use definitions::Dialect;

/// A document as sent.
struct Document {
    bytes: Bytes,
    hash: String,
}

impl Document {
    fn new(bytes: Vec<u8>) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Self { bytes: bytes.into(), hash: format!("{:016X}", hasher.finish()) }
    }

    fn respond(&self, content_type: &str, headers: &HeaderMap) -> Response<Body> {
        let tag = format!("\"{}\"", self.hash);
        let known = headers.get(IF_NONE_MATCH).and_then(|tag| tag.to_str().ok());
        let mut response = if known.is_some_and(|known| known.contains(&tag)) {
            respond::full(304, content_type, Bytes::new())
        } else {
            respond::full(200, content_type, self.bytes.clone())
        };
        respond::set(&mut response, ETAG, &tag);
        respond::set(&mut response, VARY, ACCEPT.as_str());
        response
    }
}

/// `/openapi/v3`: the path of each group's document.
pub fn v3_index() -> Value {
    let mut paths = Map::new();
    for ((group, version), document) in documents_v3() {
        let name = name_of(group, version);
        let url = format!("/openapi/v3/{name}?hash={}", document.hash);
        paths.insert(name, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

/// `/openapi/v3/{api/v1, apis/group/version}`
pub fn v3(group: &str, version: &str, headers: &HeaderMap) -> Option<Response<Body>> {
    let document = documents_v3().get(&(group, version))?;
    Some(document.respond(JSON, headers))
}

/// `/openapi/v2`: one document for all groups. kubectl requests it as protobuf.
pub fn v2(headers: &HeaderMap) -> Response<Body> {
    static V2_JSON: LazyLock<Document> =
        LazyLock::new(|| Document::new(document_v2().to_string().into_bytes()));
    static V2_PROTOBUF: LazyLock<Document> =
        LazyLock::new(|| Document::new(protobuf::document(&document_v2())));
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    for offer in accept.split(',') {
        let media = offer.split(';').next().unwrap_or_default().trim();
        match media {
            "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
            | "application/com.github.proto-openapi.spec.v2.v1.0+protobuf" => {
                let type_ = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
                return V2_PROTOBUF.respond(type_, headers);
            }
            JSON => break,
            _ => {}
        }
    }
    V2_JSON.respond(JSON, headers)
}

type Documents = BTreeMap<(&'static str, &'static str), Document>;

fn documents_v3() -> &'static Documents {
    static DOCUMENTS: LazyLock<Documents> = LazyLock::new(|| {
        let document = |(group, version)| {
            let text = document_v3(group, version).to_string();
            ((group, version), Document::new(text.into_bytes()))
        };
        group_versions().into_iter().map(document).collect()
    });
    &DOCUMENTS
}

fn document_v3(group: &str, version: &str) -> Value {
    let kinds: Vec<_> =
        kinds::all().iter().filter(|kind| (kind.group, kind.version) == (group, version)).collect();
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": operations::paths(&kinds, Dialect::V3),
        "components": {"schemas": definitions::of(&kinds, Dialect::V3)},
    })
}

fn document_v2() -> Value {
    let kinds: Vec<_> = kinds::all().iter().collect();
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": operations::paths(&kinds, Dialect::V2),
        "definitions": definitions::of(&kinds, Dialect::V2),
    })
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": super::discovery::version()["gitVersion"]})
}

fn name_of(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

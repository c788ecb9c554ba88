//! The OpenAPI documents, for `kubectl explain` and for clients that check the server's abilities.
//!
//! The documents depend only on the kinds and the schemas, and are built once, when they are first
//! requested.

mod definitions;
mod operations;
mod protobuf;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use hyper::Response;
use hyper::header::{ACCEPT, ETAG, HeaderMap, IF_NONE_MATCH, VARY};
use serde_json::{Map, Value, json};

use super::respond::{self, JSON_CONTENT_TYPE, ResponseBody};
use crate::kinds::{ApiKind, KindRegistry};

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

    fn respond(&self, content_type: &str, headers: &HeaderMap) -> Response<ResponseBody> {
        let tag = format!("\"{}\"", self.hash);
        let known = headers.get(IF_NONE_MATCH).and_then(|tag| tag.to_str().ok());
        let mut response = if known.is_some_and(|known| known.contains(&tag)) {
            respond::respond_full(304, content_type, Bytes::new())
        } else {
            respond::respond_full(200, content_type, self.bytes.clone())
        };
        respond::set_header(&mut response, ETAG, &tag);
        respond::set_header(&mut response, VARY, ACCEPT.as_str());
        response
    }
}

/// The documents of a server. Clones share them.
#[derive(Clone)]
pub(crate) struct OpenApi(Arc<Documents>);

struct Documents {
    kinds: KindRegistry,
    /// One for all groups.
    v2: OnceLock<V2>,
    v3: OnceLock<BTreeMap<(&'static str, &'static str), Document>>,
}

struct V2 {
    json: Document,
    protobuf: Document,
}

impl OpenApi {
    pub fn new(kinds: KindRegistry) -> Self {
        Self(Arc::new(Documents { kinds, v2: OnceLock::new(), v3: OnceLock::new() }))
    }

    /// `/openapi/v3`: the path of each group's document.
    pub(crate) fn v3_index(&self) -> Value {
        let mut paths = Map::new();
        for ((group, version), document) in self.0.v3() {
            let name = document_name(group, version);
            let url = format!("/openapi/v3/{name}?hash={}", document.hash);
            paths.insert(name, json!({"serverRelativeURL": url}));
        }
        json!({"paths": paths})
    }

    /// `/openapi/v3/{api/v1, apis/group/version}`
    pub fn v3(
        &self,
        group: &str,
        version: &str,
        headers: &HeaderMap,
    ) -> Option<Response<ResponseBody>> {
        let document = self.0.v3().get(&(group, version))?;
        Some(document.respond(JSON_CONTENT_TYPE, headers))
    }

    /// `/openapi/v2`: one document for all groups. kubectl requests it as protobuf.
    pub fn v2(&self, headers: &HeaderMap) -> Response<ResponseBody> {
        let documents = self.0.v2();
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        for offer in accept.unwrap_or_default().split(',') {
            let media = offer.split(';').next().unwrap_or_default().trim();
            match media {
                "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
                | "application/com.github.proto-openapi.spec.v2.v1.0+protobuf" => {
                    let type_ = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
                    return documents.protobuf.respond(type_, headers);
                }
                JSON_CONTENT_TYPE => break,
                _ => {}
            }
        }
        documents.json.respond(JSON_CONTENT_TYPE, headers)
    }
}

impl Documents {
    fn v2(&self) -> &V2 {
        self.v2.get_or_init(|| {
            let document = document_v2(&self.kinds.all().collect::<Vec<_>>());
            V2 {
                json: Document::new(document.to_string().into_bytes()),
                protobuf: Document::new(protobuf::encode_document(&document)),
            }
        })
    }

    fn v3(&self) -> &BTreeMap<(&'static str, &'static str), Document> {
        self.v3.get_or_init(|| {
            let document = |(group, version)| {
                let of_group = |kind: &&ApiKind| (kind.group, kind.version) == (group, version);
                let kinds: Vec<_> = self.kinds.all().filter(of_group).collect();
                ((group, version), Document::new(document_v3(&kinds).to_string().into_bytes()))
            };
            self.kinds.group_versions().into_iter().map(document).collect()
        })
    }
}

fn document_v3(kinds: &[&'static ApiKind]) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": operations::build_paths(kinds, Dialect::V3),
        "components": {"schemas": definitions::build_definitions(kinds, Dialect::V3)},
    })
}

fn document_v2(kinds: &[&'static ApiKind]) -> Value {
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": operations::build_paths(kinds, Dialect::V2),
        "definitions": definitions::build_definitions(kinds, Dialect::V2),
    })
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": super::discovery::server_version()["gitVersion"]})
}

fn document_name(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

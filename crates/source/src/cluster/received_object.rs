//! An object as the server sent it.

use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::Result;
use lb_rules::model::{Kind, Object, ObjectRef, SentSlice};
use serde_json::Value;

#[derive(Debug, PartialEq)]
pub(crate) enum ReceivedObject {
    Json(Value),
    /// Most of what the agent reads are EndpointSlices: they are decoded without JSON in between.
    Slice(Box<SentSlice>),
}

impl ReceivedObject {
    /// Decodes a text as far as that needs no rules. What cannot be read as a slice is JSON, from which the error follows.
    pub fn read(kind: Kind, text: &[u8]) -> serde_json::Result<Self> {
        if kind == Kind::EndpointSlice
            && let Ok(sent) = serde_json::from_slice(text)
        {
            return Ok(Self::Slice(Box::new(sent)));
        }
        serde_json::from_slice(text).map(Self::Json)
    }

    pub fn reference(&self, kind: Kind) -> ObjectRef {
        match self {
            Self::Json(value) => ObjectRef::of(kind, value),
            Self::Slice(sent) => {
                let name = &sent.slice.name;
                ObjectRef::new(kind, Some(&name.namespace), Some(&name.name))
            }
        }
    }

    /// Identifies a state of an object. The uid tells apart objects that had the same name one after the other.
    pub fn state(&self) -> u64 {
        match self {
            Self::Json(value) => {
                let [uid, version] =
                    ["uid", "resourceVersion"].map(|field| value["metadata"][field].as_str());
                identify_state(uid, version)
            }
            Self::Slice(sent) => {
                identify_state(Some(&sent.slice.uid), sent.resource_version.as_deref())
            }
        }
    }

    /// Of what is read as JSON: Services, for example.
    pub fn uid(&self) -> Option<&str> {
        match self {
            Self::Json(value) => value["metadata"]["uid"].as_str(),
            Self::Slice(_) => None,
        }
    }

    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Json(value) => value["metadata"]["resourceVersion"].as_str(),
            Self::Slice(sent) => sent.resource_version.as_deref(),
        }
    }

    /// The object; the error names the field.
    pub fn decode(self, kind: Kind) -> Result<Object> {
        match self {
            Self::Json(value) => Object::read(kind, value),
            Self::Slice(sent) => Ok(Object::EndpointSlice(Box::new(sent.slice))),
        }
    }
}

impl From<Value> for ReceivedObject {
    fn from(value: Value) -> Self {
        Self::Json(value)
    }
}

/// An absent uid is an empty one.
fn identify_state(uid: Option<&str>, resource_version: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (uid.unwrap_or_default(), resource_version).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// What the agent uses of an object, or why it cannot.
    fn used(sent: ReceivedObject) -> (ObjectRef, u64, Option<String>, Result<Object, String>) {
        let kind = Kind::EndpointSlice;
        let version = sent.resource_version().map(str::to_owned);
        let (reference, state) = (sent.reference(kind), sent.state());
        (reference, state, version, sent.decode(kind).map_err(|error| error.to_string()))
    }

    /// Values of fields: usual ones, and what a faulty server may send.
    fn any(usual: Value) -> impl Strategy<Value = Value> {
        let odd = prop::sample::select(vec![
            json!(null),
            json!(7),
            json!(true),
            json!("a \"b\"\n"),
            json!(""),
            json!([]),
            json!([null]),
            json!({}),
            json!({"name": null}),
        ]);
        prop_oneof![6 => Just(usual), 1 => odd]
    }

    fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
        let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
        let values: Vec<_> =
            values.into_iter().map(|value| prop::option::weighted(0.8, value)).collect();
        let assembled = values.prop_map(move |values| {
            let fields = names.iter().zip(values);
            let fields = fields.filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
            Value::Object(fields.collect())
        });
        assembled.boxed()
    }

    fn list(item: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
        prop::collection::vec(item, 0..3).prop_map(Value::from).boxed()
    }

    fn slices() -> BoxedStrategy<Value> {
        let usual = |value: Value| any(value).boxed();
        let metadata = object(vec![
            ("name", usual(json!("web-1"))),
            ("namespace", usual(json!("shop"))),
            ("uid", usual(json!("u"))),
            ("resourceVersion", usual(json!("7"))),
            ("labels", usual(json!({"kubernetes.io/service-name": "web", "a": "b"}))),
            (
                "annotations",
                usual(json!({
                    "millrace.io/weight": "50",
                    "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"
                })),
            ),
            ("managedFields", usual(json!([{"manager": "a"}]))),
        ]);
        let endpoint = object(vec![
            ("addresses", usual(json!(["10.0.0.1", "10.0.0.2"]))),
            ("conditions", usual(json!({"ready": false, "serving": true, "terminating": true}))),
            ("nodeName", usual(json!("node-a"))),
            ("zone", usual(json!("zone-a"))),
            ("hints", usual(json!({"forZones": [{"name": "zone-a"}], "forNodes": []}))),
            ("targetRef", usual(json!({"kind": "Pod"}))),
        ]);
        let port = object(vec![
            ("name", usual(json!("http"))),
            ("protocol", usual(json!("UDP"))),
            ("port", usual(json!(8080))),
        ]);
        object(vec![
            ("apiVersion", usual(json!("discovery.k8s.io/v1"))),
            ("kind", usual(json!("EndpointSlice"))),
            ("metadata", metadata),
            ("addressType", usual(json!("IPv4"))),
            ("endpoints", list(endpoint)),
            ("ports", list(port)),
        ])
    }

    proptest! {
        #[test]
        fn a_slice_read_at_once_is_the_one_read_from_json(slice in slices()) {
            let at_once = ReceivedObject::read(Kind::EndpointSlice, slice.to_string().as_bytes()).unwrap();
            prop_assert_eq!(used(at_once), used(ReceivedObject::Json(slice)));
        }
    }

    proptest! {
        /// A slice that is written and read again is the same, unless an address of it was unusable.
        #[test]
        fn a_written_slice_is_read_again(slice in slices()) {
            let kind = Kind::EndpointSlice;
            let text = slice.to_string();
            let Ok(Object::EndpointSlice(slice)) = ReceivedObject::read(kind, text.as_bytes()).unwrap().decode(kind)
            else { return Ok(()) };
            let mut written = Vec::new();
            let is_usable = slice.endpoints.iter().all(|endpoint| endpoint.address.is_ok());
            prop_assert_eq!(slice.write_json(&mut written).is_ok(), is_usable);
            if is_usable {
                let again = ReceivedObject::read(kind, &written).unwrap();
                prop_assert!(matches!(again, ReceivedObject::Slice(_)));
                prop_assert_eq!(again.decode(kind).unwrap(), Object::EndpointSlice(slice));
            }
        }
    }

    #[test]
    fn usual_slices_are_read_at_once() {
        let slice = json!({
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": null,
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": null}}]
        });
        let sent = ReceivedObject::read(Kind::EndpointSlice, slice.to_string().as_bytes()).unwrap();
        assert!(matches!(sent, ReceivedObject::Slice(_)), "{sent:?}");
    }

    #[test]
    fn the_error_names_the_field() {
        let slice = json!({"metadata": {"name": "a"}, "ports": [{"port": "http"}]});
        let sent = ReceivedObject::read(Kind::EndpointSlice, slice.to_string().as_bytes()).unwrap();
        let error = sent.decode(Kind::EndpointSlice).unwrap_err().to_string();
        assert!(error.starts_with("ports[0].port: invalid type"), "{error}");
    }
}

//! Decodes EndpointSlices as API servers send them. What rules use is borrowed from the text and becomes a [`Slice`]
//! without JSON in between: slices are most of what the agent reads at its start.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::Resource;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::address;
use super::slice::{AddressType, Hints, Slice, SliceEndpoint, SlicePort, UnusableAddress};
use super::types::{AddressFamily, Protocol, ServiceName};
#[cfg(doc)]
use super::weights::WEIGHT;

/// A slice as rules use it, and the version of its object, which only the watch of a cluster uses.
#[derive(Debug, PartialEq)]
pub struct SentSlice {
    pub slice: Slice,
    pub resource_version: Option<Box<str>>,
}

impl<'de> Deserialize<'de> for SentSlice {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let FieldMap(mut slice) = FieldMap::<ApiSlice<'de>>::deserialize(value)?;
        let version =
            slice.metadata.as_mut().and_then(|metadata| metadata.0.resource_version.take());
        Ok(Self { resource_version: version.as_ref().map(boxed), slice: slice.into() })
    }
}

/// Borrowed unless it contains escapes.
#[derive(Debug, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A map of fields. A structure alone would also be read from a list of its values.
#[derive(Debug, Default)]
struct FieldMap<T>(T);

/// The fields that rules use, borrowed from the text. Null equals absent everywhere.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiSlice<'a> {
    #[serde(default, rename = "apiVersion", deserialize_with = "this_version")]
    _version: (),
    #[serde(default, rename = "kind", deserialize_with = "this_kind")]
    _kind: (),
    #[serde(borrow)]
    metadata: Option<FieldMap<Metadata<'a>>>,
    #[serde(borrow)]
    address_type: Option<Text<'a>>,
    #[serde(borrow)]
    endpoints: Option<Vec<FieldMap<ApiEndpoint<'a>>>>,
    #[serde(borrow)]
    ports: Option<Vec<FieldMap<ApiPort<'a>>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    namespace: Option<Text<'a>>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    uid: Option<Text<'a>>,
    #[serde(borrow)]
    resource_version: Option<Text<'a>>,
    #[serde(borrow)]
    labels: Option<FieldMap<SliceLabels<'a>>>,
    #[serde(borrow)]
    annotations: Option<FieldMap<Annotations<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
struct SliceLabels<'a> {
    #[serde(borrow, rename = "kubernetes.io/service-name")]
    service_name: Option<Text<'a>>,
}

#[derive(Debug, Default, Deserialize)]
struct Annotations<'a> {
    /// The cluster's controller writes on a slice the time of the change that made it write the slice.
    #[serde(borrow, rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    trigger_time: Option<Text<'a>>,
    /// As [`WEIGHT`].
    #[serde(borrow, rename = "millrace.io/weight")]
    weight: Option<Text<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiEndpoint<'a> {
    #[serde(borrow)]
    addresses: Option<Vec<Text<'a>>>,
    conditions: Option<FieldMap<Conditions>>,
    #[serde(borrow)]
    node_name: Option<Text<'a>>,
    #[serde(borrow)]
    zone: Option<Text<'a>>,
    #[serde(borrow)]
    hints: Option<FieldMap<ApiHints<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiHints<'a> {
    #[serde(borrow)]
    for_nodes: Option<Vec<FieldMap<Named<'a>>>>,
    #[serde(borrow)]
    for_zones: Option<Vec<FieldMap<Named<'a>>>>,
}

#[derive(Debug, Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
}

#[derive(Debug, Default, Deserialize)]
struct ApiPort<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    protocol: Option<Text<'a>>,
    port: Option<i32>,
}

impl Text<'_> {
    fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T> Deref for FieldMap<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for FieldMap<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        struct OnlyMap<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OnlyMap<T> {
            type Value = FieldMap<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<FieldMap<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(FieldMap)
            }
        }

        value.deserialize_map(OnlyMap(PhantomData))
    }
}

/// The text of a field; empty if it is absent.
fn or_empty<'a>(text: &'a Option<Text<'_>>) -> &'a str {
    text.as_ref().map_or("", Text::as_str)
}

fn this_version<'de, D: Deserializer<'de>>(version: D) -> Result<(), D::Error> {
    require_text(version, EndpointSlice::API_VERSION)
}

fn this_kind<'de, D: Deserializer<'de>>(kind: D) -> Result<(), D::Error> {
    require_text(kind, EndpointSlice::KIND)
}

fn require_text<'de, D: Deserializer<'de>>(text: D, wanted: &'static str) -> Result<(), D::Error> {
    match Option::<Text<'de>>::deserialize(text)? {
        Some(found) if found.as_str() != wanted => {
            Err(D::Error::invalid_value(Unexpected::Str(found.as_str()), &wanted))
        }
        _ => Ok(()),
    }
}

impl From<ApiSlice<'_>> for Slice {
    fn from(slice: ApiSlice<'_>) -> Self {
        let FieldMap(metadata) = slice.metadata.unwrap_or_default();
        let namespace = metadata.namespace.as_ref().map(Text::as_str);
        let namespace = namespace.filter(|namespace| !namespace.is_empty()).unwrap_or("default");
        let FieldMap(labels) = metadata.labels.unwrap_or_default();
        let FieldMap(annotations) = metadata.annotations.unwrap_or_default();
        let address_type = AddressType::read(or_empty(&slice.address_type));
        let endpoints = match address_type {
            AddressType::Of(family) => {
                let mut zones = BTreeSet::new();
                let all = slice.endpoints.iter().flatten();
                all.map(|endpoint| SliceEndpoint::read(endpoint, family, &mut zones)).collect()
            }
            AddressType::Fqdn | AddressType::Unknown(_) => Box::default(),
        };
        Self {
            name: ServiceName::new(namespace, or_empty(&metadata.name)),
            uid: or_empty(&metadata.uid).into(),
            service: labels.service_name.map(|name| ServiceName::new(namespace, name.as_str())),
            trigger_time: annotations.trigger_time.and_then(|time| time.as_str().parse().ok()),
            weight: annotations.weight.as_ref().map(boxed),
            address_type,
            ports: slice.ports.iter().flatten().map(|port| SlicePort::read(port)).collect(),
            endpoints,
        }
    }
}

/// Of the few slices that are not read from a text.
impl From<&EndpointSlice> for Slice {
    fn from(slice: &EndpointSlice) -> Self {
        // The text of a slice is one: nothing fails.
        let json = serde_json::to_value(slice).unwrap_or_default();
        let FieldMap(slice) = FieldMap::<ApiSlice<'_>>::deserialize(&json).unwrap_or_default();
        slice.into()
    }
}

impl AddressType {
    fn read(name: &str) -> Self {
        let family = AddressFamily::ALL.into_iter().find(|family| family.name() == name);
        match family {
            Some(family) => Self::Of(family),
            None if name == "FQDN" => Self::Fqdn,
            None => Self::Unknown(name.into()),
        }
    }
}

impl SlicePort {
    fn read(port: &ApiPort<'_>) -> Self {
        let protocol = Protocol::parse(port.protocol.as_ref().map(Text::as_str));
        Self {
            name: or_empty(&port.name).into(),
            protocol: protocol.ok_or_else(|| or_empty(&port.protocol).into()),
            number: port.port,
        }
    }
}

impl SliceEndpoint {
    fn read(
        endpoint: &ApiEndpoint<'_>,
        family: AddressFamily,
        zones: &mut BTreeSet<Arc<str>>,
    ) -> Self {
        let conditions = endpoint.conditions.as_ref();
        let address = endpoint.addresses.as_ref().and_then(|addresses| addresses.first());
        Self {
            address: read_address(address.map(Text::as_str), family).map_err(Box::new),
            node_name: endpoint.node_name.as_ref().map(boxed),
            zone: endpoint.zone.as_ref().map(|zone| share_name(zone.as_str(), zones)),
            ready: conditions.and_then(|c| c.ready).unwrap_or(true),
            serving: conditions.and_then(|c| c.serving).unwrap_or(true),
            terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
            hints: endpoint.hints.as_ref().and_then(|hints| Hints::read(hints)),
        }
    }
}

fn boxed(text: &Text<'_>) -> Box<str> {
    text.as_str().into()
}

fn share_name(name: &str, known: &mut BTreeSet<Arc<str>>) -> Arc<str> {
    if let Some(known) = known.get(name) {
        return Arc::clone(known);
    }
    let name: Arc<str> = name.into();
    known.insert(Arc::clone(&name));
    name
}

fn read_address(text: Option<&str>, family: AddressFamily) -> Result<IpAddr, UnusableAddress> {
    let Some(text) = text else {
        let message = "is empty; the endpoint is skipped".to_owned();
        return Err(UnusableAddress { field: "addresses", message });
    };
    let address = address::parse_global_address(text).and_then(|address| {
        let fits = AddressFamily::of(&address) == family;
        if fits { Ok(address) } else { Err("is not of the slice's addressType") }
    });
    address.map_err(|why| UnusableAddress {
        field: "addresses[0]",
        message: format!("{text:?} {why}"),
    })
}

impl Hints {
    fn read(hints: &ApiHints<'_>) -> Option<Box<Self>> {
        let names = |all: &Option<Vec<FieldMap<Named<'_>>>>| {
            let all = all.as_ref().filter(|all| !all.is_empty())?;
            Some(all.iter().map(|named| or_empty(&named.name).into()).collect())
        };
        let read = Self { for_nodes: names(&hints.for_nodes), for_zones: names(&hints.for_zones) };
        (read != Self::default()).then(|| Box::new(read))
    }
}

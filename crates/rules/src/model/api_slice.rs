//! An EndpointSlice as the API writes it: the fields that rules use, borrowed from the text that is decoded. Slices are
//! most of what the agent reads at its start.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use k8s_openapi::Resource;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

#[cfg(doc)]
use super::weights::WEIGHT;

/// Borrowed unless it contains escapes.
#[derive(Debug, Deserialize)]
pub struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A map of fields. A structure alone would also be read from a list of its values.
#[derive(Debug, Default)]
pub struct Fields<T>(pub T);

/// Null equals absent everywhere.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiSlice<'a> {
    #[serde(default, rename = "apiVersion", deserialize_with = "this_version")]
    _version: (),
    #[serde(default, rename = "kind", deserialize_with = "this_kind")]
    _kind: (),
    #[serde(borrow)]
    pub metadata: Option<Fields<Metadata<'a>>>,
    #[serde(borrow)]
    pub address_type: Option<Text<'a>>,
    #[serde(borrow)]
    pub endpoints: Option<Vec<Fields<ApiEndpoint<'a>>>>,
    #[serde(borrow)]
    pub ports: Option<Vec<Fields<ApiPort<'a>>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata<'a> {
    #[serde(borrow)]
    pub namespace: Option<Text<'a>>,
    #[serde(borrow)]
    pub name: Option<Text<'a>>,
    #[serde(borrow)]
    pub uid: Option<Text<'a>>,
    #[serde(borrow)]
    pub resource_version: Option<Text<'a>>,
    #[serde(borrow)]
    pub labels: Option<Fields<Labels<'a>>>,
    #[serde(borrow)]
    pub annotations: Option<Fields<Annotations<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
pub struct Labels<'a> {
    #[serde(borrow, rename = "kubernetes.io/service-name")]
    pub service_name: Option<Text<'a>>,
}

#[derive(Debug, Default, Deserialize)]
pub struct Annotations<'a> {
    /// The cluster's controller writes on a slice the time of the change that made it write the slice.
    #[serde(borrow, rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub trigger_time: Option<Text<'a>>,
    /// As [`WEIGHT`].
    #[serde(borrow, rename = "millrace.io/weight")]
    pub weight: Option<Text<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiEndpoint<'a> {
    #[serde(borrow)]
    pub addresses: Option<Vec<Text<'a>>>,
    pub conditions: Option<Fields<Conditions>>,
    #[serde(borrow)]
    pub node_name: Option<Text<'a>>,
    #[serde(borrow)]
    pub zone: Option<Text<'a>>,
    #[serde(borrow)]
    pub hints: Option<Fields<ApiHints<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
pub struct Conditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiHints<'a> {
    #[serde(borrow)]
    pub for_nodes: Option<Vec<Fields<Named<'a>>>>,
    #[serde(borrow)]
    pub for_zones: Option<Vec<Fields<Named<'a>>>>,
}

#[derive(Debug, Deserialize)]
pub struct Named<'a> {
    #[serde(borrow)]
    pub name: Option<Text<'a>>,
}

#[derive(Debug, Default, Deserialize)]
pub struct ApiPort<'a> {
    #[serde(borrow)]
    pub name: Option<Text<'a>>,
    #[serde(borrow)]
    pub protocol: Option<Text<'a>>,
    pub port: Option<i32>,
}

impl ApiSlice<'_> {
    pub fn uid(&self) -> Option<&str> {
        self.metadata.as_ref()?.uid.as_ref().map(Text::as_str)
    }

    pub fn resource_version(&self) -> Option<&str> {
        self.metadata.as_ref()?.resource_version.as_ref().map(Text::as_str)
    }
}

impl Text<'_> {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T> Deref for Fields<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Fields<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        struct OnlyMap<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OnlyMap<T> {
            type Value = Fields<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Fields<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(Fields)
            }
        }

        value.deserialize_map(OnlyMap(PhantomData))
    }
}

/// The text of a field; empty if it is absent.
pub(crate) fn or_empty<'a>(text: &'a Option<Text<'_>>) -> &'a str {
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

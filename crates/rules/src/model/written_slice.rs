//! A slice as the text that [`ApiSlice`](super::ApiSlice) reads, with the fields that rules use.

use anyhow::{Result, anyhow};
use jiff::Timestamp;
use serde::Serialize;

use super::slice::{AddressType, Hints, Slice, SliceEndpoint, SlicePort};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenSlice<'a> {
    metadata: WrittenMetadata<'a>,
    address_type: &'a str,
    endpoints: Vec<WrittenEndpoint<'a>>,
    ports: Vec<WrittenPort<'a>>,
}

#[derive(Serialize)]
struct WrittenMetadata<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    labels: WrittenLabels<'a>,
    annotations: WrittenAnnotations<'a>,
}

#[derive(Serialize)]
struct WrittenLabels<'a> {
    #[serde(rename = "kubernetes.io/service-name", skip_serializing_if = "Option::is_none")]
    service_name: Option<&'a str>,
}

#[derive(Serialize)]
struct WrittenAnnotations<'a> {
    #[serde(
        rename = "endpoints.kubernetes.io/last-change-trigger-time",
        skip_serializing_if = "Option::is_none"
    )]
    trigger_time: Option<Timestamp>,
    #[serde(rename = "millrace.io/weight", skip_serializing_if = "Option::is_none")]
    weight: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenEndpoint<'a> {
    addresses: [std::net::IpAddr; 1],
    #[serde(skip_serializing_if = "WrittenConditions::are_default")]
    conditions: WrittenConditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hints: Option<WrittenHints<'a>>,
}

#[derive(PartialEq, Serialize)]
struct WrittenConditions {
    ready: bool,
    serving: bool,
    terminating: bool,
}

impl WrittenConditions {
    fn are_default(&self) -> bool {
        *self == Self { ready: true, serving: true, terminating: false }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenHints<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    for_nodes: Option<Vec<WrittenName<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    for_zones: Option<Vec<WrittenName<'a>>>,
}

#[derive(Serialize)]
struct WrittenName<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct WrittenPort<'a> {
    name: &'a str,
    protocol: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<i32>,
}

impl Slice {
    /// Appends its JSON. Fails for a slice with an unusable address, of which only the reason is held.
    pub fn write_json(&self, text: &mut Vec<u8>) -> Result<()> {
        let endpoints = self.endpoints.iter().map(WrittenEndpoint::of);
        let written = WrittenSlice {
            metadata: WrittenMetadata {
                namespace: &self.name.namespace,
                name: &self.name.name,
                uid: &self.uid,
                labels: WrittenLabels {
                    service_name: self.service.as_ref().map(|service| service.name.as_str()),
                },
                annotations: WrittenAnnotations {
                    trigger_time: self.trigger_time,
                    weight: self.weight.as_deref(),
                },
            },
            address_type: match &self.address_type {
                AddressType::Of(family) => family.name(),
                AddressType::Fqdn => "FQDN",
                AddressType::Unknown(name) => name,
            },
            endpoints: endpoints
                .collect::<Result<_>>()
                .map_err(|error| anyhow!("EndpointSlice {}: {error}", self.name))?,
            ports: self.ports.iter().map(WrittenPort::of).collect(),
        };
        Ok(serde_json::to_writer(text, &written)?)
    }
}

impl<'a> WrittenEndpoint<'a> {
    fn of(endpoint: &'a SliceEndpoint) -> Result<Self> {
        let SliceEndpoint { address, node_name, zone, ready, serving, terminating, hints } =
            endpoint;
        let address = address.as_ref().map_err(|unusable| anyhow!("{}", unusable.message))?;
        Ok(Self {
            addresses: [*address],
            conditions: WrittenConditions {
                ready: *ready,
                serving: *serving,
                terminating: *terminating,
            },
            node_name: node_name.as_deref(),
            zone: zone.as_deref(),
            hints: hints.as_deref().map(WrittenHints::of),
        })
    }
}

impl<'a> WrittenHints<'a> {
    fn of(hints: &'a Hints) -> Self {
        let names = |all: &'a Option<Box<[Box<str>]>>| {
            all.as_ref().map(|all| all.iter().map(|name| WrittenName { name }).collect())
        };
        Self { for_nodes: names(&hints.for_nodes), for_zones: names(&hints.for_zones) }
    }
}

impl<'a> WrittenPort<'a> {
    fn of(port: &'a SlicePort) -> Self {
        let protocol = match &port.protocol {
            Ok(protocol) => protocol.name(),
            Err(name) => name,
        };
        Self { name: &port.name, protocol, port: port.number }
    }
}

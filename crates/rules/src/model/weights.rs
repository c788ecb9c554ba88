//! The weights of endpoints: their shares of new connections, relative to each other.
//!
//! The weight of an endpoint is the one of its EndpointSlice, otherwise the one that its Service
//! gives to the endpoint's node, otherwise to its zone, otherwise the default. All of these are the
//! same for every node, so all nodes build the same tables.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lb_common::maglev::{DEFAULT_WEIGHT, Weight};

use super::fields::{Fields, find_annotation};
use super::types::{Problem, ServiceName};

/// Annotation of an EndpointSlice: the weight of each of its endpoints.
pub const WEIGHT: &str = "millrace.io/weight";
/// Annotation of a Service: weights of endpoints by their nodes, as `NODE=WEIGHT,...`.
pub(crate) const NODE_WEIGHTS: &str = "millrace.io/node-weights";
/// Annotation of a Service: weights of endpoints by their zones, as `ZONE=WEIGHT,...`.
pub(crate) const ZONE_WEIGHTS: &str = "millrace.io/zone-weights";

/// Ten times the default.
const MAX_WEIGHT: u16 = 1_000;

/// The weights that a Service gives to endpoints. 0: no new connections.
#[derive(Debug, Default)]
pub struct Weights<'a> {
    by_node: BTreeMap<&'a str, u16>,
    by_zone: BTreeMap<&'a str, u16>,
}

impl<'a> Weights<'a> {
    pub fn read(service: &'a Service, problems: &mut Vec<Problem>) -> Self {
        let name = ServiceName::of(&service.metadata);
        let mut fields = Fields { service: &name, problems };
        let mut named = |name| parse_named_weight(&service.metadata, name, &mut fields);
        Self { by_node: named(NODE_WEIGHTS), by_zone: named(ZONE_WEIGHTS) }
    }

    /// The weight of an endpoint, by what is known of it. `None`: it gets no new connections.
    pub fn of(&self, slice: Option<u16>, node: Option<&str>, zone: Option<&str>) -> Option<Weight> {
        let by_node = || self.by_node.get(node?).copied();
        let by_zone = || self.by_zone.get(zone?).copied();
        slice.or_else(by_node).or_else(by_zone).map_or(Some(DEFAULT_WEIGHT), Weight::new)
    }
}

/// Parses a weight; the error completes a sentence that begins with the text.
pub(crate) fn parse_weight(text: &str) -> Result<u16, String> {
    let number = text.trim().parse().ok().filter(|&weight: &u16| weight <= MAX_WEIGHT);
    number.ok_or_else(|| format!("is not a number from 0 to {MAX_WEIGHT}"))
}

/// The weights in an annotation, by name. Of entries that can't be used the first one is reported:
/// there may be thousands.
fn parse_named_weight<'a>(
    metadata: &'a ObjectMeta,
    annotation_name: &str,
    fields: &mut Fields<'_>,
) -> BTreeMap<&'a str, u16> {
    let mut weights = BTreeMap::new();
    let mut wrong = Vec::new();
    let text = find_annotation(metadata, annotation_name).unwrap_or_default();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        match read_entry(entry) {
            Ok((name, _)) if weights.contains_key(name) => {
                wrong.push(format!("{name:?} has a weight already"));
            }
            Ok((name, weight)) => drop(weights.insert(name, weight)),
            Err(why) => wrong.push(format!("{entry:?}{why}")),
        }
    }
    if let Some(first) = wrong.first() {
        let others = match wrong.len() - 1 {
            0 => String::new(),
            others => format!("; {others} more likewise"),
        };
        let message = format!("{first}; ignored{others}");
        fields.problem(&format!("metadata.annotations[{annotation_name}]"), message);
    }
    weights
}

fn read_entry(entry: &str) -> Result<(&str, u16), String> {
    let named = entry.split_once('=').map(|(name, weight)| (name.trim(), weight));
    let (name, weight) =
        named.filter(|(name, _)| !name.is_empty()).ok_or(" is not of the form NAME=WEIGHT")?;
    Ok((name, parse_weight(weight).map_err(|why| format!(": the weight {why}"))?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(by_node: &str, by_zone: &str) -> Service {
        let annotations = json!({NODE_WEIGHTS: by_node, ZONE_WEIGHTS: by_zone});
        let service = json!({"metadata": {"name": "web", "annotations": annotations}});
        serde_json::from_value(service).unwrap()
    }

    #[test]
    fn the_most_specific_weight_is_used() {
        let service = service("big=300, off=0", " a = 50 ,b=0,");
        let mut problems = Vec::new();
        let weights = Weights::read(&service, &mut problems);
        assert_eq!(problems, []);
        for (slice, node, zone, expected) in [
            (None, None, None, Some(100)),
            (None, Some("other"), Some("c"), Some(100)),
            (None, Some("other"), Some("a"), Some(50)),
            (None, Some("other"), Some("b"), None),
            (None, Some("big"), Some("b"), Some(300)),
            (None, Some("off"), Some("a"), None),
            (Some(7), Some("off"), Some("b"), Some(7)),
            (Some(0), Some("big"), Some("a"), None),
        ] {
            let weight = weights.of(slice, node, zone).map(Weight::get);
            assert_eq!(weight, expected, "{slice:?} {node:?} {zone:?}");
        }
    }

    #[test]
    fn hostile_weights_are_refused() {
        for good in ["0", "1", " 100 ", "1000"] {
            assert!(parse_weight(good).is_ok(), "{good:?}");
        }
        let long = "9".repeat(100_000);
        for bad in ["", "-1", "1001", "65536", "1e2", "0x10", "1.5", "50%", "٥", &long] {
            assert!(parse_weight(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn entries_that_cannot_be_used_are_one_problem_and_the_rest_is_used() {
        for (text, problem, used) in [
            ("a", Some("\"a\" is not of the form NAME=WEIGHT; ignored"), None),
            ("=5", Some("\"=5\" is not of the form NAME=WEIGHT; ignored"), None),
            ("a=5,a=6", Some("\"a\" has a weight already; ignored"), Some(5)),
            (
                "a=1001,b,a=5",
                Some(
                    "\"a=1001\": the weight is not a number from 0 to 1000; ignored; 1 more likewise",
                ),
                Some(5),
            ),
            (",,,", None, None),
        ] {
            let service = service("", text);
            let mut problems = Vec::new();
            let weights = Weights::read(&service, &mut problems);
            let messages: Vec<&str> = problems.iter().map(|one| one.message.as_str()).collect();
            assert_eq!(messages, Vec::from_iter(problem), "{text:?}");
            assert_eq!(weights.by_zone.get("a").copied(), used, "{text:?}");
        }
    }

    #[test]
    fn a_huge_annotation_makes_one_short_problem() {
        let entries: Vec<String> = (0..20_000).map(|number| format!("zone-{number}=-1")).collect();
        let service = service("", &entries.join(","));
        let mut problems = Vec::new();
        let weights = Weights::read(&service, &mut problems);
        assert!(weights.by_zone.is_empty());
        let [problem] = &problems[..] else { panic!("{}", problems.len()) };
        assert!(problem.message.ends_with("; 19999 more likewise"), "{}", problem.message);
    }
}

//! What differs between two responses, apart from what each server chooses.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// More differences of one response say nothing new.
const DIFFERENCES_LIMIT: usize = 12;

/// Fields whose values a server chooses.
const CHOSEN: [(&str, &str); 9] = [
    ("uid", "UID"),
    ("resourceVersion", "VERSION"),
    ("creationTimestamp", "TIME"),
    ("deletionTimestamp", "TIME"),
    ("time", "TIME"),
    ("lastTransitionTime", "TIME"),
    ("continue", "TOKEN"),
    ("selfLink", "LINK"),
    ("healthCheckNodePort", "PORT"),
];

/// The name of the embedded server's own Node.
pub const THIS_NODE: &str = "this-node";

/// Objects of one server only: the real one's own Service and what follows from it, the embedded one's Node.
const OF_THE_CLUSTER: [&str; 2] = ["kubernetes", THIS_NODE];

/// Replaces what a server chooses by placeholders, also where it is part of a message.
#[derive(Debug, Default)]
pub struct Normalizer {
    /// Values of this server, and their placeholders.
    seen: BTreeMap<String, &'static str>,
}

impl Normalizer {
    pub fn normalize(&mut self, value: &mut Value) {
        self.replace_chosen(value);
        self.replace_in_text(value);
    }

    fn replace_chosen(&mut self, value: &mut Value) {
        match value {
            Value::Array(items) => {
                items.retain(|item| !is_of_the_cluster(item));
                items.iter_mut().for_each(|item| self.replace_chosen(item));
            }
            Value::Object(fields) => {
                for (name, field) in fields.iter_mut() {
                    if name == "managedFields" {
                        sort_managers(field);
                    }
                    let placeholder = CHOSEN.iter().find(|(chosen, _)| chosen == name);
                    match (placeholder, &*field) {
                        // A version of 0 or none has a meaning.
                        (Some((_, placeholder)), Value::String(text))
                            if !text.is_empty() && text != "0" =>
                        {
                            if text.len() > 8 {
                                self.seen.insert(text.clone(), placeholder);
                            }
                            *field = Value::String((*placeholder).to_owned());
                        }
                        (Some((_, placeholder)), Value::Number(_)) => {
                            *field = Value::String((*placeholder).to_owned());
                        }
                        _ => self.replace_chosen(field),
                    }
                }
            }
            _ => {}
        }
    }

    fn replace_in_text(&self, value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace_in_text(item)),
            Value::Object(fields) => {
                fields.values_mut().for_each(|field| self.replace_in_text(field));
            }
            Value::String(text) if is_age(text) => *text = "AGE".to_owned(),
            Value::String(text) => {
                for (seen, placeholder) in &self.seen {
                    if text.contains(seen.as_str()) {
                        *text = text.replace(seen.as_str(), placeholder);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Managers are in the order of their times, which are seconds.
fn sort_managers(entries: &mut Value) {
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    if let Some(entries) = entries.as_array_mut() {
        entries.sort_by_key(|entry| {
            ["manager", "operation", "subresource"].map(|name| text(entry, name))
        });
    }
}

/// The age of an object in a table.
fn is_age(text: &str) -> bool {
    text.strip_suffix('s').is_some_and(|number| number.parse::<u32>().is_ok())
}

fn is_of_the_cluster(item: &Value) -> bool {
    let metadata = [&item["metadata"], &item["object"]["metadata"]];
    let name = metadata.iter().find_map(|metadata| metadata["name"].as_str());
    // Events of the real server's own controllers, which repair addresses.
    let is_report = item["action"] == "IPAddressAllocation";
    is_report || name.is_some_and(|name| OF_THE_CLUSTER.contains(&name))
}

/// Removes from what the real server says all that the embedded one says nothing about: it serves fewer kinds.
pub fn reduce_to(real: &mut Value, embedded: &Value) {
    match (real, embedded) {
        (Value::Object(real), Value::Object(embedded)) => {
            real.retain(|name, _| embedded.contains_key(name));
            for (name, value) in real {
                reduce_to(value, &embedded[name]);
            }
        }
        (Value::Array(real), Value::Array(embedded)) => {
            let key = |value: &Value| {
                let of = |name: &str| value[name].as_str().map(str::to_owned);
                let name = value["metadata"]["name"].as_str().map(str::to_owned);
                name.or_else(|| of("name")).or_else(|| of("resource")).or_else(|| of("version"))
            };
            let find = |wanted: &Value| embedded.iter().find(|value| key(value) == key(wanted));
            if embedded.iter().all(|value| key(value).is_some()) {
                real.retain(|value| find(value).is_some());
                real.sort_by_key(|value| {
                    embedded.iter().position(|other| key(other) == key(value))
                });
            }
            for value in real {
                if let Some(other) = find(value) {
                    reduce_to(value, other);
                }
            }
        }
        _ => {}
    }
}

/// A place in a response where the servers differ: a JSON pointer, and both values.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    pub place: String,
    pub real: String,
    pub embedded: String,
}

/// The differences of two values.
pub fn differences(real: &Value, embedded: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    collect_differences(real, embedded, &mut String::new(), &mut found);
    found.truncate(DIFFERENCES_LIMIT);
    found
}

fn collect_differences(
    real: &Value,
    embedded: &Value,
    place: &mut String,
    found: &mut Vec<Difference>,
) {
    let mut inside = |name: &str, real: &Value, embedded: &Value| {
        let length = place.len();
        place.push('/');
        place.push_str(name);
        collect_differences(real, embedded, place, found);
        place.truncate(length);
    };
    match (real, embedded) {
        (Value::Object(real), Value::Object(embedded)) => {
            let absent = Value::String("(absent)".to_owned());
            let get =
                |fields: &Map<String, Value>, name| fields.get(name).unwrap_or(&absent).clone();
            let mut names: Vec<_> = real.keys().chain(embedded.keys()).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                inside(name, &get(real, name), &get(embedded, name));
            }
        }
        (Value::Array(real), Value::Array(embedded)) if real.len() == embedded.len() => {
            for (index, (real, embedded)) in real.iter().zip(embedded).enumerate() {
                inside(&index.to_string(), real, embedded);
            }
        }
        _ if real == embedded => {}
        _ => found.push(Difference {
            place: if place.is_empty() { "/".to_owned() } else { place.clone() },
            real: shorten(&real.to_string()),
            embedded: shorten(&embedded.to_string()),
        }),
    }
}

/// The beginning of a long text.
pub fn shorten(text: &str) -> String {
    const LIMIT: usize = 300;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_server_chooses_is_no_difference() {
        let uid = "0b6ad1a7-0000-4000-8000-000000000001";
        let mut real = json!({"metadata": {"uid": uid, "resourceVersion": "12"}, "message": format!("UID: {uid}")});
        let mut embedded = json!({"metadata": {"uid": "another one", "resourceVersion": "7"}, "message": "UID: another one"});
        Normalizer::default().normalize(&mut real);
        Normalizer::default().normalize(&mut embedded);
        assert_eq!(differences(&real, &embedded), []);
        assert_eq!(real["message"], "UID: UID");
    }

    #[test]
    fn differences_are_found_by_their_place() {
        let real = json!({"a": [{"b": 1}, {"b": 2}], "c": "x"});
        let embedded = json!({"a": [{"b": 1}, {"b": 3}], "d": null});
        let found = differences(&real, &embedded);
        let places: Vec<_> = found.iter().map(|each| each.place.as_str()).collect();
        assert_eq!(places, ["/a/1/b", "/c", "/d"]);
        assert_eq!((found[0].real.as_str(), found[0].embedded.as_str()), ("2", "3"));
        assert_eq!(found[2].real, "\"(absent)\"");
    }

    #[test]
    fn what_the_embedded_server_does_not_serve_is_left_out() {
        let mut real = json!({"resources": [{"name": "pods"}, {"name": "services", "verbs": ["get"]}], "x": 1});
        let embedded = json!({"resources": [{"name": "services", "verbs": ["list"]}]});
        reduce_to(&mut real, &embedded);
        assert_eq!(real, json!({"resources": [{"name": "services", "verbs": ["get"]}]}));
    }
}

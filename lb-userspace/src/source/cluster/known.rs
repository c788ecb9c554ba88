//! The reported objects of one kind, so that a new list can be reported as a difference. Pure.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use crate::model::{Kind, Object, ObjectRef, Problem};
use crate::source::Event;

pub struct Known {
    kind: Kind,
    /// The hash of each object's uid and resource version.
    versions: HashMap<ObjectRef, u64>,
    /// While the objects are listed: those seen in the list.
    listing: Option<HashSet<ObjectRef>>,
}

impl Known {
    pub fn new(kind: Kind) -> Self {
        Self { kind, versions: HashMap::new(), listing: None }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.versions.len()
    }

    pub fn contains(&self, reference: &ObjectRef) -> bool {
        self.versions.contains_key(reference)
    }

    /// A list begins. One that was begun before is void.
    pub fn list(&mut self) {
        self.listing = Some(HashSet::new());
    }

    /// A list has ended: what it did not hold is gone.
    pub fn listed(&mut self) -> Vec<Event> {
        let Some(seen) = self.listing.take() else { return Vec::new() };
        let gone: Vec<ObjectRef> =
            self.versions.keys().filter(|known| !seen.contains(known)).cloned().collect();
        for reference in &gone {
            self.versions.remove(reference);
        }
        gone.into_iter().map(Event::Deleted).collect()
    }

    /// An object is there, listed or changed. What can't be read becomes a problem, and what was
    /// described of it before stays true.
    pub fn apply(&mut self, value: Value) -> Option<Event> {
        let reference = ObjectRef::of(self.kind, &value);
        if let Some(seen) = &mut self.listing {
            seen.insert(reference.clone());
        }
        let version = version(&value);
        if self.versions.insert(reference.clone(), version) == Some(version) {
            return None;
        }
        Some(match Object::read(self.kind, value) {
            Ok(object) => Event::Applied(object),
            Err(error) => Event::Problem(Problem {
                object: reference.to_string(),
                field: String::new(),
                message: error.to_string(),
            }),
        })
    }

    pub fn delete(&mut self, value: &Value) -> Option<Event> {
        let reference = ObjectRef::of(self.kind, value);
        self.versions.remove(&reference)?;
        Some(Event::Deleted(reference))
    }
}

/// Identifies a state of an object. The uid tells apart objects that had the same name one after the other.
fn version(value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    for field in ["uid", "resourceVersion"] {
        value["metadata"][field].as_str().hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, version: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "default", "resourceVersion": version}})
    }

    fn described(events: impl IntoIterator<Item = Event>) -> Vec<String> {
        let mut described: Vec<String> = events
            .into_iter()
            .map(|event| match event {
                Event::Applied(object) => format!("+{}", object.reference().name),
                Event::Deleted(reference) => format!("-{}", reference.name),
                Event::Problem(problem) => format!("?{problem}"),
                Event::Synced | Event::Together(_) => panic!("{event:?} is not expected here"),
            })
            .collect();
        described.sort();
        described
    }

    #[test]
    fn a_new_list_yields_only_changes_and_deletions() {
        let mut known = Known::new(Kind::Service);
        known.list();
        let first = ["a", "b", "c"].map(|name| known.apply(service(name, "1")));
        assert_eq!(described(first.into_iter().flatten()), ["+a", "+b", "+c"]);
        assert_eq!(described(known.listed()), [""; 0]);

        known.list();
        let second = [("a", "1"), ("b", "2"), ("d", "3")];
        let second = second.map(|(name, version)| known.apply(service(name, version)));
        assert_eq!(described(second.into_iter().flatten()), ["+b", "+d"]);
        assert_eq!(described(known.listed()), ["-c"]);
        assert_eq!(known.len(), 3);
    }

    #[test]
    fn a_list_that_breaks_off_makes_nothing_disappear() {
        let mut known = Known::new(Kind::Service);
        known.apply(service("a", "1"));
        known.apply(service("b", "1"));
        known.list();
        known.apply(service("a", "1"));
        known.list();
        known.apply(service("b", "1"));
        known.apply(service("a", "1"));
        assert_eq!(described(known.listed()), [""; 0]);
    }

    #[test]
    fn an_object_created_again_under_its_name_is_reported() {
        let mut known = Known::new(Kind::Service);
        let with_uid = |uid: &str| {
            let mut service = service("a", "1");
            service["metadata"]["uid"] = uid.into();
            service
        };
        assert!(known.apply(with_uid("1")).is_some());
        assert!(known.apply(with_uid("1")).is_none());
        assert!(known.apply(with_uid("2")).is_some());
    }

    #[test]
    fn what_cannot_be_read_is_named_and_stays_as_it_was() {
        let mut known = Known::new(Kind::Service);
        known.apply(service("a", "1"));
        let mut wrong = service("a", "2");
        wrong["spec"] = json!({"ports": [{"port": "http"}]});
        known.list();
        let event = known.apply(wrong);
        let [problem] = &described(event)[..] else { panic!() };
        assert!(problem.starts_with("?Service default/a: spec.ports[0].port"), "{problem}");
        assert_eq!(described(known.listed()), [""; 0]);
    }

    #[test]
    fn the_deletion_of_an_unreported_object_is_not_reported() {
        let mut known = Known::new(Kind::Service);
        assert!(known.delete(&service("a", "1")).is_none());
        known.apply(service("a", "1"));
        assert_eq!(described(known.delete(&service("a", "2"))), ["-a"]);
    }
}

//! The reported objects of one kind, so that a new list can be reported as a difference. Pure.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use lb_rules::model::{Kind, ObjectRef, Problem};
use serde_json::Value;

use super::received_object::ReceivedObject;
use crate::Event;

pub struct ReportedObjects {
    kind: Kind,
    objects: HashMap<ObjectRef, ReportedObject>,
    /// Those of which the last state could not be read.
    unreadable: HashSet<ObjectRef>,
    /// Whether the objects are being listed.
    is_listing: bool,
}

struct ReportedObject {
    /// See [`ReceivedObject::state`]; `None` if an earlier agent has seen it.
    state: Option<u64>,
    /// Whether the list that is being read has it.
    is_listed: bool,
}

impl ReportedObjects {
    pub fn new(kind: Kind) -> Self {
        Self { kind, objects: HashMap::new(), unreadable: HashSet::new(), is_listing: false }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn contains(&self, reference: &ObjectRef) -> bool {
        self.objects.contains_key(reference)
    }

    /// Whether the last state of each object could be read.
    pub(crate) fn is_readable(&self) -> bool {
        self.unreadable.is_empty()
    }

    /// An object is there as an earlier agent has seen it.
    pub fn resume(&mut self, reference: ObjectRef) {
        self.objects.insert(reference, ReportedObject { state: None, is_listed: true });
    }

    /// A list begins. One that was begun before is void.
    pub fn list(&mut self) {
        self.is_listing = true;
        self.objects.values_mut().for_each(|seen| seen.is_listed = false);
    }

    /// A list has ended: what it did not hold is gone.
    pub fn listed(&mut self) -> Vec<Event> {
        if !std::mem::take(&mut self.is_listing) {
            return Vec::new();
        }
        let gone = self.objects.extract_if(|_, seen| !seen.is_listed);
        let gone = gone.map(|(reference, _)| {
            self.unreadable.remove(&reference);
            Event::Deleted(reference)
        });
        gone.collect()
    }

    /// An object is there, listed or changed. What can't be read becomes a problem, and what was
    /// described of it before stays true.
    pub fn apply(&mut self, sent: ReceivedObject) -> Option<Event> {
        let (reference, state) = (sent.reference(self.kind), Some(sent.state()));
        let seen = ReportedObject { state, is_listed: true };
        let known = self.objects.entry(reference);
        let is_same = matches!(&known, Entry::Occupied(known) if known.get().state == state);
        if is_same {
            known.insert_entry(seen);
            return None;
        }
        let event = match sent.decode(self.kind) {
            Ok(object) => {
                self.unreadable.remove(known.key());
                Event::Applied(object)
            }
            Err(error) => {
                self.unreadable.insert(known.key().clone());
                Event::Problem(Problem {
                    object: known.key().to_string(),
                    field: String::new(),
                    message: error.to_string(),
                })
            }
        };
        known.insert_entry(seen);
        Some(event)
    }

    pub fn delete(&mut self, value: &Value) -> Option<Event> {
        let reference = ObjectRef::of(self.kind, value);
        self.unreadable.remove(&reference);
        self.objects.remove(&reference)?;
        Some(Event::Deleted(reference))
    }
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
                Event::Synced(_) | Event::Together(_) => panic!("{event:?} is not expected here"),
            })
            .collect();
        described.sort();
        described
    }

    #[test]
    fn a_new_list_yields_only_changes_and_deletions() {
        let mut known = ReportedObjects::new(Kind::Service);
        known.list();
        let first = ["a", "b", "c"].map(|name| known.apply(service(name, "1").into()));
        assert_eq!(described(first.into_iter().flatten()), ["+a", "+b", "+c"]);
        assert_eq!(described(known.listed()), [""; 0]);

        known.list();
        let second = [("a", "1"), ("b", "2"), ("d", "3")];
        let second = second.map(|(name, version)| known.apply(service(name, version).into()));
        assert_eq!(described(second.into_iter().flatten()), ["+b", "+d"]);
        assert_eq!(described(known.listed()), ["-c"]);
        assert_eq!(known.len(), 3);
    }

    #[test]
    fn a_list_that_breaks_off_makes_nothing_disappear() {
        let mut known = ReportedObjects::new(Kind::Service);
        known.apply(service("a", "1").into());
        known.apply(service("b", "1").into());
        known.list();
        known.apply(service("a", "1").into());
        known.list();
        known.apply(service("b", "1").into());
        known.apply(service("a", "1").into());
        assert_eq!(described(known.listed()), [""; 0]);
    }

    #[test]
    fn an_object_created_again_under_its_name_is_reported() {
        let mut known = ReportedObjects::new(Kind::Service);
        let with_uid = |uid: &str| {
            let mut service = service("a", "1");
            service["metadata"]["uid"] = uid.into();
            service
        };
        assert!(known.apply(with_uid("1").into()).is_some());
        assert!(known.apply(with_uid("1").into()).is_none());
        assert!(known.apply(with_uid("2").into()).is_some());
    }

    #[test]
    fn what_cannot_be_read_is_named_and_stays_as_it_was() {
        let mut known = ReportedObjects::new(Kind::Service);
        known.apply(service("a", "1").into());
        let mut wrong = service("a", "2");
        wrong["spec"] = json!({"ports": [{"port": "http"}]});
        known.list();
        let event = known.apply(wrong.into());
        let [problem] = &described(event)[..] else { panic!() };
        assert!(problem.starts_with("?Service default/a: spec.ports[0].port"), "{problem}");
        assert_eq!(described(known.listed()), [""; 0]);
    }

    #[test]
    fn an_object_is_unreadable_until_it_changes_or_goes() {
        let mut known = ReportedObjects::new(Kind::Service);
        let wrong = |version: &str| {
            let mut wrong = service("a", version);
            wrong["spec"] = json!({"ports": [{"port": "http"}]});
            wrong
        };
        known.apply(wrong("1").into());
        assert!(!known.is_readable());
        known.apply(service("a", "2").into());
        assert!(known.is_readable());
        known.apply(wrong("3").into());
        known.delete(&wrong("4"));
        assert!(known.is_readable());
        known.apply(wrong("5").into());
        known.list();
        known.listed();
        assert!(known.is_readable());
    }

    #[test]
    fn a_list_after_the_objects_of_an_earlier_agent_reports_all_and_what_is_gone() {
        let mut known = ReportedObjects::new(Kind::Service);
        for name in ["a", "b"] {
            known.resume(ObjectRef::new(Kind::Service, None, Some(name)));
        }
        known.list();
        assert_eq!(described(known.apply(service("a", "1").into())), ["+a"]);
        assert_eq!(described(known.listed()), ["-b"]);
    }

    #[test]
    fn the_deletion_of_an_unreported_object_is_not_reported() {
        let mut known = ReportedObjects::new(Kind::Service);
        assert!(known.delete(&service("a", "1")).is_none());
        known.apply(service("a", "1").into());
        assert_eq!(described(known.delete(&service("a", "2"))), ["-a"]);
    }
}

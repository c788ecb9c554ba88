//! Objects from the text of a manifest: YAML or JSON, several documents, lists of objects.
//!
//! Pure. Unreadable parts become problems that name file, line and field, and the rest is used;
//! only a text that is not YAML has no contents.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::model::{Kind, Object, ObjectRef, Problem};

/// The contents of one or all manifests.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub objects: BTreeMap<ObjectRef, Arc<Object>>,
    /// Objects that exist but can't be read.
    pub unreadable: BTreeSet<ObjectRef>,
    pub problems: BTreeSet<Problem>,
}

/// Parses the text of a file, with objects for the agent.
pub fn parse_documents(file: &str, text: &str) -> Result<Contents, Problem> {
    read_kinds(file, text, Kind::OF_AGENT)
}

/// Parses the text of a file. Objects of other kinds are ignored.
pub fn read_kinds(file: &str, text: &str, kinds: &[Kind]) -> Result<Contents, Problem> {
    let documents: Result<Vec<Value>, _> =
        serde_norway::Deserializer::from_str(text).map(Value::deserialize).collect();
    let documents = documents.map_err(|error| {
        let location = error.location().map(|at| format!(":{}:{}", at.line(), at.column()));
        document_problem(
            format!("{file}{}", location.unwrap_or_default()),
            "",
            format!("not YAML: {error}"),
        )
    })?;
    let mut lines = first_lines(text).into_iter();
    let mut contents = Contents::default();
    for document in documents {
        let location = match lines.next() {
            Some(line) => format!("{file}:{line}"),
            None => file.to_owned(),
        };
        contents.add(&location, "", document, kinds);
    }
    Ok(contents)
}

impl Contents {
    /// Adds an object, or all objects of a list. `location` is file and line; `path` is the field path
    /// within.
    fn add(&mut self, location: &str, path: &str, mut value: Value, kinds: &[Kind]) {
        let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        if let Some(list_of) = kind.strip_suffix("List")
            && let Some(Value::Array(items)) = value.get_mut("items").map(Value::take)
        {
            for (index, mut item) in items.into_iter().enumerate() {
                // Items of a `ServiceList` need not have a kind.
                if let Value::Object(fields) = &mut item
                    && !list_of.is_empty()
                {
                    fields.entry("apiVersion").or_insert_with(|| api_version.clone().into());
                    fields.entry("kind").or_insert_with(|| list_of.into());
                }
                self.add(location, &format!("{path}items[{index}] "), item, kinds);
            }
            return;
        }
        if kind.is_empty() && !value.is_null() {
            self.note(location, path, "has no kind, so it is not a Kubernetes object");
        } else if let Some(kind) = Kind::of(&api_version, &kind).filter(|kind| kinds.contains(kind))
        {
            self.add_object(location, path, kind, value);
        } else if kinds.iter().any(|known| known.name() == kind) {
            // The likely case are EndpointSlices of old API versions.
            let message = format!("{kind} of apiVersion {api_version:?} is not known here");
            self.note(location, path, &message);
        } else {
            let item = path.trim_end();
            tracing::debug!(%location, item, %api_version, %kind, "object of an unused kind ignored");
        }
    }

    fn add_object(&mut self, location: &str, path: &str, kind: Kind, value: Value) {
        let reference = ObjectRef::of(kind, &value);
        let path = format!("{path}{reference}");
        match Object::read(kind, value) {
            Err(error) => {
                self.note(location, &path, &error.to_string());
                self.unreadable.insert(reference);
            }
            Ok(_) if reference.name.is_empty() => {
                self.note(location, &path, "metadata.name is missing");
            }
            Ok(object) => self.insert(location, reference, Arc::new(object)),
        }
    }

    /// Adds an object; of two with the same name the first one is used.
    pub fn insert(&mut self, location: &str, reference: ObjectRef, object: Arc<Object>) {
        match self.objects.entry(reference) {
            Entry::Vacant(vacant) => {
                vacant.insert(object);
            }
            Entry::Occupied(known) => {
                let path = known.key().to_string();
                self.note(location, &path, "is defined twice; the first one counts");
            }
        }
    }

    fn note(&mut self, location: &str, path: &str, message: &str) {
        self.problems.insert(document_problem(
            location.to_owned(),
            path.trim_end(),
            message.to_owned(),
        ));
    }
}

fn document_problem(location: String, path: &str, message: String) -> Problem {
    Problem { object: location, field: path.to_owned(), message }
}

/// The first line of each document, counted from 1.
fn first_lines(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut within = false;
    for (index, line) in text.lines().enumerate() {
        let marker = |marker| {
            line.strip_prefix(marker)
                .is_some_and(|rest| rest.trim_start() != rest || rest.is_empty())
        };
        if marker("---") {
            found.push(index + 1);
            within = true;
        } else if marker("...") {
            within = false;
        } else if !within && !line.trim().is_empty() && !line.trim_start().starts_with(['#', '%']) {
            found.push(index + 1);
            within = true;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: &str = "{apiVersion: v1, kind: Service, metadata: {name: web}}";

    fn names(contents: &Contents) -> Vec<String> {
        contents.objects.keys().map(ToString::to_string).collect()
    }

    fn problems(text: &str) -> Vec<String> {
        parse_documents("a.yaml", text).unwrap().problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn several_documents_and_lists_are_read() {
        let typed = "{apiVersion: v1, kind: ServiceList, items: [{metadata: {name: listed}}]}";
        let mixed = format!("{{apiVersion: v1, kind: List, items: [{SERVICE}]}}");
        let contents =
            parse_documents("a.yaml", &format!("{mixed}\n---\n{typed}\n---\n# nothing\n")).unwrap();
        assert_eq!(names(&contents), ["Service default/listed", "Service default/web"]);
        assert!(contents.problems.is_empty(), "{:?}", contents.problems);
    }

    #[test]
    fn json_is_read() {
        let text = "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Node\",\n\t\"metadata\": {\"name\": \"a\"}\n}\n";
        assert_eq!(names(&parse_documents("a.json", text).unwrap()), ["Node a"]);
    }

    #[test]
    fn other_kinds_are_left_alone() {
        let contents = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}";
        let contents = parse_documents("a.yaml", contents).unwrap();
        assert!(contents.objects.is_empty() && contents.problems.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_by_file_line_and_field_and_the_rest_goes_on() {
        let wrong =
            "kind: Service\napiVersion: v1\nmetadata: {name: x}\nspec: {ports: [{port: a}]}";
        let text = format!("# a comment\n{SERVICE}\n---\n{wrong}\n");
        assert_eq!(names(&parse_documents("a.yaml", &text).unwrap()), ["Service default/web"]);
        let [problem] = &problems(&text)[..] else { panic!() };
        let start = "a.yaml:3: Service default/x: spec.ports[0].port: invalid type";
        assert!(problem.starts_with(start), "{problem}");
    }

    #[test]
    fn what_is_wrong_in_a_list_is_named_by_its_index() {
        let text = format!("{{apiVersion: v1, kind: List, items: [{SERVICE}, {SERVICE}, {{}}]}}");
        let all = [
            "a.yaml:1: Service default/web: is defined twice; the first one counts",
            "a.yaml:1: items[2]: has no kind, so it is not a Kubernetes object",
        ];
        assert_eq!(problems(&text), all);
    }

    #[test]
    fn an_old_api_version_and_a_missing_name_are_named() {
        let old = "{apiVersion: discovery.k8s.io/v1beta1, kind: EndpointSlice}";
        let text = format!("{old}\n---\n{{apiVersion: v1, kind: Service}}");
        let [first, second] = &problems(&text)[..] else { panic!() };
        assert!(first.contains("v1beta1"), "{first}");
        assert!(second.ends_with("metadata.name is missing"), "{second}");
    }

    #[test]
    fn documents_have_the_lines_at_which_they_start() {
        assert_eq!(first_lines("a: 1\n---\nb: 1\n--- # c\nc: 1\n...\n# d\n\nd: 1\n"), [1, 2, 4, 9]);
        assert_eq!(first_lines("# a\n---\na: |\n  ---\n----\n"), [2]);
    }

    #[test]
    fn what_is_no_yaml_is_named_by_its_line() {
        let problem =
            parse_documents("a.yaml", "kind: Service\nmetadata: {name: [}\n").unwrap_err();
        assert!(problem.to_string().starts_with("a.yaml:2:19: not YAML"), "{problem}");
    }
}

//! Objects from files: YAML or JSON, several documents a file, lists of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::object::{Kind, Object, ObjectRef};
use super::{Event, Source, watch};
use crate::model::Problem;

/// The files and directories to read.
#[derive(Clone, Debug)]
pub struct Manifests {
    paths: Vec<PathBuf>,
}

/// What the files say.
#[derive(Debug, Default)]
pub struct Contents {
    pub objects: BTreeMap<ObjectRef, Object>,
    pub problems: BTreeSet<Problem>,
}

impl Manifests {
    /// Takes the paths if every one of them can be read and is YAML or JSON throughout: whoever
    /// starts the agent is there to mend it. Later, a broken file keeps only itself out.
    pub fn open(paths: Vec<PathBuf>) -> Result<Self> {
        for path in &paths {
            let files = files(path)
                .with_context(|| format!("--manifests {}: can't be read", path.display()))?;
            if files.is_empty() {
                tracing::warn!("{}: no .yaml, .yml or .json files yet", path.display());
            }
            for file in files {
                documents(&file)?;
            }
        }
        Ok(Self { paths })
    }

    pub fn read(&self) -> Contents {
        let mut contents = Contents::default();
        for path in &self.paths {
            match files(path) {
                Ok(files) => files.iter().for_each(|file| contents.add_file(file)),
                Err(error) => contents.problem(path, "", &format!("can't be read: {error}")),
            }
        }
        contents
    }
}

impl Source for Manifests {
    async fn run(self, events: mpsc::UnboundedSender<Event>) -> Result<()> {
        let mut changes = watch::changes(&self.paths)?;
        let mut known = Contents::default();
        let mut synced = false;
        loop {
            let now = self.read();
            for event in difference(&known, &now) {
                if events.send(event).is_err() {
                    return Ok(());
                }
            }
            if !synced && events.send(Event::Synced).is_err() {
                return Ok(());
            }
            synced = true;
            known = now;
            tokio::select! {
                changed = changes.changed() => if !changed { bail!("the files are not watched any more") },
                () = events.closed() => return Ok(()),
            }
        }
    }
}

/// What happened between two readings.
fn difference(before: &Contents, now: &Contents) -> Vec<Event> {
    let gone = before.objects.keys().filter(|reference| !now.objects.contains_key(reference));
    let changed = now
        .objects
        .iter()
        .filter(|(reference, object)| before.objects.get(reference) != Some(object));
    let problems = now.problems.difference(&before.problems);
    gone.cloned()
        .map(Event::Deleted)
        .chain(changed.map(|(_, object)| Event::Applied(object.clone())))
        .chain(problems.cloned().map(Event::Problem))
        .collect()
}

impl Contents {
    fn add_file(&mut self, file: &Path) {
        match documents(file) {
            Ok(documents) => {
                for (index, document) in documents.into_iter().enumerate() {
                    self.add(file, &format!("document {}", index + 1), document);
                }
            }
            Err(error) => self.problem(file, "", &format!("{error:#}")),
        }
    }

    /// Takes in an object, or all objects of a list.
    fn add(&mut self, file: &Path, place: &str, mut value: Value) {
        let text = |value: &Value, field: &str| {
            value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (api_version, kind) = (text(&value, "apiVersion"), text(&value, "kind"));
        if let Some(Value::Array(items)) = value.get_mut("items").map(Value::take) {
            let item_kind = kind.strip_suffix("List").unwrap_or_default();
            for (index, mut item) in items.into_iter().enumerate() {
                // Items of a `ServiceList` need not repeat what they are.
                if let Value::Object(fields) = &mut item
                    && !item_kind.is_empty()
                {
                    fields.entry("apiVersion").or_insert_with(|| api_version.clone().into());
                    fields.entry("kind").or_insert_with(|| item_kind.into());
                }
                self.add(file, &format!("{place}, items[{index}]"), item);
            }
            return;
        }
        let Some(kind) = Kind::of(&api_version, &kind) else {
            if kind.is_empty() && !value.is_null() {
                self.problem(file, place, "has no kind, so it is no object");
            }
            tracing::debug!("{}: {place}: not needed: {api_version} {kind}", file.display());
            return;
        };
        match Object::read(kind, value) {
            Ok(object) => self.insert(file, place, object),
            Err(error) => self.problem(file, place, &format!("{}: {error}", kind.name())),
        }
    }

    fn insert(&mut self, file: &Path, place: &str, object: Object) {
        let reference = object.reference();
        if reference.name.is_empty() {
            self.problem(
                file,
                place,
                &format!("{}: metadata.name is missing", reference.kind.name()),
            );
            return;
        }
        if self.objects.contains_key(&reference) {
            self.problem(
                file,
                place,
                &format!("{reference} is defined twice; the first one counts"),
            );
            return;
        }
        self.objects.insert(reference, object);
    }

    fn problem(&mut self, file: &Path, place: &str, message: &str) {
        let object = file.display().to_string();
        let field = if place.is_empty() { "file".to_owned() } else { place.to_owned() };
        self.problems.insert(Problem { object, field, message: message.to_owned() });
    }
}

/// The manifests at a path: the file itself, or those in a directory, in order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let is_manifest = file
            .extension()
            .is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e == *known));
        if is_manifest && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// The documents of a file. The error says where it stops being YAML.
fn documents(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    serde_norway::Deserializer::from_str(&text)
        .map(Value::deserialize)
        .collect::<Result<_, _>>()
        .map_err(|error| match error.location() {
            Some(at) => anyhow!("{}:{}:{}: {error}", file.display(), at.line(), at.column()),
            None => anyhow!("{}: {error}", file.display()),
        })
        .context("not valid YAML or JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Contents {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a.yaml"), text).unwrap();
        Manifests { paths: vec![directory.path().to_owned()] }.read()
    }

    fn names(contents: &Contents) -> Vec<String> {
        contents.objects.keys().map(ToString::to_string).collect()
    }

    const SERVICE: &str = "{apiVersion: v1, kind: Service, metadata: {name: web}}";

    #[test]
    fn several_documents_and_lists_are_read() {
        let list = "{apiVersion: v1, kind: ServiceList, items: [{metadata: {name: listed}}]}";
        let contents = read(&format!("{SERVICE}\n---\n{list}\n---\n# nothing\n"));
        assert_eq!(names(&contents), ["Service default/listed", "Service default/web"]);
        assert!(contents.problems.is_empty(), "{:?}", contents.problems);
    }

    #[test]
    fn other_kinds_are_left_alone() {
        let contents = read("{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}");
        assert!(contents.objects.is_empty() && contents.problems.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_by_file_document_and_field_and_the_rest_goes_on() {
        let wrong =
            "{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {ports: [{port: many}]}}";
        let contents = read(&format!("{wrong}\n---\n{SERVICE}"));
        assert_eq!(names(&contents), ["Service default/web"]);
        let problem = contents.problems.first().unwrap().to_string();
        assert!(problem.contains("a.yaml: document 1: Service: spec.ports[0].port"), "{problem}");
    }

    #[test]
    fn a_start_with_broken_yaml_is_refused_with_the_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("broken.yaml");
        fs::write(&file, "kind: Service\nmetadata: {name: [}\n").unwrap();
        let error = format!("{:#}", Manifests::open(vec![file]).unwrap_err());
        assert!(error.contains("broken.yaml:2:"), "{error}");
    }

    #[test]
    fn only_differences_are_told() {
        let before = read(&format!("{SERVICE}\n---\n{}", SERVICE.replace("web", "gone")));
        let now = read(&format!("{SERVICE}\n---\n{}", SERVICE.replace("web", "new")));
        let events = difference(&before, &now);
        assert_eq!(events.len(), 2);
        assert!(matches!(&events[0], Event::Deleted(reference) if reference.name == "gone"));
        assert!(matches!(&events[1], Event::Applied(object) if object.reference().name == "new"));
    }
}

//! Label and field selectors.
//!
//! Bounded: a selector has at most `MAX_REQUIREMENTS` requirements, and a list of values costs the logarithm of
//! its length for each object.

use std::collections::BTreeSet;

use serde_json::Value;

use super::shown;
use crate::failure::ApiFailure;
use crate::kinds::{ApiKind, names};
use crate::storage::{ObjectHead, StoredObject};

/// The limit of requirements, labels and fields each.
const MAX_REQUIREMENTS: usize = 256;

/// Fields of all kinds.
const HEAD_FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

/// Label and field requirements. All of them must match.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectSelector {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LabelRequirement {
    key: String,
    test: SelectorTest,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SelectorTest {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    Missing,
    Greater(i64),
    Less(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    path: String,
    value: String,
    equal: bool,
}

impl ObjectSelector {
    pub fn parse(kind: &ApiKind, labels: &str, fields: &str) -> Result<Self, ApiFailure> {
        let labels = labels_of(labels).map_err(|why| {
            ApiFailure::bad_request(format!("unable to parse requirement: {why}"))
        })?;
        let fields = parse_field_requirements(fields).map_err(ApiFailure::bad_request)?;
        for (name, count) in [("labelSelector", labels.len()), ("fieldSelector", fields.len())] {
            if count > MAX_REQUIREMENTS {
                let why =
                    format!("{name} has {count} requirements, the limit is {MAX_REQUIREMENTS}");
                return Err(ApiFailure::bad_request(why));
            }
        }
        for field in &fields {
            let known = HEAD_FIELDS.contains(&field.path.as_str())
                || kind.rules.field(&Value::Null, &field.path).is_some();
            if !known {
                // kubectl prints the request itself.
                let why = format!("field label not supported: {}", field.path);
                return Err(ApiFailure::bad_request(why));
            }
        }
        Ok(Self { labels, fields })
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The name that all selected objects have.
    pub(crate) fn required_name(&self) -> Option<&str> {
        let names =
            self.fields.iter().find(|wanted| wanted.equal && wanted.path == "metadata.name");
        names.map(|wanted| wanted.value.as_str())
    }

    pub(crate) fn with_name(mut self, name: &str) -> Self {
        let (path, value) = ("metadata.name".to_owned(), name.to_owned());
        self.fields.push(FieldRequirement { path, value, equal: true });
        self
    }

    /// Reads no more of the object than the selector is about.
    pub(crate) fn matches_stored(&self, kind: &ApiKind, stored: &StoredObject) -> bool {
        if self.is_empty() {
            return true;
        }
        let is_of_head = |wanted: &FieldRequirement| HEAD_FIELDS.contains(&wanted.path.as_str());
        if kind.rules.stored_as().is_some() || !self.fields.iter().all(is_of_head) {
            return self.matches(kind, &shown(kind, stored));
        }
        let ObjectHead { metadata, .. } = stored.head();
        let labels = metadata.labels.unwrap_or_default();
        self.passes(
            |label| labels.get(label).map(String::as_str),
            |path| match path {
                "metadata.name" => metadata.name.clone(),
                _ => metadata.namespace.clone(),
            },
        )
    }

    pub fn matches(&self, kind: &ApiKind, object: &Value) -> bool {
        let metadata = &object["metadata"];
        self.passes(
            |label| metadata["labels"][label].as_str(),
            |path| match path {
                "metadata.name" => metadata["name"].as_str().map(str::to_owned),
                "metadata.namespace" => metadata["namespace"].as_str().map(str::to_owned),
                path => kind.rules.field(object, path),
            },
        )
    }

    fn passes<'a>(
        &self,
        label: impl Fn(&str) -> Option<&'a str>,
        field: impl Fn(&str) -> Option<String>,
    ) -> bool {
        self.labels.iter().all(|wanted| wanted.test.passes(label(&wanted.key)))
            && self.fields.iter().all(|wanted| {
                (field(&wanted.path).unwrap_or_default() == wanted.value) == wanted.equal
            })
    }
}

impl SelectorTest {
    fn passes(&self, label: Option<&str>) -> bool {
        let number = || label.and_then(|label| label.parse::<i64>().ok());
        match self {
            Self::In(values) => label.is_some_and(|label| values.contains(label)),
            Self::NotIn(values) => !label.is_some_and(|label| values.contains(label)),
            Self::Exists => label.is_some(),
            Self::Missing => label.is_none(),
            Self::Greater(than) => number().is_some_and(|number| number > *than),
            Self::Less(than) => number().is_some_and(|number| number < *than),
        }
    }
}

/// `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`
fn labels_of(text: &str) -> Result<Vec<LabelRequirement>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split_outside_parentheses(text)?.into_iter().map(str::trim).map(label_requirement).collect()
}

fn split_outside_parentheses(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut open) = (Vec::new(), 0, false);
    for (at, character) in text.char_indices() {
        match character {
            '(' if !open => open = true,
            ')' if open => open = false,
            '(' | ')' => return Err(format!("found '{character}' at {at} of {text:?}")),
            ',' if !open => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if open {
        return Err(format!("a parenthesis is not closed in {text:?}"));
    }
    parts.push(&text[start..]);
    Ok(parts)
}

fn label_requirement(part: &str) -> Result<LabelRequirement, String> {
    let requirement = |key: &str, test| {
        let key = key.trim();
        match names::check_qualified_name(key).into_iter().next() {
            Some(why) => Err(format!("key: Invalid value: {key:?}: {why}, in {part:?}")),
            None => Ok(LabelRequirement { key: key.to_owned(), test }),
        }
    };
    let value = |text: &str| {
        let text = text.trim();
        match names::check_label_value(text).into_iter().next() {
            Some(why) => Err(format!("values: Invalid value: {text:?}: {why}, in {part:?}")),
            None => Ok(text.to_owned()),
        }
    };
    let number = |text: &str| {
        value(text)?.parse::<i64>().map_err(|_| format!("{text:?} is not a number, in {part:?}"))
    };
    if let Some((before, values)) = part.split_once('(') {
        let values =
            values.strip_suffix(')').ok_or_else(|| format!("what follows in {part:?}?"))?;
        if values.trim().is_empty() {
            return Err(format!(
                "for 'in', 'notin' operators, values set can't be empty: {part:?}"
            ));
        }
        let values = values.split(',').map(value).collect::<Result<_, _>>()?;
        return match before.trim().rsplit_once(char::is_whitespace) {
            Some((key, "in")) => requirement(key, SelectorTest::In(values)),
            Some((key, "notin")) => requirement(key, SelectorTest::NotIn(values)),
            _ => Err(format!("found a list, expected 'in' or 'notin' before it, in {part:?}")),
        };
    }
    if let Some((key, text)) = part.split_once("!=") {
        return requirement(key, SelectorTest::NotIn([value(text)?].into()));
    }
    if let Some((key, text)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return requirement(key, SelectorTest::In([value(text)?].into()));
    }
    if let Some((key, text)) = part.split_once('>') {
        return requirement(key, SelectorTest::Greater(number(text)?));
    }
    if let Some((key, text)) = part.split_once('<') {
        return requirement(key, SelectorTest::Less(number(text)?));
    }
    match part.strip_prefix('!') {
        Some(key) => requirement(key, SelectorTest::Missing),
        None => requirement(part, SelectorTest::Exists),
    }
}

/// `metadata.name=a,spec.type!=ClusterIP`. A backslash escapes `\`, `,` and `=`.
fn parse_field_requirements(text: &str) -> Result<Vec<FieldRequirement>, String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for character in text.chars() {
        // `parts` is never empty.
        let Some(last) = parts.last_mut() else { break };
        match character {
            _ if escaped => {
                last.extend(['\\', character]);
                escaped = false;
            }
            '\\' => escaped = true,
            ',' => parts.push(String::new()),
            character => last.push(character),
        }
    }
    if escaped {
        return Err(format!("invalid field selector {text:?}: it ends with a backslash"));
    }
    parts.iter().filter(|part| !part.is_empty()).map(|part| field_requirement(part)).collect()
}

fn field_requirement(part: &str) -> Result<FieldRequirement, String> {
    let split = part
        .split_once("!=")
        .map(|(path, value)| (path, value, false))
        .or_else(|| part.split_once("==").map(|(path, value)| (path, value, true)))
        .or_else(|| part.split_once('=').map(|(path, value)| (path, value, true)));
    let Some((path, value, equal)) = split else {
        return Err(format!("invalid selector: '{part}'; can't understand '{part}'"));
    };
    let mut plain = String::new();
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        plain.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    Ok(FieldRequirement { path: path.to_owned(), value: plain, equal })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fits(selector: &str, labels: Value) -> bool {
        let selector = ObjectSelector { labels: labels_of(selector).unwrap(), fields: Vec::new() };
        let kind = crate::kinds::built_in_kinds().iter().find(|kind| kind.kind == "Lease").unwrap();
        selector.matches(kind, &json!({"metadata": {"labels": labels}}))
    }

    #[test]
    fn labels_are_selected() {
        let labels = json!({"app": "web", "tier": "3", "empty": ""});
        for (selector, expected) in [
            ("", true),
            (" ", true),
            ("app in (,web)", true),
            ("app=web", true),
            ("app==web,tier=3", true),
            ("app=api", false),
            ("app!=api", true),
            ("other!=api", true),
            ("other=", false),
            ("empty=", true),
            ("app in (api, web)", true),
            ("app in (api),tier", false),
            ("app notin (api,web)", false),
            ("other notin (api)", true),
            ("app", true),
            ("!app", false),
            ("!other", true),
            ("tier>2", true),
            ("tier<2", false),
            ("app>2", false),
        ] {
            assert_eq!(fits(selector, labels.clone()), expected, "{selector}");
        }
    }

    #[test]
    fn a_stored_object_matches_as_the_object_does() {
        let kind =
            crate::kinds::built_in_kinds().iter().find(|kind| kind.kind == "Service").unwrap();
        let object = json!({
            "kind": "Service", "metadata": {"name": "a", "namespace": "b", "labels": {"app": "web"}},
            "spec": {"type": "NodePort"},
        });
        let stored = StoredObject::new(1, &object);
        for (labels, fields) in [
            ("", ""),
            ("app=web", ""),
            ("app=api", ""),
            ("!other,app", "metadata.name=a"),
            ("", "metadata.name=b"),
            ("", "metadata.namespace=b"),
            ("", "metadata.namespace!=b"),
            ("app", "spec.type=NodePort"),
            ("app", "spec.type=ClusterIP"),
        ] {
            let selector = ObjectSelector::parse(kind, labels, fields).unwrap();
            let expected = selector.matches(kind, &object);
            assert_eq!(selector.matches_stored(kind, &stored), expected, "{labels} {fields}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for selector in ["a in b", "a in (b", "a b", "=b", "(a)", "a=(b)", "a in (b) c", "a>b"] {
            assert!(labels_of(selector).is_err(), "{selector}");
        }
        // Keys and values that no object can have: as negations they would select everything.
        let long = format!("{}!=b", "k".repeat(64));
        for selector in [
            "-a!=b",
            "a-!=b",
            "!-a",
            "/a!=b",
            "A/b!=c",
            "a/b/c!=d",
            "a!=-b",
            "a!=b.",
            "a notin (-b)",
            "a notin ()",
            "a in ( )",
            "a>-1",
            "a,",
            ",a",
            "a,,b",
            ",",
            &long,
        ] {
            assert!(labels_of(selector).is_err(), "{selector}");
        }
        for selector in ["metadata.name", "a=b\\"] {
            assert!(parse_field_requirements(selector).is_err(), "{selector}");
        }
    }

    #[test]
    fn the_number_of_requirements_is_limited() {
        let kind = crate::kinds::built_in_kinds().iter().find(|kind| kind.kind == "Lease").unwrap();
        let many = vec!["a!=b"; MAX_REQUIREMENTS + 1].join(",");
        assert!(ObjectSelector::parse(kind, &many[5..], "").is_ok());
        let failure = ObjectSelector::parse(kind, &many, "").unwrap_err();
        assert!(failure.message.contains("limit is 256"), "{failure}");
        let many = vec!["metadata.name!=b"; MAX_REQUIREMENTS + 1].join(",");
        assert_eq!(ObjectSelector::parse(kind, "", &many).unwrap_err().code, 400);
    }

    #[test]
    fn fields_are_read_with_their_escapes() {
        let fields = parse_field_requirements(r"metadata.name=a\,b\=c,spec.type!=X").unwrap();
        assert_eq!(fields[0].value, "a,b=c");
        assert_eq!((fields[1].path.as_str(), fields[1].equal), ("spec.type", false));
    }
}

//! What an API server would refuse in a CustomResourceDefinition, and what this server cannot
//! enforce.
//!
//! The rules are those of structural schemas in the documentation of CustomResourceDefinitions:
//! every field has a type, logical junctors only constrain what is declared outside of them, and the
//! metadata has only restrictions of its names.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use regex::Regex;
use serde_json::{Map, Value};

use super::values::{self, LIST_KEYS};
use crate::kinds::{Violation, names};

const LIST_TYPE: &str = "x-kubernetes-list-type";
const MAP_TYPE: &str = "x-kubernetes-map-type";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const RULES: &str = "x-kubernetes-validations";

/// What constrains a value without describing it.
const CONSTRAINTS: [&str; 20] = [
    "allOf",
    "anyOf",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "properties",
];
/// What only describes it. Not allowed within junctors.
const DESCRIPTIONS: [&str; 13] = [
    "additionalProperties",
    "default",
    "description",
    "example",
    "externalDocs",
    "nullable",
    "title",
    "type",
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    MAP_TYPE,
    RULES,
];
const JUNCTORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// All violations of a definition.
pub(crate) fn validate_definition(definition: &Value) -> Vec<Violation> {
    let mut found = Vec::new();
    validate_definition_name(definition, &mut found);
    let spec = &definition["spec"];
    if !spec["conversion"].is_null() && spec["conversion"]["strategy"] != "None" {
        found.push(Violation::forbidden("spec.conversion", "webhooks are not supported"));
    }
    if spec["preserveUnknownFields"] == true {
        found.push(Violation::forbidden("spec.preserveUnknownFields", "must be false"));
    }
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if versions.len() != 1 {
        let detail = "exactly one version is supported";
        found.push(Violation::invalid("spec.versions", versions.len(), detail));
        return found;
    }
    validate_version(&versions[0], &mut found);
    found
}

fn validate_definition_name(definition: &Value, found: &mut Vec<Violation>) {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    found.extend(names::check_name("spec.group", &group, names::check_subdomain));
    if !group.contains('.') {
        let detail = "should be a domain with at least one dot";
        found.push(Violation::invalid("spec.group", group.as_str(), detail));
    }
    if group.ends_with(".k8s.io") || group.ends_with(".kubernetes.io") {
        let detail = "groups of Kubernetes need its approval";
        found.push(Violation::forbidden("spec.group", detail));
    }
    let expected = format!("{plural}.{group}");
    if definition["metadata"]["name"] != expected {
        let detail = format!("must be spec.names.plural+\".\"+spec.group: {expected}");
        let name = definition["metadata"]["name"].clone();
        found.push(Violation::invalid("metadata.name", name, &detail));
    }
    found.extend(names::check_name("spec.names.plural", &plural, names::check_letter_label));
    let kind = text(&spec["names"]["kind"]);
    let lower = kind.to_lowercase();
    found.extend(names::check_name("spec.names.kind", &lower, names::check_letter_label));
    for list in ["shortNames", "categories"] {
        for short in spec["names"][list].as_array().into_iter().flatten() {
            let field = format!("spec.names.{list}");
            found.extend(names::check_name(&field, &text(short), names::check_letter_label));
        }
    }
    if !["Cluster", "Namespaced"].iter().any(|scope| spec["scope"] == *scope) {
        let scopes = ["Cluster", "Namespaced"];
        found.push(Violation::not_supported("spec.scope", spec["scope"].clone(), &scopes));
    }
}

fn validate_version(version: &Value, found: &mut Vec<Violation>) {
    let path = "spec.versions[0]";
    let name = version["name"].as_str().unwrap_or_default();
    found.extend(names::check_name(&format!("{path}.name"), name, names::check_letter_label));
    for flag in ["served", "storage"] {
        if version[flag] != true {
            let detail = "must be true for the only version";
            found.push(Violation::invalid(format!("{path}.{flag}"), version[flag].clone(), detail));
        }
    }
    if version["subresources"]["scale"].is_object() {
        let field = format!("{path}.subresources.scale");
        found.push(Violation::forbidden(field, "is not supported"));
    }
    let columns = version["additionalPrinterColumns"].as_array().into_iter().flatten();
    for (index, column) in columns.enumerate() {
        let path = format!("{path}.additionalPrinterColumns[{index}]");
        let types = ["boolean", "date", "integer", "number", "string"];
        if !types.iter().any(|type_| column["type"] == *type_) {
            let type_ = column["type"].clone();
            found.push(Violation::not_supported(format!("{path}.type"), type_, &types));
        }
        let written = column["jsonPath"].as_str().unwrap_or_default();
        if let Err(error) = super::columns::CellPath::parse(written) {
            let field = format!("{path}.jsonPath");
            found.push(Violation::invalid(field, written, &format!("{error:#}")));
        }
    }
    let field = format!("{path}.schema.openAPIV3Schema");
    let schema = &version["schema"]["openAPIV3Schema"];
    let Some(fields) = schema.as_object() else {
        found.push(Violation::required(field, "schemas are required"));
        return;
    };
    if fields.get("type") != Some(&Value::from("object")) {
        let type_ = fields.get("type").cloned().unwrap_or_default();
        found.push(Violation::invalid(
            format!("{field}.type"),
            type_,
            "must be object at the root",
        ));
    }
    let has_status = schema["properties"]["status"].is_object();
    if has_status && !version["subresources"]["status"].is_object() {
        let detail = "is needed for a status, so that writers of spec and status are separate";
        found.push(Violation::required(format!("{path}.subresources.status"), detail));
    }
    metadata(schema, &field, found);
    let mut walk = StructuralWalk { found };
    walk.node(schema, &field, true);
}

fn metadata(schema: &Value, path: &str, found: &mut Vec<Violation>) {
    let metadata = &schema["properties"]["metadata"];
    let only = |of: &Value, names: &[&str]| {
        of.as_object().is_none_or(|of| of.keys().all(|name| names.contains(&name.as_str())))
    };
    if !only(metadata, &["type", "description"]) {
        let field = format!("{path}.properties[metadata]");
        found.push(Violation::forbidden(field, "must not specify anything; it has its own type"));
    }
}

struct StructuralWalk<'a> {
    found: &'a mut Vec<Violation>,
}

impl StructuralWalk<'_> {
    /// A schema that describes a value: the root, a property, an item.
    fn node(&mut self, schema: &Value, path: &str, is_root: bool) {
        let Some(fields) = schema.as_object() else {
            self.found.push(Violation::required(path, "must be a schema"));
            return;
        };
        for name in fields.keys() {
            let known = DESCRIPTIONS.contains(&name.as_str())
                || CONSTRAINTS.contains(&name.as_str())
                || name == "required";
            if !known {
                self.found.push(Violation::forbidden(format!("{path}.{name}"), "is not supported"));
            }
        }
        self.type_(fields, path);
        self.own_keywords(schema, path);
        for (name, property) in properties(schema) {
            // The metadata is checked separately, apiVersion and kind are given.
            if !(is_root && ["apiVersion", "kind", "metadata"].contains(&name.as_str())) {
                self.node(property, &format!("{path}.properties[{name}]"), false);
            }
        }
        match fields.get("additionalProperties") {
            None => {}
            Some(_) if fields.contains_key("properties") => {
                let detail = "properties and additionalProperties are mutually exclusive";
                let field = format!("{path}.additionalProperties");
                self.found.push(Violation::forbidden(field, detail));
            }
            Some(more) => self.node(more, &format!("{path}.additionalProperties"), false),
        }
        if let Some(items) = fields.get("items") {
            self.node(items, &format!("{path}.items"), false);
        }
        for (junctor, inner) in junctors(schema) {
            self.constraint(inner, schema, &format!("{path}.{junctor}"));
        }
        self.default(schema, path);
    }

    fn type_(&mut self, fields: &Map<String, Value>, path: &str) {
        let is_both = fields.get(INT_OR_STRING) == Some(&Value::Bool(true));
        let types = ["array", "boolean", "integer", "number", "object", "string"];
        let field = format!("{path}.type");
        match fields.get("type") {
            None if is_both => {}
            None => {
                let detail = "must not be empty for specified object fields and array items";
                self.found.push(Violation::required(field, detail));
            }
            Some(_) if is_both => {
                let detail = "must be empty if x-kubernetes-int-or-string is true";
                self.found.push(Violation::forbidden(field, detail));
            }
            Some(type_) if types.iter().any(|known| type_ == *known) => {}
            Some(type_) => {
                self.found.push(Violation::not_supported(field, type_.clone(), &types));
            }
        }
    }

    fn own_keywords(&mut self, schema: &Value, path: &str) {
        let is = |type_: &str| schema["type"] == type_;
        if let Some(format) = schema["format"].as_str() {
            let known = values::FORMATS;
            // Widths of unsigned integers are enforced by minimum and maximum.
            if !known.contains(&format)
                && !["uint8", "uint16", "uint32", "uint64"].contains(&format)
            {
                let field = format!("{path}.format");
                self.found.push(Violation::not_supported(field, format, &known));
            }
        }
        if let Some(pattern) = schema["pattern"].as_str()
            && let Err(error) = Regex::new(pattern)
        {
            let field = format!("{path}.pattern");
            self.found.push(Violation::invalid(field, pattern, &error.to_string()));
        }
        if is("array") && schema["items"].is_null() {
            self.found.push(Violation::required(format!("{path}.items"), "must be specified"));
        }
        for (name, type_) in [("items", "array"), ("properties", "object"), (LIST_TYPE, "array")] {
            if !schema[name].is_null() && !is(type_) {
                let detail = format!("is only allowed if the type is {type_}");
                self.found.push(Violation::forbidden(format!("{path}.{name}"), &detail));
            }
        }
        if let Some(list) = schema.get(LIST_TYPE) {
            self.list(schema, list, path);
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            if schema["properties"][name].is_null() {
                let detail = "names a field that has no schema";
                self.found.push(Violation::invalid(format!("{path}.required"), name, detail));
            }
        }
    }

    fn list(&mut self, schema: &Value, list: &Value, path: &str) {
        let items = &schema["items"];
        match list.as_str() {
            Some("atomic") => {}
            Some("set") => {
                let is_whole = !["array", "object"].iter().any(|type_| items["type"] == *type_)
                    || items[MAP_TYPE] == "atomic"
                    || items[LIST_TYPE] == "atomic";
                if !is_whole {
                    let detail = "items of a set must be scalars or atomic";
                    self.found.push(Violation::invalid(
                        format!("{path}.{LIST_TYPE}"),
                        list.clone(),
                        detail,
                    ));
                }
            }
            Some("map") => {
                let keys = schema[LIST_KEYS].as_array().map(Vec::as_slice).unwrap_or_default();
                let field = format!("{path}.{LIST_KEYS}");
                if keys.is_empty() {
                    let detail = "must not be empty if x-kubernetes-list-type is map";
                    self.found.push(Violation::required(field.clone(), detail));
                }
                for key in keys {
                    let name = key.as_str().unwrap_or_default();
                    let property = &items["properties"][name];
                    let is_scalar = ["boolean", "integer", "number", "string"]
                        .iter()
                        .any(|type_| property["type"] == *type_);
                    let required = items["required"].as_array().into_iter().flatten();
                    if !is_scalar || !required.into_iter().any(|one| one == key) {
                        let detail = "must be a required scalar field of the items";
                        self.found.push(Violation::invalid(field.clone(), name, detail));
                    }
                }
            }
            _ => {
                let types = ["atomic", "map", "set"];
                let field = format!("{path}.{LIST_TYPE}");
                self.found.push(Violation::not_supported(field, list.clone(), &types));
            }
        }
    }

    /// A schema in a junctor: constrains what `outside` declares.
    fn constraint(&mut self, schema: &Value, outside: &Value, path: &str) {
        let is_both = outside[INT_OR_STRING] == true;
        for name in schema.as_object().into_iter().flatten().map(|(name, _)| name.as_str()) {
            if DESCRIPTIONS.contains(&name) && !(name == "type" && is_both) {
                let detail = "must not be specified within allOf, anyOf, oneOf and not";
                self.found.push(Violation::forbidden(format!("{path}.{name}"), detail));
            }
        }
        for (name, property) in properties(schema) {
            let path = format!("{path}.properties[{name}]");
            match &outside["properties"][name] {
                Value::Null => {
                    let detail = "must be declared outside of the junctor, too";
                    self.found.push(Violation::required(path, detail));
                }
                outside => self.constraint(property, outside, &path),
            }
        }
        if let Some(items) = schema.get("items") {
            self.constraint(items, &outside["items"], &format!("{path}.items"));
        }
        for (junctor, inner) in junctors(schema) {
            self.constraint(inner, outside, &format!("{path}.{junctor}"));
        }
    }

    /// A default must be valid, or every object that gets it is refused.
    fn default(&mut self, schema: &Value, path: &str) {
        let Some(default) = schema.get("default") else { return };
        let Ok(patterns) = compile_patterns(schema) else { return };
        let mut whole = default.clone();
        values::set_schema_defaults(schema, &mut whole);
        for violation in values::validate_value(schema, &whole, &patterns) {
            let field = format!("{path}.default{}", violation.field);
            self.found.push(Violation::invalid(field, default.clone(), &violation.message()));
        }
    }
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

/// The schemas in the junctors of a schema, with their paths.
fn junctors(schema: &Value) -> Vec<(String, &Value)> {
    let mut all = Vec::new();
    for name in JUNCTORS {
        for (index, inner) in schema[name].as_array().into_iter().flatten().enumerate() {
            all.push((format!("{name}[{index}]"), inner));
        }
    }
    if schema["not"].is_object() {
        all.push(("not".to_owned(), &schema["not"]));
    }
    all
}

/// Whether a schema has rules in CEL, anywhere.
pub(crate) fn has_validation_rules(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            fields.contains_key(RULES) || fields.values().any(has_validation_rules)
        }
        Value::Array(items) => items.iter().any(has_validation_rules),
        _ => false,
    }
}

/// All patterns in a schema, compiled.
pub(crate) fn compile_patterns(schema: &Value) -> Result<BTreeMap<String, Regex>> {
    fn collect(schema: &Value, all: &mut BTreeMap<String, Regex>) -> Result<()> {
        match schema {
            Value::Object(fields) => {
                if let Some(pattern) = fields.get("pattern").and_then(Value::as_str) {
                    let compiled = Regex::new(pattern).context("a pattern is invalid")?;
                    all.insert(pattern.to_owned(), compiled);
                }
                fields.values().try_for_each(|field| collect(field, all))
            }
            Value::Array(items) => items.iter().try_for_each(|item| collect(item, all)),
            _ => Ok(()),
        }
    }
    let mut all = BTreeMap::new();
    collect(schema, &mut all)?;
    Ok(all)
}

//! IngressClasses.

use jiff::Timestamp;
use serde_json::Value;

use super::json::{at, set_default, text};
use super::violation::Violation;
use super::{Column, Rules, Subresource, metadata, names, table};

pub struct IngressClass;

const SCOPES: [&str; 2] = ["Cluster", "Namespace"];

impl Rules for IngressClass {
    fn set_defaults(&self, object: &mut Value) {
        if at(object, "spec.parameters").is_some() {
            set_default(object, "spec.parameters.scope", "Cluster");
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::count_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::name(object, old, names::subdomain);
        if let Some(old) = old {
            violations.extend(metadata::immutable(object, old, "spec.controller"));
        }
        violations.extend(controller(text(object, "spec.controller")));
        if let Some(parameters) = at(object, "spec.parameters") {
            violations.extend(validate_parameters(parameters));
        }
        violations
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                table::NAME,
                Column::text(
                    "Controller",
                    "Controller that is responsible for handling this class",
                ),
                Column::text("Parameters", "A reference to a resource with additional parameters"),
                table::AGE,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let parameters = at(object, "spec.parameters").map(|parameters| {
            let group = match text(parameters, "apiGroup") {
                "" => String::new(),
                group => format!(".{group}"),
            };
            format!("{}{group}/{}", text(parameters, "kind"), text(parameters, "name"))
        });
        vec![
            table::name(object),
            text(object, "spec.controller").into(),
            parameters.as_deref().unwrap_or("<none>").into(),
            table::age(object, now),
        ]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }
}

fn controller(name: &str) -> Vec<Violation> {
    let field = "spec.controller";
    if name.is_empty() {
        return vec![Violation::required(field, "")];
    }
    if name.len() > 250 {
        return vec![Violation::too_long(field, 250)];
    }
    let invalid = |value: &str, detail: &str| Violation::invalid(field, value, detail);
    let Some((domain, path)) =
        name.split_once('/').filter(|(domain, path)| !domain.is_empty() && !path.is_empty())
    else {
        let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return vec![invalid(name, detail)];
    };
    let mut violations = names::violations(field, domain, names::subdomain);
    let is_plain =
        |letter: char| letter.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(letter);
    if !path.chars().all(is_plain) {
        let detail = "Invalid path (regex used for validation is \
                      '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
        violations.push(invalid(path, detail));
    }
    violations
}

fn validate_parameters(parameters: &Value) -> Vec<Violation> {
    let path = "spec.parameters";
    let mut violations = Vec::new();
    let group = text(parameters, "apiGroup");
    if !group.is_empty() {
        let field = format!("{path}.apiGroup");
        violations.extend(names::violations(&field, group, names::subdomain));
    }
    for name in ["kind", "name"] {
        let field = format!("{path}.{name}");
        match text(parameters, name) {
            "" => violations.push(Violation::required(field, "")),
            value => violations.extend(names::violations(&field, value, names::path_segment)),
        }
    }
    let namespace = text(parameters, "namespace");
    let field = format!("{path}.namespace");
    match (text(parameters, "scope"), namespace.is_empty()) {
        ("Namespace", true) => {
            violations.push(Violation::required(field, "`parameters.scope` is set to 'Namespace'"))
        }
        ("Namespace", false) => {
            violations.extend(names::violations(&field, namespace, names::label));
        }
        ("Cluster", false) => {
            violations.push(Violation::forbidden(field, "`parameters.scope` is set to 'Cluster'"))
        }
        ("Cluster", true) => {}
        ("", _) => violations.push(Violation::required(format!("{path}.scope"), "")),
        (scope, _) => {
            violations.push(Violation::not_supported(format!("{path}.scope"), scope, &SCOPES));
        }
    }
    violations
}

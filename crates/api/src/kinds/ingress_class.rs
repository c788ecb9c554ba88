//! IngressClasses.

use jiff::Timestamp;
use serde_json::Value;

use super::json::{get_text, get_value, set_if_missing};
use super::violation::Violation;
use super::{KindRules, Subresource, TableColumn, metadata, names, table};

pub struct IngressClass;

const SCOPES: [&str; 2] = ["Cluster", "Namespace"];

impl KindRules for IngressClass {
    fn set_defaults(&self, object: &mut Value) {
        if get_value(object, "spec.parameters").is_some() {
            set_if_missing(object, "spec.parameters.scope", "Cluster");
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::count_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::validate_new_name(object, old, names::check_subdomain);
        if let Some(old) = old {
            violations.extend(metadata::validate_immutable(object, old, "spec.controller"));
        }
        violations.extend(controller(get_text(object, "spec.controller")));
        if let Some(parameters) = get_value(object, "spec.parameters") {
            violations.extend(validate_parameters(parameters));
        }
        violations
    }

    fn columns(&self) -> &'static [TableColumn] {
        const {
            &[
                table::NAME_COLUMN,
                TableColumn::text(
                    "Controller",
                    "Controller that is responsible for handling this class",
                ),
                TableColumn::text(
                    "Parameters",
                    "A reference to a resource with additional parameters",
                ),
                table::AGE_COLUMN,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let parameters = get_value(object, "spec.parameters").map(|parameters| {
            let group = match get_text(parameters, "apiGroup") {
                "" => String::new(),
                group => format!(".{group}"),
            };
            format!("{}{group}/{}", get_text(parameters, "kind"), get_text(parameters, "name"))
        });
        vec![
            table::name_cell(object),
            get_text(object, "spec.controller").into(),
            parameters.as_deref().unwrap_or("<none>").into(),
            table::age_cell(object, now),
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
    let mut violations = names::check_name(field, domain, names::check_subdomain);
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
    let group = get_text(parameters, "apiGroup");
    if !group.is_empty() {
        let field = format!("{path}.apiGroup");
        violations.extend(names::check_name(&field, group, names::check_subdomain));
    }
    for name in ["kind", "name"] {
        let field = format!("{path}.{name}");
        match get_text(parameters, name) {
            "" => violations.push(Violation::required(field, "")),
            value => violations.extend(names::check_name(&field, value, names::check_path_segment)),
        }
    }
    let namespace = get_text(parameters, "namespace");
    let field = format!("{path}.namespace");
    match (get_text(parameters, "scope"), namespace.is_empty()) {
        ("Namespace", true) => {
            violations.push(Violation::required(field, "`parameters.scope` is set to 'Namespace'"))
        }
        ("Namespace", false) => {
            violations.extend(names::check_name(&field, namespace, names::check_label));
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

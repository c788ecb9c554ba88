//! The query parameters of a request.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::codec::FieldValidation;
use crate::failure::Failure;
use crate::kinds::Violation;

/// The decoded query. A repeated parameter keeps all values.
#[derive(Debug, Default, Clone)]
pub struct Query(BTreeMap<String, Vec<String>>);

impl Query {
    pub fn parse(query: &str) -> Self {
        let mut parameters: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            parameters.entry(name.into_owned()).or_default().push(value.into_owned());
        }
        Self(parameters)
    }

    /// Adds a requirement to the field selector.
    pub fn require_fields(&mut self, requirement: &str) {
        let selector = self.0.entry("fieldSelector".to_owned()).or_default();
        match selector.first_mut().filter(|first| !first.is_empty()) {
            Some(first) => first.extend([",", requirement]),
            None => *selector = vec![requirement.to_owned()],
        }
    }

    /// Empty if the parameter is missing.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(|values| values.first()).map(String::as_str).unwrap_or_default()
    }

    pub fn all(&self, name: &str) -> &[String] {
        self.0.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Like Go's `strconv.ParseBool`. A parameter without a value is true.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Failure> {
        let Some(value) = self.0.get(name).and_then(|values| values.first()) else {
            return Ok(None);
        };
        match value.as_str() {
            "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Some(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Some(false)),
            other => Err(Failure::bad_request(format!("{name} is not a boolean: {other:?}"))),
        }
    }

    pub fn number(&self, name: &str) -> Result<Option<i64>, Failure> {
        match self.text(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                Failure::bad_request(format!(
                    "strconv.ParseInt: parsing {text:?}: invalid syntax ({name})"
                ))
            }),
        }
    }
}

/// The options of every write.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    pub dry_run: bool,
    /// The name for `managedFields`.
    pub manager: String,
    pub field_validation: FieldValidation,
    /// Server-side apply may take over fields from other managers.
    pub force: Option<bool>,
}

impl WriteOptions {
    /// `options` is the name of the options type in the API reference, such as `CreateOptions`.
    pub fn parse(query: &Query, user_agent: &str, options: &str) -> Result<Self, Failure> {
        let mut violations = Vec::new();
        let dry_run = dry_run(query.all("dryRun"), &mut violations);
        let manager = query.text("fieldManager");
        if manager.len() > 128 {
            violations.push(Violation::too_long("fieldManager", 128));
        }
        if manager.chars().any(char::is_control) {
            let detail = "should only contain printable characters";
            violations.push(Violation::invalid("fieldManager", manager, detail));
        }
        let field_validation = match query.text("fieldValidation") {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                violations.push(Violation::not_supported("fieldValidation", other, &supported));
                FieldValidation::Warn
            }
        };
        if !violations.is_empty() {
            return Err(Failure::invalid_of("meta.k8s.io", options, "", &violations));
        }
        Ok(Self {
            dry_run,
            manager: if manager.is_empty() { manager_of(user_agent) } else { manager.to_owned() },
            field_validation,
            force: query.flag("force")?,
        })
    }
}

fn dry_run(directives: &[String], violations: &mut Vec<Violation>) -> bool {
    for directive in directives.iter().filter(|directive| *directive != "All") {
        violations.push(Violation::not_supported("dryRun", directive.as_str(), &["All"]));
    }
    !directives.is_empty()
}

/// Without a field manager, the client's program name is used.
fn manager_of(user_agent: &str) -> String {
    let program = user_agent.split('/').next().unwrap_or_default();
    let printable: String = program.chars().filter(|c| !c.is_control()).take(128).collect();
    if printable.is_empty() { "unknown".to_owned() } else { printable }
}

/// The options of a DELETE, from its query and its body.
#[derive(Debug, Clone)]
pub struct DeleteOptions {
    pub dry_run: bool,
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl DeleteOptions {
    pub fn parse(query: &Query, body: &Value) -> Result<Self, Failure> {
        let mut violations = Vec::new();
        let from_body = body["dryRun"].as_array().into_iter().flatten();
        let mut directives: Vec<String> =
            from_body.filter_map(Value::as_str).map(str::to_owned).collect();
        directives.extend(query.all("dryRun").iter().cloned());
        let dry_run = dry_run(&directives, &mut violations);
        let policy = body["propagationPolicy"].as_str().unwrap_or(query.text("propagationPolicy"));
        let orphan = match body["orphanDependents"].as_bool() {
            Some(orphan) => Some(orphan),
            None => query.flag("orphanDependents")?,
        };
        if orphan.is_some() && !policy.is_empty() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            violations.push(Violation::invalid("propagationPolicy", policy, detail));
        }
        let propagation = match (policy, orphan) {
            ("", None) => None,
            ("", Some(true)) | ("Orphan", _) => Some(Propagation::Orphan),
            ("", Some(false)) | ("Background", _) => Some(Propagation::Background),
            ("Foreground", _) => Some(Propagation::Foreground),
            (other, _) => {
                let supported = ["Foreground", "Background", "Orphan", ""];
                violations.push(Violation::not_supported("propagationPolicy", other, &supported));
                None
            }
        };
        // Objects of all kinds here are deleted at once. The grace period only has to be a number.
        let grace = match body["gracePeriodSeconds"].as_i64() {
            Some(seconds) => Some(seconds),
            None => query.number("gracePeriodSeconds")?,
        };
        if let Some(seconds) = grace.filter(|seconds| *seconds < 0) {
            let detail = "must be greater than or equal to 0";
            violations.push(Violation::invalid("gracePeriodSeconds", seconds, detail));
        }
        if !violations.is_empty() {
            return Err(Failure::invalid_of("meta.k8s.io", "DeleteOptions", "", &violations));
        }
        let precondition = |name: &str| body["preconditions"][name].as_str().map(str::to_owned);
        Ok(Self {
            dry_run,
            propagation,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn write(query: &str) -> Result<WriteOptions, Failure> {
        WriteOptions::parse(&Query::parse(query), "kubectl/v1.30.1 (linux/amd64)", "CreateOptions")
    }

    #[test]
    fn a_client_without_a_manager_is_named_by_its_program() {
        assert_eq!(write("").unwrap().manager, "kubectl");
        assert_eq!(write("fieldManager=me").unwrap().manager, "me");
    }

    #[test]
    fn unknown_options_are_refused() {
        assert!(write("dryRun=All&fieldValidation=Strict").unwrap().dry_run);
        let failure = write("dryRun=Some").unwrap_err();
        assert_eq!(failure.code, 422);
        assert_eq!(
            failure.message,
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: \"Some\": \
             supported values: \"All\""
        );
        assert!(write("fieldValidation=Sometimes").is_err());
    }

    #[test]
    fn deletion_is_set_by_body_or_query() {
        let options = |query, body| DeleteOptions::parse(&Query::parse(query), &body);
        let foreground = json!({"propagationPolicy": "Foreground"});
        assert_eq!(options("", foreground).unwrap().propagation, Some(Propagation::Foreground));
        let orphan = options("propagationPolicy=Orphan", json!({})).unwrap();
        assert_eq!(orphan.propagation, Some(Propagation::Orphan));
        assert!(options("", json!({"gracePeriodSeconds": -1})).is_err());
        assert!(options("propagationPolicy=Later", json!({})).is_err());
        let bound = json!({"preconditions": {"uid": "a", "resourceVersion": "7"}});
        let bound = options("", bound).unwrap();
        assert_eq!(
            (bound.uid.as_deref(), bound.resource_version.as_deref()),
            (Some("a"), Some("7"))
        );
    }
}

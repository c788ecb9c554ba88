//! The query parameters of a request.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::codec::FieldValidation;
use crate::failure::ApiFailure;
use crate::kinds::Violation;

/// The decoded query. A repeated parameter keeps all values.
#[derive(Debug, Default, Clone)]
pub struct QueryParameters(BTreeMap<String, Vec<String>>);

impl QueryParameters {
    pub fn parse(query: &str) -> Self {
        let mut parameters: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            parameters.entry(name.into_owned()).or_default().push(value.into_owned());
        }
        Self(parameters)
    }

    /// Adds a requirement to the field selector.
    pub(crate) fn require_fields(&mut self, requirement: &str) {
        let selector = self.0.entry("fieldSelector".to_owned()).or_default();
        match selector.first_mut().filter(|first| !first.is_empty()) {
            Some(first) => first.extend([",", requirement]),
            None => *selector = vec![requirement.to_owned()],
        }
    }

    /// Empty if the parameter is missing.
    pub(crate) fn first_value(&self, name: &str) -> &str {
        self.0.get(name).and_then(|values| values.first()).map(String::as_str).unwrap_or_default()
    }

    pub(crate) fn all_values(&self, name: &str) -> &[String] {
        self.0.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Like Go's `strconv.ParseBool`. A parameter without a value is true.
    pub(crate) fn parse_flag(&self, name: &str) -> Result<Option<bool>, ApiFailure> {
        let Some(value) = self.0.get(name).and_then(|values| values.first()) else {
            return Ok(None);
        };
        match value.as_str() {
            "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Some(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Some(false)),
            other => Err(ApiFailure::bad_request(format!("{name} is not a boolean: {other:?}"))),
        }
    }

    pub(crate) fn parse_number(&self, name: &str) -> Result<Option<i64>, ApiFailure> {
        match self.first_value(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiFailure::bad_request(format!(
                    "strconv.ParseInt: parsing {text:?}: invalid syntax ({name})"
                ))
            }),
        }
    }
}

const MATCH: &str = "resourceVersionMatch";
const NOT_WITH_CONTINUE: &str = "resourceVersionMatch is forbidden when continue is provided";

/// Refuses parameters that make no sense for a list.
pub(crate) fn check_list_options(query: &QueryParameters) -> Result<(), ApiFailure> {
    let mut violations = Vec::new();
    let (wanted, revision) = (query.first_value(MATCH), query.first_value("resourceVersion"));
    if !wanted.is_empty() {
        if revision.is_empty() {
            let detail = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            violations.push(Violation::forbidden(MATCH, detail));
        }
        if !query.first_value("continue").is_empty() {
            violations.push(Violation::forbidden(MATCH, NOT_WITH_CONTINUE));
        }
        if !["Exact", "NotOlderThan"].contains(&wanted) {
            let supported = ["Exact", "NotOlderThan", ""];
            violations.push(Violation::not_supported(MATCH, wanted, &supported));
        }
        if wanted == "Exact" && revision == "0" {
            let detail = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            violations.push(Violation::forbidden(MATCH, detail));
        }
    }
    if query.parse_flag("sendInitialEvents")?.is_some() {
        let detail = "sendInitialEvents is forbidden for list";
        violations.push(Violation::forbidden("sendInitialEvents", detail));
    }
    refuse_list_options(&violations)
}

/// Refuses parameters that make no sense for a watch.
pub(crate) fn check_watch_options(query: &QueryParameters) -> Result<(), ApiFailure> {
    let mut violations = Vec::new();
    let wanted = query.first_value(MATCH);
    let has_initial_events = query.parse_flag("sendInitialEvents")?.is_some();
    if has_initial_events && wanted != "NotOlderThan" {
        let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        violations.push(Violation::forbidden(MATCH, detail));
    }
    if !wanted.is_empty() {
        if !has_initial_events {
            let detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
                          provided";
            violations.push(Violation::forbidden(MATCH, detail));
        }
        if wanted != "NotOlderThan" {
            violations.push(Violation::not_supported(MATCH, wanted, &["NotOlderThan"]));
        }
    }
    // Without a version the server chooses a match.
    let has_match = !wanted.is_empty() || matches!(query.first_value("resourceVersion"), "" | "0");
    if has_match && !query.first_value("continue").is_empty() {
        violations.push(Violation::forbidden(MATCH, NOT_WITH_CONTINUE));
    }
    refuse_list_options(&violations)
}

fn refuse_list_options(violations: &[Violation]) -> Result<(), ApiFailure> {
    if violations.is_empty() {
        return Ok(());
    }
    Err(ApiFailure::invalid_of("meta.k8s.io", "ListOptions", "", violations))
}

/// The options of every write.
#[derive(Debug, Clone)]
pub(crate) struct WriteOptions {
    pub dry_run: bool,
    /// The name for `managedFields`.
    pub manager: String,
    pub field_validation: FieldValidation,
    /// Server-side apply may take over fields from other managers.
    pub force: Option<bool>,
}

impl WriteOptions {
    /// `options` is the name of the options type in the API reference, such as `CreateOptions`.
    pub fn parse(
        query: &QueryParameters,
        user_agent: &str,
        options: &str,
    ) -> Result<Self, ApiFailure> {
        let mut violations = Vec::new();
        let manager = query.first_value("fieldManager");
        if manager.len() > 128 {
            violations.push(Violation::too_long("fieldManager", 128));
        }
        if manager.chars().any(char::is_control) {
            let detail = "should only contain printable characters";
            violations.push(Violation::invalid("fieldManager", manager, detail));
        }
        let dry_run = dry_run(query.all_values("dryRun"), &mut violations);
        let field_validation = match query.first_value("fieldValidation") {
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
            return Err(ApiFailure::invalid_of("meta.k8s.io", options, "", &violations));
        }
        Ok(Self {
            dry_run,
            manager: if manager.is_empty() { manager_of(user_agent) } else { manager.to_owned() },
            field_validation,
            force: query.parse_flag("force")?,
        })
    }
}

fn dry_run(directives: &[String], violations: &mut Vec<Violation>) -> bool {
    if directives.iter().any(|directive| directive != "All") {
        violations.push(Violation::not_supported("dryRun", directives.to_vec(), &["All"]));
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
pub(crate) struct DeleteOptions {
    pub dry_run: bool,
    pub propagation: Option<DeletionPropagation>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeletionPropagation {
    Background,
    Foreground,
    Orphan,
}

impl DeleteOptions {
    pub fn parse(query: &QueryParameters, body: &Value) -> Result<Self, ApiFailure> {
        let mut violations = Vec::new();
        let from_body = body["dryRun"].as_array().into_iter().flatten();
        let mut directives: Vec<String> =
            from_body.filter_map(Value::as_str).map(str::to_owned).collect();
        directives.extend(query.all_values("dryRun").iter().cloned());
        let policy =
            body["propagationPolicy"].as_str().unwrap_or(query.first_value("propagationPolicy"));
        let orphan = match body["orphanDependents"].as_bool() {
            Some(orphan) => Some(orphan),
            None => query.parse_flag("orphanDependents")?,
        };
        if orphan.is_some() && !policy.is_empty() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            violations.push(Violation::invalid("propagationPolicy", policy, detail));
        }
        let propagation = match (policy, orphan) {
            ("", None) => None,
            ("", Some(true)) | ("Orphan", _) => Some(DeletionPropagation::Orphan),
            ("", Some(false)) | ("Background", _) => Some(DeletionPropagation::Background),
            ("Foreground", _) => Some(DeletionPropagation::Foreground),
            (other, _) => {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                violations.push(Violation::not_supported("propagationPolicy", other, &supported));
                None
            }
        };
        let dry_run = dry_run(&directives, &mut violations);
        // Objects of all kinds here are deleted at once. The grace period only has to be a number, which may be
        // negative.
        query.parse_number("gracePeriodSeconds")?;
        if !violations.is_empty() {
            return Err(ApiFailure::invalid_of("meta.k8s.io", "DeleteOptions", "", &violations));
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

    fn write(query: &str) -> Result<WriteOptions, ApiFailure> {
        WriteOptions::parse(
            &QueryParameters::parse(query),
            "kubectl/v1.30.1 (linux/amd64)",
            "CreateOptions",
        )
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
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Some\"]: \
             supported values: \"All\""
        );
        assert!(write("fieldValidation=Sometimes").is_err());
    }

    fn count_causes(failure: ApiFailure) -> usize {
        assert_eq!(failure.code, 422);
        failure.details.unwrap()["causes"].as_array().unwrap().len()
    }

    #[test]
    fn all_that_is_wrong_with_a_list_or_watch_is_said() {
        let list = |query| check_list_options(&QueryParameters::parse(query)).map_err(count_causes);
        let watch =
            |query| check_watch_options(&QueryParameters::parse(query)).map_err(count_causes);
        assert_eq!(list("resourceVersion=1&resourceVersionMatch=Exact"), Ok(()));
        assert_eq!(list("continue=a&resourceVersionMatch=Exact"), Err(2));
        assert_eq!(list("resourceVersion=0&resourceVersionMatch=Exact"), Err(1));
        assert_eq!(list("resourceVersion=1&resourceVersionMatch=Some"), Err(1));
        assert_eq!(watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan"), Ok(()));
        assert_eq!(watch("resourceVersionMatch=Exact"), Err(2));
        assert_eq!(watch("sendInitialEvents=true"), Err(1));
        let continued = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=a";
        assert_eq!(watch(continued), Err(1));
        assert_eq!(watch("continue=a"), Err(1));
    }

    #[test]
    fn deletion_is_set_by_body_or_query() {
        let options = |query, body| DeleteOptions::parse(&QueryParameters::parse(query), &body);
        let foreground = json!({"propagationPolicy": "Foreground"});
        assert_eq!(
            options("", foreground).unwrap().propagation,
            Some(DeletionPropagation::Foreground)
        );
        let orphan = options("propagationPolicy=Orphan", json!({})).unwrap();
        assert_eq!(orphan.propagation, Some(DeletionPropagation::Orphan));
        assert!(options("", json!({"gracePeriodSeconds": -1})).is_ok());
        assert!(options("gracePeriodSeconds=-1", json!({})).is_ok());
        assert!(options("gracePeriodSeconds=soon", json!({})).is_err());
        assert!(options("propagationPolicy=Later", json!({})).is_err());
        let bound = json!({"preconditions": {"uid": "a", "resourceVersion": "7"}});
        let bound = options("", bound).unwrap();
        assert_eq!(
            (bound.uid.as_deref(), bound.resource_version.as_deref()),
            (Some("a"), Some("7"))
        );
    }
}

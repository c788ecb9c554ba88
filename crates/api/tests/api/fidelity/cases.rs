//! The requests, and the documented outcome of each.

use serde_json::{Value, json};

use super::kinds::Kind;

pub const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";
/// More than any server has reached.
const FUTURE: &str = "999999999999";

/// What is sent, and the documented outcome. An empty reason stands for success.
pub struct Case {
    pub name: &'static str,
    pub method: &'static str,
    /// After the path of the object; for `POST` and lists after that of the collection.
    pub suffix: String,
    pub type_: &'static str,
    pub body: String,
    pub code: u16,
    pub reason: &'static str,
}

pub fn case(
    name: &'static str,
    method: &'static str,
    suffix: impl Into<String>,
    (type_, body): (&'static str, String),
    (code, reason): (u16, &'static str),
) -> Case {
    Case { name, method, suffix: suffix.into(), type_, body, code, reason }
}

pub const OK: (u16, &str) = (200, "");
pub const CREATED: (u16, &str) = (201, "");
const BAD: (u16, &str) = (400, "BadRequest");
pub const NOT_FOUND: (u16, &str) = (404, "NotFound");
const NOT_ALLOWED: (u16, &str) = (405, "MethodNotAllowed");
const EXISTS: (u16, &str) = (409, "AlreadyExists");
const CONFLICT: (u16, &str) = (409, "Conflict");
const UNSUPPORTED: (u16, &str) = (415, "UnsupportedMediaType");
pub const INVALID: (u16, &str) = (422, "Invalid");
const TIMEOUT: (u16, &str) = (504, "Timeout");

pub fn nothing() -> (&'static str, String) {
    (JSON, String::new())
}

/// Requests to the collection that create nothing: refused, or dry runs.
pub fn creations(kind: &Kind) -> Vec<Case> {
    let post = |name, suffix: &str, body: (&'static str, String), expected| {
        case(name, "POST", suffix, body, expected)
    };
    let new = |metadata: Value| (JSON, kind.object(metadata).to_string());
    let valid = || new(json!({"name": "new"}));
    let with = |field: &str, value: Value| {
        let mut object = kind.object(json!({"name": "new"}));
        object[field] = value;
        (JSON, object.to_string())
    };
    let twice = format!("{{\"unknown\": 1, {}", &valid().1[1..]);
    let duplicate = format!("{{\"kind\": {:?}, {}", kind.kind, &valid().1[1..]);
    let yaml = |text: String| (YAML, text);
    let manager = "m".repeat(129);
    let mut cases = vec![
        post("dry run", "?dryRun=All", valid(), CREATED),
        post("dry run of YAML", "?dryRun=All", yaml(valid().1), CREATED),
        post(
            "dry run with a generated name",
            "?dryRun=All",
            new(json!({"generateName": "n-"})),
            CREATED,
        ),
        post("unknown dry run", "?dryRun=Some", valid(), INVALID),
        post("text", "", ("text/plain", valid().1), UNSUPPORTED),
        post("nothing", "", nothing(), BAD),
        post("no JSON", "", (JSON, "{".to_owned()), BAD),
        post("no YAML", "", yaml("a: [".to_owned()), BAD),
        post("a list", "", (JSON, "[]".to_owned()), BAD),
        post("another kind", "", with("kind", json!("Other")), BAD),
        post("another version", "", with("apiVersion", json!("v9")), BAD),
        post("a metadata of the wrong type", "", with("metadata", json!("x")), BAD),
        post("no name", "", new(json!({})), INVALID),
        post("an invalid name", "", new(json!({"name": "A_b"})), INVALID),
        post("an invalid label", "", new(json!({"name": "new", "labels": {"a b": "c"}})), INVALID),
        post("an invalid finalizer", "", new(json!({"name": "new", "finalizers": ["x"]})), INVALID),
        post("the name of an existing object", "", new(json!({"name": "old"})), EXISTS),
        post(
            "strict, with an unknown field",
            "?fieldValidation=Strict",
            (JSON, twice.clone()),
            BAD,
        ),
        post("strict, with a duplicate", "?fieldValidation=Strict", (JSON, duplicate), BAD),
        post("strict, valid", "?fieldValidation=Strict&dryRun=All", valid(), CREATED),
        post("unknown validation", "?fieldValidation=Some", valid(), INVALID),
        post("a long manager", &format!("?fieldManager={manager}"), valid(), INVALID),
        post("an unprintable manager", "?fieldManager=%07", valid(), INVALID),
        case("create on a collection by PUT", "PUT", "", valid(), NOT_ALLOWED),
        case("create on a collection by PATCH", "PATCH", "", (MERGE, "{}".to_owned()), NOT_ALLOWED),
    ];
    if kind.namespaced {
        let elsewhere = new(json!({"name": "new", "namespace": "elsewhere"}));
        cases.push(post("another namespace", "", elsewhere, BAD));
    } else {
        let inside = new(json!({"name": "new", "namespace": "default"}));
        cases.push(post("a namespace that is ignored", "?dryRun=All", inside, CREATED));
    }
    if !kind.typed {
        let protobuf = ("application/vnd.kubernetes.protobuf", "k8s\0".to_owned());
        cases.push(post("protobuf", "", protobuf, UNSUPPORTED));
    } else {
        let protobuf = ("application/vnd.kubernetes.protobuf", "nothing".to_owned());
        cases.push(post("broken protobuf", "", protobuf, BAD));
    }
    cases
}

/// Lists, by the table of `resourceVersion` and `resourceVersionMatch` in "API concepts".
pub fn lists(revision: &str) -> Vec<Case> {
    let get = |name, suffix: String, expected| case(name, "GET", suffix, nothing(), expected);
    let exact = "resourceVersionMatch=Exact";
    let not_older = "resourceVersionMatch=NotOlderThan";
    vec![
        get("any", "?resourceVersion=0".to_owned(), OK),
        get("the most recent", String::new(), OK),
        get("limited", "?limit=1".to_owned(), OK),
        get("not older", format!("?resourceVersion={revision}&{not_older}"), OK),
        get("not older than zero", format!("?resourceVersion=0&{not_older}"), OK),
        get("exact", format!("?resourceVersion={revision}&{exact}"), OK),
        get("exact and limited", format!("?resourceVersion={revision}&{exact}&limit=1"), OK),
        get("exact at zero", format!("?resourceVersion=0&{exact}"), INVALID),
        get("a match without a version", format!("?{exact}"), INVALID),
        get("not older without a version", format!("?{not_older}"), INVALID),
        get("an unknown match", "?resourceVersion=1&resourceVersionMatch=Some".to_owned(), INVALID),
        get("no version", "?resourceVersion=abc".to_owned(), BAD),
        get("a future version", format!("?resourceVersion={FUTURE}"), TIMEOUT),
        get("a future exact version", format!("?resourceVersion={FUTURE}&{exact}"), TIMEOUT),
        get("a broken continuation", "?continue=abc".to_owned(), BAD),
        get("a continuation with a match", format!("?continue=abc&{exact}"), INVALID),
        get("a label selector", "?labelSelector=a%3Db".to_owned(), OK),
        get("a broken label selector", "?labelSelector=a%3D%3D%3Db".to_owned(), BAD),
        get("a label that no object has", "?labelSelector=-a%21%3Db".to_owned(), BAD),
        get("a field selector", "?fieldSelector=metadata.name%3Dold".to_owned(), OK),
        get("an unknown field", "?fieldSelector=spec.nothing%3Da".to_owned(), BAD),
        get("initial events without a watch", "?sendInitialEvents=true".to_owned(), INVALID),
        get(
            "initial events without a match",
            "?watch=true&sendInitialEvents=true".to_owned(),
            INVALID,
        ),
        get("a match of a watch", format!("?watch=true&resourceVersion=1&{exact}"), INVALID),
        get("a broken limit", "?limit=many".to_owned(), BAD),
        get("a broken timeout", "?timeoutSeconds=abc".to_owned(), BAD),
    ]
}

/// Requests to the object `old` that change nothing.
pub fn harmless(kind: &Kind, old: &Value) -> Vec<Case> {
    let metadata = |field: &str, value: Value| {
        let mut object = old.clone();
        object["metadata"][field] = value;
        (JSON, object.to_string())
    };
    let field = |field: &str, value: Value| {
        let mut object = old.clone();
        object[field] = value;
        (JSON, object.to_string())
    };
    let same = || (JSON, old.to_string());
    let get = |name, suffix: &str, expected| case(name, "GET", suffix, nothing(), expected);
    let put = |name, suffix: &str, body, expected| case(name, "PUT", suffix, body, expected);
    let merge = |name, suffix: &str, body: Value, expected| {
        case(name, "PATCH", suffix, (MERGE, body.to_string()), expected)
    };
    let json_patch = |name, suffix: &str, body: Value, expected| {
        case(name, "PATCH", suffix, (JSON_PATCH, body.to_string()), expected)
    };
    let apply = |name, suffix: &str, body: Value, expected| {
        case(name, "PATCH", suffix, (APPLY, body.to_string()), expected)
    };
    let delete = |name, suffix: &str, body: Value, expected| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        case(name, "DELETE", suffix, (JSON, body), expected)
    };
    let labels = json!({"metadata": {"labels": {"a": "changed"}}});
    let add = |path: &str, value: Value| json!([{"op": "add", "path": path, "value": value}]);
    let applied = || kind.object(json!({"name": "old", "labels": {"a": "changed"}}));
    let unknown = json!({"unknown": 1});
    let mut cases = vec![
        get("get", "", OK),
        get("get any", "?resourceVersion=0", OK),
        get("get a future version", &format!("?resourceVersion={FUTURE}"), TIMEOUT),
        get("get no version", "?resourceVersion=abc", INVALID),
        case("create on an object", "POST", "", same(), NOT_ALLOWED),
        // Replace.
        put("replace by the same", "", same(), OK),
        put("replace, dry run", "?dryRun=All", metadata("labels", json!({"a": "c"})), OK),
        put("replace, unknown dry run", "?dryRun=Some", same(), INVALID),
        put("replace an old version", "", metadata("resourceVersion", json!("1")), CONFLICT),
        put("replace an unknown version", "", metadata("resourceVersion", json!("x")), CONFLICT),
        put("replace another object", "", metadata("uid", json!("x")), CONFLICT),
        put("replace under another name", "", metadata("name", json!("x")), BAD),
        put("replace with another kind", "", field("kind", json!("Other")), BAD),
        put("replace with a text", "", ("text/plain", old.to_string()), UNSUPPORTED),
        put("replace, invalid", "", metadata("labels", json!({"a b": "c"})), INVALID),
        put("replace, strict", "?fieldValidation=Strict", field("unknown", json!(1)), BAD),
        // Patches.
        merge("merge nothing", "", json!({}), OK),
        merge("merge, dry run", "?dryRun=All", labels.clone(), OK),
        merge(
            "merge into an old version",
            "",
            json!({"metadata": {"resourceVersion": "1"}}),
            CONFLICT,
        ),
        merge("merge into another object", "", json!({"metadata": {"uid": "x"}}), INVALID),
        merge("merge another name", "", json!({"metadata": {"name": "x"}}), BAD),
        merge("merge another kind", "", json!({"kind": "Other"}), INVALID),
        merge("merge an invalid label", "", json!({"metadata": {"labels": {"a b": "c"}}}), INVALID),
        merge("merge, strict", "?fieldValidation=Strict", unknown.clone(), INVALID),
        merge("merge by force", "?force=true", json!({}), INVALID),
        merge("merge a list", "", json!([]), BAD),
        json_patch("no operations", "", json!([]), OK),
        json_patch("patch, dry run", "?dryRun=All", add("/metadata/labels", json!({"a": "c"})), OK),
        json_patch(
            "a failing test",
            "",
            json!([{"op": "test", "path": "/kind", "value": "x"}]),
            INVALID,
        ),
        json_patch(
            "remove what is missing",
            "",
            json!([{"op": "remove", "path": "/x/y"}]),
            INVALID,
        ),
        json_patch("an unknown operation", "", json!([{"op": "grow", "path": "/kind"}]), INVALID),
        json_patch("no list of operations", "", json!({}), BAD),
        json_patch("patch the name", "", add("/metadata/name", json!("x")), BAD),
        json_patch("patch, strict", "?fieldValidation=Strict", add("/unknown", json!(1)), INVALID),
        json_patch("patch by force", "?force=true", json!([]), INVALID),
        apply("apply without a manager", "", applied(), INVALID),
        apply("apply, dry run", "?fieldManager=a&dryRun=All&force=true", applied(), OK),
        apply("apply against a manager", "?fieldManager=a", applied(), CONFLICT),
        apply("apply without a type", "?fieldManager=a", json!({"metadata": {"name": "old"}}), BAD),
        apply(
            "apply managed fields",
            "?fieldManager=a",
            {
                let mut object = applied();
                object["metadata"]["managedFields"] = json!([{"manager": "a"}]);
                object
            },
            BAD,
        ),
        apply("apply another name", "?fieldManager=a", kind.object(json!({"name": "x"})), BAD),
        apply(
            "apply, strict",
            "?fieldManager=a&fieldValidation=Strict",
            {
                let mut object = applied();
                object["unknown"] = json!(1);
                object
            },
            (500, ""),
        ),
        case("an unknown patch", "PATCH", "", ("application/patch", "{}".to_owned()), UNSUPPORTED),
        case("a patch as JSON", "PATCH", "", (JSON, "{}".to_owned()), UNSUPPORTED),
        // Delete.
        delete("delete, dry run", "?dryRun=All", Value::Null, OK),
        delete("delete, dry run in the body", "", json!({"dryRun": ["All"]}), OK),
        delete("delete, unknown dry run", "?dryRun=Some", Value::Null, INVALID),
        delete("delete another object", "", json!({"preconditions": {"uid": "x"}}), CONFLICT),
        delete(
            "delete an old version",
            "",
            json!({"preconditions": {"resourceVersion": "1"}}),
            CONFLICT,
        ),
        delete("delete with an unknown policy", "?propagationPolicy=Some", Value::Null, INVALID),
        delete(
            "delete with two policies",
            "",
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
            INVALID,
        ),
        delete("delete, negative grace", "?gracePeriodSeconds=-1&dryRun=All", Value::Null, OK),
        delete("delete, broken options", "", json!([]), BAD),
    ];
    let strategic = |body: Value| (STRATEGIC, body.to_string());
    if kind.typed {
        let merge = |name, suffix: &str, body, expected| {
            case(name, "PATCH", suffix, strategic(body), expected)
        };
        cases.extend([
            merge("strategic nothing", "", json!({}), OK),
            merge("strategic, dry run", "?dryRun=All", labels, OK),
            merge("strategic, strict", "?fieldValidation=Strict", unknown, INVALID),
            merge("strategic another name", "", json!({"metadata": {"name": "x"}}), BAD),
            merge("strategic, unknown directive", "", json!({"metadata": {"$patch": "grow"}}), BAD),
            merge("strategic by force", "?force=true", json!({}), INVALID),
        ]);
    } else {
        cases.push(case("strategic", "PATCH", "", strategic(json!({})), UNSUPPORTED));
    }
    let of_status = if kind.has_status { OK } else { NOT_FOUND };
    cases.extend([
        case("get the status", "GET", "/status", nothing(), of_status),
        case("replace the status", "PUT", "/status", same(), of_status),
        case("merge the status", "PATCH", "/status", (MERGE, "{}".to_owned()), of_status),
    ]);
    if kind.has_status {
        cases.extend([
            case("delete the status", "DELETE", "/status", nothing(), NOT_ALLOWED),
            case("create a status", "POST", "/status", same(), NOT_ALLOWED),
        ]);
    }
    cases.push(case("another subresource", "GET", "/scale", nothing(), NOT_FOUND));
    if !kind.unconditional {
        cases.push(put(
            "replace any version",
            "",
            metadata("resourceVersion", Value::Null),
            INVALID,
        ));
    } else {
        cases.push(put("replace any version", "", metadata("resourceVersion", Value::Null), OK));
    }
    cases
}

/// Requests to an object that does not exist.
pub fn missing(kind: &Kind) -> Vec<Case> {
    let body = || (JSON, kind.object(json!({"name": "missing"})).to_string());
    let by_put = if kind.creates { CREATED } else { NOT_FOUND };
    let mut cases = vec![
        case("get", "GET", "", nothing(), NOT_FOUND),
        case("replace", "PUT", "?dryRun=All", body(), by_put),
        case("merge", "PATCH", "", (MERGE, "{}".to_owned()), NOT_FOUND),
        case("patch", "PATCH", "", (JSON_PATCH, "[]".to_owned()), NOT_FOUND),
        case("apply", "PATCH", "?fieldManager=a&dryRun=All", (APPLY, body().1), CREATED),
        case("delete", "DELETE", "", nothing(), NOT_FOUND),
    ];
    if kind.typed {
        cases.push(case("strategic", "PATCH", "", (STRATEGIC, "{}".to_owned()), NOT_FOUND));
    }
    if kind.has_status {
        let applied =
            case("apply a status", "PATCH", "/status?fieldManager=a", (APPLY, body().1), NOT_FOUND);
        cases.push(applied);
    }
    cases
}

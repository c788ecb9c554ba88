//! Every verb with every kind, content type, patch type and option, against the documented
//! behaviour of API servers: the API reference, "API concepts" and "Server-side apply" in the
//! documentation of Kubernetes.
//!
//! A case that is refused or a dry run must leave nothing behind, so the object is compared after
//! each.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt;
use serde_json::{Value, json};

use super::server::TestServer;
use super::widgets;

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
/// More than any server has reached.
const FUTURE: &str = "999999999999";

/// A kind, and what the reference says about it.
struct Kind {
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
    /// Fields of a valid object besides the metadata.
    fields: Value,
    /// A PUT of a missing object creates it.
    creates: bool,
    /// A PUT without `resourceVersion` is allowed.
    unconditional: bool,
    /// A DELETE returns the object.
    returns_deleted: bool,
    has_status: bool,
    /// Has types in Kubernetes: strategic merge patches.
    typed: bool,
}

const KIND: Kind = Kind {
    api_version: "v1",
    kind: "",
    plural: "",
    namespaced: true,
    fields: Value::Null,
    creates: false,
    unconditional: true,
    returns_deleted: false,
    has_status: false,
    typed: true,
};

fn kinds() -> Vec<Kind> {
    let path = json!({"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web",
        "port": {"number": 80}}}});
    let event_time = "2026-01-02T03:04:05.000000Z";
    vec![
        Kind {
            kind: "ConfigMap",
            plural: "configmaps",
            fields: json!({"data": {"a": "b"}}),
            ..KIND
        },
        Kind {
            kind: "Endpoints",
            plural: "endpoints",
            fields: json!({"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 1}]}]}),
            creates: true,
            ..KIND
        },
        Kind {
            kind: "Event",
            plural: "events",
            fields: json!({"involvedObject": {"namespace": "default"}, "reason": "A"}),
            creates: true,
            ..KIND
        },
        Kind {
            kind: "Namespace",
            plural: "namespaces",
            namespaced: false,
            fields: json!({}),
            returns_deleted: true,
            has_status: true,
            ..KIND
        },
        Kind {
            kind: "Node",
            plural: "nodes",
            namespaced: false,
            fields: json!({}),
            has_status: true,
            ..KIND
        },
        Kind { kind: "Secret", plural: "secrets", fields: json!({"data": {"a": "eA=="}}), ..KIND },
        Kind {
            kind: "ServiceAccount",
            plural: "serviceaccounts",
            fields: json!({}),
            returns_deleted: true,
            ..KIND
        },
        Kind {
            kind: "Service",
            plural: "services",
            fields: json!({"spec": {"ports": [{"port": 80}]}}),
            creates: true,
            returns_deleted: true,
            has_status: true,
            ..KIND
        },
        Kind {
            api_version: "coordination.k8s.io/v1",
            kind: "Lease",
            plural: "leases",
            fields: json!({"spec": {"holderIdentity": "a"}}),
            creates: true,
            unconditional: false,
            ..KIND
        },
        Kind {
            api_version: "discovery.k8s.io/v1",
            kind: "EndpointSlice",
            plural: "endpointslices",
            fields: json!({"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}]}),
            ..KIND
        },
        Kind {
            api_version: "events.k8s.io/v1",
            kind: "Event",
            plural: "events",
            fields: json!({
                "regarding": {"namespace": "default"}, "reason": "A", "type": "Normal",
                "action": "a", "eventTime": event_time, "reportingController": "a.b/c",
                "reportingInstance": "d",
            }),
            creates: true,
            ..KIND
        },
        Kind {
            api_version: "networking.k8s.io/v1",
            kind: "Ingress",
            plural: "ingresses",
            fields: json!({"spec": {"rules": [{"http": {"paths": [path]}}]}}),
            has_status: true,
            ..KIND
        },
        Kind {
            api_version: "networking.k8s.io/v1",
            kind: "IngressClass",
            plural: "ingressclasses",
            namespaced: false,
            fields: json!({"spec": {"controller": "example.com/a"}}),
            ..KIND
        },
        Kind {
            api_version: "test.example.com/v1alpha1",
            kind: "Range",
            plural: "ranges",
            namespaced: false,
            fields: json!({"spec": {"first": 1, "last": 2}}),
            unconditional: false,
            has_status: true,
            typed: false,
            ..KIND
        },
        Kind {
            api_version: "test.example.com/v1alpha1",
            kind: "Widget",
            plural: "widgets",
            fields: json!({"spec": {}}),
            unconditional: false,
            typed: false,
            ..KIND
        },
    ]
}

impl Kind {
    fn collection(&self) -> String {
        let group = match self.api_version {
            "v1" => "/api/v1".to_owned(),
            version => format!("/apis/{version}"),
        };
        let namespace = if self.namespaced { "/namespaces/default" } else { "" };
        format!("{group}{namespace}/{}", self.plural)
    }

    fn object(&self, metadata: Value) -> Value {
        let mut object = json!({
            "apiVersion": self.api_version, "kind": self.kind, "metadata": metadata,
        });
        for (name, field) in self.fields.as_object().into_iter().flatten() {
            object[name] = field.clone();
        }
        object
    }
}

struct Response {
    code: u16,
    body: Value,
    warnings: Vec<String>,
}

/// Not kube-rs, which repeats what fails with `Retry-After`.
struct Client {
    send: Box<dyn Fn(hyper::Request<Full<Bytes>>) -> legacy::ResponseFuture>,
    server: String,
}

impl Client {
    async fn of(server: &TestServer) -> Self {
        let https = server.config().await.rustls_https_connector().unwrap();
        let client = legacy::Client::builder(TokioExecutor::new()).build(https);
        let send = Box::new(move |request| client.request(request));
        Self { send, server: format!("https://{}", server.server.address) }
    }

    async fn send(&self, method: &str, path: &str, type_: &str, body: &str) -> Response {
        let request = hyper::Request::builder().method(method).uri(self.server.clone() + path);
        let request = request.header("content-type", type_).header("user-agent", "tester/1");
        let body = Full::from(body.as_bytes().to_vec());
        let response = (self.send)(request.body(body).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter();
        let warnings = warnings.map(|warning| warning.to_str().unwrap().to_owned()).collect();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Response { code, body: serde_json::from_slice(&body).unwrap_or_default(), warnings }
    }
}

/// What is sent, and the documented outcome. An empty reason stands for success.
struct Case {
    name: &'static str,
    method: &'static str,
    /// After the path of the object; for `POST` and lists after that of the collection.
    suffix: String,
    type_: &'static str,
    body: String,
    code: u16,
    reason: &'static str,
}

fn case(
    name: &'static str,
    method: &'static str,
    suffix: impl Into<String>,
    (type_, body): (&'static str, String),
    (code, reason): (u16, &'static str),
) -> Case {
    Case { name, method, suffix: suffix.into(), type_, body, code, reason }
}

const OK: (u16, &str) = (200, "");
const CREATED: (u16, &str) = (201, "");
const BAD: (u16, &str) = (400, "BadRequest");
const NOT_FOUND: (u16, &str) = (404, "NotFound");
const NOT_ALLOWED: (u16, &str) = (405, "MethodNotAllowed");
const EXISTS: (u16, &str) = (409, "AlreadyExists");
const CONFLICT: (u16, &str) = (409, "Conflict");
const UNSUPPORTED: (u16, &str) = (415, "UnsupportedMediaType");
const INVALID: (u16, &str) = (422, "Invalid");
const TIMEOUT: (u16, &str) = (504, "Timeout");

fn nothing() -> (&'static str, String) {
    (JSON, String::new())
}

/// Requests to the collection that create nothing: refused, or dry runs.
fn creations(kind: &Kind) -> Vec<Case> {
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
fn lists(revision: &str) -> Vec<Case> {
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
        get("no version", "?resourceVersion=abc".to_owned(), INVALID),
        get("a future version", format!("?resourceVersion={FUTURE}"), TIMEOUT),
        get("a future exact version", format!("?resourceVersion={FUTURE}&{exact}"), TIMEOUT),
        get("a broken continuation", "?continue=abc".to_owned(), BAD),
        get("a continuation with a match", format!("?continue=abc&{exact}"), INVALID),
        get("a label selector", "?labelSelector=a%3Db".to_owned(), OK),
        get("a broken label selector", "?labelSelector=a%3D%3D%3Db".to_owned(), BAD),
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
    ]
}

/// Requests to the object `old` that change nothing.
fn harmless(kind: &Kind, old: &Value) -> Vec<Case> {
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
        merge("merge into another object", "", json!({"metadata": {"uid": "x"}}), CONFLICT),
        merge("merge another name", "", json!({"metadata": {"name": "x"}}), BAD),
        merge("merge another kind", "", json!({"kind": "Other"}), BAD),
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
        json_patch("an unknown operation", "", json!([{"op": "grow", "path": "/kind"}]), BAD),
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
            BAD,
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
        delete("delete, negative grace", "?gracePeriodSeconds=-1", Value::Null, INVALID),
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
fn missing(kind: &Kind) -> Vec<Case> {
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

struct Run {
    client: Client,
    wrong: Vec<String>,
}

impl Run {
    async fn check(&mut self, of: &str, path: &str, case: &Case) -> Response {
        let path = format!("{path}{}", case.suffix);
        let response = self.client.send(case.method, &path, case.type_, &case.body).await;
        let reason = response.body["reason"].as_str().filter(|_| response.code >= 300);
        let actual = (response.code, reason.unwrap_or_default());
        if actual != (case.code, case.reason) {
            let expected = (case.code, case.reason);
            let message = response.body["message"].as_str().unwrap_or_default();
            let name = case.name;
            self.wrong.push(format!("{of}, {name}: {actual:?}, not {expected:?}: {message}"));
        }
        response
    }

    fn expect(&mut self, what: &str, holds: bool) {
        if !holds {
            self.wrong.push(what.to_owned());
        }
    }
}

#[tokio::test]
async fn every_verb_kind_and_option_behaves_as_documented() {
    let server = TestServer::start_declared(widgets::all()).await;
    let mut run = Run { client: Client::of(&server).await, wrong: Vec::new() };
    for kind in kinds() {
        let of = format!("{} {}", kind.api_version, kind.kind);
        let collection = kind.collection();
        let object = kind.object(json!({"name": "old", "labels": {"a": "b"}}));
        let created = case("create", "POST", "", (JSON, object.to_string()), CREATED);
        let old = run.check(&of, &collection, &created).await.body;
        let metadata = &old["metadata"];
        run.expect(
            &format!("{of}: the server's metadata: {metadata}"),
            metadata["uid"].is_string()
                && metadata["creationTimestamp"].is_string()
                && metadata["managedFields"][0]["manager"] == "tester"
                && old["apiVersion"] == kind.api_version
                && old["kind"] == kind.kind,
        );
        let revision = old["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let own = format!("{collection}/old");
        for case in creations(&kind) {
            run.check(&of, &collection, &case).await;
            let new = run.client.send("GET", &format!("{collection}/new"), JSON, "").await;
            run.expect(&format!("{of}, {}: created an object", case.name), new.code == 404);
        }
        for case in lists(&revision) {
            let response = run.check(&format!("{of} list"), &collection, &case).await;
            let is_list = response.code != 200 || response.body["items"].is_array();
            run.expect(&format!("{of}, {}: not a list", case.name), is_list);
        }
        for case in harmless(&kind, &old) {
            run.check(&of, &own, &case).await;
            let now = run.client.send("GET", &own, JSON, "").await.body;
            run.expect(&format!("{of}, {}: changed the object", case.name), now == old);
        }
        for case in missing(&kind) {
            let path = format!("{collection}/missing");
            run.check(&format!("{of}, missing"), &path, &case).await;
            let now = run.client.send("GET", &path, JSON, "").await;
            run.expect(&format!("{of}, {}: created an object", case.name), now.code == 404);
        }
        unknown_fields_are_reported(&mut run, &kind, &of).await;
        writes_change_the_object(&mut run, &kind, &of, &own).await;
        deletion(&mut run, &kind, &of, &own).await;
    }
    assert!(run.wrong.is_empty(), "{} differ:\n{}", run.wrong.len(), run.wrong.join("\n"));
}

/// By default with a warning, and silently if the client wishes so.
async fn unknown_fields_are_reported(run: &mut Run, kind: &Kind, of: &str) {
    let mut object = kind.object(json!({"name": "new"}));
    object["unknown"] = json!(1);
    let deprecated = usize::from(kind.kind == "Endpoints");
    for (suffix, count) in [("", 1), ("&fieldValidation=Warn", 1), ("&fieldValidation=Ignore", 0)] {
        let path = format!("{}?dryRun=All{suffix}", kind.collection());
        let response = run.client.send("POST", &path, JSON, &object.to_string()).await;
        let warnings = response.warnings.len() - deprecated.min(response.warnings.len());
        run.expect(
            &format!("{of}{suffix}: warnings {:?}", response.warnings),
            response.code == 201 && warnings == count && response.body["unknown"].is_null(),
        );
    }
}

/// Each way to write changes the object, and its version.
async fn writes_change_the_object(run: &mut Run, kind: &Kind, of: &str, own: &str) {
    let label = |value: &str| json!({"metadata": {"labels": {"a": value}}}).to_string();
    let add = json!([{"op": "add", "path": "/metadata/labels/a", "value": "2"}]).to_string();
    let applied = kind.object(json!({"name": "old", "labels": {"a": "3"}})).to_string();
    let mut writes = vec![
        (MERGE, "", label("1"), "1"),
        (JSON_PATCH, "", add, "2"),
        (APPLY, "?fieldManager=b&force=true", applied, "3"),
    ];
    if kind.typed {
        writes.push((STRATEGIC, "", label("4"), "4"));
    }
    let mut last = Value::Null;
    for (type_, suffix, body, expected) in writes {
        let written = case("write", "PATCH", suffix, (type_, body), OK);
        let body = run.check(of, own, &written).await.body;
        let metadata = &body["metadata"];
        run.expect(
            &format!("{of}, {type_}: {metadata}"),
            metadata["labels"]["a"] == expected && metadata["resourceVersion"] != last,
        );
        last = metadata["resourceVersion"].clone();
    }
    let mut object = run.client.send("GET", own, JSON, "").await.body;
    object["metadata"]["labels"]["a"] = json!("5");
    let replaced = case("replace", "PUT", "?fieldManager=c", (JSON, object.to_string()), OK);
    let body = run.check(of, own, &replaced).await.body;
    run.expect(&format!("{of}: not replaced"), body["metadata"]["labels"]["a"] == "5");
    let managers = body["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let names: Vec<&str> = managers.iter().filter_map(|one| one["manager"].as_str()).collect();
    run.expect(&format!("{of}: managers {names:?}"), names.contains(&"c"));
}

/// With finalizers the object is marked; its last finalizer deletes it.
async fn deletion(run: &mut Run, kind: &Kind, of: &str, own: &str) {
    let finalizers = |list: Value| {
        let body = json!({"metadata": {"finalizers": list}}).to_string();
        case("finalizers", "PATCH", "", (MERGE, body), OK)
    };
    run.check(of, own, &finalizers(json!(["example.com/a"]))).await;
    let delete = case("delete with a finalizer", "DELETE", "", nothing(), OK);
    let marked = run.check(of, own, &delete).await.body;
    run.expect(
        &format!("{of}: not marked: {marked}"),
        marked["kind"] == kind.kind && marked["metadata"]["deletionTimestamp"].is_string(),
    );
    let more = json!({"metadata": {"finalizers": ["example.com/a", "example.com/b"]}}).to_string();
    let more = case("a finalizer while deleted", "PATCH", "", (MERGE, more), INVALID);
    run.check(of, own, &more).await;
    if kind.kind == "Namespace" {
        // Its own finalizer is the collector's.
        run.check(of, own, &finalizers(json!(null))).await;
        return;
    }
    run.check(of, own, &finalizers(json!(null))).await;
    run.check(of, own, &case("get the deleted", "GET", "", nothing(), NOT_FOUND)).await;
    // Without finalizers at once.
    let path = kind.collection();
    let object = kind.object(json!({"name": "old"})).to_string();
    run.check(of, &path, &case("create", "POST", "", (JSON, object), CREATED)).await;
    let gone = run.check(of, own, &case("delete", "DELETE", "", nothing(), OK)).await.body;
    let returned = if kind.returns_deleted { kind.kind } else { "Status" };
    run.expect(&format!("{of}: DELETE returned {gone}"), gone["kind"] == returned);
    run.check(of, own, &case("get the deleted", "GET", "", nothing(), NOT_FOUND)).await;
    let none = "?labelSelector=never%3Dset";
    let collection = case("delete none of the collection", "DELETE", none, nothing(), OK);
    run.check(of, &path, &collection).await;
}

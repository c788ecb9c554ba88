//! Lists, watches, selectors, and forms of responses.

use serde_json::{Value, json};

use super::steps::ComparedPart::Nothing;
use super::steps::{CONFIG_MAPS, INGRESSES, SERVICES, SLICES, Step, delete, get, merge, post, put};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const OLD_TABLE: &str = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

fn config_map(name: &str, labels: Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}, "data": {"key": name}})
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"clusterIP": "10.96.7.7", "ports": [{"port": 80}]}})
}

pub fn forms() -> Vec<Step> {
    let mut steps = vec![post("create", SERVICES, service("one")).compare(Nothing)];
    let one = format!("{SERVICES}/one");
    for (name, accept) in [
        ("anything", "*/*"),
        ("nothing", ""),
        ("JSON of any kind", "application/*"),
        ("JSON or nothing", "application/json;q=0.9,text/plain;q=0.1"),
        ("text", "text/plain"),
        ("an image", "image/png"),
        ("no media type", "nonsense"),
        ("a table", TABLE),
        ("an old table", OLD_TABLE),
        ("a table or JSON", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
        ("metadata", PARTIAL),
        ("a list of metadata", PARTIAL_LIST),
        ("another transformation", "application/json;as=Nothing;v=v1;g=meta.k8s.io"),
        ("a table of another version", "application/json;as=Table;v=v9;g=meta.k8s.io"),
        ("a transformation of another group", "application/json;as=Table;v=v1;g=example.com"),
    ] {
        steps.push(get(name, one.clone()).accept(accept));
        steps.push(get(name, SERVICES).accept(accept));
    }
    steps.extend([
        get("a table without objects", format!("{SERVICES}?includeObject=None")).accept(TABLE),
        get("a table with objects", format!("{SERVICES}?includeObject=Object")).accept(TABLE),
        get("a table with something else", format!("{SERVICES}?includeObject=Some")).accept(TABLE),
        get("a table of a missing object", format!("{SERVICES}/missing")).accept(TABLE),
        get("a table of an empty list", format!("{SERVICES}?labelSelector=none")).accept(TABLE),
        get("pretty", format!("{one}?pretty=true")),
        post("the form of a created object", SERVICES, json!({
            "metadata": {"name": "two"}, "spec": {"clusterIP": "10.96.7.8", "ports": [{"port": 80}]},
        }))
        .accept(TABLE),
        delete("the form of a deleted object", format!("{SERVICES}/two")).accept(TABLE),
    ]);
    for (name, path) in [
        ("a table of Nodes", "/api/v1/nodes"),
        ("a table of Namespaces", "/api/v1/namespaces?fieldSelector=metadata.name%3Ddefault"),
        ("a table of ConfigMaps", CONFIG_MAPS),
        ("a table of Secrets", "/api/v1/namespaces/compared/secrets"),
        ("a table of Endpoints", "/api/v1/namespaces/compared/endpoints"),
        ("a table of Events", "/api/v1/namespaces/compared/events"),
        ("a table of ServiceAccounts", "/api/v1/namespaces/compared/serviceaccounts"),
        ("a table of EndpointSlices", SLICES),
        ("a table of Ingresses", INGRESSES),
        ("a table of IngressClasses", "/apis/networking.k8s.io/v1/ingressclasses"),
        ("a table of Leases", "/apis/coordination.k8s.io/v1/namespaces/compared/leases"),
        ("a table of declared objects", "/apis/test.example.com/v1alpha1/ranges"),
        (
            "a table of declared objects in a namespace",
            "/apis/test.example.com/v1alpha1/namespaces/compared/widgets",
        ),
    ] {
        steps.push(get(name, path).accept(TABLE));
    }
    steps
}

pub fn selectors() -> Vec<Step> {
    let mut steps = vec![
        post("create", CONFIG_MAPS, config_map("a", json!({"app": "web", "tier": "1"})))
            .compare(Nothing),
        post("create", CONFIG_MAPS, config_map("b", json!({"app": "db"}))).compare(Nothing),
        post("create", CONFIG_MAPS, config_map("c", json!({}))).compare(Nothing),
    ];
    for selector in [
        "app",
        "!app",
        "app=web",
        "app==web",
        "app!=web",
        "app in (web,db)",
        "app notin (web)",
        "tier>0",
        "tier<1",
        "app=",
        "app,tier",
        "app=web,tier=2",
        "app in ()",
        "app in (web",
        "app=web,",
        ",",
        "a/b/c=d",
        "app=Ä",
        "app=web db",
        "app>x",
        "in=in",
        "app = web",
        "=web",
        "app in (a,,b)",
        "app notin web",
    ] {
        let encoded: String = selector.bytes().map(|byte| format!("%{byte:02X}")).collect();
        steps.push(get(selector, format!("{CONFIG_MAPS}?labelSelector={encoded}")));
    }
    for selector in [
        "metadata.name=a",
        "metadata.name!=a",
        "metadata.namespace=compared",
        "metadata.name==a",
        "metadata.labels=x",
        "data=x",
        "metadata.name",
        "metadata.name=a,metadata.name=b",
        "=",
        "metadata.name=a\\,b",
    ] {
        let encoded: String = selector.bytes().map(|byte| format!("%{byte:02X}")).collect();
        steps.push(get(selector, format!("{CONFIG_MAPS}?fieldSelector={encoded}")));
    }
    for (name, path) in [
        (
            "of Services",
            "/api/v1/services?fieldSelector=spec.type%3DClusterIP,metadata.namespace%3Dcompared",
        ),
        ("of Services by address", "/api/v1/services?fieldSelector=spec.clusterIP%3D10.9.9.9"),
        ("of Nodes", "/api/v1/nodes?fieldSelector=spec.unschedulable%3Dfalse"),
        ("of Namespaces", "/api/v1/namespaces?fieldSelector=status.phase%3DTerminating"),
        ("of Secrets", "/api/v1/secrets?fieldSelector=type%3DOpaque"),
        (
            "of Events",
            "/api/v1/events?fieldSelector=involvedObject.kind%3DPod,type%3DWarning,reason%3Da",
        ),
        (
            "of EndpointSlices",
            "/apis/discovery.k8s.io/v1/endpointslices?fieldSelector=addressType%3DIPv4",
        ),
        (
            "of declared objects",
            "/apis/test.example.com/v1alpha1/ranges?fieldSelector=spec.first%3D1",
        ),
    ] {
        steps.push(get(name, path));
    }
    steps
}

pub fn pages() -> Vec<Step> {
    let mut steps = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        steps.push(
            post("create", CONFIG_MAPS, config_map(name, json!({"app": "x"}))).compare(Nothing),
        );
    }
    let page = |more: &str| format!("{CONFIG_MAPS}?limit=2&labelSelector=app{more}");
    let all = |more: &str| format!("{CONFIG_MAPS}?limit=2{more}");
    steps.extend([
        get("the first page", all("")).capture("token", "/metadata/continue"),
        get("the second page", all("&continue={token}")).capture("token", "/metadata/continue"),
        post("create meanwhile", CONFIG_MAPS, config_map("ee", json!({"app": "x"})))
            .compare(Nothing),
        get("the last page", all("&continue={token}")),
        get("the first page with a selector", page("")).capture("token", "/metadata/continue"),
        get("the second page with a selector", page("&continue={token}")),
        get(
            "a page with a version",
            format!("{CONFIG_MAPS}?limit=2&resourceVersion=0&continue={{token}}"),
        ),
        get("no limit", format!("{CONFIG_MAPS}?limit=0")),
        get("a negative limit", format!("{CONFIG_MAPS}?limit=-1")),
        get("a limit beyond all", format!("{CONFIG_MAPS}?limit=100")),
        get("a page of version 0", format!("{CONFIG_MAPS}?limit=2&resourceVersion=0")),
    ]);
    steps
}

pub fn watches() -> Vec<Step> {
    let watch = |more: &str| format!("{CONFIG_MAPS}?watch=true&timeoutSeconds=1{more}");
    vec![
        get("the empty list", CONFIG_MAPS).capture("start", "/metadata/resourceVersion"),
        post("create", CONFIG_MAPS, config_map("a", json!({"app": "web"})))
            .capture("created", "/metadata/resourceVersion"),
        merge("change", format!("{CONFIG_MAPS}/a"), json!({"data": {"key": "2"}})).compare(Nothing),
        merge(
            "another label",
            format!("{CONFIG_MAPS}/a"),
            json!({"metadata": {"labels": {"app": "db"}}}),
        )
        .compare(Nothing),
        merge(
            "the label again",
            format!("{CONFIG_MAPS}/a"),
            json!({"metadata": {"labels": {"app": "web"}}}),
        )
        .compare(Nothing),
        post("create another", CONFIG_MAPS, config_map("b", json!({}))).compare(Nothing),
        delete("delete", format!("{CONFIG_MAPS}/b")).compare(Nothing),
        get("all changes", watch("&resourceVersion={start}")),
        get("later changes", watch("&resourceVersion={created}")),
        get("from the cache", watch("&resourceVersion=0")),
        get("without a version", watch("")),
        get("of a label", watch("&resourceVersion={start}&labelSelector=app%3Dweb")),
        get("of a name", watch("&resourceVersion={start}&fieldSelector=metadata.name%3Db")),
        get(
            "with initial events",
            watch(
                "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
            ),
        ),
        get(
            "with initial events and version 0",
            watch(
                "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0",
            ),
        ),
        get(
            "with initial events without bookmarks",
            watch("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
        ),
        get(
            "without initial events",
            watch(
                "&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion={start}",
            ),
        ),
        get("as a table", watch("&resourceVersion={created}")).accept(TABLE),
        get("as metadata", watch("&resourceVersion={created}")).accept(PARTIAL),
        get("as text", watch("")).accept("text/plain"),
        get("of a single object", format!("{CONFIG_MAPS}/a?watch=true&timeoutSeconds=1")),
        get(
            "by the old path",
            "/api/v1/watch/namespaces/compared/configmaps?timeoutSeconds=1".to_owned(),
        ),
        get("with a limit", watch("&limit=1&resourceVersion={start}")),
        get("with a continuation", watch("&continue=abc")),
        get("of a broken version", watch("&resourceVersion=x")),
        get("of a negative version", watch("&resourceVersion=-1")),
        get("of the broken word", format!("{CONFIG_MAPS}?watch=perhaps&timeoutSeconds=1")),
        get("of a broken label", watch("&labelSelector=a%3D%3D%3D")),
        get(
            "of a missing namespace",
            "/api/v1/namespaces/none/configmaps?watch=true&timeoutSeconds=1".to_owned(),
        ),
        get(
            "of the namespace",
            "/api/v1/namespaces?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dcompared"
                .to_owned(),
        ),
        put(
            "replace by the same",
            format!("{CONFIG_MAPS}/a"),
            config_map("a", json!({"app": "web"})),
        )
        .compare(Nothing),
    ]
}

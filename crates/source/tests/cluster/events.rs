//! Notices about objects become Events.

use lb_process::notices::{Notice, NoticeObject, NoticeReason, Notices};
use lb_rules::model::{Kind, ObjectRef};
use lb_source::cluster::Events;
use serde_json::json;

use super::client;
use super::server::Server;

pub fn notice(kind: Kind, reason: NoticeReason) -> Notice {
    let reference = ObjectRef::new(kind, Some("shop"), Some("web"));
    let about = Some(NoticeObject { reference, uid: "1234".to_owned() });
    Notice { about, reason, message: "spec.ports: something is wrong".to_owned() }
}

#[tokio::test]
async fn a_notice_becomes_an_event_on_its_object() {
    let server = Server::start().await;
    Events::new(client(&server), "node-a").post(notice(Kind::Service, NoticeReason::NotServed));
    let [event] = &server.events(1, 0).await[..] else { panic!() };
    let involved = json!({
        "apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "1234"
    });
    assert_eq!(event["involvedObject"], involved);
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "NotServed");
    assert_eq!(event["message"], "spec.ports: something is wrong");
    assert_eq!(event["source"], json!({"component": "millrace", "host": "node-a"}));
}

#[tokio::test]
async fn a_problem_on_all_nodes_is_one_event() {
    let server = Server::start().await;
    for node in ["node-a", "node-b"] {
        let events = Events::new(client(&server), node);
        events.post(notice(Kind::Service, NoticeReason::NotServed));
        events.post(notice(Kind::Service, NoticeReason::NoRoom));
        events.post(Notice { about: None, ..notice(Kind::Service, NoticeReason::NotServed) });
    }
    server.events(3, 1).await;
}

#[tokio::test]
async fn an_event_about_a_node_is_where_kubectl_looks_for_it() {
    let server = Server::start().await;
    Events::new(client(&server), "node-a").post(notice(Kind::Node, NoticeReason::NotServed));
    let [event] = &server.events(1, 0).await[..] else { panic!() };
    assert_eq!(event["metadata"]["namespace"], "default");
    assert_eq!(event["involvedObject"]["name"], "web");
    assert!(event["involvedObject"]["namespace"].is_null());
}

//! What a node announces, as objects: permissions, and kinds that are not there.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::Method;
use lb_rules::kinds::METALLB_NAMESPACE;
use lb_rules::model::ServiceName;
use lb_source::cluster::{
    AnnouncedServices, NodeTaints, StatusIntervals, StatusKind, StatusWriter,
};
use tokio::sync::watch;

use super::client;
use super::permissions::{Permission, needed};
use super::pools::of_metallb;
use super::server::{Request, Server};
use super::unread::with_kinds;

const GROUP: &str = "/apis/metallb.io/v1beta1";

/// Of MetalLB's resources that are named, the cluster has these.
pub fn install_kinds(server: &Server, kinds: &[StatusKind]) {
    let resources: Vec<_> = kinds.iter().map(|kind| (kind.resource(), kind.name())).collect();
    with_kinds(server, &[("v1beta1", &resources)]);
}

/// Writes, until it is dropped, that this node announces a Service.
pub struct Writing {
    pub announced: watch::Sender<Option<AnnouncedServices>>,
    _known: watch::Sender<NodeTaints>,
    pub writer: StatusWriter,
}

impl Writing {
    pub fn start(server: &Server, kind: StatusKind) -> Self {
        // Missing kinds and permissions are looked for all the time.
        let soon = Duration::from_millis(20);
        let intervals = StatusIntervals { review: Duration::from_secs(3_600), absence: soon };
        let writer = StatusWriter::new(client(server), kind, METALLB_NAMESPACE, "node-a");
        let writer = writer.with_intervals(intervals);
        let announced = watch::Sender::new(Some(announced(&["web"])));
        let node = NodeTaints { uid: "node-a".to_owned(), keys: Vec::new() };
        let known = watch::Sender::new(node);
        tokio::spawn(
            writer.clone().write_whenever_changed(announced.subscribe(), known.subscribe()),
        );
        Self { announced, _known: known, writer }
    }
}

fn announced(services: &[&str]) -> AnnouncedServices {
    let through = BTreeSet::from(["eth0".to_owned()]);
    let services = services.iter();
    let services =
        services.map(|name| (ServiceName::new("shop", name), through.clone().into())).collect();
    AnnouncedServices { services, ..AnnouncedServices::default() }
}

/// What requests for objects need. The API server asks for another permission where applying an object creates it.
pub fn needed_for_statuses(requests: &[Request]) -> BTreeSet<Permission> {
    let of_objects = requests.iter().filter(|request| request.path.contains("/namespaces/"));
    let mut all = BTreeSet::new();
    for request in of_objects {
        let (group, resource, verb) = needed(request);
        if (&request.method, request.status) == (&Method::PATCH, 201) {
            all.insert((group.clone(), resource.clone(), "create".to_owned()));
        }
        all.insert((group, resource, verb));
    }
    all
}

/// Creates, changes and deletes objects of both kinds. Returns the permissions that this needs.
pub async fn write_all_statuses(server: &Server) -> BTreeSet<Permission> {
    for kind in StatusKind::ALL {
        install_kinds(server, &[kind]);
        let writing = Writing::start(server, kind);
        let prefix = if kind == StatusKind::Bgp { "bgp" } else { "l2" };
        let list = of_metallb(kind.resource());
        let status = format!("{list}/{prefix}-node-a.shop.web/status");
        server.asked(|all| all.iter().any(|request| request.path == status)).await;
        let mut taken_over = announced(&["web"]);
        taken_over.taken_over.insert(("node-b".to_owned(), ServiceName::new("shop", "web")));
        writing.announced.send_replace(Some(taken_over));
        let of_dead_node = format!("{list}/{prefix}-node-b.shop.web");
        let is_deletion = |one: &Request| one.method == Method::DELETE && one.path == of_dead_node;
        server.asked(|all| all.iter().any(is_deletion)).await;
        writing.writer.delete_all().await.unwrap();
    }
    needed_for_statuses(&server.requests())
}

#[tokio::test]
async fn kinds_that_come_later_are_found() {
    let server = Server::start().await;
    server.refuse(GROUP, 404);
    let writing = Writing::start(&server, StatusKind::Layer2);
    let asked = |requests: &[Request]| requests.iter().filter(|one| one.path == GROUP).count();
    server.asked(|all| asked(all) > 2).await;
    assert!(server.requests().iter().all(|request| request.path == GROUP));
    // Without anything to write, nobody asks.
    writing.announced.send_replace(Some(AnnouncedServices::default()));
    install_kinds(&server, &[StatusKind::Bgp]);
    writing.announced.send_replace(Some(announced(&["web"])));
    server.asked(|all| all.iter().any(|one| one.path == GROUP && one.status == 200)).await;
    install_kinds(&server, &[StatusKind::Bgp, StatusKind::Layer2]);
    let status = format!("{}/l2-node-a.shop.web/status", of_metallb("servicel2statuses"));
    server.asked(|all| all.iter().any(|one| one.path == status && one.status == 200)).await;
}

#[tokio::test]
async fn a_permission_that_comes_later_is_found_and_nothing_is_sent_in_vain() {
    let server = Server::start().await;
    let list = of_metallb("servicel2statuses");
    server.refuse(&list, 403);
    for _ in 0..3 {
        install_kinds(&server, &[StatusKind::Layer2]);
    }
    let _writing = Writing::start(&server, StatusKind::Layer2);
    server.asked(|all| all.iter().filter(|one| one.path == list).count() == 3).await;
    assert!(server.requests().iter().all(|request| request.method == Method::GET));
    server.refuse(&list, 200);
    install_kinds(&server, &[StatusKind::Layer2]);
    let object = format!("{list}/l2-node-a.shop.web");
    server.asked(|all| all.iter().any(|one| one.path == object && one.status == 201)).await;
}

/// As a server does that is overloaded.
#[tokio::test]
async fn a_write_that_fails_is_tried_again() {
    let server = Server::start().await;
    let object = format!("{}/l2-node-a.shop.web", of_metallb("servicel2statuses"));
    for status in [429, 500] {
        server.refuse(&object, status);
        install_kinds(&server, &[StatusKind::Layer2]);
        let _writing = Writing::start(&server, StatusKind::Layer2);
        let refused = |all: &[Request]| all.iter().filter(|one| one.status == status).count();
        server.asked(|all| refused(all) > 2).await;
        server.refuse(&object, 200);
        let status_path = format!("{object}/status");
        server.asked(|all| all.iter().any(|one| one.path == status_path)).await;
    }
}

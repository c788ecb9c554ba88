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
        let review = Duration::from_secs(3_600);
        let intervals = StatusIntervals { review, absence: soon, spread: Duration::ZERO };
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
    services.map(|name| (ServiceName::new("shop", name), through.clone().into())).collect()
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
        writing.writer.delete_all().await.unwrap();
    }
    let requests = server.requests();
    let of_objects = requests.iter().filter(|request| request.path.contains("/namespaces/"));
    of_objects.map(needed).collect()
}

#[tokio::test]
async fn kinds_that_come_later_are_found() {
    let server = Server::start().await;
    server.refuse(GROUP, 404);
    let _writing = Writing::start(&server, StatusKind::Layer2);
    let asked = |requests: &[Request]| requests.iter().filter(|one| one.path == GROUP).count();
    server.asked(|all| asked(all) > 2).await;
    assert!(server.requests().iter().all(|request| request.path == GROUP));
    install_kinds(&server, &[StatusKind::Bgp]);
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
    server.asked(|all| all.iter().any(|one| one.path == list && one.status == 201)).await;
}

/// As a server does that is overloaded, or whose credentials for this account have just changed.
#[tokio::test]
async fn a_write_that_fails_is_tried_again() {
    for status in [401, 429, 500] {
        let server = Server::start().await;
        let object = format!("{}/l2-node-a.shop.web", of_metallb("servicel2statuses"));
        let status_path = format!("{object}/status");
        server.refuse(&status_path, status);
        install_kinds(&server, &[StatusKind::Layer2]);
        let _writing = Writing::start(&server, StatusKind::Layer2);
        let refused = |all: &[Request]| all.iter().filter(|one| one.status == status).count();
        server.asked(|all| refused(all) > 2).await;
        server.refuse(&status_path, 200);
        let is_done = |one: &Request| one.path == status_path && one.status == 200;
        server.asked(|all| all.iter().any(is_done)).await;
    }
}

/// As by an admission policy that concerns this object.
#[tokio::test]
async fn a_refused_object_delays_no_other_and_is_not_asked_for_again() {
    for status in [403, 409, 422] {
        let server = Server::start().await;
        let list = of_metallb("servicel2statuses");
        let path_of = |service: &str| format!("{list}/l2-node-a.shop.{service}/status");
        server.refuse(&path_of("api"), status);
        install_kinds(&server, &[StatusKind::Layer2]);
        let writing = Writing::start(&server, StatusKind::Layer2);
        writing.announced.send_replace(Some(announced(&["api", "web"])));
        let is_of = |one: &Request, service: &str| one.path == path_of(service);
        server.asked(|all| all.iter().any(|one| is_of(one, "web"))).await;
        writing.announced.send_replace(Some(announced(&["api", "mail", "web"])));
        server.asked(|all| all.iter().any(|one| is_of(one, "mail"))).await;
        let requests = server.requests();
        assert_eq!(requests.iter().filter(|one| is_of(one, "api")).count(), 1, "{status}");
        assert_eq!(requests.iter().filter(|one| one.path == GROUP).count(), 1, "{status}");
    }
}

/// Of a namespace that does not exist, objects can be listed.
#[tokio::test]
async fn a_namespace_that_comes_later_is_found() {
    let server = Server::start().await;
    let list = of_metallb("servicel2statuses");
    server.refuse_creation(&list, 404);
    (0..3).for_each(|_| install_kinds(&server, &[StatusKind::Layer2]));
    let _writing = Writing::start(&server, StatusKind::Layer2);
    let refused = |all: &[Request]| all.iter().filter(|one| one.method == Method::POST).count();
    server.asked(|all| refused(all) == 3).await;
    server.refuse_creation(&list, 200);
    install_kinds(&server, &[StatusKind::Layer2]);
    server.asked(|all| all.iter().any(|one| one.path == list && one.status == 201)).await;
}

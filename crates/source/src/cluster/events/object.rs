//! Converts a notice to an Event.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use lb_process::notices::{Notice, NoticeObject};

const COMPONENT: &str = "millrace";
/// The API's limit.
const LONGEST_MESSAGE: usize = 1024;
const LONGEST_NAME: usize = 253;

/// `None`: the notice is not about an object.
pub fn event(notice: &Notice, node_name: &str, now: Timestamp) -> Option<Event> {
    let NoticeObject { reference, uid } = notice.about.as_ref()?;
    // Events about objects without a namespace are in this one.
    let namespace = match reference.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    };
    let mut hasher = DefaultHasher::new();
    (reference.kind.name(), uid, notice.reason.name(), &notice.message).hash(&mut hasher);
    if notice.reason.is_of_this_node() {
        node_name.hash(&mut hasher);
    }
    let suffix = format!(".{:016x}", hasher.finish());
    let name = shortened(&reference.name, LONGEST_NAME - suffix.len());
    Some(Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}{suffix}")),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(reference.kind.api_version().to_owned()),
            kind: Some(reference.kind.name().to_owned()),
            namespace: Some(reference.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: Some(reference.name.clone()),
            uid: Some(uid.clone()).filter(|uid| !uid.is_empty()),
            ..ObjectReference::default()
        },
        type_: Some(notice.reason.event_type().to_owned()),
        reason: Some(notice.reason.name().to_owned()),
        message: Some(shortened(&notice.message, LONGEST_MESSAGE).to_owned()),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node_name.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node_name.to_owned()),
        ..Event::default()
    })
}

fn shortened(text: &str, length: usize) -> &str {
    let end = (0..=length.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use lb_process::notices::NoticeReason;
    use lb_rules::model::{Kind, ObjectRef};

    use super::*;

    fn notice(reason: NoticeReason, message: &str) -> Notice {
        let reference = ObjectRef::new(Kind::Service, Some("shop"), Some("web"));
        let about = NoticeObject { reference, uid: "1234".to_owned() };
        Notice { about: Some(about), reason, message: message.to_owned() }
    }

    fn name(notice: &Notice, node: &str) -> String {
        event(notice, node, Timestamp::UNIX_EPOCH).unwrap().metadata.name.unwrap()
    }

    #[test]
    fn a_problem_on_all_nodes_is_one_event() {
        let common = notice(NoticeReason::NotServed, "spec.ports[0].port: 0 is not a port");
        assert_eq!(name(&common, "a"), name(&common, "b"));
        assert_ne!(name(&common, "a"), name(&notice(NoticeReason::NotServed, "else"), "a"));
        let own = notice(NoticeReason::NoRoom, "all backends are in use");
        assert_ne!(name(&own, "a"), name(&own, "b"));
    }

    #[test]
    fn an_event_fits_the_apis_limits() {
        let long = notice(NoticeReason::NotServed, &"ä".repeat(1_000));
        let event = event(&long, "a", Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(event.message.unwrap().len(), LONGEST_MESSAGE);
        assert_eq!(event.metadata.namespace.as_deref(), Some("shop"));
    }
}

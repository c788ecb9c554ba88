//! Notices for people about problems of objects.
//!
//! A problem is posted once, and again only if it was fixed in between; the fix is posted, too. The
//! source decides where notices go: with manifests to the log, with a cluster also to Events of the
//! object.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};
use tracing::field::display;

use crate::burst::{NoticeAdmission, NoticeBurst};
use lb_rules::model::{Kind, ObjectRef};

/// A notice about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// `None`: it does not concern an object of the API.
    pub about: Option<NoticeObject>,
    pub reason: NoticeReason,
    pub message: String,
}

/// An object's identity beyond its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeObject {
    pub reference: ObjectRef,
    /// Empty for objects without one, as in files.
    pub uid: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoticeReason {
    /// The object breaks the API's rules, or conflicts with another one.
    NotServed,
    /// The object does not fit into this node's maps.
    NoRoom,
    /// The Service's health check port can't be bound on this node. The name is kube-proxy's.
    FailedToStartServiceHealthcheck,
    /// The problem of a Service is fixed, and it is programmed.
    Served,
    /// The object fits into this node's maps now.
    RoomFound,
    /// An annotation of an Ingress is not honored, or not as it is written.
    AnnotationNotHonored,
    /// A Secret has no usable certificate, or an Ingress names none.
    CertificateNotUsed,
    /// The certificate of an Ingress expires soon, or has expired.
    CertificateExpires,
    /// A Service of type LoadBalancer has got its addresses.
    AddressAssigned,
    /// A Service of type LoadBalancer has not got what it requests.
    AddressNotAssigned,
    /// An address of a Service is in no pool any more.
    AddressOutsidePools,
    /// Something in a pool of addresses is not used.
    PoolNotUsed,
    /// A BGP peer is not used, or something in an advertisement.
    PeerNotUsed,
    /// Another machine uses an address that is to be announced.
    AddressInUse,
    /// This node has begun to announce an address of a Service.
    AddressAnnounced,
    /// The startup taint of this agent's Node can't be removed.
    TaintNotRemoved,
    /// Endpoints of a node that is dead by all signs get no new connections.
    NodeSetAside,
    /// The endpoints of that node get new connections again.
    NodeGivenBack,
}

impl NoticeReason {
    pub fn name(self) -> &'static str {
        match self {
            Self::NotServed => "NotServed",
            Self::NoRoom => "NoRoom",
            Self::FailedToStartServiceHealthcheck => "FailedToStartServiceHealthcheck",
            Self::Served => "Served",
            Self::RoomFound => "RoomFound",
            Self::AnnotationNotHonored => "AnnotationNotHonored",
            Self::CertificateNotUsed => "CertificateNotUsed",
            Self::CertificateExpires => "CertificateExpires",
            Self::AddressAssigned => "AddressAssigned",
            Self::AddressNotAssigned => "AddressNotAssigned",
            Self::AddressOutsidePools => "AddressOutsidePools",
            Self::PoolNotUsed => "PoolNotUsed",
            Self::PeerNotUsed => "PeerNotUsed",
            Self::AddressInUse => "AddressInUse",
            Self::AddressAnnounced => "AddressAnnounced",
            Self::TaintNotRemoved => "TaintNotRemoved",
            Self::NodeSetAside => "NodeSetAside",
            Self::NodeGivenBack => "NodeGivenBack",
        }
    }

    /// The message of its log lines.
    fn event(self) -> &'static str {
        match self {
            Self::NotServed => "object not served",
            Self::NoRoom => "object does not fit in the maps",
            Self::FailedToStartServiceHealthcheck => "health check server not started",
            Self::Served => "object served again",
            Self::RoomFound => "object fits in the maps again",
            Self::AnnotationNotHonored => "annotation not honored",
            Self::CertificateNotUsed => "certificate not used",
            Self::CertificateExpires => "certificate expires soon",
            Self::AddressAssigned => "address assigned",
            Self::AddressNotAssigned => "address not assigned",
            Self::AddressOutsidePools => "address is in no pool any more",
            Self::PoolNotUsed => "address pool not used as written",
            Self::PeerNotUsed => "bgp object not used as written",
            Self::AddressInUse => "address is used by another machine",
            Self::AddressAnnounced => "address of a service announced",
            Self::TaintNotRemoved => "startup taint not removed",
            Self::NodeSetAside => "endpoints of a dead node set aside",
            Self::NodeGivenBack => "endpoints of a node given back",
        }
    }

    /// Whether it concerns only this node; otherwise all nodes post the same.
    pub fn is_of_this_node(self) -> bool {
        match self {
            Self::NotServed
            | Self::Served
            | Self::AnnotationNotHonored
            | Self::CertificateNotUsed
            | Self::CertificateExpires
            | Self::AddressAssigned
            | Self::AddressNotAssigned
            | Self::AddressOutsidePools
            | Self::PoolNotUsed
            | Self::PeerNotUsed
            | Self::NodeSetAside
            | Self::NodeGivenBack => false,
            Self::NoRoom
            | Self::FailedToStartServiceHealthcheck
            | Self::RoomFound
            | Self::AddressInUse
            | Self::AddressAnnounced
            | Self::TaintNotRemoved => true,
        }
    }

    pub(crate) fn is_trouble(self) -> bool {
        match self {
            Self::NotServed
            | Self::NoRoom
            | Self::FailedToStartServiceHealthcheck
            | Self::AnnotationNotHonored
            | Self::CertificateNotUsed
            | Self::CertificateExpires
            | Self::AddressNotAssigned
            | Self::AddressOutsidePools
            | Self::PoolNotUsed
            | Self::PeerNotUsed
            | Self::AddressInUse
            | Self::TaintNotRemoved
            | Self::NodeSetAside => true,
            Self::Served
            | Self::RoomFound
            | Self::AddressAssigned
            | Self::AddressAnnounced
            | Self::NodeGivenBack => false,
        }
    }

    /// The Event's type in the API.
    pub fn event_type(self) -> &'static str {
        if self.is_trouble() { "Warning" } else { "Normal" }
    }
}

impl Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.about {
            Some(about) => write!(f, "{}: {}", about.reference, self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// A receiver of notices. Posting never waits.
pub trait Notices: Send + Sync {
    fn post(&self, notice: Notice);
}

/// Writes notices to the log. If thousands of objects have the same problem, the first few of a
/// minute are logged one by one, the others at debug level and as a count.
#[derive(Clone, Default)]
pub struct NoticeLog(Arc<Mutex<BTreeMap<NoticeReason, NoticeBurst>>>);

impl Notices for NoticeLog {
    fn post(&self, notice: Notice) {
        let now = Instant::now();
        let reason = notice.reason;
        let (ended, admission) = self.with(reason, |burst| (burst.end(now), burst.admit(now)));
        report_count(reason, ended);
        if let NoticeAdmission::Counted { report_at: Some(report_at) } = admission
            // Without a runtime the count is reported with the next notice.
            && let Ok(runtime) = Handle::try_current()
        {
            let log = self.clone();
            runtime.spawn(async move {
                sleep_until(report_at).await;
                report_count(reason, log.with(reason, |burst| burst.end(Instant::now())));
            });
        }
        log_notice(&notice, matches!(admission, NoticeAdmission::Logged));
    }
}

impl NoticeLog {
    fn with<T>(&self, reason: NoticeReason, act: impl FnOnce(&mut NoticeBurst) -> T) -> T {
        act(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default())
    }
}

fn log_notice(notice: &Notice, individually: bool) {
    let about = notice.about.as_ref().map(|about| &about.reference);
    let (services, others) = match about {
        Some(object) if object.kind == Kind::Service => (about, None),
        _ => (None, about),
    };
    let service = services.map(|object| display(format!("{}/{}", object.namespace, object.name)));
    let object = others.map(display);
    let reason = notice.reason.name();
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                service,
                object,
                %reason,
                detail = notice.message,
                "{}",
                notice.reason.event()
            )
        };
    }
    match (individually, notice.reason.is_trouble()) {
        (true, true) => line!(warn),
        (true, false) => line!(info),
        (false, _) => line!(debug),
    }
}

/// Logs the number of notices that were logged at debug level only.
fn report_count(reason: NoticeReason, count: Option<u64>) {
    const MESSAGE: &str = "more notices of one reason; logged individually at debug level";
    let Some(count) = count.filter(|count| *count > 0) else { return };
    let interval_s = NoticeBurst::INTERVAL.as_secs();
    let (name, is_trouble) = (reason.name(), reason.is_trouble());
    if is_trouble {
        tracing::warn!(reason = %name, count, interval_s, "{MESSAGE}");
    } else {
        tracing::info!(reason = %name, count, interval_s, "{MESSAGE}");
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::time::sleep;
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    /// Collects what is logged.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    impl Lines {
        fn take(&self) -> Vec<String> {
            let bytes = std::mem::take(&mut *self.0.lock().unwrap());
            String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
        }
    }

    fn notice(kind: Kind, name: &str) -> Notice {
        let reference = ObjectRef::new(kind, Some("shop"), Some(name));
        let about = Some(NoticeObject { reference, uid: String::new() });
        Notice { about, reason: NoticeReason::NotServed, message: "spec.type is wrong".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_notices_is_summarised_once_a_minute() {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(lines.clone())
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let log = NoticeLog::default();

        (0..1000).for_each(|number| log.post(notice(Kind::Service, &format!("web-{number}"))));
        let written = lines.take();
        assert_eq!(written.len(), NoticeBurst::LOGGED as usize);
        assert_eq!(
            written[1].trim_start(),
            "WARN object not served service=shop/web-1 reason=NotServed \
             detail=\"spec.type is wrong\""
        );

        sleep(NoticeBurst::INTERVAL * 2).await;
        assert_eq!(
            lines.take(),
            [" WARN more notices of one reason; logged individually at debug level \
              reason=NotServed count=990 interval_s=60"]
        );

        log.post(notice(Kind::Node, "a"));
        let written = lines.take();
        assert!(written[0].contains("object=Node a reason=NotServed"), "{written:?}");
        sleep(NoticeBurst::INTERVAL * 2).await;
        assert!(lines.take().is_empty());
    }
}

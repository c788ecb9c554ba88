//! The Ingress process: reads all objects, opens the ports or takes them over, and serves until it ends.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use jiff::Timestamp;
use lb_process::ending::EndSignals;
use lb_process::notices::{NoticeLog, Notices};
use lb_process::raise_file_limit;
use lb_process::readiness::{self, MetricsSource, Readiness};
use lb_process::service_manager::notify_service_manager;
use lb_proxy::Proxy;
use lb_rules::model::{Kind, ObjectRef, ServiceName};
use lb_source::cluster::Events;
use lb_source::lease;
use lb_source::{Event, IngressCluster, Manifests, Source};
use sd_notify::NotifyState;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::config::{IngressOptions, ObjectOrigin};
use super::control::{self, ControlSocket, Predecessor};
use super::controller::{self, ControllerOutputs, IngressController};
use super::listeners::ListenAddresses;
use super::metrics::IngressMetrics;
use super::names::ResolvedUpstream;
use super::status::{self, StatusHandle};
use super::{access_log, handover, parent, session_keys, spans};

/// How long the start waits for Secrets that are watched by name. A role that does not allow one must not keep all
/// others from being served.
const SECRETS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a predecessor may take to close its control socket.
const CONTROL_SOCKET_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last spans may take to be exported.
const SPAN_EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Runs until a signal, the end of the parent, or a successor that serves.
pub async fn run_ingress(options: IngressOptions) -> Result<()> {
    raise_file_limit();
    let mut ending = EndSignals::new()?;
    let mut parent = options.parent.as_ref().map(parent::watch_parent).transpose()?;
    if let Some(path) = options.session_key_file.clone() {
        session_keys::follow_session_keys(path, options.proxy.session_keys.clone())?;
    }
    let control_address = control::parse_socket_address(&options.control_socket)
        .with_context(|| format!("--control-socket {}", options.control_socket))?;
    let metrics = Arc::new(IngressMetrics::new());
    let health = Arc::new(Readiness::new(Arc::clone(&metrics) as Arc<dyn MetricsSource>));

    let (sender, mut events) = mpsc::unbounded_channel();
    let (secrets, wanted) = watch::channel(Default::default());
    let source = open_source(&options, &metrics, wanted).await?;
    readiness::start_health_servers(
        (options.healthz, "--ingress-healthz-bind-address"),
        (options.metrics, "--ingress-metrics-bind-address"),
        &health,
        &source.notices,
    );
    let (resolved_sender, mut resolved) = mpsc::unbounded_channel();
    let outlets = ControllerOutputs {
        notices: source.notices,
        metrics: Arc::clone(&metrics),
        published: published_service(&options),
        status: source
            .client
            .zip(options.status.clone())
            .map(|(client, options)| StatusHandle::start(client, options)),
        annotations: controller::IngressAnnotations::default(),
    };
    let (annotations, status) = (outlets.annotations.clone(), outlets.status.clone());
    let mut controller = IngressController::new(options.model, outlets, resolved_sender, secrets);
    (source.run)(sender);
    tokio::select! {
        synced = sync_objects(&mut controller, &mut events, &health, source.names_secrets) => synced?,
        () = ending.requested() => return Ok(()),
        () = wait_for_parent_end(&mut parent) => return Ok(()),
    }
    if let Some(status) = &status {
        status.synced();
    }

    let predecessor = connect_predecessor(&control_address)?;
    let access_log = access_log::start_access_log(options.access_log)?;
    let (exporter, traces) =
        spans::start_exporter(options.tracing, metrics.spans().clone())?.unzip();
    let settings = lb_proxy::ProxySettings { access_log, traces, ..options.proxy };
    let proxy = start_proxy(settings, options.listeners, predecessor.as_ref(), &controller)?;
    metrics.add(proxy.metrics());
    health.set_ready(true);
    if let Some(predecessor) = predecessor {
        // It serves no longer, if this fails.
        let _ = predecessor.dismiss();
    }
    let (successors_sender, mut successors) = mpsc::channel(1);
    let control =
        ControlSocket { config: controller.config(), annotations, successors: successors_sender };
    let (opened, is_opened) = oneshot::channel();
    let control = tokio::spawn(control.serve(control_address, opened));
    // A successor that starts before would not find this process, and share the ports with it. A name that another
    // process keeps must not prevent serving.
    let _ = timeout(CONTROL_SOCKET_TIMEOUT, is_opened).await;
    tracing::info!(http = ?proxy.http(), https = ?proxy.https(), "serving ingresses");
    notify_service_manager(&[NotifyState::Ready, NotifyState::Status("serving Ingresses")]);

    let mut beats = interval(readiness::BEAT_INTERVAL);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut certificates = interval(CERTIFICATE_CHECK_INTERVAL);
    certificates.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut successor = None;
    let outcome = loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => controller.take_in(event, &mut events),
                None => break Err(anyhow!("the source of objects has ended")),
            },
            Some(addresses) = resolved.recv() => controller.take_in_resolved(addresses),
            _ = beats.tick() => health.beat(),
            _ = certificates.tick() => {
                controller.check_certificates(Timestamp::now().as_second());
            }
            Some(stream) = successors.recv() => successor = hand_over(stream, &proxy).await,
            serves = wait_for_successor(&mut successor) => {
                successor = None;
                if serves {
                    break Ok(ProxyEnd::Replaced);
                }
                tracing::warn!("successor exited before it served; continuing to serve");
            }
            () = ending.requested() => break Ok(ProxyEnd::Requested),
            () = wait_for_parent_end(&mut parent) => break Ok(ProxyEnd::Requested),
        }
    };
    notify_service_manager(&[NotifyState::Stopping]);
    health.set_ready(false);
    // The name is the successor's.
    control.abort();
    let delay = match outcome {
        Ok(ProxyEnd::Requested) => options.shutdown_delay,
        Ok(ProxyEnd::Replaced) | Err(_) => Duration::ZERO,
    };
    tracing::info!(delay_s = delay.as_secs(), "shutting down; requests have time to finish");
    let drain = async {
        if let Some(status) = status {
            status.release().await;
        }
        sleep(delay).await;
        proxy.shutdown().await;
    };
    drain_requests(drain, controller, events, resolved).await;
    if let Some(exporter) = exporter {
        exporter.finish(SPAN_EXPORT_TIMEOUT).await;
    }
    outcome.map(drop)
}

enum ProxyEnd {
    Requested,
    /// Another process serves the ports.
    Replaced,
}

/// Requests that are being finished follow changes of their endpoints.
async fn drain_requests(
    drain: impl Future<Output = ()>,
    mut controller: IngressController,
    mut events: mpsc::UnboundedReceiver<Event>,
    mut resolved: mpsc::UnboundedReceiver<ResolvedUpstream>,
) {
    tokio::pin!(drain);
    loop {
        tokio::select! {
            () = &mut drain => return,
            Some(event) = events.recv() => controller.take_in(event, &mut events),
            Some(addresses) = resolved.recv() => controller.take_in_resolved(addresses),
        }
    }
}

/// A source, and what belongs to it.
struct OpenedSource {
    run: Box<dyn FnOnce(mpsc::UnboundedSender<Event>) + Send>,
    notices: Arc<dyn Notices>,
    client: Option<kube::Client>,
    /// Whether Secrets are watched by name.
    names_secrets: bool,
}

async fn open_source(
    options: &IngressOptions,
    metrics: &IngressMetrics,
    wanted: watch::Receiver<std::collections::BTreeSet<ObjectRef>>,
) -> Result<OpenedSource> {
    match &options.origin {
        ObjectOrigin::Manifests(paths) => {
            let source = Manifests::of_kinds(paths.clone(), &Kind::OF_INGRESS)?;
            Ok(OpenedSource {
                run: Box::new(|events| run_source(source, events)),
                notices: Arc::new(NoticeLog::default()),
                client: None,
                names_secrets: false,
            })
        }
        ObjectOrigin::Cluster(access) => {
            let connection = access.open(metrics.requests()).await?;
            tracing::info!(api_server = connection.description, "watching the cluster");
            let client = connection.client.clone();
            let reporter = options.node_name.clone().unwrap_or_else(lease::host_name);
            let notices = Arc::new(Events::new(client.clone(), &reporter));
            let source = IngressCluster::of(connection, options.node_name.clone(), wanted)
                .in_namespace(options.namespace.clone());
            let run = Box::new(|events| run_source(source, events));
            Ok(OpenedSource { run, notices, client: Some(client), names_secrets: true })
        }
    }
}

/// Runs in a task until the process ends.
fn run_source<S: Source + Send + 'static>(source: S, events: mpsc::UnboundedSender<Event>) {
    tokio::spawn(async move {
        if let Err(error) = source.run(events).await {
            tracing::error!(error = format!("{error:#}"), "source of objects failed");
        }
    });
}

fn published_service(options: &IngressOptions) -> Option<ServiceName> {
    match &options.status.as_ref()?.publish {
        status::PublishedFrom::Service(service) => Some(service.clone()),
        status::PublishedFrom::Addresses(_) => None,
    }
}

/// Waits until all objects are known, with the Secrets that Ingresses refer to.
async fn sync_objects(
    controller: &mut IngressController,
    events: &mut mpsc::UnboundedReceiver<Event>,
    health: &Readiness,
    names_secrets: bool,
) -> Result<()> {
    store_until_synced(controller, events, health).await?;
    controller.publish_changes();
    if names_secrets {
        controller.request_secrets();
        let listed = store_until_synced(controller, events, health);
        match timeout(SECRETS_TIMEOUT, listed).await {
            Ok(listed) => listed?,
            Err(_) => tracing::warn!(
                "secrets that ingresses refer to are not listed yet; serving without"
            ),
        }
        controller.publish_changes();
    }
    Ok(())
}

async fn store_until_synced(
    controller: &mut IngressController,
    events: &mut mpsc::UnboundedReceiver<Event>,
    health: &Readiness,
) -> Result<()> {
    let mut beats = interval(readiness::BEAT_INTERVAL);
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Synced(_)) => return Ok(()),
                Some(event) => controller.store_event(event),
                None => return Err(anyhow!("the source of objects ended before its first list was complete")),
            },
            _ = beats.tick() => health.beat(),
        }
    }
}

fn connect_predecessor(address: &std::os::unix::net::SocketAddr) -> Result<Option<Predecessor>> {
    tokio::task::block_in_place(|| control::take_over_sockets(address))
}

/// Opens the ports, or takes them over.
fn start_proxy(
    mut settings: lb_proxy::ProxySettings,
    listeners: ListenAddresses,
    predecessor: Option<&Predecessor>,
    controller: &IngressController,
) -> Result<Proxy> {
    let ListenAddresses { http, https, inherited } = listeners;
    settings.http = http;
    settings.https = https;
    settings.inherited = inherited;
    if let Some(predecessor) = predecessor {
        let received =
            tokio::task::block_in_place(|| handover::receive_sockets(predecessor.stream()));
        let (sockets, _) = received.context("sockets of the running proxy not taken over")?;
        tracing::info!(
            sockets = sockets.len(),
            "listening sockets taken over from a running proxy"
        );
        settings.inherited.extend(sockets);
    }
    Proxy::start(settings, controller.config()).map_err(|error| {
        let error = anyhow!("{error}");
        match is_denied(&error) {
            true => error.context(
                "ports below 1024 need a privilege: lower the sysctl net.ipv4.ip_unprivileged_port_start, let systemd \
                 pass the sockets, or use other ports with --http-bind-addresses and --https-bind-addresses",
            ),
            false => error,
        }
    })
}

fn is_denied(error: &anyhow::Error) -> bool {
    error.to_string().contains(&io::Error::from_raw_os_error(nix::libc::EACCES).to_string())
}

/// Gives the sockets to a successor, which this process waits for then.
async fn hand_over(stream: StdStream, proxy: &Proxy) -> Option<UnixStream> {
    let sent = async {
        let listeners: Vec<TcpListener> =
            proxy.listeners().iter().map(TcpListener::try_clone).collect::<io::Result<_>>()?;
        let stream = tokio::task::spawn_blocking(move || {
            stream.set_write_timeout(Some(Duration::from_secs(10)))?;
            handover::send_sockets(&stream, &listeners.iter().collect::<Vec<_>>(), "")?;
            anyhow::Ok(stream)
        })
        .await??;
        stream.set_nonblocking(true)?;
        Ok(UnixStream::from_std(stream)?)
    };
    let sent: Result<UnixStream> = sent.await;
    match sent {
        Ok(stream) => {
            tracing::info!("listening sockets passed to a successor; serving until it does");
            Some(stream)
        }
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), "listening sockets not passed");
            None
        }
    }
}

/// Waits until the successor serves; returns false if it ended before. Never returns without one.
async fn wait_for_successor(successor: &mut Option<UnixStream>) -> bool {
    match successor {
        Some(stream) => stream.read_u8().await.is_ok(),
        None => std::future::pending().await,
    }
}

/// Waits for the end of the parent; never returns without one.
async fn wait_for_parent_end(parent: &mut Option<UnixStream>) {
    match parent {
        // It sends nothing more.
        Some(stream) => drop(stream.read_u8().await),
        None => std::future::pending().await,
    }
}

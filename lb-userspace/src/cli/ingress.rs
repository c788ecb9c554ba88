//! `millrace ingress`: the Ingress proxy.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use lb_http::headers::Forwarding;
use lb_http::path::Slashes;
use lb_ingress::listeners::ListenAddresses;
use lb_ingress::status::{self, PublishedFrom};
use lb_ingress::{IngressOptions, ObjectOrigin, TracingOptions, parent};
use lb_ingress_rules::snippets::SnippetReading;
use lb_kernel::privileges::Privileges;
use lb_otlp::CollectorSettings;
use lb_proxy::settings::ProxyLimits;
use lb_source::cluster::Access;

use super::agent::{cluster_access, confined_runtime};
use super::ingress_report;
use super::log::Level;
use crate::config::{Configuration, IngressSettings, TracedIngresses, TracingSettings};

pub const EXAMPLES: &str = "\
Examples:
  Serve the Ingresses of class millrace of the cluster in the current kubeconfig:
    millrace ingress --http-bind-addresses [::]:8080 --https-bind-addresses [::]:8443

  Serve those of ingress-nginx, too, and leave their status to it:
    millrace ingress --accept-nginx-classes --update-status=false

  Serve the Ingresses in a directory, with their Services, EndpointSlices and Secrets:
    millrace ingress --manifests site/ --status-addresses 192.0.2.1

  Replace a running proxy without losing a connection: start the new one beside it, with the
  same settings.

  Ask why a request goes where it goes:
    millrace explain https://shop.example.org/cart";

#[derive(Debug, Args)]
pub struct RunIngressOptions {
    /// Get sockets and kubeconfig from the parent process, over standard input
    #[arg(long, hide = true)]
    pub from_parent: bool,

    #[command(subcommand)]
    command: Option<IngressCommand>,
}

#[derive(Debug, Subcommand)]
enum IngressCommand {
    /// Report the effect of each annotation of Ingresses, before a migration
    ///
    /// Needs neither a cluster nor a running proxy. Exits with 1 if anything is refused.
    #[command(after_help = ingress_report::EXAMPLES)]
    Report(ingress_report::IngressReportOptions),
}

pub fn run_ingress(
    options: &RunIngressOptions,
    configuration: Configuration,
    level: Level,
) -> Result<()> {
    if let Some(IngressCommand::Report(options)) = &options.command {
        let settings = model_settings(&configuration.ingress, None);
        return ingress_report::run_ingress_report(options, settings);
    }
    let options = if options.from_parent {
        let inheritance = parent::receive_inheritance()?;
        let access = Access { given_kubeconfig: Some(inheritance.kubeconfig), ..Access::default() };
        IngressOptions {
            origin: ObjectOrigin::Cluster(access),
            listeners: inheritance.listeners,
            parent: Some(inheritance.parent),
            // The parent's API does not let the proxy read Nodes, and has only one.
            ..ingress_options(&configuration, None)
        }
    } else {
        let node_name = configuration.agent.node_name()?;
        let options = ingress_options(&configuration, Some(node_name));
        let listeners = options.listeners.replaced_by_environment()?;
        IngressOptions { listeners, ..options }
    };
    let runtime = confined_runtime(Privileges::PROXY)?;
    runtime.spawn(level.follow());
    runtime.block_on(lb_ingress::run_ingress(options))
}

/// What the settings say about a proxy without a parent process.
pub(crate) fn ingress_options(
    configuration: &Configuration,
    node_name: Option<String>,
) -> IngressOptions {
    let settings = &configuration.ingress;
    IngressOptions {
        origin: match configuration.origin.manifests.as_slice() {
            [] => ObjectOrigin::Cluster(cluster_access(&configuration.origin)),
            paths => ObjectOrigin::Manifests(paths.to_vec()),
        },
        model: model_settings(settings, node_name.as_deref()),
        node_name,
        namespace: settings.watch_namespace.clone(),
        proxy: proxy_settings(configuration),
        access_log: settings.access_log,
        tracing: tracing_options(&settings.tracing),
        listeners: ListenAddresses {
            http: settings.http_bind_addresses.clone(),
            https: settings.https_bind_addresses.clone(),
            inherited: Vec::new(),
        },
        session_key_file: settings.session_key_file.clone(),
        status: status_options(settings),
        control_socket: settings.control_socket.clone(),
        healthz: settings.ingress_healthz_bind_address.0,
        metrics: settings.ingress_metrics_bind_address.0,
        shutdown_delay: Duration::from_secs(settings.shutdown_delay.into()),
        parent: None,
    }
}

/// The part of the settings that decides what objects mean.
pub(crate) fn model_settings(
    settings: &IngressSettings,
    node_name: Option<&str>,
) -> lb_ingress_rules::IngressRuleSettings {
    lb_ingress_rules::IngressRuleSettings {
        controller: settings.ingress_controller.clone(),
        accept_nginx_classes: settings.accept_nginx_classes,
        class: settings.ingress_class.clone(),
        serve_without_class: settings.serve_without_class,
        slashes: if settings.merge_slashes { Slashes::Merged } else { Slashes::AsSent },
        share_hosts: settings.allow_shared_hosts,
        external_names: settings.allow_external_names,
        secrets_across_namespaces: settings.allow_cross_namespace_secrets,
        passthrough: settings.allow_tls_passthrough,
        default_certificate: settings.default_certificate.clone(),
        auth_hosts: settings.auth_hosts.clone(),
        snippets: match settings.allow_snippet_annotations {
            true => SnippetReading::Allowed,
            false => SnippetReading::Refused,
        },
        max_body: settings.max_body_size.0,
        cluster_domain: settings.cluster_domain.clone(),
        node: node_name.unwrap_or_default().to_owned(),
    }
}

fn proxy_settings(configuration: &Configuration) -> lb_proxy::ProxySettings {
    let settings = &configuration.ingress;
    let defaults = lb_proxy::ProxySettings::new(Vec::new(), Vec::new());
    let limits = ProxyLimits {
        connections: settings.max_connections,
        connections_per_source: settings.max_connections_per_source,
        requests_per_source: settings.max_requests_per_source,
        ..ProxyLimits::default()
    };
    lb_proxy::ProxySettings {
        proxy_protocol: settings.proxy_protocol_sources.clone(),
        forwarding: Forwarding {
            trusted: settings.trusted_proxies.clone(),
            ..Forwarding::default()
        },
        limits,
        workers: settings.workers.map_or(0, usize::from),
        shutdown_grace: Duration::from_secs(settings.shutdown_grace.into()),
        most_owners: configuration.agent.metrics_max_objects.unwrap_or(defaults.most_owners),
        ..defaults
    }
}

/// `None`: there is no collector.
fn tracing_options(settings: &TracingSettings) -> Option<TracingOptions> {
    let url = settings.otlp_endpoint.clone()?;
    Some(TracingOptions {
        collector: CollectorSettings {
            url,
            authority_file: settings.otlp_authority_file.clone(),
            header_file: settings.otlp_header_file.clone(),
        },
        service_name: settings.trace_service_name.clone(),
        by_default: settings.trace_ingresses == TracedIngresses::All,
        ratio: settings.trace_sampling_ratio,
        most_per_second: settings.max_spans_per_second,
    })
}

/// `None`: there is nothing to write, or the settings forbid it.
fn status_options(settings: &IngressSettings) -> Option<status::StatusOptions> {
    let publish = match (&settings.publish_service, settings.status_addresses.as_slice()) {
        _ if !settings.update_status => return None,
        (Some(service), _) => PublishedFrom::Service(service.clone()),
        (None, []) => return None,
        (None, addresses) => PublishedFrom::Addresses(addresses.to_vec()),
    };
    Some(status::StatusOptions { publish, lease: settings.status_lease.clone() })
}

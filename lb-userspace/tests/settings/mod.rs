//! Every setting, with another value than its default, and the test that shows what the value changes.
//!
//! Two tests use the table: `tests/config.rs` and `src/cli/effects.rs`.

// Each uses a part.
#![allow(dead_code)]

pub struct Setting {
    pub name: &'static str,
    pub value: &'static str,
    /// The other setting without which it has no effect, as NAME=VALUE; empty: none.
    pub needs: &'static str,
    /// A test: its file and function. Or a case: its file, in which a comment names the setting.
    pub test: &'static str,
}

const fn row(name: &'static str, value: &'static str, test: &'static str) -> Setting {
    Setting { name, value, needs: "", test }
}

impl Setting {
    const fn with(self, needs: &'static str) -> Self {
        Self { needs, ..self }
    }
}

const COLLECTOR: &str = "otlp-endpoint=http://192.0.2.1:4318";

/// New settings must be added here.
#[rustfmt::skip]
pub const SETTINGS: &[Setting] = &[
    row("pin-path", "/sys/fs/bpf/other", "tests/tests/life/bad_input.rs::a_device_with_the_program_of_another_agent_is_refused"),
    row("log", "debug", "tests/tests/life/service.rs::systemd_is_notified_and_the_log_level_changes_at_run_time"),
    row("log-format", "json", "tests/tests/life/service.rs::systemd_is_notified_and_the_log_level_changes_at_run_time"),
    row("devices", "eth0,eth*", "tests/tests/node/network.rs::an_added_device_is_served_also_when_it_is_added_again"),
    row("workload-devices", "veth*", "tests/tests/node/pods.rs::a_pod_reaches_another_through_a_service_with_its_own_address"),
    row("node-name", "worker-1", "crates/source/tests/cluster/nodes.rs::only_the_own_node_is_watched"),
    row("nodeport-addresses", "192.0.2.0/24,primary", "tests/tests/node/network.rs::node_ports_are_open_only_on_configured_addresses"),
    row("healthz-bind-address", "127.0.0.1:1", "crates/status/tests/status.rs::an_address_whose_port_is_in_use_is_reported_and_the_others_are_served"),
    row("metrics-bind-address", "off", "crates/status/tests/status.rs::metrics_have_the_names_that_people_have_alerts_on"),
    row("metrics-max-objects", "10", "crates/status/src/traffic/tests.rs::objects_beyond_the_limit_are_counted_and_not_exported"),
    row("forwarding", "gue", "crates/rules/tests/model/forwarding_of_the_setting.txt"),
    row("external-ips", "203.0.113.0/24,2001:db8::1", "crates/rules/tests/model/external_ips_within.txt"),
    row("load-balancer-unserved", "drop", "crates/plan/src/tests/addresses.rs::by_setting_an_assigned_address_answers_nobody_or_is_left_to_the_stack"),
    row("startup-taint", "example.org/not-ready", "crates/source/tests/cluster/startup_taint.rs::the_taint_is_removed_whenever_the_node_has_it_and_no_other"),
    row("tunnel-key-file", "/etc/millrace-tunnel/key", "tests/tests/nodes/tunnels.rs::keyed_tunnels_serve_clients_without_xdp"),
    row("xdp-mode", "off", "tests/tests/node/clsact.rs::without_xdp_tc_handles_all_packets"),
    row("tc-mode", "clsact", "tests/tests/node/clsact.rs::agents_switch_between_clsact_and_tcx"),
    row("bpf-log-level", "debug", "tests/tests/life/service.rs::programs_log_packets_only_if_bpf_log_level_is_set"),
    row("cgroup", "/sys/fs/cgroup/a", "tests/tests/node/sockets.rs::an_agent_with_another_cgroup_detaches_from_the_old_one"),
    row("max-service-ports", "100", "crates/kernel/src/sizing.rs::numbers_that_are_set_are_taken_whatever_exists"),
    row("max-endpoints", "200", "crates/kernel/src/sizing.rs::numbers_that_are_set_are_taken_whatever_exists"),
    row("max-flows", "300", "crates/kernel/src/sizing.rs::numbers_that_are_set_are_taken_whatever_exists"),
    row("map-memory-percent", "5", "crates/kernel/src/sizing.rs::a_percentage_scales_all_sizes"),
    row("snat-ports", "2000-30000", "tests/tests/node/snat_ports.rs::ports_are_reserved_while_the_node_uses_them"),
    row("tcp-established-timeout", "3600", "lb-common/src/layout/timeouts.rs::each_setting_is_the_limit_of_its_states"),
    row("udp-timeout", "10", "lb-common/src/layout/timeouts.rs::each_setting_is_the_limit_of_its_states"),
    row("udp-stream-timeout", "60", "lb-common/src/layout/timeouts.rs::each_setting_is_the_limit_of_its_states"),
    row("slot-history", "3600", "tests/tests/nodes/slot_history.rs::without_history_those_of_changed_slots_are_reset"),
    row("cleanup-on-exit", "true", "tests/tests/peers/bgp.rs::routers_learn_the_addresses_that_a_node_serves"),
    row("heartbeat-interval", "200", "crates/announce/src/tests/timing.rs::heartbeats_are_sent_once_in_an_interval"),
    row("heartbeat-misses", "5", "crates/announce/src/tests/timing.rs::a_node_counts_as_failed_after_the_limit_of_silence"),
    row("announcement-hold", "60", "crates/announce/src/tests/timing.rs::the_kernel_answers_without_the_agent_until_the_hold_has_passed"),
    row("announcement-hook", "http://127.0.0.1:8080/addresses", "crates/agent/src/announcer/hook/tests.rs::a_change_is_sent_until_the_server_accepts_it"),
    row("allow-dead-nodes", "true", "tests/tests/nodes/dead_nodes.rs::new_connections_avoid_a_dead_node_within_a_second"),
    row("load-balancer-addresses", "192.0.2.0/28,198.51.100.1-198.51.100.9", "crates/rules/tests/ipam/pool_setting.txt"),
    row("load-balancer-classes", "example.org/a,example.org/b", "crates/rules/tests/ipam/classes_of_the_setting.txt"),
    row("require-load-balancer-class", "true", "crates/rules/tests/ipam/classes_of_the_setting.txt"),
    row("metallb-namespace", "metallb", "lb-userspace/tests/controller/standalone.rs::pools_of_metallb_are_read_in_the_namespace_of_the_setting"),
    row("controller-lease", "edge/controller", "lb-userspace/tests/controller/replicas.rs::one_of_two_controllers_assigns_and_the_other_one_takes_over"),
    row("tunnel-key-secret", "edge/tunnel", "lb-userspace/tests/controller/replicas.rs::one_of_two_controllers_assigns_and_the_other_one_takes_over"),
    row("controller-healthz-bind-address", "127.0.0.1:3", "lb-userspace/tests/controller/replicas.rs::one_of_two_controllers_assigns_and_the_other_one_takes_over"),
    row("controller-metrics-bind-address", "off", "lb-userspace/tests/controller/replicas.rs::one_of_two_controllers_assigns_and_the_other_one_takes_over"),
    row("manifests", "services,more", "crates/source/src/manifests/tests.rs::files_come_and_go_and_only_manifests_count"),
    row("kubeconfig", "/etc/kubeconfig", "crates/source/tests/cluster/access.rs::a_kubeconfig_that_is_replaced_is_used_at_once"),
    row("context", "production", "crates/source/src/cluster/access.rs::the_current_context_is_used_unless_another_is_named"),
    row("api-servers", "https://192.0.2.1:6443,https://192.0.2.2:6443", "crates/source/src/cluster/access.rs::the_servers_address_can_be_another"),
    row("state-directory", "/srv/state", "tests/tests/life/resume.rs::a_restarted_agent_of_a_cluster_serves_what_changed_while_it_was_away"),
    row("data-dir", "/srv/millrace", "lb-userspace/tests/controller/main.rs::a_restart_of_standalone_changes_no_object"),
    row("api-bind-address", "127.0.0.1:7443", "lb-userspace/tests/controller/standalone.rs::the_api_allocates_from_the_ranges_of_the_settings"),
    row("write-kubeconfig", "/srv/kubeconfig", "lb-userspace/tests/controller/standalone.rs::the_api_allocates_from_the_ranges_of_the_settings"),
    row("service-cluster-ip-range", "10.1.0.0/16", "lb-userspace/tests/controller/standalone.rs::the_api_allocates_from_the_ranges_of_the_settings"),
    row("service-node-port-range", "31000-32000", "lb-userspace/tests/controller/standalone.rs::the_api_allocates_from_the_ranges_of_the_settings"),
    row("serve-ingresses", "true", "tests/tests/api/ingress.rs::what_kubectl_applies_is_served_explained_and_reported"),
    row("ingress-user", "1000", "tests/tests/api/ingress.rs::what_kubectl_applies_is_served_explained_and_reported"),
    row("serve-api-only", "true", "lb-userspace/tests/controller/standalone.rs::the_api_allocates_from_the_ranges_of_the_settings"),
    row("http-bind-addresses", "127.0.0.1:8080,[::1]:8080", "lb-userspace/tests/controller/ingress.rs::the_proxy_listens_where_the_settings_say"),
    row("https-bind-addresses", "127.0.0.1:8443", "lb-userspace/tests/controller/ingress.rs::the_proxy_listens_where_the_settings_say"),
    row("ingress-healthz-bind-address", "127.0.0.1:2", "lb-userspace/tests/controller/ingress.rs::the_proxy_listens_where_the_settings_say"),
    row("ingress-metrics-bind-address", "off", "lb-userspace/tests/controller/ingress.rs::the_proxy_listens_where_the_settings_say"),
    row("ingress-controller", "example.org/ingress", "crates/ingress-rules/tests/ingress/class_of_other_names.txt"),
    row("ingress-class", "edge", "crates/ingress-rules/tests/ingress/class_of_other_names.txt"),
    row("accept-nginx-classes", "true", "crates/ingress-rules/tests/ingress/class_of_ingress_nginx.txt"),
    row("serve-without-class", "true", "crates/ingress-rules/tests/ingress/class_missing_served.txt"),
    row("watch-namespace", "shop", "crates/source/tests/cluster/ingress.rs::one_namespace_is_watched_without_looking_at_others"),
    row("merge-slashes", "false", "crates/ingress-rules/tests/ingress/requests_slashes_as_sent.txt"),
    row("allow-shared-hosts", "true", "crates/ingress-rules/tests/ingress/host_shared.txt"),
    row("allow-external-names", "true", "crates/ingress-rules/tests/ingress/backend_external_name_allowed.txt"),
    row("allow-cross-namespace-secrets", "true", "crates/ingress-rules/tests/ingress/annotation_secret_of_another_namespace.txt"),
    row("allow-tls-passthrough", "true", "crates/ingress-rules/tests/ingress/tls_passthrough.txt"),
    row("allow-snippet-annotations", "true", "crates/ingress-rules/tests/ingress/annotation_snippets_allowed.txt"),
    row("default-certificate", "edge/default", "crates/ingress-rules/tests/ingress/tls_default_certificate.txt"),
    row("auth-hosts", "auth.example.org,*.example.com", "crates/ingress-rules/tests/ingress/annotation_external_auth.txt"),
    row("max-body-size", "8m", "crates/ingress-rules/tests/ingress/max_body_of_the_settings.txt"),
    row("cluster-domain", "example.internal", "crates/ingress-rules/tests/ingress/annotation_external_auth_cluster_domain.txt"),
    row("trusted-proxies", "192.0.2.0/24", "crates/http/src/headers/client/tests.rs::behind_trusted_proxies_the_client_is_the_last_untrusted_address"),
    row("proxy-protocol-sources", "198.51.100.0/24", "crates/proxy/tests/proxy/proxy_protocol.rs::limits_count_the_client_that_the_header_names"),
    row("publish-service", "edge/proxy", "lb-userspace/tests/controller/ingress.rs::the_status_is_written_as_the_settings_say"),
    row("status-addresses", "203.0.113.1", "lb-userspace/tests/controller/ingress.rs::the_status_is_written_as_the_settings_say"),
    row("update-status", "false", "lb-userspace/tests/controller/ingress.rs::the_status_is_written_as_the_settings_say").with("status-addresses=192.0.2.1"),
    row("status-lease", "edge/lease", "lb-userspace/tests/controller/ingress.rs::the_status_is_written_as_the_settings_say").with("status-addresses=192.0.2.1"),
    row("access-log", "json", "lb-userspace/tests/controller/ingress.rs::the_proxy_listens_where_the_settings_say"),
    row("otlp-endpoint", "http://192.0.2.1:4318", "crates/proxy/tests/proxy/traces.rs::a_trace_is_begun_and_its_spans_reach_the_collector"),
    row("otlp-authority-file", "/run/ca.crt", "crates/otlp/src/exporter/tests.rs::a_collector_is_verified").with(COLLECTOR),
    row("otlp-header-file", "/run/headers", "crates/otlp/src/exporter/tests.rs::spans_are_sent_over_one_connection").with(COLLECTOR),
    row("trace-service-name", "edge", "crates/otlp/src/messages.rs::a_request_is_a_server_span_and_one_for_endpoints").with(COLLECTOR),
    row("trace-ingresses", "annotated", "crates/proxy/tests/proxy/traces.rs::routes_decide_whether_and_how_they_are_traced").with(COLLECTOR),
    row("trace-sampling-ratio", "0.5", "crates/http/src/trace/sampling.rs::a_parent_decides_and_otherwise_the_ratio").with(COLLECTOR),
    row("max-spans-per-second", "10", "crates/http/src/trace/rates.rs::a_namespace_leaves_spans_for_others").with(COLLECTOR),
    row("session-key-file", "/run/keys", "crates/ingress/src/session_keys.rs::keys_follow_the_file_and_survive_its_mistakes"),
    row("workers", "2", "lb-userspace/tests/controller/ingress.rs::the_proxy_listens_where_the_settings_say"),
    row("max-connections", "1000", "crates/proxy/tests/proxy/limits.rs::connections_are_limited_per_source_and_in_total"),
    row("max-connections-per-source", "10", "crates/proxy/tests/proxy/limits.rs::connections_are_limited_per_source_and_in_total"),
    row("max-requests-per-source", "20", "crates/proxy/tests/proxy/sources.rs::requests_are_limited_per_source_over_all_its_connections"),
    row("shutdown-delay", "1", "lb-userspace/tests/controller/ingress.rs::the_ports_stay_open_during_the_shutdown_delay"),
    row("shutdown-grace", "2", "crates/proxy/tests/proxy/shutdown.rs::the_grace_ends_tunnels"),
    row("control-socket", "/run/ingress.sock", "tests/tests/node/ingress_routes.rs::changes_and_an_upgrade_lose_no_request_and_no_websocket"),
];

//! Directives that do not restrict access: without them, responses are slower, larger or have other headers.

use super::restrictions::find_swallowed_restriction;
use super::syntax::Directive;

/// Whole names, or their beginnings with `*`.
const HARMLESS: &[&str] = &[
    "absolute_redirect",
    "access_log",
    "add_header",
    "add_trailer",
    "aio",
    "brotli*",
    "charset*",
    "chunked_transfer_encoding",
    "client_body_buffer_size",
    "client_body_timeout",
    "client_header_buffer_size",
    "client_header_timeout",
    "client_max_body_size",
    "default_type",
    "directio*",
    "error_log",
    "error_page",
    "etag",
    "expires",
    "grpc_buffer_size",
    "grpc_connect_timeout",
    "grpc_next_upstream*",
    "grpc_read_timeout",
    "grpc_send_timeout",
    "gunzip*",
    "gzip*",
    "http2_*",
    "keepalive_*",
    "large_client_header_buffers",
    "lingering_*",
    "log_*",
    "more_clear_headers",
    "more_set_headers",
    "msie_*",
    "opentelemetry*",
    "opentracing*",
    "output_buffers",
    "port_in_redirect",
    "postpone_output",
    "proxy_buffer_size",
    "proxy_buffering",
    "proxy_buffers",
    "proxy_busy_buffers_size",
    "proxy_connect_timeout",
    "proxy_cookie_domain",
    "proxy_cookie_flags",
    "proxy_cookie_path",
    "proxy_headers_hash_*",
    "proxy_hide_header",
    "proxy_http_version",
    "proxy_ignore_client_abort",
    "proxy_intercept_errors",
    "proxy_limit_rate",
    "proxy_max_temp_file_size",
    "proxy_next_upstream*",
    "proxy_pass_header",
    "proxy_read_timeout",
    "proxy_redirect",
    "proxy_request_buffering",
    "proxy_send_timeout",
    "proxy_socket_keepalive",
    "proxy_ssl_session_reuse",
    "proxy_temp_*",
    "recursive_error_pages",
    "resolver*",
    "rewrite_log",
    "send_timeout",
    "sendfile*",
    "server_name_in_redirect",
    "server_tokens",
    "sub_filter*",
    "tcp_nodelay",
    "tcp_nopush",
    "types",
    "types_hash_*",
    "uninitialized_variable_warn",
    "variables_hash_*",
];

/// Whether access is the same without this directive. One in a condition is harmless if all in the block are.
pub(super) fn is_harmless(directive: &Directive) -> bool {
    let name = directive.name.as_str();
    if find_swallowed_restriction(name, &directive.words).is_some() {
        return false;
    }
    if name == "if" {
        return directive.block.iter().flatten().all(is_harmless);
    }
    HARMLESS.iter().any(|known| match known.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == *known,
    })
}

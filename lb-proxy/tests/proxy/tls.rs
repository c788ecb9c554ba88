//! TLS with clients and with endpoints.

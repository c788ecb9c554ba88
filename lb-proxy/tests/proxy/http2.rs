//! HTTP/2 with clients and with endpoints.

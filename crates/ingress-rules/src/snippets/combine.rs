//! What snippets mean together, by nginx's inheritance.

use std::sync::Arc;

use lb_http::snippet::{ReturnedResponse, SnippetRules};

use super::directives::SnippetScope;

/// The rules of a location below a server, which itself restricts nothing but locations. External authentication adds a header, and so keeps those of the server
/// from being inherited. `None`: there are none.
pub fn combine_scopes(
    server: &SnippetScope,
    location: &SnippetScope,
    has_external_auth: bool,
) -> Option<Arc<SnippetRules>> {
    let own_or = |is_own: bool| if is_own { location } else { server };
    let has_added = has_external_auth || !location.added_headers.is_empty();
    let response_headers = server.response_headers.iter().chain(&location.response_headers);
    let rules = SnippetRules {
        returned: find_returned(server, location),
        sources: location.sources.clone(),
        request_headers: location.request_headers.clone(),
        hidden_headers: own_or(!location.hidden_headers.is_empty()).hidden_headers.clone(),
        response_headers: response_headers.cloned().collect(),
        added_headers: own_or(has_added).added_headers.clone(),
    };
    (rules != SnippetRules::default()).then(|| Arc::new(rules))
}

/// The media type is inherited.
fn find_returned(server: &SnippetScope, location: &SnippetScope) -> Option<ReturnedResponse> {
    let mut returned = location.returned.clone()?;
    let own = location.media_type.as_ref().or(server.media_type.as_ref());
    if let (ReturnedResponse::Text { media_type, .. }, Some(own)) = (&mut returned, own) {
        media_type.clone_from(own);
    }
    Some(returned)
}

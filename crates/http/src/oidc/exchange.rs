//! Exchanges the code of a login for an ID token (RFC 6749, 4.1.3).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use form_urlencoded::{Serializer, byte_serialize};
use http::{HeaderValue, StatusCode, Uri};
use serde_json::Value;

use super::auth::OidcAuth;
use super::callback::PendingLogin;
use super::failure::SignInFailure;
use super::provider::{ClientProof, ProviderDocument, find_server};
use crate::published::DocumentAddress;
use crate::unique_object::UniqueObject;
use crate::upstream::UpstreamName;

/// A POST request with a form.
pub struct TokenRequest<'a> {
    pub upstream: &'a UpstreamName,
    pub url: &'a Uri,
    pub authorization: Option<HeaderValue>,
    pub form: String,
}

impl OidcAuth {
    pub fn token_request<'a>(
        &'a self,
        provider: &'a ProviderDocument,
        login: &PendingLogin,
    ) -> Result<TokenRequest<'a>, SignInFailure> {
        self.check_issuer(provider)?;
        if provider.names_itself && !login.names_issuer {
            return Err(SignInFailure::Invalid("the response does not name its issuer".to_owned()));
        }
        let proof = provider.client_proof.ok_or_else(|| {
            SignInFailure::Provider("supports neither client_secret_basic nor _post".to_owned())
        })?;
        let mut form = Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code")
            .append_pair("code", &login.code)
            .append_pair("redirect_uri", &login.redirect_uri)
            .append_pair("code_verifier", &login.verifier);
        let authorization = match proof {
            ClientProof::Basic => Some(self.basic_credentials()),
            ClientProof::Post => {
                form.append_pair("client_id", &self.client.id)
                    .append_pair("client_secret", &self.client.secret);
                None
            }
        };
        let (url, form) = (&provider.token, form.finish());
        Ok(TokenRequest { upstream: self.find_upstream(url)?, url, authorization, form })
    }

    /// Both parts are encoded (RFC 6749, 2.3.1).
    fn basic_credentials(&self) -> HeaderValue {
        let encode = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
        let pair = format!("{}:{}", encode(&self.client.id), encode(&self.client.secret));
        let text = format!("Basic {}", STANDARD.encode(pair));
        // Base64 is a valid value of a header.
        let mut value = HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
        value.set_sensitive(true);
        value
    }

    /// Where the keys are that sign ID tokens.
    pub fn keys_address(
        &self,
        provider: &ProviderDocument,
    ) -> Result<DocumentAddress, SignInFailure> {
        Ok(DocumentAddress {
            namespace: self.discovery.namespace.clone(),
            upstream: self.find_upstream(&provider.keys)?.clone(),
            url: provider.keys.clone(),
        })
    }

    fn find_upstream(&self, url: &Uri) -> Result<&UpstreamName, SignInFailure> {
        find_server(&self.servers, url).ok_or_else(|| {
            SignInFailure::Provider(format!(
                "its document names {url}, whose host is neither the issuer's nor in oidc-hosts"
            ))
        })
    }
}

/// The ID token of a response.
pub fn read_token_response(status: StatusCode, body: &[u8]) -> Result<String, SignInFailure> {
    let response = UniqueObject::parse(body).ok();
    if status == StatusCode::OK {
        let token = response.as_ref().and_then(|response| response.text("id_token"));
        return token
            .map(str::to_owned)
            .ok_or_else(|| SignInFailure::Provider("its response has no ID token".to_owned()));
    }
    let error =
        response.as_ref().and_then(|response| response.get("error")).and_then(Value::as_str);
    match error {
        // The code is invalid, was used before, or belongs to another login (RFC 6749, 5.2).
        Some("invalid_grant") => Err(SignInFailure::Invalid("the code is invalid".to_owned())),
        error => Err(SignInFailure::Provider(format!(
            "it refuses to exchange codes: status {}, {:?}",
            status.as_u16(),
            error.unwrap_or_default().chars().take(100).collect::<String>()
        ))),
    }
}

//! Whether a client has access to a route: by its address, by a session, by a password, and by the server that is asked.
//! The route wants all of them, or any, as with nginx's `satisfy`. Rates, tokens and certificates of clients are not part
//! of it.

use std::net::IpAddr;

use http::StatusCode;
use http::header::WWW_AUTHENTICATE;

use crate::admission::Rejected;
use crate::policy::{RoutePolicy, Satisfy};
use crate::rejection::Rejection;

/// What lists of sources say about a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceVerdict {
    Allowed,
    Denied,
    /// No list names the client, or there is none.
    Unlisted,
}

/// Denied sources are denied even if they are also allowed. The rules of a snippet come after both lists, of which that
/// of allowed ones leaves no client to them.
fn judge_source(policy: &RoutePolicy, client: IpAddr) -> SourceVerdict {
    let client = client.to_canonical();
    let has = |networks: &[ipnet::IpNet]| networks.iter().any(|network| network.contains(&client));
    if has(&policy.denied_sources) {
        SourceVerdict::Denied
    } else if has(&policy.allowed_sources) {
        SourceVerdict::Allowed
    } else if !policy.allowed_sources.is_empty() {
        SourceVerdict::Denied
    } else {
        match policy.snippet.as_ref().and_then(|rules| rules.judge_source(client)) {
            Some(true) => SourceVerdict::Allowed,
            Some(false) => SourceVerdict::Denied,
            None => SourceVerdict::Unlisted,
        }
    }
}

/// What the checks of a client's access have said so far.
#[derive(Clone, Debug)]
pub struct AccessRuling {
    satisfy: Satisfy,
    /// One check has given access, and any is enough.
    is_granted: bool,
    /// The client gets it unless another check gives access. Boxed, because it is part of each request's future.
    refusal: Option<Box<Rejected>>,
}

impl AccessRuling {
    /// Judges the client's address. A refusal waits only if a session, a password or another server could still give access.
    pub(crate) fn begin(policy: &RoutePolicy, client: IpAddr) -> Result<Self, Rejected> {
        let mut ruling = Self { satisfy: policy.satisfy, is_granted: false, refusal: None };
        let refused = || Rejected::from(Rejection::Policy(StatusCode::FORBIDDEN));
        let has_checks =
            policy.oidc.is_some() || policy.basic_auth.is_some() || policy.external_auth.is_some();
        match (judge_source(policy, client), policy.satisfy) {
            (SourceVerdict::Denied, Satisfy::Any) if has_checks => {
                ruling.refusal = Some(Box::new(refused()));
            }
            (SourceVerdict::Denied, _) => return Err(refused()),
            (SourceVerdict::Allowed, Satisfy::Any) => ruling.is_granted = true,
            (SourceVerdict::Allowed, Satisfy::All) | (SourceVerdict::Unlisted, _) => {}
        }
        Ok(ruling)
    }

    /// Access is granted: neither a session, a password nor the authentication server is asked for.
    pub fn is_granted(&self) -> bool {
        self.is_granted
    }

    /// Takes what a check said. An error ends the request: all checks must give access, or this one could not be made.
    pub fn add_check(&mut self, checked: Result<(), Rejected>) -> Result<(), Rejected> {
        match (checked, self.satisfy) {
            (checked, Satisfy::All) => checked,
            (Ok(()), Satisfy::Any) => {
                self.is_granted = true;
                self.refusal = None;
                Ok(())
            }
            (Err(rejected), Satisfy::Any) if is_refusal(&rejected.rejection) => {
                self.keep_refusal(rejected);
                Ok(())
            }
            (Err(failed), Satisfy::Any) => Err(failed),
        }
    }

    /// After all checks.
    pub fn conclude(self) -> Result<(), Rejected> {
        self.refusal.map_or(Ok(()), |refusal| Err(*refusal))
    }

    /// A refusal that says how to get access is better than one that does not; the client gets the challenges of all.
    /// Best is the page where users sign in: a browser that was asked for a password would not show it.
    fn keep_refusal(&mut self, mut newer: Rejected) {
        let leads = |refusal: &Rejected| refusal.rejection.status().is_redirection();
        let is_worse =
            |older: &Rejected| !is_challenge(&newer.rejection) || (leads(older) && !leads(&newer));
        match self.refusal.take() {
            Some(older) if is_worse(&older) => self.refusal = Some(older),
            older => {
                if let Some(older) = older
                    && newer.rejection.status() == StatusCode::UNAUTHORIZED
                {
                    for challenge in older.headers.get_all(WWW_AUTHENTICATE) {
                        newer.headers.append(WWW_AUTHENTICATE, challenge.clone());
                    }
                }
                self.refusal = Some(Box::new(newer));
            }
        }
    }
}

fn is_refusal(rejection: &Rejection) -> bool {
    is_challenge(rejection) || matches!(rejection, Rejection::ExternalAuth(_))
}

fn is_challenge(rejection: &Rejection) -> bool {
    matches!(
        rejection,
        Rejection::NoSession(_)
            | Rejection::Password
            | Rejection::SignIn(_)
            | Rejection::ExternalAuth(StatusCode::UNAUTHORIZED)
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::policy::BasicAuth;
    use crate::snippet::{SnippetRules, SourceRule};

    fn networks(list: &[&str]) -> Vec<ipnet::IpNet> {
        list.iter().map(|network| network.parse().unwrap()).collect()
    }

    fn policy(satisfy: Satisfy, allowed: &[&str], denied: &[&str]) -> RoutePolicy {
        RoutePolicy {
            satisfy,
            allowed_sources: networks(allowed),
            denied_sources: networks(denied),
            ..RoutePolicy::default()
        }
    }

    #[test]
    fn sources_are_judged_by_both_lists() {
        use SourceVerdict::{Allowed, Denied, Unlisted};
        let cases: [(&[&str], &[&str], &str, SourceVerdict); 9] = [
            (&[], &[], "192.0.2.1", Unlisted),
            (&["192.0.2.0/24"], &[], "192.0.2.1", Allowed),
            (&["192.0.2.0/24"], &[], "::ffff:192.0.2.1", Allowed),
            (&["192.0.2.0/24"], &[], "198.51.100.1", Denied),
            (&["192.0.2.0/24"], &[], "2001:db8::1", Denied),
            (&[], &["192.0.2.0/24"], "192.0.2.1", Denied),
            (&[], &["192.0.2.0/24"], "::ffff:192.0.2.1", Denied),
            (&[], &["192.0.2.0/24"], "198.51.100.1", Unlisted),
            (&["192.0.2.0/24"], &["192.0.2.1/32"], "192.0.2.1", Denied),
        ];
        for (allowed, denied, client, expected) in cases {
            let policy = policy(Satisfy::All, allowed, denied);
            let verdict = judge_source(&policy, client.parse().unwrap());
            assert_eq!(verdict, expected, "{allowed:?} {denied:?} {client}");
        }
    }

    #[test]
    fn rules_of_a_snippet_come_after_the_lists() {
        use SourceVerdict::{Allowed, Denied, Unlisted};
        let rules = [("192.0.2.7/32", true), ("192.0.2.0/24", false)];
        let sources = rules.map(|(network, is_allowed)| SourceRule {
            network: Some(network.parse().unwrap()),
            is_allowed,
        });
        let snippet = Arc::new(SnippetRules { sources: sources.into(), ..SnippetRules::default() });
        let cases: [(&[&str], &[&str], &str, SourceVerdict); 6] = [
            (&[], &[], "192.0.2.7", Allowed),
            (&[], &[], "::ffff:192.0.2.8", Denied),
            (&[], &[], "198.51.100.1", Unlisted),
            (&[], &["192.0.2.7/32"], "192.0.2.7", Denied),
            (&["192.0.2.8/32"], &[], "192.0.2.8", Allowed),
            (&["192.0.2.8/32"], &[], "192.0.2.7", Denied),
        ];
        for (allowed, denied, client, expected) in cases {
            let mut policy = policy(Satisfy::All, allowed, denied);
            policy.snippet = Some(snippet.clone());
            let verdict = judge_source(&policy, client.parse().unwrap());
            assert_eq!(verdict, expected, "{allowed:?} {denied:?} {client}");
        }
    }

    /// The route's password and the server's answer, in this order: `+` gives access, `401` and `403` refuse, `503` and
    /// `500` mean that the check could not be made, `302` is the page where the client signs in.
    fn rule(policy: &RoutePolicy, client: &str, password: &str, server: &str) -> String {
        let checks = [
            match password {
                "+" => Ok(()),
                "401" => Err(Rejection::Password),
                _ => Err(Rejection::PasswordBusy),
            },
            match server {
                "+" => Ok(()),
                "302" => Err(Rejection::SignIn(StatusCode::FOUND)),
                "500" => Err(Rejection::ExternalAuthFailed),
                code => Err(Rejection::ExternalAuth(code.parse().unwrap())),
            },
        ];
        let judge = || {
            let mut ruling = AccessRuling::begin(policy, client.parse().unwrap())?;
            let mut made = 0;
            for checked in checks {
                if !ruling.is_granted() {
                    made += 1;
                    ruling.add_check(checked.map_err(Rejected::from))?;
                }
            }
            ruling.conclude()?;
            Ok(made)
        };
        match judge() {
            Ok(made) => format!("access after {made}"),
            Err(Rejected { rejection, .. }) => rejection.status().as_str().to_owned(),
        }
    }

    #[test]
    fn any_restriction_is_enough_or_all_are_needed() {
        const IN: &str = "192.0.2.1";
        const OUT: &str = "198.51.100.1";
        let listed = |satisfy| {
            let basic_auth = Some(BasicAuth { realm: "r".into(), users: None });
            RoutePolicy { basic_auth, ..policy(satisfy, &["192.0.2.0/24"], &[]) }
        };
        let (all, any) = (listed(Satisfy::All), listed(Satisfy::Any));
        let cases = [
            (&all, IN, "+", "+", "access after 2"),
            (&all, OUT, "+", "+", "403"),
            (&all, IN, "401", "+", "401"),
            (&all, IN, "+", "403", "403"),
            (&all, IN, "503", "+", "503"),
            (&any, IN, "401", "401", "access after 0"),
            (&any, OUT, "+", "403", "access after 1"),
            (&any, OUT, "401", "+", "access after 2"),
            (&any, OUT, "401", "401", "401"),
            (&any, OUT, "401", "403", "401"),
            (&any, OUT, "401", "302", "302"),
            (&any, OUT, "503", "+", "503"),
            (&any, OUT, "401", "500", "500"),
        ];
        for (policy, client, password, server, expected) in cases {
            let satisfy = policy.satisfy;
            let said = rule(policy, client, password, server);
            assert_eq!(said, expected, "{satisfy:?} {client} {password} {server}");
        }
    }

    /// As in nginx, a list of denied sources grants no access.
    #[test]
    fn a_source_that_is_only_not_denied_needs_the_password() {
        let mut any = policy(Satisfy::Any, &[], &["192.0.2.0/24"]);
        assert_eq!(rule(&any, "192.0.2.1", "+", "+"), "403", "nothing else could give access");
        any.basic_auth = Some(BasicAuth { realm: "r".into(), users: None });
        assert_eq!(rule(&any, "198.51.100.1", "401", "403"), "401");
        assert_eq!(rule(&any, "198.51.100.1", "+", "403"), "access after 1");
        assert_eq!(rule(&any, "192.0.2.1", "+", "403"), "access after 1");
    }

    /// As with an authentication server behind nginx: clients at allowed addresses need not sign in, and others can.
    #[test]
    fn a_session_is_one_of_the_restrictions() {
        const IN: &str = "192.0.2.1";
        const OUT: &str = "198.51.100.1";
        let restricted = |satisfy| RoutePolicy {
            oidc: Some(Arc::new(crate::oidc::tests::policy())),
            ..policy(satisfy, &["192.0.2.0/24"], &[])
        };
        let (all, any) = (restricted(Satisfy::All), restricted(Satisfy::Any));
        let redirected = Err(Rejection::NoSession(StatusCode::FOUND));
        let demanded = Err(Rejection::NoSession(StatusCode::UNAUTHORIZED));
        let password = Err(Rejection::Password);
        let cases = [
            (&all, IN, vec![Ok(())], 200),
            (&all, IN, vec![redirected], 302),
            (&all, OUT, vec![Ok(())], 403),
            (&any, IN, vec![], 200),
            (&any, OUT, vec![], 403),
            (&any, OUT, vec![Ok(())], 200),
            (&any, OUT, vec![redirected], 302),
            (&any, OUT, vec![demanded], 401),
            (&any, OUT, vec![redirected, Ok(())], 200),
            (&any, OUT, vec![redirected, password], 302),
            (&any, OUT, vec![demanded, password], 401),
            // What is not about access ends the request: signing in or out, and a provider that fails.
            (&any, OUT, vec![Err(Rejection::Oidc(StatusCode::BAD_REQUEST)), Ok(())], 400),
            (&any, IN, vec![Err(Rejection::Oidc(StatusCode::FORBIDDEN))], 403),
            (&any, OUT, vec![Err(Rejection::OidcProvider), Ok(())], 503),
        ];
        for (policy, client, checks, expected) in cases {
            let text = format!("{:?} {client} {checks:?}", policy.satisfy);
            let judge = || {
                let mut ruling = AccessRuling::begin(policy, client.parse().unwrap())?;
                for checked in checks {
                    ruling.add_check(checked.map_err(Rejected::from))?;
                }
                ruling.conclude()
            };
            let status = judge().err().map_or(200, |refused| refused.rejection.status().as_u16());
            assert_eq!(status, expected, "{text}");
        }
    }

    #[test]
    fn a_client_without_access_gets_all_challenges() {
        let mut any = policy(Satisfy::Any, &[], &[]);
        any.basic_auth = Some(BasicAuth { realm: "r".into(), users: None });
        let mut ruling = AccessRuling::begin(&any, [192, 0, 2, 1].into()).unwrap();
        let challenges = [
            (Rejection::Password, "Basic"),
            (Rejection::ExternalAuth(StatusCode::UNAUTHORIZED), "Bearer"),
        ];
        for (rejection, challenge) in challenges {
            let header = (WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            let headers = HeaderMap::from_iter([header]);
            ruling.add_check(Err(Rejected { rejection, headers })).unwrap();
        }
        let refusal = ruling.conclude().unwrap_err();
        assert_eq!(refusal.rejection.status(), StatusCode::UNAUTHORIZED);
        let sent: Vec<_> = refusal.headers.get_all(WWW_AUTHENTICATE).iter().collect();
        assert_eq!(sent, ["Bearer", "Basic"]);
    }
}

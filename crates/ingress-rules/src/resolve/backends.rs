//! Backends: Services and their ports as upstreams.

use std::sync::Arc;

use k8s_openapi::api::networking::v1::{IngressBackend, IngressServiceBackend};
use lb_http::upstream::{Authorities, UpstreamProtocol, UpstreamTls};
use lb_http::{Action, Route, UpstreamName};
use lb_rules::model::ServiceName;

use super::super::services;
use super::Resolver;

impl Resolver<'_> {
    /// The route to a backend. One that can't be used is answered with 503.
    pub fn route(&mut self, backend: &IngressBackend, field: &str) -> Arc<Route> {
        if let Some(reason) = self.closed.clone() {
            return self.unavailable(reason);
        }
        let Some(service) = &backend.service else {
            let message = if backend.resource.is_some() {
                "resource backends are not supported; name a Service"
            } else {
                "names no Service"
            };
            self.problem(field, format!("{message}; answered with 503"));
            return self.unavailable(message.into());
        };
        let key = (Arc::from(service.name.as_str()), port_text(service));
        if let Some(route) = self.routes.get(&key) {
            return route.clone();
        }
        let route = match self.upstream(service, field) {
            Ok(upstream) => Arc::new(Route {
                owner: self.owner.clone(),
                action: Action::Forward(upstream),
                canaries: Vec::new(),
                policy: self.policy.clone(),
            }),
            Err(reason) => {
                self.problem(field, format!("{reason}; answered with 503"));
                self.unavailable(reason.into())
            }
        };
        self.routes.insert(key, route.clone());
        route
    }

    /// The upstream for a port of a Service.
    pub fn upstream(
        &mut self,
        backend: &IngressServiceBackend,
        field: &str,
    ) -> Result<UpstreamName, String> {
        self.upstream_of(&backend.name, &port_text(backend), field)
    }

    fn upstream_of(
        &mut self,
        service: &str,
        port: &Arc<str>,
        field: &str,
    ) -> Result<UpstreamName, String> {
        let name = ServiceName::new(&self.name.namespace, service);
        self.services.insert(name.clone());
        let objects = self.objects;
        let object =
            objects.service(&name).ok_or_else(|| format!("Service {name} does not exist"))?;
        let found = services::find_port(object, port)?;
        if found.is_external() && !objects.settings.external_names {
            return Err(format!(
                "Service {name} is of type ExternalName, which the controller's settings do not allow"
            ));
        }
        let protocol = self.draft.protocol.unwrap_or_else(|| found.protocol());
        let tls = if protocol.uses_tls() { Some(self.tls_to(&name)?) } else { None };
        let upstream = UpstreamName {
            namespace: self.owner.namespace.clone(),
            service: service.into(),
            port: port.clone(),
            protocol,
            tls,
        };
        self.upstreams.entry(upstream.clone()).or_insert_with(|| field.into());
        Ok(upstream)
    }

    /// How endpoints prove who they are. Without annotations they need not, as with ingress-nginx.
    fn tls_to(&mut self, service: &ServiceName) -> Result<UpstreamTls, String> {
        let wish = self.draft.endpoints.clone();
        let mut tls = UpstreamTls { server_name: wish.name, ..UpstreamTls::default() };
        let secret = match &wish.secret {
            Some(text) => Some(self.secret(text)?),
            None => None,
        };
        if wish.verify {
            let secret = secret
                .as_ref()
                .ok_or("upstream-tls-verify needs upstream-tls-secret, with ca.crt")?;
            tls.authorities = Authorities::Pem(self.objects.secrets.authorities(secret)?);
            tls.revoked = self.objects.secrets.revoked(secret)?;
        }
        if (wish.verify || wish.send_name) && tls.server_name.is_none() {
            tls.server_name = Some(format!("{}.{}.svc", service.name, service.namespace).into());
        }
        if let Some(secret) = &secret {
            tls.client = self.objects.secrets.pair_text(secret)?;
        }
        Ok(tls)
    }

    /// The upstream of the annotation `default-backend`.
    pub fn fallback(&mut self) -> Option<UpstreamName> {
        let service = self.draft.default_backend.clone()?;
        let name = ServiceName::new(&self.name.namespace, &service);
        self.services.insert(name.clone());
        let port = self.objects.service(&name).and_then(services::first_port);
        let upstream = match port {
            Some(port) => {
                let field = self.field("default-backend");
                self.upstream_of(&service, &port, &field)
            }
            None => Err(format!("Service {name} does not exist, or has no port")),
        };
        upstream.map_err(|why| self.annotation_problem("default-backend", why)).ok()
    }

    /// The Secret that an annotation names.
    pub fn secret(&mut self, text: &str) -> Result<ServiceName, String> {
        let namespace = &self.name.namespace;
        let (own, name) = match text.split_once('/') {
            Some((other, name)) => (other == namespace, ServiceName::new(other, name)),
            None => (true, ServiceName::new(namespace, text)),
        };
        if !own && !self.objects.settings.secrets_across_namespaces {
            return Err(format!(
                "Secret {name} is in another namespace, which the controller's settings do not allow"
            ));
        }
        self.secrets.insert(name.clone());
        Ok(name)
    }

    /// An upstream outside the Services that the rules name.
    pub(crate) fn use_upstream(&mut self, upstream: UpstreamName, field: &str) -> UpstreamName {
        self.upstreams.entry(upstream.clone()).or_insert_with(|| field.into());
        upstream
    }

    /// Whether the Service only is a name of a host outside of the cluster.
    pub(crate) fn is_external_name(&mut self, service: &ServiceName) -> bool {
        self.services.insert(service.clone());
        let spec = self.objects.service(service).and_then(|object| object.spec.as_ref());
        spec.is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName"))
    }

    /// An upstream for TLS or plain text as a URL asks for.
    pub(crate) fn service_upstream(
        &mut self,
        service: &ServiceName,
        port: &Arc<str>,
        protocol: UpstreamProtocol,
        authorities: Authorities,
        field: &str,
    ) -> Result<UpstreamName, String> {
        self.services.insert(service.clone());
        let object = self.objects.service(service);
        let object = object.ok_or_else(|| format!("Service {service} does not exist"))?;
        let found = services::find_port(object, port)?;
        if found.is_external() && !self.objects.settings.external_names {
            return Err(format!("Service {service} is of type ExternalName"));
        }
        let server_name = Some(format!("{}.{}.svc", service.name, service.namespace).into());
        let upstream = UpstreamName {
            namespace: service.namespace.as_str().into(),
            service: service.name.as_str().into(),
            port: port.clone(),
            protocol,
            tls: protocol.uses_tls().then(|| UpstreamTls {
                server_name,
                authorities,
                ..UpstreamTls::default()
            }),
        };
        Ok(self.use_upstream(upstream, field))
    }
}

/// The port's name or number, as the Ingress has it.
fn port_text(service: &IngressServiceBackend) -> Arc<str> {
    let port = service.port.as_ref();
    match port.and_then(|port| port.name.as_deref()).filter(|name| !name.is_empty()) {
        Some(name) => name.into(),
        None => port.and_then(|port| port.number).unwrap_or_default().to_string().into(),
    }
}

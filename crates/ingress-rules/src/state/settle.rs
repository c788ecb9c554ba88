//! Computes what the changes since the last call have affected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lb_http::host::parent_domain;
use lb_http::{HostPattern, Route, UpstreamName};
use lb_proxy::HostTls;
use lb_rules::model::{Kind, ObjectRef, Problem, ServiceName};

use super::super::Delta;
use super::super::hosts::{self, Above, Combiner, HostClaim};
use super::super::resolve::resolve_ingress;
use super::super::resolved::{HostPart, Resolved};
use super::{Model, Reference, references, secret_ref};

/// Problems that are reported of one object: its author decides how many it has.
const MOST_PROBLEMS: usize = 32;
/// Characters of a message. Those of an Event are limited, too, to 1024 octets.
const MOST_MESSAGE: usize = 600;

impl Model {
    /// What has changed since the last call.
    pub fn settle(&mut self) -> Delta {
        let mut delta = Delta::default();
        for name in std::mem::take(&mut self.dirty.ingresses) {
            self.settle_ingress(name, &mut delta);
        }
        // Wildcard hosts are sorted behind exact ones, which may depend on them.
        while let Some(host) = self.dirty.hosts.pop_last() {
            self.settle_host(host, &mut delta);
        }
        if std::mem::take(&mut self.dirty.default_certificate) {
            self.settle_default_certificate(&mut delta);
        }
        self.settle_upstreams(&mut delta);
        for object in std::mem::take(&mut self.dirty.problems) {
            self.settle_problems(object, &mut delta);
        }
        delta.other_secrets = std::mem::take(&mut self.dirty.other_secrets);
        delta
    }

    fn settle_ingress(&mut self, name: ServiceName, delta: &mut Delta) {
        let ingress = self.ingresses.get(&name);
        let new = ingress
            .filter(|ingress| self.classes.has(ingress, &self.objects.settings))
            .map(|ingress| resolve_ingress(ingress, &self.objects));
        let is_ours = new.is_some();
        // What decides which Secrets come first.
        let rank = |resolved: &Resolved| {
            let names_any = !(resolved.secrets.is_empty() && resolved.certificates.is_empty());
            names_any.then(|| (resolved.age, resolved.secrets.clone()))
        };
        let before = self.resolved.get(&name).and_then(rank);
        self.dirty.other_secrets |= new.as_ref().and_then(rank) != before;
        let old = match new {
            Some(new) => {
                self.link(&name, &new);
                self.resolved.insert(name.clone(), new)
            }
            None => self.resolved.remove(&name),
        };
        if old.is_none() && !is_ours {
            return;
        }
        if old.is_some() != is_ours {
            delta.ingresses.insert(name.clone(), is_ours);
        }
        if let Some(old) = old {
            self.unlink(&name, &old);
        }
        self.dirty.problems.insert(ingress_ref(&name));
    }

    /// Notes what a resolved Ingress refers to.
    fn link(&mut self, name: &ServiceName, new: &Resolved) {
        let claim = HostClaim { age: new.age, ingress: name.clone() };
        for (host, part) in &new.hosts {
            let entry = self.hosts.entry(host.clone()).or_default();
            hosts::insert_claim(entry.claims.list(part, new.canary.is_some()), claim.clone());
            self.dirty.hosts.insert(host.clone());
        }
        if new.default.is_some() && new.canary.is_none() {
            hosts::insert_claim(self.defaults.entry(name.namespace.clone()).or_default(), claim);
            self.default_changed(&name.namespace);
        }
        for (upstream, _) in &new.upstreams {
            if self.upstreams.add_user(upstream, name) {
                self.dirty.upstreams.insert(upstream.clone());
            }
        }
        for reference in references(new) {
            let is_secret = reference.is_secret();
            let is_new = self.users.entry(reference).or_default().insert(name.clone());
            self.dirty.other_secrets |= is_secret && is_new;
        }
    }

    /// Removes what the former meaning of an Ingress referred to, unless its present one does.
    fn unlink(&mut self, name: &ServiceName, old: &Resolved) {
        let new = self.resolved.get(name);
        let claim = HostClaim { age: old.age, ingress: name.clone() };
        let list = |r: &Resolved, part: &HostPart| {
            (r.age, r.canary.is_some(), part.gives_way && r.canary.is_none())
        };
        let mut gone = Vec::new();
        for (host, part) in &old.hosts {
            let kept = new.and_then(|new| new.part(host).map(|part| list(new, part)));
            if kept != Some(list(old, part)) {
                gone.push((host, part));
            }
        }
        let had_default = old.default.is_some() && old.canary.is_none();
        let has_default =
            new.is_some_and(|n| n.default.is_some() && n.canary.is_none() && n.age == old.age);
        let kept_upstream = |upstream: &UpstreamName| {
            new.is_some_and(|new| new.upstreams.iter().any(|(known, _)| known == upstream))
        };
        let lost: Vec<&UpstreamName> =
            old.upstreams.iter().map(|(u, _)| u).filter(|u| !kept_upstream(u)).collect();
        let kept: BTreeSet<Reference> = new.into_iter().flat_map(references).collect();

        for (host, part) in gone {
            if let Some(entry) = self.hosts.get_mut(host) {
                hosts::remove_claim(entry.claims.list(part, old.canary.is_some()), &claim);
            }
            self.dirty.hosts.insert(host.clone());
        }
        if had_default && !has_default {
            if let Some(claims) = self.defaults.get_mut(&name.namespace) {
                hosts::remove_claim(claims, &claim);
                if claims.is_empty() {
                    self.defaults.remove(&name.namespace);
                }
            }
            self.default_changed(&name.namespace);
        }
        for upstream in lost {
            self.upstreams.remove_user(upstream, name);
            self.dirty.upstreams.insert(upstream.clone());
        }
        for reference in references(old).filter(|reference| !kept.contains(reference)) {
            if let Some(users) = self.users.get_mut(&reference) {
                users.remove(name);
                self.dirty.other_secrets |= reference.is_secret();
                if users.is_empty() {
                    self.users.remove(&reference);
                }
            }
        }
    }

    fn default_changed(&mut self, namespace: &str) {
        self.dirty.hosts.extend(self.owned.get(namespace).into_iter().flatten().cloned());
    }

    fn settle_host(&mut self, pattern: HostPattern, delta: &mut Delta) {
        let Some(host) = self.hosts.get(&pattern) else { return };
        let owner = host.claims.oldest().map(|claim| claim.ingress.namespace.clone());
        let combiner = Combiner {
            host: &pattern,
            resolved: &self.resolved,
            share_hosts: self.objects.settings.share_hosts,
            slashes: self.objects.settings.slashes,
            above: self.above(&pattern),
            default: owner
                .as_ref()
                .and_then(|owner| default_of(owner, &self.defaults, &self.resolved)),
        };
        let combined = combiner.combine(&host.claims);

        let Some(host) = self.hosts.get_mut(&pattern) else { return };
        let mut concerns_others = host.owner != owner;
        let troubled = host.problems.iter().map(|(ingress, _)| ingress.clone());
        let troubled: BTreeSet<ServiceName> = troubled.chain(combined.troubled()).collect();
        self.dirty.problems.extend(troubled.iter().map(ingress_ref));
        host.problems = combined.problems;
        if !hosts::is_same_tls(&host.tls, &combined.tls) {
            concerns_others = true;
            host.tls = combined.tls.map(Arc::new);
            delta.tls.insert(pattern.clone(), host.tls.clone());
        }
        if host.has_rules || !combined.rules.is_empty() {
            host.has_rules = !combined.rules.is_empty();
            delta.hosts.insert(pattern.clone(), combined.rules);
        }
        if host.owner != owner {
            if let Some(former) = host.owner.take()
                && let Some(owned) = self.owned.get_mut(&former)
            {
                owned.remove(&pattern);
                if owned.is_empty() {
                    self.owned.remove(&former);
                }
            }
            if let Some(owner) = &owner {
                self.owned.entry(owner.clone()).or_default().insert(pattern.clone());
            }
            host.owner = owner;
        }
        if host.claims.is_empty() {
            self.hosts.remove(&pattern);
        }
        if let HostPattern::Wildcard(suffix) = &pattern
            && concerns_others
        {
            let is_below = |host: &&HostPattern| match host {
                HostPattern::Exact(name) => parent_domain(name) == Some(suffix),
                HostPattern::Wildcard(_) | HostPattern::Any => false,
            };
            self.dirty.hosts.extend(self.hosts.keys().filter(is_below).cloned());
        }
    }

    /// The wildcard host above an exact one, if it has TLS.
    fn above(&self, pattern: &HostPattern) -> Option<Above<'_>> {
        let HostPattern::Exact(name) = pattern else { return None };
        let pattern = HostPattern::Wildcard(parent_domain(name)?.into());
        let host = self.hosts.get(&pattern)?;
        let (owner, tls) = (host.owner.as_deref()?, host.tls.as_deref()?);
        Some(Above { pattern, owner, tls })
    }

    /// The default certificate is for clients whose SNI matches no host.
    fn settle_default_certificate(&mut self, delta: &mut Delta) {
        let Some(secret) = self.objects.settings.default_certificate.clone() else { return };
        let found = self.objects.secrets.certificate(&secret);
        let tls =
            found.certificate.map(|certificate| HostTls::Terminate { certificate, clients: None });
        if !hosts::is_same_tls(&self.default_tls, &tls) {
            self.default_tls = tls.map(Arc::new);
            delta.tls.insert(HostPattern::Any, self.default_tls.clone());
        }
        self.dirty.problems.insert(secret_ref(&secret));
    }

    fn settle_upstreams(&mut self, delta: &mut Delta) {
        let mut upstreams = std::mem::take(&mut self.dirty.upstreams);
        for service in std::mem::take(&mut self.dirty.services) {
            upstreams.extend(self.upstreams.of_service(&service).cloned());
        }
        for name in upstreams {
            let change = self.upstreams.settle(&name, &self.objects);
            if let Some(backends) = change.backends {
                delta.upstreams.insert(name, backends);
            }
            self.dirty.problems.extend(change.troubled.iter().map(ingress_ref));
            self.dirty.problems.extend(change.slices);
        }
    }

    fn settle_problems(&mut self, object: ObjectRef, delta: &mut Delta) {
        let name = ServiceName::new(&object.namespace, &object.name);
        let mut problems = match object.kind {
            Kind::Ingress => self.problems_of(&name),
            Kind::Secret => {
                let problem = self.objects.secrets.certificate(&name).problem;
                let message = problem.map(|why| format!("is the default certificate: {why}"));
                let field = String::new();
                let problem = |message| Problem { object: object.to_string(), field, message };
                message.map(problem).into_iter().collect()
            }
            _ => self.upstreams.problems_of_slice(&object),
        };
        problems.iter_mut().for_each(|problem| shorten(&mut problem.message));
        problems.sort();
        problems.dedup();
        if problems.len() > MOST_PROBLEMS {
            let message = format!("and {} more problems", problems.len() - MOST_PROBLEMS);
            problems.truncate(MOST_PROBLEMS);
            problems.push(Problem { object: object.to_string(), field: String::new(), message });
        }
        let before = self.problems.get(&object);
        if before.is_some_and(|before| *before == problems)
            || (before.is_none() && problems.is_empty())
        {
            return;
        }
        if problems.is_empty() {
            self.problems.remove(&object);
        } else {
            self.problems.insert(object.clone(), problems.clone());
        }
        delta.problems.insert(object, problems);
    }

    fn problems_of(&self, name: &ServiceName) -> Vec<Problem> {
        let Some(resolved) = self.resolved.get(name) else { return Vec::new() };
        let mut problems = resolved.problems.to_vec();
        for (host, _) in &resolved.hosts {
            let of_host = self.hosts.get(host).map(|host| &host.problems).into_iter().flatten();
            problems.extend(of_host.filter(|(i, _)| i == name).map(|(_, problem)| problem.clone()));
        }
        for (upstream, field) in &resolved.upstreams {
            if let Some(message) = self.upstreams.trouble(upstream) {
                let object = format!("Ingress {name}");
                problems.push(Problem { object, field: field.to_string(), message });
            }
        }
        problems
    }
}

/// Messages quote text from Ingresses, which may be long.
fn shorten(message: &mut String) {
    if let Some((end, _)) = message.char_indices().nth(MOST_MESSAGE) {
        message.truncate(end);
        message.push_str("...");
    }
}

/// The route of a namespace's oldest Ingress with a defaultBackend and without rules.
fn default_of(
    namespace: &str,
    defaults: &BTreeMap<String, Vec<HostClaim>>,
    resolved: &BTreeMap<ServiceName, Resolved>,
) -> Option<Arc<Route>> {
    resolved.get(&defaults.get(namespace)?.first()?.ingress)?.default.clone()
}

fn ingress_ref(name: &ServiceName) -> ObjectRef {
    ObjectRef::new(Kind::Ingress, Some(&name.namespace), Some(&name.name))
}

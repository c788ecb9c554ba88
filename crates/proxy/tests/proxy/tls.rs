//! TLS with clients and with endpoints.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use lb_http::policy::{RateLimits, TlsRedirect};
use lb_http::upstream::{Authorities, UpstreamProtocol, UpstreamTls};
use lb_http::{HostPattern, RouteOwner, RoutePolicy, UpstreamName};
use lb_proxy::config::ProxyProtocol;
use lb_proxy::{ClientCertificates, HostTls, Passthrough};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, date_time_ymd,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use rustls::{HandshakeKind, StreamOwned, SupportedProtocolVersion};

use crate::client::Client;
use crate::endpoint::{Endpoint, Request, Then, respond};
use crate::shutdown::block_on;
use crate::world::{
    HOST, PATIENCE, World, add_host, config, hosts, name, named_config, policy_config, self_signed,
    terminate, upstream, wait_until,
};

pub type Pair = (String, String);
pub type TlsClient = Client<StreamOwned<ClientConnection, TcpStream>>;

/// A client that trusts these certificates.
pub fn trusting(roots: &[&Pair], own: Option<&Pair>) -> Arc<ClientConfig> {
    trusting_with(roots, own, rustls::ALL_VERSIONS)
}

pub fn trusting_with(
    roots: &[&Pair],
    own: Option<&Pair>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut store = RootCertStore::empty();
    for (chain, _) in roots {
        store.add(CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(store);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    Arc::new(config)
}

/// A certificate authority for clients.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, name: &str, serial: u64) -> Pair {
        self.sign(CertificateParams::default(), name, serial)
    }

    fn issue_for(&self, host: &str, serial: u64) -> Pair {
        self.sign(CertificateParams::new(vec![host.to_owned()]).unwrap(), host, serial)
    }

    fn sign(&self, mut params: CertificateParams, name: &str, serial: u64) -> Pair {
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(serial.into());
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// A list of one revoked certificate, which is valid until this year.
    fn revoke(&self, serial: u64, until: i32) -> String {
        let revoked = RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: date_time_ymd(2010, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2010, 1, 1),
            next_update: date_time_ymd(until, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

/// Completes a handshake for a name.
pub fn connect(
    to: SocketAddr,
    config: &Arc<ClientConfig>,
    name: &str,
) -> Result<TlsClient, rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = ClientConnection::new(config.clone(), name).unwrap();
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    while connection.is_handshaking() {
        if let Err(error) = connection.complete_io(&mut stream) {
            let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()).cloned();
            return Err(tls.unwrap_or_else(|| rustls::Error::General(error.to_string())));
        }
    }
    Ok(Client::over(StreamOwned::new(connection, stream)))
}

/// A proxy that terminates TLS for `a.test`, `*.b.test` and, if `default`, all other names.
fn world(endpoint: &Endpoint, a: &Pair, b: &Pair, default: Option<&Pair>) -> World {
    let mut config = config(&[endpoint.address]);
    add_host(
        &mut config,
        "*.b.test",
        &name("web", UpstreamProtocol::Http1),
        RoutePolicy::default(),
    );
    let (a, b) = (terminate(a), terminate(b));
    config.tls = hosts(&[("a.test", &a), ("*.b.test", &b)]);
    if let Some(default) = default {
        config.tls.insert(HostPattern::Any, terminate(default));
    }
    World::start(config)
}

#[test]
fn the_name_decides_the_certificate() {
    let endpoint = Endpoint::named("ok");
    let (a, b) = (self_signed(&["a.test"]), self_signed(&["*.b.test"]));
    let world = world(&endpoint, &a, &b, None);
    for (host, certificate) in [("a.test", &a), ("x.b.test", &b)] {
        let mut client = connect(world.https(), &trusting(&[certificate], None), host).unwrap();
        assert_eq!(client.get(host, "/").text(), "ok");
        assert_eq!(endpoint.requests().last().unwrap().header("x-forwarded-proto"), Some("https"));
    }
    let both = trusting(&[&a, &b], None);
    for unknown in ["c.test", "x.y.b.test", "b.test"] {
        let error = connect(world.https(), &both, unknown).map(|_| ()).unwrap_err();
        let alert = rustls::AlertDescription::UnrecognisedName;
        assert_eq!(error, rustls::Error::AlertReceived(alert), "{unknown}");
    }
    wait_until("count", || world.metric("tls_handshakes_total{result=\"unknown_name\"}") == 3);
}

#[test]
fn a_default_certificate_is_for_all_other_names() {
    let endpoint = Endpoint::named("ok");
    let (a, b) = (self_signed(&["a.test"]), self_signed(&["*.b.test"]));
    let default = self_signed(&["c.test"]);
    let world = world(&endpoint, &a, &b, Some(&default));
    let mut client = connect(world.https(), &trusting(&[&default], None), "c.test").unwrap();
    assert_eq!(client.get("c.test", "/").status, 404);
}

#[test]
fn both_versions_resume_sessions() {
    let endpoint = Endpoint::named("ok");
    let (a, b) = (self_signed(&["a.test"]), self_signed(&["*.b.test"]));
    let world = world(&endpoint, &a, &b, None);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = trusting_with(&[&a], None, &[version]);
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let mut client = connect(world.https(), &config, "a.test").unwrap();
            assert_eq!(client.get(HOST, "/").status, 200);
            assert_eq!(client.stream.conn.handshake_kind(), Some(kind));
        }
    }
    assert_eq!(world.metric("tls_handshakes_total{result=\"resumed\"}"), 2);
}

#[test]
fn a_new_certificate_is_used_at_once_and_old_connections_stay() {
    let endpoint = Endpoint::named("ok");
    let (a, b) = (self_signed(&["a.test"]), self_signed(&["*.b.test"]));
    let world = world(&endpoint, &a, &b, None);
    let mut old = connect(world.https(), &trusting(&[&a], None), "a.test").unwrap();
    assert_eq!(old.get(HOST, "/").status, 200);
    let new = self_signed(&["a.test"]);
    let mut config = config(&[endpoint.address]);
    config.tls = hosts(&[("a.test", &terminate(&new))]);
    world.config.send_replace(Arc::new(config));
    let trusts_new = trusting(&[&new], None);
    wait_until("the new certificate", || connect(world.https(), &trusts_new, "a.test").is_ok());
    assert_eq!(old.get(HOST, "/").status, 200);
}

#[test]
fn a_host_with_client_certificates_demands_them() {
    let endpoint = Endpoint::start(|request, stream| {
        respond(stream, request.header("ssl-client-cert").unwrap_or("none"));
        Then::Keep
    });
    let (a, b) = (self_signed(&["a.test"]), self_signed(&["*.b.test"]));
    let (known, unknown) = (self_signed(&["known"]), self_signed(&["unknown"]));
    let mut config = policy_config(
        &[endpoint.address],
        RoutePolicy { tls_redirect: TlsRedirect::Never, ..RoutePolicy::default() },
    );
    add_host(
        &mut config,
        "x.b.test",
        &name("web", UpstreamProtocol::Http1),
        RoutePolicy::default(),
    );
    let HostTls::Terminate { certificate, .. } = &*terminate(&a) else { unreachable!() };
    let clients = ClientCertificates::parse(known.0.as_bytes(), None, false, true).unwrap();
    let mutual =
        Arc::new(HostTls::Terminate { certificate: certificate.clone(), clients: Some(clients) });
    config.tls = hosts(&[("a.test", &mutual), ("*.b.test", &terminate(&b))]);
    let world = World::start(config);
    let roots = [&a, &b];
    let get = |own: Option<&Pair>| {
        let mut client = connect(world.https(), &trusting(&roots, own), "a.test").ok()?;
        // In TLS 1.3, the client learns only now that its certificate was refused.
        client.try_send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        client.try_response()
    };
    let text = get(Some(&known)).unwrap().text();
    assert!(text.starts_with("-----BEGIN%20CERTIFICATE-----%0A"), "{text}");
    assert!(get(None).is_none());
    assert!(get(Some(&unknown)).is_none());
    // No other way to the host: another host's connection, and no TLS.
    let mut other = connect(world.https(), &trusting(&roots, None), "x.b.test").unwrap();
    assert_eq!(other.get("a.test", "/").status, 421);
    assert_eq!(other.get("x.b.test", "/").status, 200);
    assert_eq!(Client::connect(world.http()).get("a.test", "/").status, 403);
    // A session is not resumed: authorities may have changed.
    let config = trusting(&roots, Some(&known));
    for _ in 0..2 {
        let mut client = connect(world.https(), &config, "a.test").unwrap();
        assert_eq!(client.get(HOST, "/").status, 200);
        assert_eq!(client.stream.conn.handshake_kind(), Some(HandshakeKind::Full));
    }
}

/// What the endpoint gets to know about a client's certificate.
fn described(request: &Request) -> Vec<String> {
    ["verify", "subject-dn", "issuer-dn", "cert"]
        .iter()
        .filter_map(|name| request.header(&format!("ssl-client-{name}")))
        .map(|value| value.chars().take(30).collect())
        .collect()
}

fn with_clients(certificate: &Pair, clients: ClientCertificates) -> Arc<HostTls> {
    let HostTls::Terminate { certificate, .. } = &*terminate(certificate) else { unreachable!() };
    let (certificate, clients) = (certificate.clone(), Some(clients));
    Arc::new(HostTls::Terminate { certificate, clients })
}

#[test]
fn endpoints_learn_whether_a_certificate_was_verified_and_whose_it_is() {
    let endpoint = Endpoint::named("ok");
    let a = self_signed(&["a.test"]);
    let authority = Authority::new();
    let known = authority.issue("ann, of sales", 1);
    for (pass_to_endpoint, pem) in [(false, None), (true, Some("-----BEGIN%20CERTIFICATE-----%"))] {
        let clients =
            ClientCertificates::parse(authority.pem.as_bytes(), None, true, pass_to_endpoint);
        let mut config = config(&[endpoint.address]);
        config.tls = hosts(&[("a.test", &with_clients(&a, clients.unwrap()))]);
        let world = World::start(config);
        let get = |own: Option<&Pair>| {
            let mut client = connect(world.https(), &trusting(&[&a], own), "a.test").unwrap();
            client.send("GET / HTTP/1.1\r\nHost: a.test\r\nssl-client-verify: SUCCESS\r\n\r\n");
            assert_eq!(client.response().status, 200);
            described(endpoint.requests().last().unwrap())
        };
        assert_eq!(get(None), ["NONE"]);
        let mut expected = vec!["SUCCESS", "CN=ann\\, of sales", "CN=authority,O=Example"];
        expected.extend(pem);
        assert_eq!(get(Some(&known)), expected);
    }
}

#[test]
fn a_revoked_certificate_is_refused() {
    let endpoint = Endpoint::named("ok");
    let a = self_signed(&["a.test"]);
    let authority = Authority::new();
    let (good, revoked) = (authority.issue("good", 1), authority.issue("revoked", 2));
    let current = authority.revoke(2, 2100);
    let expired = authority.revoke(2, 2020);
    let cases: [(Option<&str>, &Pair, bool); 5] = [
        (None, &good, true),
        (None, &revoked, true),
        (Some(&current), &good, true),
        (Some(&current), &revoked, false),
        (Some(&expired), &good, false),
    ];
    for (number, (list, own, is_served)) in cases.into_iter().enumerate() {
        let (authorities, list) = (authority.pem.as_bytes(), list.map(str::as_bytes));
        let clients = ClientCertificates::parse(authorities, list, false, false).unwrap();
        let mut config = config(&[endpoint.address]);
        config.tls = hosts(&[("a.test", &with_clients(&a, clients))]);
        let world = World::start(config);
        let response = connect(world.https(), &trusting(&[&a], Some(own)), "a.test").ok();
        let response = response.and_then(|mut client| {
            client.try_send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
            client.try_response()
        });
        assert_eq!(response.is_some(), is_served, "case {number}");
    }
    for broken in ["", "nonsense", &authority.pem] {
        let authorities = authority.pem.as_bytes();
        let parsed = ClientCertificates::parse(authorities, Some(broken.as_bytes()), false, false);
        assert!(parsed.is_err(), "{broken}");
    }
}

/// Browsers use one connection for all hosts of a certificate.
#[test]
fn a_connection_serves_hosts_only_that_pass_the_same_on() {
    let endpoint = Endpoint::named("ok");
    let pair = self_signed(&["a.test", "b.test", "c.test"]);
    let authority = Authority::new();
    let own = authority.issue("ann", 1);
    let passing = ClientCertificates::parse(authority.pem.as_bytes(), None, false, true).unwrap();
    let mut hiding = passing.clone();
    hiding.pass_to_endpoint = false;
    let mut config = config(&[endpoint.address]);
    for host in ["b.test", "c.test"] {
        add_host(&mut config, host, &name("web", UpstreamProtocol::Http1), RoutePolicy::default());
    }
    let (a, b) = (with_clients(&pair, passing), with_clients(&pair, hiding));
    config.tls = hosts(&[("a.test", &a), ("b.test", &b), ("c.test", &a)]);
    let world = World::start(config);
    let mut client = connect(world.https(), &trusting(&[&pair], Some(&own)), "b.test").unwrap();
    assert_eq!(client.get("b.test", "/").status, 200);
    assert_eq!(client.get("a.test", "/").status, 421);
    let mut client = connect(world.https(), &trusting(&[&pair], Some(&own)), "a.test").unwrap();
    assert_eq!(client.get("a.test", "/").status, 200);
    assert_eq!(client.get("c.test", "/").status, 200);
}

/// A wildcard host of another owner: its certificate, its redirect and what it demands of clients are not for this one.
#[test]
fn a_host_without_certificate_has_nothing_of_the_wildcard_above_it() {
    let endpoint = Endpoint::named("ok");
    let pair = self_signed(&["*.b.test"]);
    let authority = Authority::new();
    let clients = ClientCertificates::parse(authority.pem.as_bytes(), None, false, false).unwrap();
    let mut config = config(&[endpoint.address]);
    for host in ["*.b.test", "x.b.test", "y.b.test"] {
        add_host(&mut config, host, &name("web", UpstreamProtocol::Http1), RoutePolicy::default());
    }
    let without = |is_wanted| Arc::new(HostTls::WithoutCertificate { is_wanted });
    config.tls = hosts(&[
        ("*.b.test", &with_clients(&pair, clients)),
        ("x.b.test", &without(false)),
        ("y.b.test", &without(true)),
    ]);
    let world = World::start(config.clone());
    let mut client = Client::connect(world.http());
    assert_eq!(client.get("x.b.test", "/").status, 200);
    assert_eq!(client.get("y.b.test", "/").header("location"), Some("https://y.b.test/"));
    assert_eq!(client.get("y.b.test", "/.well-known/acme-challenge/a").status, 200);
    assert_eq!(client.get("z.b.test", "/").status, 308);
    let own = authority.issue("ann", 1);
    let trusts = trusting(&[&pair], Some(&own));
    for host in ["x.b.test", "y.b.test"] {
        let error = connect(world.https(), &trusts, host).map(|_| ()).unwrap_err();
        let alert = rustls::AlertDescription::UnrecognisedName;
        assert_eq!(error, rustls::Error::AlertReceived(alert), "{host}");
    }
    // A connection of the wildcard's is none of theirs.
    let mut client = connect(world.https(), &trusts, "z.b.test").unwrap();
    assert_eq!(client.get("z.b.test", "/").status, 200);
    assert_eq!(client.get("x.b.test", "/").status, 421);

    let default = self_signed(&["x.b.test", "y.b.test"]);
    config.tls.insert(HostPattern::Any, terminate(&default));
    let world = World::start(config);
    for host in ["x.b.test", "y.b.test"] {
        let mut client = connect(world.https(), &trusting(&[&default], None), host).unwrap();
        assert_eq!(client.get(host, "/").status, 200);
    }
    assert_eq!(Client::connect(world.http()).get("x.b.test", "/").status, 200);
}

#[test]
fn requests_without_tls_are_redirected_where_there_is_a_certificate() {
    let endpoint = Endpoint::named("ok");
    let (a, b) = (self_signed(&["a.test"]), self_signed(&["*.b.test"]));
    let world = world(&endpoint, &a, &b, None);
    let mut client = Client::connect(world.http());
    assert_eq!(client.get(HOST, "/a?b").header("location"), Some("https://a.test/a?b"));
    assert_eq!(client.get(HOST, "/.well-known/acme-challenge/a").status, 200);
}

#[test]
fn what_is_no_handshake_is_closed() {
    let endpoint = Endpoint::named("ok");
    let (a, b) = (self_signed(&["a.test"]), self_signed(&["*.b.test"]));
    let world = world(&endpoint, &a, &b, None);
    for octets in [
        b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_vec(),
        [vec![22, 3, 1, 0x40, 0], vec![1; 0x4000]].concat(),
        // A first message that claims to be larger than any.
        [
            vec![22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff],
            vec![0; 0x3ffc],
            vec![22, 3, 1, 0x40, 0],
            vec![0; 0x4000],
        ]
        .concat(),
    ] {
        let mut client = Client::connect(world.https());
        client.try_send(&octets);
        client.rest();
    }
    wait_until("count", || world.metric("tls_handshakes_total{result=\"failed\"}") == 3);
}

/// A server with TLS that sends back what it gets, and what came before TLS began.
fn tls_echo(pair: &Pair, alpn: &[&str]) -> SocketAddr {
    let chain = vec![CertificateDer::from_pem_slice(pair.0.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(pair.1.as_bytes()).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, config) = (stream.unwrap(), config.clone());
            thread::spawn(move || {
                let mut first = [0];
                let mut header = Vec::new();
                // The PROXY protocol ends with a line; a handshake begins with 22.
                while stream.peek(&mut first).is_ok_and(|n| n == 1) && first[0] != 22 {
                    header.push(stream.read(&mut first).map(|_| first[0]).unwrap());
                }
                let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
                let _ = tls.write_all(&header);
                let mut octets = [0; 1024];
                while let Ok(count @ 1..) = tls.read(&mut octets) {
                    let text = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\necho";
                    let is_request = octets[..count].starts_with(b"GET ");
                    let reply = if is_request { text.as_bytes() } else { &octets[..count] };
                    let _ = tls.write_all(reply);
                }
            });
        }
    });
    address
}

/// For all clients, without limits.
fn passthrough(upstream: &UpstreamName) -> Passthrough {
    Passthrough {
        upstream: upstream.clone(),
        proxy_protocol: None,
        owner: RouteOwner { namespace: "default".into(), name: "pass".into() },
        allowed_sources: Vec::new(),
        denied_sources: Vec::new(),
        limits: RateLimits::default(),
    }
}

/// The proxy sees no requests, but it knows who connects.
#[test]
fn passthrough_is_for_clients_that_may_use_the_host() {
    let pair = self_signed(&["pass.test"]);
    let target = name("pass", UpstreamProtocol::Https);
    let base = passthrough(&target);
    let one = RateLimits { concurrent: Some(1), ..RateLimits::default() };
    let loopback = || vec!["127.0.0.0/8".parse().unwrap()];
    let elsewhere = || vec!["192.0.2.0/24".parse().unwrap()];
    for (number, (rules, first, second, reason)) in [
        (Passthrough { allowed_sources: loopback(), ..base.clone() }, true, true, ""),
        (
            Passthrough { allowed_sources: elsewhere(), ..base.clone() },
            false,
            false,
            "denied_source",
        ),
        (Passthrough { denied_sources: loopback(), ..base.clone() }, false, false, "denied_source"),
        (Passthrough { denied_sources: elsewhere(), ..base.clone() }, true, true, ""),
        (Passthrough { limits: one, ..base.clone() }, true, false, "rate_limit"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut config = config(&[]);
        config.upstreams.insert(target.clone(), upstream(&[tls_echo(&pair, &[])]));
        config.tls = hosts(&[("pass.test", &Arc::new(HostTls::Passthrough(Arc::new(rules))))]);
        let world = World::start(config);
        let roots = trusting(&[&pair], None);
        let connections: Vec<_> =
            (0..2).map(|_| connect(world.https(), &roots, "pass.test")).collect();
        let connected: Vec<bool> = connections.iter().map(Result::is_ok).collect();
        assert_eq!(connected, [first, second], "case {number}");
        let denied = rustls::Error::AlertReceived(rustls::AlertDescription::AccessDenied);
        let refused = connections.iter().filter(|c| c.as_ref().err() == Some(&denied)).count();
        assert_eq!(refused, connected.iter().filter(|is| !**is).count(), "case {number}");
        if refused > 0 {
            let refusals = format!("refused_connections_total{{reason=\"{reason}\"}}");
            wait_until("count", || world.metric(&refusals) == refused as u64);
        }
    }
}

#[test]
fn passthrough_forwards_what_it_cannot_read() {
    let pair = self_signed(&["pass.test", "x.pass.test"]);
    let address = tls_echo(&pair, &[]);
    let mut config = config(&[]);
    let target = name("pass", UpstreamProtocol::Https);
    config.upstreams.insert(target.clone(), upstream(&[address]));
    let entry = |proxy_protocol| {
        let passthrough = Passthrough { proxy_protocol, ..passthrough(&target) };
        Arc::new(HostTls::Passthrough(Arc::new(passthrough)))
    };
    config.tls =
        hosts(&[("pass.test", &entry(None)), ("*.pass.test", &entry(Some(ProxyProtocol::V1)))]);
    let world = World::start(config);
    let mut client = connect(world.https(), &trusting(&[&pair], None), "pass.test").unwrap();
    client.send("anything");
    assert_eq!(client.take(8).unwrap(), b"anything");
    assert_eq!(world.metric("open_connections{listener=\"https\"}"), 1);
    drop(client);
    wait_until("end", || world.metric("open_connections{listener=\"https\"}") == 0);

    // The endpoint learns the client's address.
    let mut client = connect(world.https(), &trusting(&[&pair], None), "x.pass.test").unwrap();
    client.send("x");
    assert_eq!(client.take(20).unwrap(), b"PROXY TCP4 127.0.0.1");
}

fn encrypted(authorities: Authorities, server_name: Option<&str>) -> UpstreamName {
    let tls = UpstreamTls {
        server_name: server_name.map(Into::into),
        authorities,
        revoked: None,
        client: None,
    };
    UpstreamName { tls: Some(tls), ..name("web", UpstreamProtocol::Https) }
}

#[test]
fn endpoints_with_tls_are_verified_where_authorities_are_known() {
    let (good, other) = (self_signed(&["inside.test"]), self_signed(&["inside.test"]));
    let address = tls_echo(&good, &["http/1.1"]);
    let pem = |pair: &Pair| Authorities::Pem(pair.0.as_str().into());
    let cases = [
        (encrypted(Authorities::Any, None), 200),
        (encrypted(pem(&good), Some("inside.test")), 200),
        (encrypted(pem(&good), Some("outside.test")), 502),
        (encrypted(pem(&good), None), 502),
        (encrypted(pem(&other), Some("inside.test")), 502),
        (encrypted(Authorities::Public, Some("inside.test")), 502),
    ];
    for (number, (upstream, status)) in cases.into_iter().enumerate() {
        let world = World::start(named_config(upstream, &[address], RoutePolicy::default()));
        let mut client = Client::connect(world.http());
        for _ in 0..2 {
            assert_eq!(client.get(HOST, "/").status, status, "case {number}");
        }
    }
}

#[test]
fn an_endpoint_with_a_revoked_certificate_gets_nothing() {
    let authority = Authority::new();
    let address = tls_echo(&authority.issue_for("inside.test", 1), &["http/1.1"]);
    for (revoked, status) in [(2, 200), (1, 502)] {
        let tls = UpstreamTls {
            server_name: Some("inside.test".into()),
            authorities: Authorities::Pem(authority.pem.as_str().into()),
            revoked: Some(authority.revoke(revoked, 2100).into()),
            client: None,
        };
        let upstream = UpstreamName { tls: Some(tls), ..name("web", UpstreamProtocol::Https) };
        let world = World::start(named_config(upstream, &[address], RoutePolicy::default()));
        assert_eq!(Client::connect(world.http()).get(HOST, "/").status, status, "{revoked}");
    }
}

#[test]
fn settings_of_tls_that_cannot_be_used_send_nothing_in_clear() {
    let endpoint = Endpoint::named("clear");
    let broken =
        UpstreamTls { authorities: Authorities::Pem("nonsense".into()), ..UpstreamTls::default() };
    let upstream = UpstreamName { tls: Some(broken), ..name("web", UpstreamProtocol::Https) };
    let world = World::start(named_config(upstream, &[endpoint.address], RoutePolicy::default()));
    assert_eq!(Client::connect(world.http()).get(HOST, "/").status, 502);
    assert_eq!(endpoint.connections.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[test]
fn a_route_with_client_certificates_demands_them_whatever_the_host_does() {
    let endpoint = Endpoint::named("secret");
    let policy = RoutePolicy { requires_client_certificate: true, ..RoutePolicy::default() };
    let mut config = policy_config(&[endpoint.address], policy);
    let plain = World::start(config.clone());
    assert_eq!(Client::connect(plain.http()).get(HOST, "/").status, 403);
    // The host has a certificate, but knows nothing about those of clients.
    let pair = self_signed(&[HOST]);
    config.tls = hosts(&[(HOST, &terminate(&pair))]);
    let world = World::start(config);
    assert_eq!(Client::connect(world.http()).get(HOST, "/").status, 308);
    let mut client = connect(world.https(), &trusting(&[&pair], None), HOST).unwrap();
    assert_eq!(client.get(HOST, "/").status, 403);
    assert_eq!(endpoint.count(), 0);
}

#[test]
fn connections_that_are_passed_on_may_finish_before_the_proxy_does() {
    let pair = self_signed(&["pass.test"]);
    let target = name("pass", UpstreamProtocol::Https);
    let mut config = config(&[]);
    config.upstreams.insert(target.clone(), upstream(&[tls_echo(&pair, &[])]));
    let pass = Arc::new(HostTls::Passthrough(Arc::new(passthrough(&target))));
    config.tls = hosts(&[("pass.test", &pass)]);
    let mut world = World::with(config, |settings| settings.shutdown_grace = PATIENCE);
    let mut client = connect(world.https(), &trusting(&[&pair], None), "pass.test").unwrap();
    client.send("before");
    assert_eq!(client.take(6).unwrap(), b"before");
    let (address, proxy) = (world.https(), world.proxy.take().unwrap());
    let ended = thread::spawn(move || block_on(proxy.shutdown()));
    wait_until("closed listener", || TcpStream::connect(address).is_err());
    client.send("after");
    assert_eq!(client.take(5).unwrap(), b"after");
    drop(client);
    ended.join().unwrap();
}

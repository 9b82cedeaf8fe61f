//! HTTPS at the door: who is shown which certificate, what is spoken then, and what a client that stalls can hold up.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme, SupportedProtocolVersion, version};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use waitgate::body::Body;
use waitgate::clock::Clock;
use waitgate::config;
use waitgate::server::{ConnectionLimits, ListenerSettings, Live, Peer, Scheme, Stop};

use crate::backend::{Front, Wire, limits, nothing, soon};
use crate::gateway::{LINE, Site};
use crate::papers::Papers;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

impl Papers {
    /// The settings of `[tls]` with these certificates, and these keys besides, a line each.
    pub(super) fn lines(&self, files: &[&str], more: &str) -> String {
        let folder = self.folder.path().display();
        let item = |file: &&str| format!("{{ chain = \"{folder}/{file}.pem\", key = \"{folder}/{file}.key\" }}");
        let items: Vec<_> = files.iter().map(item).collect();
        format!("tls.listen = \"127.0.0.1:0\"\ntls.certificates = [{}]\n{more}", items.join(", "))
    }

    fn settings(&self, files: &[&str], more: &str) -> config::Tls {
        let config = config::parse(&self.lines(files, more), Path::new("test.toml"));
        config.unwrap_or_else(|mistakes| panic!("{mistakes}")).tls.expect("HTTPS")
    }

    /// Mistakes of such settings.
    fn mistakes(&self, files: &[&str], more: &str) -> String {
        let config = config::parse(&self.lines(files, more), Path::new("test.toml"));
        config.map_or_else(|mistakes| mistakes.to_string(), |_| String::new())
    }
}

/// A listener that says who its peer is.
async fn naming(limits: ConnectionLimits, tls: &config::Tls) -> Front {
    let live = Live::new(ListenerSettings::plain(limits).secured(Some(tls)));
    Front::living(live, Scheme::Https, Stop::new(), |request: Request<Body>, peer: Peer| async move {
        Response::new(Body::full(format!("{} {:?}", peer.tls, request.version())))
    })
    .await
}

/// Whom the tests believe: everybody. They look at the certificate themselves.
#[derive(Debug)]
struct Believing(Vec<SignatureScheme>);

impl ServerCertVerifier for Believing {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

/// A client of HTTPS: the versions it speaks, and what it offers to speak on top.
pub(super) fn client(versions: &[&'static SupportedProtocolVersion], offers: &[&str]) -> Arc<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Believing(schemes)))
        .with_no_client_auth();
    client.alpn_protocols = offers.iter().map(|offer| offer.as_bytes().to_vec()).collect();
    Arc::new(client)
}

pub(super) const NEW: &[&SupportedProtocolVersion] = &[&version::TLS13];
const OLD: &[&SupportedProtocolVersion] = &[&version::TLS12];

pub(super) async fn connect(client: &Arc<ClientConfig>, to: SocketAddr, name: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let io = TcpStream::connect(to).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    soon(TlsConnector::from(Arc::clone(client)).connect(name, io)).await
}

/// What comes back until the other end closes.
async fn ask(line: &mut TlsStream<TcpStream>, request: &str) -> String {
    line.write_all(request.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    soon(line.read_to_end(&mut said)).await.unwrap();
    String::from_utf8(said).unwrap()
}

fn shown(line: &TlsStream<TcpStream>) -> Vec<u8> {
    line.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

/// Both versions of TLS; HTTP/2 and HTTP/1.1 as agreed, or as heard when nothing was agreed; and whoever only speaks what nobody here does is
/// told so in the handshake.
#[tokio::test]
async fn what_was_agreed_is_spoken() {
    let papers = Papers::new();
    papers.issue("a", &["a.example"]);
    let front = naming(limits(), &papers.settings(&["a"], "")).await;
    for versions in [NEW, OLD] {
        for offers in [&["http/1.1"][..], &[], &["http/1.1", "h2"]] {
            if offers.contains(&"h2") {
                let line = connect(&client(versions, offers), front.address, "a.example").await.unwrap();
                assert_eq!(line.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
                let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(line));
                let (mut sender, connection) = handshake.await.unwrap();
                tokio::spawn(connection);
                let request = Request::get("https://a.example/").body(nothing()).unwrap();
                let answer = soon(sender.send_request(request)).await.unwrap().into_body();
                assert_eq!(answer.collect().await.unwrap().to_bytes(), "true HTTP/2.0");
            } else {
                let mut line = connect(&client(versions, offers), front.address, "a.example").await.unwrap();
                assert!(ask(&mut line, GET).await.ends_with("true HTTP/1.1"));
            }
        }
        assert!(connect(&client(versions, &["spdy/3"]), front.address, "a.example").await.is_err());
    }
    let mut plain = front.client().await;
    plain.send(GET).await;
    assert!(plain.head().await.is_none(), "plain HTTP is not answered here");
    let front = naming(limits(), &papers.settings(&["a"], "tls.min_version = \"1.3\"")).await;
    assert!(connect(&client(OLD, &[]), front.address, "a.example").await.is_err());
    assert!(connect(&client(NEW, &[]), front.address, "a.example").await.is_ok());
}

/// A client is shown the certificate of the name it asks for; wildcards reach one level, and the first is for everybody else.
#[tokio::test]
async fn a_certificate_is_chosen_by_its_own_names() {
    let papers = Papers::new();
    let first = papers.issue("a", &["a.example"]);
    let wild = papers.issue("b", &["*.b.example", "b.example"]);
    let exact = papers.issue("c", &["x.b.example"]);
    let front = naming(limits(), &papers.settings(&["a", "b", "c"], "")).await;
    for (name, certificate) in [
        ("a.example", &first),
        ("B.Example", &wild),
        ("y.b.example", &wild),
        ("x.b.example", &exact),
        ("z.y.b.example", &first),
        ("other.example", &first),
        ("127.0.0.1", &first),
    ] {
        let line = connect(&client(NEW, &[]), front.address, name).await.unwrap();
        assert!(shown(&line) == *certificate, "{name}");
    }
}

/// A new certificate is for new handshakes, resumed ones too; open connections go on.
#[tokio::test]
async fn a_certificate_is_exchanged_under_open_connections() {
    let papers = Papers::new();
    let old = papers.issue("a", &["a.example"]);
    let front = naming(limits(), &papers.settings(&["a"], "")).await;
    let client = client(NEW, &[]);
    let mut open = connect(&client, front.address, "a.example").await.unwrap();
    let mut before = connect(&client, front.address, "a.example").await.unwrap();
    assert!(ask(&mut before, GET).await.contains(" 200 "), "and a ticket came with it");
    assert!(shown(&open) == old);
    let new = papers.issue("a", &["a.example"]);
    let settings = ListenerSettings::plain(limits()).secured(Some(&papers.settings(&["a"], "")));
    front.live.exchange(settings);
    let line = connect(&client, front.address, "a.example").await.unwrap();
    assert!(shown(&line) == new);
    assert!(ask(&mut open, GET).await.contains(" 200 "), "who was in stays in");
    front.live.exchange(ListenerSettings::plain(limits()));
    assert!(
        connect(&client, front.address, "a.example").await.is_err(),
        "HTTPS was taken out of the settings"
    );
}

/// Sessions are resumed by tickets: a phone that comes back need not be shown the certificate again.
#[tokio::test]
async fn sessions_are_resumed() {
    let papers = Papers::new();
    papers.issue("a", &["a.example"]);
    let front = naming(limits(), &papers.settings(&["a"], "")).await;
    for versions in [NEW, OLD] {
        let client = client(versions, &[]);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let mut line = connect(&client, front.address, "a.example").await.unwrap();
            ask(&mut line, GET).await; // tickets of TLS 1.3 come with the answer
            kinds.push(line.get_ref().1.handshake_kind().unwrap());
        }
        assert_eq!(kinds, [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed]);
    }
}

/// CASE 66 (d): half a handshake is closed within its own limit, and however many there are, nobody waits for them.
#[tokio::test]
async fn a_stalled_handshake_is_ended_and_holds_up_nobody() {
    let papers = Papers::new();
    papers.issue("a", &["a.example"]);
    let settings = papers.settings(&["a"], "tls.max_handshakes = 1\ntls.handshake_timeout = \"600ms\"");
    let front = naming(limits(), &settings).await;
    let mut hello = rustls::ClientConnection::new(client(NEW, &[]), ServerName::try_from("a.example").unwrap()).unwrap();
    let mut bytes = Vec::new();
    hello.write_tls(&mut bytes).unwrap();
    let began = Clock::instant();
    let mut stalled = Vec::new();
    for part in [&bytes[..0], &bytes[..1], &bytes[..bytes.len() / 2]] {
        for _ in 0..20 {
            let mut client = front.client().await;
            client.send(part).await;
            stalled.push(client);
        }
    }
    let mut line = connect(&client(NEW, &[]), front.address, "a.example").await.unwrap();
    assert!(ask(&mut line, GET).await.contains(" 200 "));
    assert!(
        began.elapsed() < Duration::from_millis(600),
        "it had to wait: {:?}",
        began.elapsed()
    );
    for client in &mut stalled {
        assert!(client.ends_within(Duration::from_secs(3)).await);
    }
    // One that does take the only turn, and then stalls, is waited for, no longer than a handshake may take.
    let mut client_of_one = front.client().await;
    client_of_one.send(&bytes).await;
    assert!(client_of_one.more().await > 0, "the server has answered, and holds the turn");
    assert!(client_of_one.ends_within(Duration::from_secs(3)).await);
    let mut line = connect(&client(NEW, &[]), front.address, "a.example").await.unwrap();
    assert!(ask(&mut line, GET).await.contains(" 200 "));
}

/// A file that is not what it should be is a mistake of the settings, with line and key.
#[test]
fn bad_files_are_mistakes() {
    let papers = Papers::new();
    papers.issue("a", &["a.example"]);
    papers.issue("b", &["b.example"]);
    assert_eq!(papers.mistakes(&["a", "b"], ""), "");
    let key = std::fs::read(papers.path("a.key")).unwrap();
    std::fs::write(papers.path("b.key"), &key).unwrap();
    let said = papers.mistakes(&["a", "b"], "");
    assert!(
        said.contains("test.toml:2:") && said.contains("tls.certificates") && said.contains("is not that of"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    std::fs::write(papers.path("b.pem"), "-- nothing --").unwrap();
    assert!(papers.mistakes(&["b"], "").contains("there is no certificate in"));
    std::fs::write(papers.path("a.key"), "-- nothing --").unwrap();
    assert!(papers.mistakes(&["a"], "").contains("there is no private key in"));
    assert!(papers.mistakes(&["none"], "").contains("none.pem cannot be read"));
    assert!(papers.mistakes(&[], "").contains("HTTPS needs a certificate"));
    let said = papers.mistakes(&["b"], "tls.handshake_timeout = \"11s\"");
    assert!(said.contains("tls.handshake_timeout: this is 10s at most"), "{said}");
    let alone = |text: &str| config::parse(text, Path::new("test.toml")).unwrap_err().to_string();
    assert!(alone("tls.redirect = true").contains("tls.redirect: this needs HTTPS"));
    assert!(alone("tls.hsts = \"1d\"").contains("tls.hsts: this needs HTTPS"));
    let said = alone("tls.listen = \"127.0.0.1:1\"\ntls.certificates = [{ chain = \"a\", kee = \"b\" }]");
    assert!(said.contains("there is no `kee` in it"), "{said}");
}

/// What `waitgate check` shows reads back as the same; a certificate's names and its end are known.
#[test]
fn settings_of_tls_read_back() {
    let papers = Papers::new();
    papers.issue_that("a", &["A.example", "*.b.example"], |params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1)
    });
    let more = "tls.redirect = true\ntls.redirect_port = 8443\ntls.hsts = \"180d\"\ntls.min_version = \"1.3\"\n\
        server.proxy_protocol = [\"10.0.0.0/8\"]";
    let once = config::parse(&papers.lines(&["a"], more), Path::new("test.toml")).unwrap();
    let shown = config::show(&once);
    let twice = config::parse(&shown, Path::new("test.toml")).unwrap_or_else(|mistakes| panic!("{mistakes}\n{shown}"));
    assert_eq!(format!("{once:?}"), format!("{twice:?}"));
    let certificate = &once.tls.unwrap().certificates[0];
    assert_eq!(certificate.names, ["a.example", "*.b.example"]);
    assert_eq!(certificate.expires_at, 1_577_836_800_000);
    assert!(!shown.contains("PRIVATE"), "{shown}");
}

/// The whole gateway: the backend is told of https, browsers are told to stay there, once, and plain HTTP only sends on, byte for byte.
#[tokio::test]
async fn https_beside_a_listener_that_only_sends_on() {
    let papers = Papers::new();
    papers.issue("a", &["a.example"]);
    let more = "tls.redirect = true\ntls.redirect_port = 8443\ntls.hsts = \"180d\"\nserver.fallback = \"http://BACKEND\"";
    let backend = crate::gateway::shop_that(|request| {
        let own = if request.line().contains("/own") {
            "Strict-Transport-Security: max-age=1; includeSubDomains\r\n"
        } else {
            ""
        };
        format!("HTTP/1.1 200 OK\r\n{own}Content-Length: 0\r\n\r\n")
    })
    .await;
    let lines = papers.lines(&["a"], more).replace("BACKEND", &backend.address.to_string());
    let site = Site::before(backend, &format!("{lines}\n{LINE}")).await;
    let secure = site.secure.expect("HTTPS");
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    let client = client(NEW, &[]);
    for (path, hsts) in [
        ("/free", "max-age=15552000"),
        ("/own", "max-age=1; includeSubDomains"),
        ("/sale", "max-age=15552000"),
    ] {
        let mut line = connect(&client, secure, "a.example").await.unwrap();
        let answer = ask(&mut line, &get(path)).await.to_lowercase();
        let told: Vec<_> = answer
            .lines()
            .filter(|line| line.starts_with("strict-transport-security"))
            .collect();
        assert_eq!(told, [format!("strict-transport-security: {}", hsts.to_lowercase())], "{answer}");
    }
    let asked = site.backend.seen();
    assert_eq!(asked[0].one("x-forwarded-proto"), "https");
    assert_eq!(asked.len(), 2, "the guarded path is the line's");

    let target = "/sale/a%2Fb;c=1/?x=%zz&y=[]&z='";
    let sent_on = site
        .wire()
        .await
        .ask(format!("GET {target} HTTP/1.1\r\nHost: Shop.Example:80\r\n\r\n"))
        .await;
    assert_eq!((sent_on.status(), sent_on.one("cache-control")), (308, "no-store"));
    assert_eq!(sent_on.one("location"), format!("https://shop.example:8443{target}"));
    assert!(sent_on.all("strict-transport-security").is_empty());
    let post = "POST /sale HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(site.wire().await.ask(post).await.one("location"), "https://[::1]:8443/sale");
    for host in ["a b", "a@b", "a/b", ""] {
        let refused = site.wire().await.ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!(refused.status(), 400, "{host}");
    }
    assert_eq!(site.backend.seen().len(), 2, "nothing plain has reached the backend");
    assert_eq!(site.operate("GET", "/healthz", &Value::Null).await.status, 200);
}

/// Connections of both listeners are counted together.
#[tokio::test]
async fn http_and_https_share_their_limits() {
    let papers = Papers::new();
    papers.issue("a", &["a.example"]);
    let mut limits = limits();
    limits.max_connections_per_address = 2;
    let secure = naming(limits, &papers.settings(&["a"], "")).await;
    let plain = Front::living(Arc::clone(&secure.live), Scheme::Http, Stop::new(), |_, _| async {
        Response::new(Body::full("ok"))
    })
    .await;
    let keep = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut first: Wire = plain.client().await;
    assert_eq!(first.ask(keep).await.status(), 200);
    let _second = connect(&client(NEW, &[]), secure.address, "a.example").await.unwrap();
    assert_eq!(plain.ask(keep).await.status(), 503);
    assert!(connect(&client(NEW, &[]), secure.address, "a.example").await.is_err());
}

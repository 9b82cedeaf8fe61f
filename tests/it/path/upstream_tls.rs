//! Backends at `https://`: who is believed, and that nothing is said to anybody else.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Uri;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use waitgate::config;

use crate::backend::{Backend, Front, Treatment, limits, settings, until};
use crate::gateway::{LINE, Site, shop};
use crate::papers::Papers;

const GET: &str = "GET /x?y=%20 HTTP/1.1\r\nHost: shop.example\r\n\r\n";
const POST: &str = "POST /claim HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\nbuy";

/// Ends TLS before a backend of the tests, and says who was asked for.
struct Terminator {
    address: SocketAddr,
    names: Arc<Mutex<Vec<Option<String>>>>,
    refused: Arc<AtomicUsize>,
    /// Connections that the backend closed, which the other end has been told by now.
    closed: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Terminator {
    /// With the certificate in these files; where `believing` names another, only to whoever shows that one.
    async fn start(papers: &Papers, file: &str, believing: Option<&str>, to: SocketAddr) -> Self {
        let chain = CertificateDer::from_pem_file(papers.path(&format!("{file}.pem"))).unwrap();
        let key = PrivateKeyDer::from_pem_file(papers.path(&format!("{file}.key"))).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match believing {
            None => builder.with_no_client_auth(),
            Some(other) => {
                let mut roots = RootCertStore::empty();
                roots
                    .add(CertificateDer::from_pem_file(papers.path(&format!("{other}.pem"))).unwrap())
                    .unwrap();
                let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let mut server = builder.with_single_cert(vec![chain], key).unwrap();
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (names, refused, closed) = (
            Arc::<Mutex<Vec<_>>>::default(),
            Arc::<AtomicUsize>::default(),
            Arc::<AtomicUsize>::default(),
        );
        let (log, count, ends) = (Arc::clone(&names), Arc::clone(&refused), Arc::clone(&closed));
        let task = tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(server));
            let mut lines = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, log, count, closed) = (acceptor.clone(), Arc::clone(&log), Arc::clone(&count), Arc::clone(&ends));
                lines.spawn(async move {
                    let Ok(line) = acceptor.accept(stream).await else {
                        count.fetch_add(1, SeqCst);
                        return;
                    };
                    log.lock().unwrap().push(line.get_ref().1.server_name().map(str::to_owned));
                    let mut inner = TcpStream::connect(to).await.unwrap();
                    let (mut from, mut back) = tokio::io::split(line);
                    let (mut answers, mut requests) = inner.split();
                    let answering = async {
                        let _ = copy(&mut answers, &mut back).await;
                        let _ = back.shutdown().await;
                        closed.fetch_add(1, SeqCst);
                    };
                    tokio::select! {
                        _ = copy(&mut from, &mut requests) => {}
                        () = answering => {}
                    }
                });
            }
        });
        Self {
            address,
            names,
            refused,
            closed,
            task,
        }
    }

    fn origin(&self, host: &str) -> Uri {
        format!("https://{host}:{}", self.address.port()).parse().unwrap()
    }

    fn handshakes(&self) -> usize {
        self.names.lock().unwrap().len()
    }
}

impl Drop for Terminator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Settings that believe the certificate in this file, with more keys of `[upstream.tls]`.
fn believing(papers: &Papers, file: &str, more: &str) -> config::Upstream {
    let roots = papers.path(&format!("{file}.pem"));
    let text = format!(
        "fallback = \"https://localhost\"\n[upstream.tls]\nroots = \"{}\"\n{more}\n",
        roots.display()
    );
    let text = text.replacen("fallback", "server.fallback", 1);
    let config = config::parse(&text, Path::new("test.toml")).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    config::Upstream {
        tls: config.upstream.tls,
        ..settings()
    }
}

async fn front(origin: Uri, settings: config::Upstream) -> Front {
    Front::with(origin, limits(), settings, Treatment::default()).await
}

/// A backend whose certificate leads to a root we believe is spoken to as any other: the same bytes, on a connection that is kept, asked for by name.
#[tokio::test]
async fn who_proves_to_be_the_backend_gets_the_requests() {
    let (papers, backend) = (Papers::new(), Backend::plain().await);
    papers.issue("shop", &["localhost"]);
    let secured = Terminator::start(&papers, "shop", None, backend.address).await;
    let front = front(secured.origin("localhost"), believing(&papers, "shop", "")).await;
    let mut client = front.client().await;
    for asked in [GET, POST, GET] {
        assert_eq!(client.ask(asked).await.status(), 200);
    }
    let seen = backend.seen();
    assert_eq!(seen[0].line(), "GET /x?y=%20 HTTP/1.1");
    assert_eq!((seen[0].one("host"), seen[1].body.as_slice()), ("shop.example", b"buy".as_slice()));
    assert_eq!(
        *secured.names.lock().unwrap(),
        [Some("localhost".to_owned())],
        "one handshake, by name"
    );
}

/// An unknown authority, another's name, a certificate that is over: the answer is 502, and the backend was told nothing at all.
#[tokio::test]
async fn whoever_cannot_prove_it_is_told_nothing() {
    let (papers, backend) = (Papers::new(), Backend::plain().await);
    papers.issue("shop", &["localhost"]);
    papers.issue("stranger", &["localhost"]);
    papers.issue("other", &["other.example"]);
    papers.issue_that("old", &["localhost"], |params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    for (shown, believed) in [("stranger", "shop"), ("other", "other"), ("old", "old")] {
        let secured = Terminator::start(&papers, shown, None, backend.address).await;
        let front = front(secured.origin("localhost"), believing(&papers, believed, "")).await;
        for asked in [GET, POST] {
            let answer = front.ask(asked).await;
            assert_eq!(
                (answer.status(), answer.body.as_slice()),
                (502, b"backend_unreachable".as_slice()),
                "{shown}"
            );
        }
        until("it heard of the refusal", || secured.refused.load(SeqCst) == 2).await;
        assert_eq!(secured.handshakes(), 0);
    }
    assert!(backend.seen().is_empty());
}

/// `tls.name` is what the certificate has to be for, and what is asked for; without it an address has to be in the certificate itself.
#[tokio::test]
async fn the_name_may_be_another_than_that_of_the_url() {
    let (papers, backend) = (Papers::new(), Backend::plain().await);
    papers.issue("shop", &["shop.internal"]);
    papers.issue("numbered", &["127.0.0.1"]);
    let secured = Terminator::start(&papers, "shop", None, backend.address).await;
    let named = front(secured.origin("127.0.0.1"), believing(&papers, "shop", "name = \"shop.internal\"")).await;
    assert_eq!(named.ask(GET).await.status(), 200);
    assert_eq!(*secured.names.lock().unwrap(), [Some("shop.internal".to_owned())]);
    let unnamed = front(secured.origin("127.0.0.1"), believing(&papers, "shop", "")).await;
    assert_eq!(unnamed.ask(GET).await.status(), 502);
    let secured = Terminator::start(&papers, "numbered", None, backend.address).await;
    let numbered = front(secured.origin("127.0.0.1"), believing(&papers, "numbered", "")).await;
    assert_eq!(numbered.ask(GET).await.status(), 200);
}

/// A backend that wants to know who we are is shown our certificate, if we have one.
#[tokio::test]
async fn a_certificate_of_ours_is_shown_to_who_asks() {
    let (papers, backend) = (Papers::new(), Backend::plain().await);
    papers.issue("shop", &["localhost"]);
    papers.issue("gateway", &["gateway.internal"]);
    let secured = Terminator::start(&papers, "shop", Some("gateway"), backend.address).await;
    let folder = papers.folder.path().display();
    let ours = format!("certificate = {{ chain = \"{folder}/gateway.pem\", key = \"{folder}/gateway.key\" }}");
    let known = front(secured.origin("localhost"), believing(&papers, "shop", &ours)).await;
    assert_eq!(known.ask(POST).await.status(), 200);
    let unknown = front(secured.origin("localhost"), believing(&papers, "shop", "")).await;
    assert_eq!(unknown.ask(POST).await.status(), 502);
    assert_eq!(backend.seen().len(), 1);
}

/// CASE 53, over TLS: nothing is sent, and nothing lost, on a connection that has been closed meanwhile.
#[tokio::test]
async fn a_claim_is_not_sent_on_a_connection_that_was_closed() {
    let papers = Papers::new();
    papers.issue("shop", &["localhost"]);
    let backend = Backend::start(|mut wire| async move {
        wire.request().await;
        wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await; // and closes, without a word of it
    })
    .await;
    let secured = Terminator::start(&papers, "shop", None, backend.address).await;
    let front = front(secured.origin("localhost"), believing(&papers, "shop", "")).await;
    let mut client = front.client().await;
    for number in 1..=10 {
        let asked = if number % 2 == 0 { POST } else { GET };
        assert_eq!(client.ask(asked).await.status(), 200, "{number}");
        until("the end has come", || secured.closed.load(SeqCst) == number).await;
    }
    assert_eq!(
        (backend.seen().len(), backend.connections()),
        (10, 10),
        "each was sent once, on a connection of its own"
    );
}

/// A body that ends without TLS being ended has been cut: it is not passed on as if it were whole.
#[tokio::test]
async fn a_body_cut_under_tls_is_passed_on_as_cut() {
    let papers = Papers::new();
    papers.issue("shop", &["localhost"]);
    let chain = CertificateDer::from_pem_file(papers.path("shop.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(papers.path("shop.key")).unwrap();
    let server = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let cutting = tokio::spawn(async move {
        for ended in [false, true] {
            let (stream, _) = listener.accept().await.unwrap();
            let mut line = acceptor.accept(stream).await.unwrap();
            let mut wire = Vec::new();
            while !wire.ends_with(b"\r\n\r\n") {
                tokio::io::AsyncReadExt::read_buf(&mut line, &mut wire).await.unwrap();
            }
            line.write_all(b"HTTP/1.1 200 OK\r\n\r\nhalf").await.unwrap();
            line.flush().await.unwrap();
            if ended {
                line.shutdown().await.unwrap();
            }
        }
    });
    let origin = format!("https://localhost:{port}").parse().unwrap();
    let front = front(origin, believing(&papers, "shop", "")).await;
    let mut client = front.client().await;
    client.send(GET).await;
    assert!(client.answer().await.is_none(), "there is no end to it");
    let mut client = front.client().await;
    client.send(GET).await;
    client.head().await.unwrap();
    assert_eq!(client.chunks().await.expect("a whole body").0, b"half");
    cutting.await.unwrap();
}

/// Whoever accepts and then says nothing costs no more than connecting may.
#[tokio::test]
async fn a_handshake_that_stalls_is_given_up() {
    let papers = Papers::new();
    papers.issue("shop", &["localhost"]);
    let silent = Backend::start(|mut wire| async move { while wire.more().await > 0 {} }).await;
    let settings = config::Upstream {
        connect_timeout: Duration::from_millis(300),
        ..believing(&papers, "shop", "")
    };
    let origin = format!("https://localhost:{}", silent.address.port()).parse().unwrap();
    let front = front(origin, settings).await;
    let answer = front.ask(GET).await;
    assert_eq!((answer.status(), answer.body.as_slice()), (502, b"backend_unreachable".as_slice()));
}

/// Authorities are read again with the settings, though no key has changed: the file has.
#[tokio::test]
async fn other_authorities_are_believed_after_a_reload() {
    let (papers, backend) = (Papers::new(), shop().await);
    papers.issue("shop", &["localhost"]);
    papers.issue("stranger", &["localhost"]);
    let secured = Terminator::start(&papers, "shop", None, backend.address).await;
    let believed = papers.path("believed.pem");
    std::fs::copy(papers.path("stranger.pem"), &believed).unwrap();
    let settings = format!(
        "server.fallback = \"https://localhost:{}\"\nupstream.tls.roots = \"{}\"\n{LINE}",
        secured.address.port(),
        believed.display()
    );
    let site = Site::before(backend, &settings).await;
    assert_eq!(site.visitor().fetch("/free").await.code(), "backend_unreachable");
    std::fs::copy(papers.path("shop.pem"), &believed).unwrap();
    let reply = site.reload(&settings).await;
    assert_eq!((reply.status, &reply.json()["changed"]), (200, &serde_json::json!([])));
    assert!(site.visitor().fetch("/free").await.is_shop());
}

/// Files that cannot be believed are mistakes of the settings, by name; and settings show what was written.
#[test]
fn bad_files_are_mistakes() {
    let papers = Papers::new();
    papers.issue("a", &["a.example"]);
    std::fs::write(papers.path("empty.pem"), "nothing").unwrap();
    let folder = papers.folder.path().display();
    let mistake = |lines: &str| {
        let text = format!("[upstream.tls]\n{lines}\n");
        config::parse(&text, Path::new("test.toml")).map_or_else(|mistakes| mistakes.to_string(), |_| String::new())
    };
    for (lines, part) in [
        (format!("roots = \"{folder}/none.pem\""), "upstream.tls.roots: "),
        (format!("roots = \"{folder}/empty.pem\""), "there is no certificate in"),
        ("name = \"not a name\"".to_owned(), "`not a name` is not the name of a host"),
        (
            format!("certificate = {{ chain = \"{folder}/a.pem\", key = \"{folder}/empty.pem\" }}"),
            "there is no private key in",
        ),
        ("rots = \"x\"".to_owned(), "upstream.tls.rots"),
    ] {
        let said = mistake(&lines);
        assert!(said.contains(part) && said.starts_with("test.toml:2:"), "{lines}: {said}");
    }
    let text = format!(
        "server.fallback = \"https://a.example\"\nupstream.http = \"2\"\nupstream.tls.roots = \"{folder}/a.pem\"\nupstream.tls.name = \"b.example\"\n\
         upstream.tls.certificate = {{ chain = \"{folder}/a.pem\", key = \"{folder}/a.key\" }}\n"
    );
    let once = config::show(&config::parse(&text, Path::new("test.toml")).unwrap());
    let twice = config::show(&config::parse(&once, Path::new("test.toml")).unwrap());
    assert_eq!(once, twice);
    for line in ["http = \"2\"", "name = \"b.example\"", "fallback = \"https://a.example\""] {
        assert!(once.lines().any(|shown| shown == line), "{line} in {once}");
    }
}

//! Backends that are spoken to in HTTP/2: many requests on a connection, and none in another's way.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::request::Parts;
use http::{HeaderMap, Request, Response, Uri};
use http_body_util::BodyExt;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use waitgate::config::{self, HttpVersion};

use crate::backend::{Front, Treatment, http2, limits, nothing, settings, soon, until};
use crate::papers::Papers;

const GET: &str = "GET /x?y=%20 HTTP/1.1\r\nHost: shop.example\r\nConnection: keep-alive\r\nTE: trailers\r\n\r\n";
const POST: &str = "POST /claim HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\nbuy";

/// A backend that speaks HTTP/2 and does with each request what its script says.
struct Shop {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<(Parts, Bytes)>>>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// A request with its body, the way to answer it, and the number of its connection, from 1.
type Asked = (Parts, Bytes, SendResponse<Bytes>, usize);

impl Shop {
    async fn start<S, F>(streams: u32, script: S) -> Self
    where
        S: Fn(Asked) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, connections) = (Arc::<Mutex<Vec<(Parts, Bytes)>>>::default(), Arc::<AtomicUsize>::default());
        let (log, count) = (Arc::clone(&seen), Arc::clone(&connections));
        let task = tokio::spawn(async move {
            let mut lines = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let number = count.fetch_add(1, SeqCst) + 1;
                let (log, script) = (Arc::clone(&log), script.clone());
                lines.spawn(async move {
                    let Ok(mut line) = h2::server::Builder::new().max_concurrent_streams(streams).handshake(stream).await else {
                        return;
                    };
                    let mut answers = tokio::task::JoinSet::new();
                    while let Some(Ok((request, respond))) = line.accept().await {
                        let (parts, body) = request.into_parts();
                        let (log, script) = (Arc::clone(&log), script.clone());
                        answers.spawn(async move {
                            let body = whole(body).await;
                            log.lock().unwrap().push((parts.clone(), body.clone()));
                            script((parts, body, respond, number)).await;
                        });
                    }
                });
            }
        });
        Self {
            address,
            seen,
            connections,
            task,
        }
    }

    /// A small 200 to everything.
    async fn plain() -> Self {
        Self::start(100, |asked| async move { say(asked.2, "ok") }).await
    }

    fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    async fn front(&self) -> Front {
        let settings = config::Upstream {
            http: HttpVersion::Http2,
            ..settings()
        };
        let origin: Uri = format!("http://{}", self.address).parse().unwrap();
        Front::with(origin, limits(), settings, Treatment::default()).await
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn whole(mut body: RecvStream) -> Bytes {
    let mut all = Vec::new();
    while let Some(Ok(piece)) = body.data().await {
        body.flow_control().release_capacity(piece.len()).unwrap();
        all.extend_from_slice(&piece);
    }
    all.into()
}

fn say(mut respond: SendResponse<Bytes>, text: &'static str) {
    let mut body = respond.send_response(Response::new(()), false).unwrap();
    body.send_data(Bytes::from_static(text.as_bytes()), true).unwrap();
}

/// What a backend sees of a request: one authority, the client's own host; nothing about the connection; body and target to the byte.
#[tokio::test]
async fn requests_arrive_as_http2_wants_them() {
    let shop = Shop::plain().await;
    let front = shop.front().await;
    let mut client = front.client().await;
    assert_eq!(client.ask(GET).await.body, b"ok");
    assert_eq!(client.ask(POST).await.body, b"ok");
    let chunked = "POST /c HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    assert_eq!(client.ask(chunked).await.body, b"ok");
    assert_eq!(client.ask("GET /h HTTP/1.1\r\nHost: a b\r\n\r\n").await.status(), 400);
    let seen = shop.seen.lock().unwrap();
    assert_eq!(seen.len(), 3);
    for (parts, _) in seen.iter() {
        assert_eq!(parts.uri.authority().unwrap(), "shop.example");
        for name in ["host", "connection", "te", "transfer-encoding", "upgrade", "keep-alive"] {
            assert!(!parts.headers.contains_key(name), "{name}: {parts:?}");
        }
        assert_eq!(parts.headers["x-forwarded-host"], "shop.example");
    }
    assert_eq!(seen[0].0.uri.path_and_query().unwrap(), "/x?y=%20");
    assert_eq!(
        (seen[1].0.headers["content-length"].as_bytes(), seen[1].1.as_ref()),
        (&b"3"[..], &b"buy"[..])
    );
    assert_eq!(seen[2].1.as_ref(), b"hello");
    assert_eq!(shop.connections(), 1);
}

/// A crowd of first requests opens one connection, not one each.
#[tokio::test]
async fn a_crowd_shares_a_connection() {
    let (held, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (count, door) = (Arc::clone(&held), Arc::clone(&gate));
    let shop = Shop::start(100, move |asked| {
        let (held, gate) = (Arc::clone(&count), Arc::clone(&door));
        async move {
            held.fetch_add(1, SeqCst);
            gate.acquire().await.unwrap().forget();
            say(asked.2, "ok");
        }
    })
    .await;
    let front = shop.front().await;
    let sender = http2(front.address).await;
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let mut sender = sender.clone();
        asked.spawn(async move {
            sender
                .send_request(Request::get("http://shop.example/").body(nothing()).unwrap())
                .await
        });
    }
    until("all are there at once", || held.load(SeqCst) == 50).await;
    gate.add_permits(50);
    while let Some(answer) = soon(asked.join_next()).await {
        assert_eq!(answer.unwrap().unwrap().status(), 200);
    }
    assert_eq!(shop.connections(), 1);
}

/// A backend that allows few requests on a connection gets another connection, and every answer comes.
#[tokio::test]
async fn a_full_connection_has_a_second_beside_it() {
    let shop = Shop::start(4, |asked| async move { say(asked.2, "ok") }).await;
    let front = shop.front().await;
    assert_eq!(front.ask(GET).await.status(), 200); // by now the backend's limit is known
    let sender = http2(front.address).await;
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let mut sender = sender.clone();
        asked.spawn(async move {
            sender
                .send_request(Request::get("http://shop.example/").body(nothing()).unwrap())
                .await
        });
    }
    while let Some(answer) = soon(asked.join_next()).await {
        assert_eq!(answer.unwrap().unwrap().status(), 200);
    }
}

/// CASE 40, on the backend's side: who does not read a large answer holds up nobody on the same connection.
#[tokio::test]
async fn a_slow_reader_holds_up_nobody() {
    let shop = Shop::start(100, |(parts, _, mut respond, _)| async move {
        if parts.uri.path() != "/large" {
            return say(respond, "ok");
        }
        let mut body = respond.send_response(Response::new(()), false).unwrap();
        let piece = Bytes::from(vec![7; 64 * 1024]);
        for _ in 0..400 {
            body.reserve_capacity(piece.len());
            while body.capacity() < piece.len() {
                if std::future::poll_fn(|context| body.poll_capacity(context)).await.is_none() {
                    return;
                }
            }
            if body.send_data(piece.clone(), false).is_err() {
                return;
            }
        }
    })
    .await;
    let front = shop.front().await;
    let mut slow = Vec::new();
    for _ in 0..30 {
        let mut client = front.client().await;
        client.send("GET /large HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
        client.head().await.expect("an answer begins");
        slow.push(client); // and reads no further
    }
    for _ in 0..20 {
        assert_eq!(front.ask(GET).await.body, b"ok");
    }
    assert_eq!(shop.connections(), 1);
}

/// What a backend refused to look at may be asked again, where nothing but the head was sent; a claim is answered with what is known: it did not run.
#[tokio::test]
async fn refused_streams_are_repeated_where_that_is_safe() {
    let shop = Shop::start(100, |(parts, _, mut respond, number)| async move {
        if number == 1 && parts.uri.path() != "/first" {
            return respond.send_reset(Reason::REFUSED_STREAM);
        }
        say(respond, "ok");
    })
    .await;
    let front = shop.front().await;
    assert_eq!(front.get("/first").await.status(), 200);
    let answer = front.ask(POST).await;
    assert_eq!((answer.status(), answer.body.as_slice()), (502, b"backend_unreachable".as_slice()));
    assert_eq!(front.ask(GET).await.status(), 200);
    assert_eq!(shop.connections(), 2);
}

/// Trailers of an answer reach a client that can have them; an answer that is broken off is passed on as broken off.
#[tokio::test]
async fn answers_come_with_their_trailers_or_broken_off() {
    let shop = Shop::start(100, |(parts, _, mut respond, _)| async move {
        let mut body = respond.send_response(Response::new(()), false).unwrap();
        body.send_data(Bytes::from_static(b"half"), false).unwrap();
        if parts.uri.path() == "/broken" {
            // Only when the first half was read: a reset overtakes what is still to be sent.
            tokio::task::yield_now().await;
            return body.send_reset(Reason::INTERNAL_ERROR);
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "42".parse().unwrap());
        body.send_trailers(trailers).unwrap();
    })
    .await;
    let front = shop.front().await;
    let mut sender = http2(front.address).await;
    let answer = sender
        .send_request(Request::get("http://shop.example/").body(nothing()).unwrap())
        .await
        .unwrap();
    let whole = answer.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["x-sum"], "42");
    let broken = async {
        let request = Request::get("http://shop.example/broken").body(nothing()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let status = answer.status();
        (status, answer.into_body().collect().await)
    };
    let (status, body) = soon(broken).await;
    assert!(status == 502 || body.is_err(), "{status}");
}

/// A client that goes away takes its request with it.
#[tokio::test]
async fn a_request_that_nobody_waits_for_is_given_up() {
    let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (starts, ends) = (Arc::clone(&begun), Arc::clone(&ended));
    let shop = Shop::start(100, move |(_, _, mut respond, _)| {
        let (begun, ended) = (Arc::clone(&starts), Arc::clone(&ends));
        async move {
            begun.fetch_add(1, SeqCst);
            let reason = std::future::poll_fn(|context| respond.poll_reset(context)).await;
            assert_eq!(reason.unwrap(), Reason::CANCEL);
            ended.fetch_add(1, SeqCst);
        }
    })
    .await;
    let front = shop.front().await;
    let mut client = front.client().await;
    client.send(GET).await;
    until("it has begun", || begun.load(SeqCst) == 1).await;
    drop(client);
    until("it is given up", || ended.load(SeqCst) == 1).await;
}

/// Over TLS the two ends agree on what is spoken: HTTP/2 where both can, HTTP/1.1 where the backend cannot, and for WebSockets always.
#[tokio::test]
async fn over_tls_it_is_spoken_where_both_agree() {
    let papers = Papers::new();
    papers.issue("shop", &["localhost"]);
    for (offers, expected) in [(&["h2", "http/1.1"][..], "h2"), (&["http/1.1"], "http/1.1"), (&[], "")] {
        let agreed = Arc::new(Mutex::new(Vec::new()));
        let (address, serving) = either(&papers, offers, Arc::clone(&agreed)).await;
        let text = format!("[upstream]\nhttp = \"2\"\ntls.roots = \"{}\"\n", papers.path("shop.pem").display());
        let read = config::parse(&text, Path::new("test.toml")).unwrap().upstream;
        let settings = config::Upstream {
            http: read.http,
            tls: read.tls,
            ..settings()
        };
        let origin = format!("https://localhost:{}", address.port()).parse().unwrap();
        let front = Front::with(origin, limits(), settings, Treatment::default()).await;
        for _ in 0..3 {
            assert_eq!(front.ask(GET).await.body, b"ok", "{offers:?}");
        }
        assert_eq!(*agreed.lock().unwrap(), [expected], "one connection for all three");
        let mut client = front.client().await;
        let asked = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        assert_eq!(client.ask(asked).await.status(), 101);
        client.send("hello").await;
        assert_eq!(client.take(5).await, b"hello");
        serving.abort();
    }
}

/// A backend at https that speaks what was agreed; a WebSocket says everything back.
async fn either(papers: &Papers, offers: &[&str], agreed: Arc<Mutex<Vec<String>>>) -> (SocketAddr, JoinHandle<()>) {
    let chain = CertificateDer::from_pem_file(papers.path("shop.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(papers.path("shop.key")).unwrap();
    let mut server = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    server.alpn_protocols = offers.iter().map(|offer| offer.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let mut lines = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, agreed) = (acceptor.clone(), Arc::clone(&agreed));
            lines.spawn(async move {
                let mut line = acceptor.accept(stream).await.unwrap();
                let spoken = line.get_ref().1.alpn_protocol().map(<[u8]>::to_vec).unwrap_or_default();
                agreed.lock().unwrap().push(String::from_utf8(spoken.clone()).unwrap());
                if spoken == b"h2" {
                    let mut line = h2::server::handshake(line).await.unwrap();
                    while let Some(Ok((_, respond))) = line.accept().await {
                        say(respond, "ok");
                    }
                    return;
                }
                let mut head = Vec::new();
                while line.read_buf(&mut head).await.unwrap_or(0) > 0 {
                    if !head.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    if head.starts_with(b"GET /chat") {
                        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
                        line.write_all(switch.as_bytes()).await.unwrap();
                        let mut said = [0; 5];
                        line.read_exact(&mut said).await.unwrap();
                        line.write_all(&said).await.unwrap();
                    } else {
                        line.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
                    }
                    line.flush().await.unwrap();
                    head.clear();
                }
            });
        }
    });
    (address, serving)
}

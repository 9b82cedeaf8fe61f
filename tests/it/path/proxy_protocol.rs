//! The PROXY protocol: the address is the one that was named, from those who may name one, and the client's bytes are untouched.

use std::net::SocketAddr;
use std::time::Duration;

use http::Response;
use proptest::prelude::*;
use waitgate::body::Body;
use waitgate::server::proxy_protocol::{Malformed, Reader, Said};
use waitgate::server::{ConnectionLimits, ListenerSettings, Live, Peer, Scheme, Stop};

use crate::backend::{Front, limits};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A listener that says who its peer is; loopback must name its clients when `listed`.
async fn naming(limits: ConnectionLimits, listed: bool) -> Front {
    let mut settings = ListenerSettings::plain(limits);
    settings.proxy_protocol = listed.then(|| "127.0.0.0/8".parse().unwrap()).into_iter().collect();
    Front::living(Live::new(settings), Scheme::Http, Stop::new(), |_, peer: Peer| async move {
        Response::new(Body::full(peer.address.to_string()))
    })
    .await
}

/// Limits as the listener has them when loopback is a load balancer.
fn carried() -> ConnectionLimits {
    let mut limits = limits();
    limits.carriers = vec!["127.0.0.0/8".parse().unwrap()];
    limits
}

/// A binary header: version and command, family and transport, addresses and whatever follows them.
fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[command, family], &length, rest].concat()
}

const V4: &[u8] = &[203, 0, 113, 7, 10, 0, 0, 1, 0x30, 0x39, 0x01, 0xbb];

fn v6(source: &str) -> Vec<u8> {
    let source: std::net::Ipv6Addr = source.parse().unwrap();
    [&source.octets()[..], &[0; 16], &[0x30, 0x39, 0x01, 0xbb]].concat()
}

/// Every kind of header, whole and byte by byte.
#[tokio::test]
async fn the_named_address_is_the_peer() {
    let front = naming(carried(), true).await;
    let some_tlvs = [V4, &[0x04, 0, 3, 1, 2, 3], &[0x20, 0, 5, 1, 0, 0, 0, 0]].concat();
    let large = [V4, &[0x04, 0x0b, 0xb8], &vec![7; 3000][..]].concat();
    let named: &[(Vec<u8>, &str)] = &[
        (b"PROXY TCP4 203.0.113.7 10.0.0.1 12345 443\r\n".to_vec(), "203.0.113.7:12345"),
        (b"PROXY TCP6 2001:db8::7 ::1 12345 443\r\n".to_vec(), "[2001:db8::7]:12345"),
        (b"PROXY TCP6 ::ffff:203.0.113.7 ::1 12345 443\r\n".to_vec(), "203.0.113.7:12345"),
        (binary(0x21, 0x11, V4), "203.0.113.7:12345"),
        (binary(0x21, 0x21, &v6("2001:db8::7")), "[2001:db8::7]:12345"),
        (binary(0x21, 0x21, &v6("::ffff:203.0.113.7")), "203.0.113.7:12345"),
        (binary(0x21, 0x11, &some_tlvs), "203.0.113.7:12345"),
        (binary(0x21, 0x11, &large), "203.0.113.7:12345"),
        // These say nothing of a client: the peer is itself.
        (b"PROXY UNKNOWN\r\n".to_vec(), ""),
        (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n".to_vec(), ""),
        (binary(0x20, 0x00, &[]), ""),
        (binary(0x20, 0x11, V4), ""),
        (binary(0x21, 0x00, &[]), ""),
    ];
    for (header, address) in named {
        let mut whole = front.client().await;
        let own = whole.stream.local_addr().unwrap().to_string();
        let expected = if address.is_empty() { &own } else { *address };
        let answer = whole.ask([header, GET].concat()).await;
        assert_eq!(answer.body, expected.as_bytes());
        assert_eq!(
            whole.ask(GET).await.body,
            expected.as_bytes(),
            "and for the connection's whole life"
        );
        let mut slow = front.client().await;
        let own = slow.stream.local_addr().unwrap().to_string();
        for byte in header.iter().take(200) {
            slow.send([*byte]).await;
            tokio::task::yield_now().await;
        }
        let rest = header.get(200..).unwrap_or_default();
        let expected = if address.is_empty() { &own } else { *address };
        assert_eq!(slow.ask([rest, GET].concat()).await.body, expected.as_bytes());
    }
}

/// Whoever must name its client and does not is closed without an answer; half a name is waited for as long as a head.
#[tokio::test]
async fn what_is_no_header_is_closed() {
    let mut limits = carried();
    limits.header_timeout = Duration::from_millis(400);
    let front = naming(limits, true).await;
    let too_long = [b"PROXY TCP4 ".to_vec(), vec![b'1'; 200], b"\r\n".to_vec()].concat();
    let too_large = binary(0x21, 0x11, &[V4, &vec![0; 4200][..]].concat());
    for bytes in [
        GET,
        b"PROXY TCP4 203.0.113.7\r\n",
        b"PROXY TCP4 203.0.113.256 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 2001:db8::7 ::1 1 2\r\n",
        b"proxy TCP4 203.0.113.7 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 1 2\n\n",
        &too_long,
        &too_large,
        &binary(0x31, 0x11, V4),
        &binary(0x22, 0x11, V4),
        &binary(0x21, 0x11, &V4[..11]),
        // And these are never complete.
        b"P",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r",
        &binary(0x21, 0x11, V4)[..20],
        b"",
    ] {
        let mut client = front.client().await;
        client.send(bytes).await;
        assert!(
            client.ends_within(Duration::from_secs(3)).await,
            "{:?}",
            String::from_utf8_lossy(bytes)
        );
        assert!(client.buffer.is_empty(), "it was answered");
    }
}

/// From anywhere else a header is no header: nobody names himself.
#[tokio::test]
async fn nobody_else_is_believed() {
    let front = naming(limits(), false).await;
    for header in [b"PROXY TCP4 203.0.113.7 10.0.0.1 12345 443\r\n".to_vec(), binary(0x21, 0x11, V4)] {
        let mut client = front.client().await;
        client.send([&header, GET].concat()).await;
        let head = client.head().await.unwrap_or_default();
        assert!(head.is_empty() || head.starts_with("HTTP/1.1 400"), "{head}");
    }
}

/// Connections are counted by whom they are named for, and the load balancer may bring any number.
#[tokio::test]
async fn connections_are_counted_by_the_named_address() {
    let mut limits = carried();
    limits.max_connections_per_address = 2;
    let front = naming(limits, true).await;
    let named = |address: &str| [format!("PROXY TCP4 {address} 10.0.0.1 1 2\r\n").as_bytes(), GET].concat();
    let mut open = Vec::new();
    for address in ["203.0.113.7", "203.0.113.7", "203.0.113.8", "203.0.113.8", "203.0.113.9"] {
        let mut client = front.client().await;
        assert_eq!(client.ask(named(address)).await.status(), 200);
        open.push(client);
    }
    assert_eq!(front.ask(named("203.0.113.7")).await.status(), 503);
    assert_eq!(front.ask(named("203.0.113.9")).await.status(), 200);
    drop(open);
    crate::harness::within("they are counted down", async || {
        front.ask(named("203.0.113.7")).await.status() == 200
    })
    .await;
}

/// Feeds a reader these bytes in pieces of these sizes; answers what it says, and what is left for the client.
fn feed(bytes: &[u8], pieces: &[usize]) -> Result<Option<(Said, Vec<u8>)>, Malformed> {
    let mut reader = Reader::new();
    let (mut rest, mut sizes) = (bytes, pieces.iter().cycle());
    while !rest.is_empty() {
        let size = sizes.next().copied().unwrap_or(1).clamp(1, rest.len());
        let (taken, said) = reader.feed(&rest[..size])?;
        rest = &rest[taken..];
        if let Some(said) = said {
            return Ok(Some((said, rest.to_vec())));
        }
        assert_eq!(taken, size, "what is not taken is the client's, and the header is complete then");
    }
    Ok(None)
}

fn any_header() -> impl Strategy<Value = (Vec<u8>, Said)> {
    let address = any::<(u32, u16)>().prop_map(|(ip, port)| SocketAddr::new(std::net::Ipv4Addr::from_bits(ip).into(), port));
    let address = prop_oneof![
        address,
        any::<(u128, u16)>().prop_map(|(ip, port)| SocketAddr::new(std::net::Ipv6Addr::from_bits(ip).into(), port)),
    ];
    (address, any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(client, is_line, more)| {
        let port = client.port().to_be_bytes();
        let header = match (client.ip(), is_line) {
            (std::net::IpAddr::V4(ip), true) => format!("PROXY TCP4 {ip} 10.0.0.1 {} 443\r\n", client.port()).into_bytes(),
            (std::net::IpAddr::V6(ip), true) => format!("PROXY TCP6 {ip} ::1 {} 443\r\n", client.port()).into_bytes(),
            (std::net::IpAddr::V4(ip), false) => binary(0x21, 0x11, &[&ip.octets()[..], &[9; 4], &port, &[0, 1], &more].concat()),
            (std::net::IpAddr::V6(ip), false) => binary(0x21, 0x21, &[&ip.octets()[..], &[9; 16], &port, &[0, 1], &more].concat()),
        };
        (header, Said::Client(SocketAddr::new(client.ip().to_canonical(), client.port())))
    })
}

proptest! {
    /// Whatever a header names is what is understood, however it is cut, and every byte after it stays the client's.
    #[test]
    fn a_header_is_read_whole_and_nothing_more(
        (header, said) in any_header(),
        after in prop::collection::vec(any::<u8>(), 0..100),
        pieces in prop::collection::vec(1usize..60, 1..20),
    ) {
        let bytes = [header, after.clone()].concat();
        prop_assert_eq!(feed(&bytes, &pieces), Ok(Some((said, after))));
    }

    /// Any bytes: no panic, the cuts make no difference, and never a word about what is neither a line nor binary.
    #[test]
    fn rubbish_names_nobody(
        begin in prop_oneof![Just(Vec::new()), Just(b"PROXY ".to_vec()), Just(b"PROXY TCP4 ".to_vec()), Just(SIGNATURE.to_vec())],
        rest in prop::collection::vec(any::<u8>(), 0..600),
        pieces in prop::collection::vec(1usize..60, 1..20),
    ) {
        let bytes = [begin.clone(), rest].concat();
        let once = feed(&bytes, &[bytes.len().max(1)]);
        prop_assert_eq!(&feed(&bytes, &pieces), &once);
        if begin.is_empty() && !bytes.starts_with(b"PROXY ") && !bytes.starts_with(SIGNATURE) {
            prop_assert!(!matches!(once, Ok(Some(_))));
        }
    }

    /// A header with one byte changed names somebody only if it is a good header still, and never takes bytes of the client's beyond its bound.
    #[test]
    fn a_damaged_header_has_a_bound((header, _) in any_header(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = header;
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.resize(bytes.len() + 8192, b'x');
        let length = bytes.len();
        if let Ok(Some((_, after))) = feed(&bytes, &[length]) {
            prop_assert!(length - after.len() <= 4096);
        } else {
            prop_assert!(matches!(feed(&bytes, &[7]), Err(Malformed)));
        }
    }
}

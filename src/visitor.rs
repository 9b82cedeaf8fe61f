//! Who asks: the address behind trusted proxies, the cookies of ours, the user of the shop's own login.
//!
//! Nothing here decides anything. An address that cannot be read is the peer's address: "no key" must never mean "no limit".

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::HeaderMap;
use http::header::{COOKIE, FORWARDED, HeaderName};
use ipnet::IpNet;
use memchr::memchr;

use crate::config;

pub mod login;

/// `X-Forwarded-For`, as the field's proxies write it.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// `X-Forwarded-Proto`.
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Forwarding hops that are read at most; a longer list is cut at its far end.
const MAX_HOPS: usize = 32;
/// Cookies of one name that are tried at most.
const MAX_SAME_COOKIES: usize = 4;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address; where a load balancer names the client's before the connection's first byte (PROXY protocol), that one.
    pub address: SocketAddr,
    /// The connection itself is TLS, and ends here.
    pub tls: bool,
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The visitor's address; an IPv4-mapped IPv6 address is IPv4.
    pub ip: IpAddr,
    /// What limits count by: the v4 address, or the v6 network.
    pub network: IpAddr,
    /// The peer is a proxy of ours: what it says of the client is believed.
    pub trusted_peer: bool,
    /// The client spoke TLS: to us, or to the trusted proxy in front of us, whose word it is then.
    pub https: bool,
    /// Operators said that it is never limited.
    pub unlimited: bool,
}

impl Address {
    /// Finds the address of a request that `peer` sent.
    #[must_use]
    pub fn find(settings: &config::Client, peer: Peer, headers: &HeaderMap) -> Self {
        let Peer { address, tls } = peer;
        let peer = address.ip().to_canonical();
        let trusted_peer = trusts(&settings.trusted_proxies, peer);
        let ip = if trusted_peer {
            behind_proxies(settings, peer, headers)
        } else {
            peer
        };
        let told = if trusted_peer {
            headers.get_all(X_FORWARDED_PROTO).iter().next_back()
        } else {
            None
        };
        let https = told.map_or(tls, |value| {
            let nearest = value.to_str().ok().and_then(|value| value.rsplit(',').next());
            nearest.is_some_and(|value| value.trim().eq_ignore_ascii_case("https"))
        });
        Self {
            ip,
            network: network(ip, settings.ipv6_prefix),
            trusted_peer,
            https,
            unlimited: false, // the limits know
        }
    }
}

/// The v4 address itself, or the network of `prefix` bits that a v6 address is in.
#[must_use]
pub fn network(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
    }
}

fn trusts(proxies: &[IpNet], ip: IpAddr) -> bool {
    proxies.iter().any(|net| net.contains(&ip))
}

/// The right-most entry that is not a proxy of ours. An entry that cannot be read ends the walk at the last address that could.
fn behind_proxies(settings: &config::Client, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let (name, read): (_, fn(&str) -> Option<IpAddr>) = match settings.forwarded_header {
        config::ForwardedHeader::XForwardedFor => (X_FORWARDED_FOR, read_address),
        config::ForwardedHeader::Forwarded => (FORWARDED, read_forwarded),
    };
    let mut last = peer;
    let lines = headers.get_all(name);
    let entries = lines.iter().rev().flat_map(|line| line.to_str().unwrap_or("?").rsplit(','));
    for entry in entries.take(MAX_HOPS) {
        let Some(ip) = read(entry.trim()) else { return last };
        last = ip;
        if !trusts(&settings.trusted_proxies, ip) {
            break;
        }
    }
    last
}

/// An address as proxies write it: `1.2.3.4`, `1.2.3.4:80`, `2001:db8::1`, `[2001:db8::1]:80`, with or without a zone.
fn read_address(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical());
    }
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(socket.ip().to_canonical());
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .map_or(text, |(inner, _)| inner);
    let bare = bare.split_once('%').map_or(bare, |(address, _zone)| address);
    bare.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// The `for` of one `Forwarded` element. `unknown` and `_hidden` names are no addresses.
fn read_forwarded(element: &str) -> Option<IpAddr> {
    let pair = element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then_some(value.trim())
    })?;
    read_address(pair.trim_matches('"'))
}

/// The values of all cookies of this name, first come first, a few at most: a stale one of another path must not hide a good one. What other
/// cookies are made of does not matter: a shop's may be anything.
pub fn cookies<'h>(headers: &'h HeaderMap, name: &'h str) -> impl Iterator<Item = &'h str> {
    headers
        .get_all(COOKIE)
        .iter()
        .flat_map(|line| crumbs(line.as_bytes()))
        .filter_map(move |crumb| {
            let value = crumb.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(std::str::from_utf8(value).ok()?.trim_matches('"'))
        })
        .take(MAX_SAME_COOKIES)
}

/// The cookies of one line, `name=value` each.
pub fn crumbs(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest?;
        let end = memchr(b';', line);
        rest = end.map(|end| &line[end + 1..]);
        Some(line[..end.unwrap_or(line.len())].trim_ascii())
    })
    .filter(|crumb| !crumb.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings(trusted: &[&str], header: config::ForwardedHeader) -> config::Client {
        config::Client {
            trusted_proxies: trusted.iter().map(|net| net.parse().unwrap()).collect(),
            forwarded_header: header,
            ipv6_prefix: 64,
        }
    }

    fn found(settings: &config::Client, peer: &str, lines: &[(&'static str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        let peer = Peer {
            address: SocketAddr::new(peer.parse().unwrap(), 1),
            tls: false,
        };
        let address = Address::find(settings, peer, &headers);
        address.network.to_string()
    }

    /// CASE 74: whoever is not trusted cannot choose its address, and a trusted proxy's right-most foreign entry counts.
    #[test]
    fn the_right_most_untrusted_entry_is_the_client() {
        let none = settings(&[], config::ForwardedHeader::XForwardedFor);
        let one = settings(&["10.0.0.0/8"], config::ForwardedHeader::XForwardedFor);
        let xff = "x-forwarded-for";
        assert_eq!(found(&none, "9.9.9.9", &[(xff, "1.1.1.1")]), "9.9.9.9");
        assert_eq!(found(&one, "9.9.9.9", &[(xff, "1.1.1.1")]), "9.9.9.9");
        assert_eq!(found(&one, "10.0.0.1", &[(xff, "6.6.6.6, 1.1.1.1")]), "1.1.1.1");
        assert_eq!(found(&one, "10.0.0.1", &[(xff, "6.6.6.6, 1.1.1.1, 10.0.0.2")]), "1.1.1.1");
        assert_eq!(found(&one, "10.0.0.1", &[(xff, "6.6.6.6"), (xff, "1.1.1.1")]), "1.1.1.1");
        assert_eq!(found(&one, "10.0.0.1", &[(xff, "1.1.1.1, rubbish")]), "10.0.0.1");
        assert_eq!(found(&one, "10.0.0.1", &[(xff, "1.1.1.1, rubbish, 10.0.0.7")]), "10.0.0.7");
        assert_eq!(found(&one, "10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(
            found(&one, "10.0.0.1", &[("x-real-ip", "1.1.1.1"), ("cf-connecting-ip", "1.1.1.1")]),
            "10.0.0.1"
        );
        assert_eq!(found(&one, "::ffff:10.0.0.1", &[(xff, "[2001:db8::1]:443")]), "2001:db8::");
    }

    /// Whoever speaks TLS to us is on https, and a trusted proxy's word decides about those behind it; nobody else's does.
    #[test]
    fn https_is_our_own_tls_or_a_trusted_proxys_word() {
        let one = settings(&["10.0.0.0/8"], config::ForwardedHeader::XForwardedFor);
        let https = |peer: &str, tls, told: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(told) = told {
                headers.insert(X_FORWARDED_PROTO, told.parse().unwrap());
            }
            let address = SocketAddr::new(peer.parse().unwrap(), 1);
            Address::find(&one, Peer { address, tls }, &headers).https
        };
        assert!(https("9.9.9.9", true, None) && https("9.9.9.9", true, Some("http")));
        assert!(!https("9.9.9.9", false, None) && !https("9.9.9.9", false, Some("https")));
        assert!(https("10.0.0.1", true, None) && https("10.0.0.1", false, Some("http, https")));
        assert!(!https("10.0.0.1", true, Some("http")) && !https("10.0.0.1", false, None));
    }

    #[test]
    fn forwarded_is_read_when_it_is_the_chosen_header() {
        let one = settings(&["10.0.0.0/8"], config::ForwardedHeader::Forwarded);
        let name = "forwarded";
        assert_eq!(
            found(
                &one,
                "10.0.0.1",
                &[(name, "for=6.6.6.6, For=\"[2001:db8:1:2:3::1]:80\";proto=https")]
            ),
            "2001:db8:1:2::"
        );
        assert_eq!(found(&one, "10.0.0.1", &[(name, "for=unknown")]), "10.0.0.1");
        assert_eq!(found(&one, "10.0.0.1", &[(name, "for=_hidden")]), "10.0.0.1");
    }

    /// CASE 79: one network, one key.
    #[test]
    fn a_v6_network_is_one_visitor_and_mapped_v4_is_v4() {
        let none = settings(&[], config::ForwardedHeader::XForwardedFor);
        assert_eq!(found(&none, "2001:db8:1:2:aaaa::1", &[]), found(&none, "2001:db8:1:2:bbbb::9", &[]));
        assert_ne!(found(&none, "2001:db8:1:2::1", &[]), found(&none, "2001:db8:1:3::1", &[]));
        assert_eq!(found(&none, "::ffff:1.2.3.4", &[]), "1.2.3.4");
        assert_eq!(network("2001:db8::1".parse().unwrap(), 0).to_string(), "::");
        assert_eq!(network("2001:db8::1".parse().unwrap(), 128).to_string(), "2001:db8::1");
    }

    proptest! {
        /// CASE 74: whoever is not a listed proxy cannot choose its address, whatever it sends.
        #[test]
        fn a_stranger_is_who_it_is(lines in prop::collection::vec((0_usize..4, "[ -~]{0,40}"), 0..6)) {
            let names = ["x-forwarded-for", "forwarded", "x-real-ip", "x-forwarded-proto"];
            let lines: Vec<_> = lines.iter().map(|(name, value)| (names[*name], value.trim())).collect();
            for header in [config::ForwardedHeader::XForwardedFor, config::ForwardedHeader::Forwarded] {
                prop_assert_eq!(found(&settings(&["10.0.0.0/8"], header), "9.9.9.9", &lines), "9.9.9.9");
            }
        }

        /// Behind listed proxies it is the right-most address that is not theirs; what stands left of it is the client's own claim, and an entry
        /// that cannot be read ends the walk.
        #[test]
        fn the_last_foreign_entry_is_the_visitor(
            claims in prop::collection::vec(prop::sample::select(vec!["1.1.1.1", "10.0.0.9", "unknown", "", "::1", "x"]), 0..6),
            client in prop::sample::select(vec!["2.2.2.2", "2001:db8::7", "2.2.2.2:443", "[2001:db8::7]:443", "::ffff:2.2.2.2"]),
            proxies in prop::collection::vec(prop::sample::select(vec!["10.0.0.1", "10.200.0.1:80"]), 0..6),
            split in 0_usize..12,
        ) {
            let entries: Vec<&str> = claims.iter().copied().chain([client]).chain(proxies.iter().copied()).collect();
            let (one, two) = entries.split_at(split.min(entries.len()));
            let xff: Vec<String> = [one, two].into_iter().filter(|part| !part.is_empty()).map(|part| part.join(" , ")).collect();
            let lines: Vec<_> = xff.iter().map(|line| ("x-forwarded-for", line.as_str())).collect();
            let expected = if client.contains("db8") { "2001:db8::" } else { "2.2.2.2" };
            prop_assert_eq!(found(&settings(&["10.0.0.0/8"], config::ForwardedHeader::XForwardedFor), "10.0.0.1", &lines), expected);
        }

        /// Garbage from a proxy of ours is no address: then it is the proxy's, or one that stands there.
        #[test]
        fn garbage_is_no_address(line in "[ -~]{0,60}") {
            for header in [config::ForwardedHeader::XForwardedFor, config::ForwardedHeader::Forwarded] {
                let name = if header == config::ForwardedHeader::Forwarded { "forwarded" } else { "x-forwarded-for" };
                let found = found(&settings(&["10.0.0.0/8"], header), "10.0.0.1", &[(name, line.trim())]);
                prop_assert!(found == "10.0.0.1" || line.contains(found.trim_end_matches(':')) || found.contains(':'), "{found} of {line}");
            }
        }
    }

    /// CASE 26: whatever a shop puts into its own cookies, ours beside them are read.
    #[test]
    fn other_cookies_may_be_anything() {
        let mut headers = HeaderMap::new();
        let line = http::HeaderValue::from_bytes("shop=\u{e9}t\u{e9};; =; x ; q=\"new\" ;q=\u{e9}".as_bytes()).unwrap();
        headers.insert("cookie", line);
        assert_eq!(cookies(&headers, "q").collect::<Vec<_>>(), ["new", "\u{e9}"]);
    }

    /// CASE 25: two cookies of one name, both are seen, in order.
    #[test]
    fn all_cookies_of_a_name_are_seen() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "a=1; q=old; b=2".parse().unwrap());
        headers.append(COOKIE, "q=new; qq=other; broken".parse().unwrap());
        assert_eq!(cookies(&headers, "q").collect::<Vec<_>>(), ["old", "new"]);
        assert_eq!(cookies(&headers, "none").count(), 0);
    }
}

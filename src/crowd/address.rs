//! Where each visitor comes from: an address of its own for the gateway's limits, and a loopback address to connect from.
//!
//! The first goes into `X-Forwarded-For`, which the demo's gateway believes from loopback. The second only spreads connections over many
//! source addresses, because one address has too few ports for a crowd; where only `127.0.0.1` answers (not Linux) it is left out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The office: one address for everybody in it.
pub(super) const OFFICE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));
/// The robots' address.
pub(super) const ROBOTS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 66));

/// The address a visitor is known by. Every fifth has IPv6, with a /64 of its own.
pub(super) fn known_as(index: u64) -> IpAddr {
    let bytes = index.to_be_bytes();
    if index.is_multiple_of(5) {
        let high = u16::from_be_bytes([bytes[4], bytes[5]]);
        let low = u16::from_be_bytes([bytes[6], bytes[7]]);
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, high, low, 0, 0, 0, 1))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, bytes[5], bytes[6], bytes[7]))
    }
}

/// The loopback address a visitor connects from: 127.64.0.0 and up, about 64,000 of them.
pub(super) fn connects_from(index: u64) -> Option<Ipv4Addr> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let third = u8::try_from(index / 250 % 256).unwrap_or(0);
    let fourth = u8::try_from(index % 250).unwrap_or(0);
    Some(Ipv4Addr::new(127, 64, third, fourth + 1))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_visitor_has_an_address_of_its_own() {
        let mut networks = HashSet::new();
        for index in 0..100_000 {
            let network = match known_as(index) {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => format!("{:x?}", &address.segments()[..4]),
            };
            assert!(networks.insert(network), "{index} shares a network");
        }
        assert!(!networks.contains(&OFFICE.to_string()) && !networks.contains(&ROBOTS.to_string()));
    }

    #[test]
    fn connections_are_spread_over_loopback() {
        let from: HashSet<_> = (0..64_000).map(connects_from).collect();
        if cfg!(target_os = "linux") {
            assert_eq!(from.len(), 64_000);
            assert!(
                from.iter()
                    .flatten()
                    .all(|address| address.is_loopback() && address.octets()[3] != 255)
            );
        } else {
            assert_eq!(from, HashSet::from([None]));
        }
    }
}

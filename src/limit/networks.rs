//! Which listed network an address is in: the one with the longest prefix has the word.
//!
//! One set per length of prefix that occurs: a look-up costs as many hashes as there are lengths (at most 33, or 129 for IPv6), however many
//! networks are listed.

use std::collections::HashMap;
use std::net::IpAddr;

use ahash::RandomState;
use ipnet::IpNet;

/// What the lists say of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Never limited.
    Allowed,
    /// Never served.
    Denied,
}

/// The two lists.
#[derive(Debug, Default)]
pub(super) struct Networks {
    v4: Vec<Length>,
    v6: Vec<Length>,
}

/// The networks of one length of prefix.
#[derive(Debug)]
struct Length {
    bits: u8,
    networks: HashMap<IpNet, Listed, RandomState>,
}

impl Networks {
    pub(super) fn new(allowed: &[IpNet], denied: &[IpNet]) -> Self {
        let mut lists = Self::default();
        let all = allowed.iter().map(|net| (net, Listed::Allowed));
        for (net, listed) in all.chain(denied.iter().map(|net| (net, Listed::Denied))) {
            let lengths = if net.addr().is_ipv4() { &mut lists.v4 } else { &mut lists.v6 };
            let bits = net.prefix_len();
            let at = match lengths.binary_search_by_key(&std::cmp::Reverse(bits), |length| std::cmp::Reverse(length.bits)) {
                Ok(at) => at,
                Err(at) => {
                    let networks = HashMap::default();
                    lengths.insert(at, Length { bits, networks });
                    at
                }
            };
            if let Some(length) = lengths.get_mut(at) {
                length.networks.insert(net.trunc(), listed);
            }
        }
        lists
    }

    pub(super) fn find(&self, ip: IpAddr) -> Option<Listed> {
        let lengths = if ip.is_ipv4() { &self.v4 } else { &self.v6 };
        lengths.iter().find_map(|length| {
            let net = IpNet::new(ip, length.bits).ok()?;
            length.networks.get(&net.trunc()).copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn the_longest_prefix_has_the_word() {
        let lists = Networks::new(
            &nets(&["10.1.0.0/16", "10.2.3.4/32", "2001:db8:1::/48"]),
            &nets(&["10.0.0.0/8", "10.1.9.0/24", "2001:db8::/32"]),
        );
        let find = |ip: &str| lists.find(ip.parse().unwrap());
        assert_eq!(find("10.9.9.9"), Some(Listed::Denied));
        assert_eq!(find("10.1.2.3"), Some(Listed::Allowed));
        assert_eq!(find("10.1.9.3"), Some(Listed::Denied));
        assert_eq!(find("10.2.3.4"), Some(Listed::Allowed));
        assert_eq!(find("10.2.3.5"), Some(Listed::Denied));
        assert_eq!(find("11.0.0.1"), None);
        assert_eq!(find("2001:db8:1::7"), Some(Listed::Allowed));
        assert_eq!(find("2001:db8:2::7"), Some(Listed::Denied));
        assert_eq!(find("2001:db9::"), None);
    }

    proptest! {
        /// The quick look-up says what a walk over all networks says.
        #[test]
        fn it_is_what_a_walk_over_all_would_find(
            allowed in proptest::collection::vec((any::<u16>(), 0_u8..=32), 0..20),
            denied in proptest::collection::vec((any::<u16>(), 0_u8..=32), 0..20),
            asked in proptest::collection::vec(any::<u16>(), 20),
        ) {
            // Addresses that differ in their first and last bits only, so that networks meet.
            let ip = |bits: u16| IpAddr::from([(bits >> 8) as u8, 0, 0, (bits & 255) as u8]);
            let list = |list: &[(u16, u8)]| list.iter().map(|(bits, length)| IpNet::new(ip(*bits), *length).unwrap().trunc()).collect::<Vec<_>>();
            let (allowed, denied) = (list(&allowed), list(&denied));
            let allowed: Vec<IpNet> = allowed.into_iter().filter(|net| !denied.contains(net)).collect();
            let lists = Networks::new(&allowed, &denied);
            for bits in asked {
                let ip = ip(bits);
                let walked = allowed.iter().map(|net| (net, Listed::Allowed)).chain(denied.iter().map(|net| (net, Listed::Denied)));
                let walked = walked.filter(|(net, _)| net.contains(&ip)).max_by_key(|(net, _)| net.prefix_len());
                prop_assert_eq!(lists.find(ip), walked.map(|(_, listed)| listed));
            }
        }
    }
}

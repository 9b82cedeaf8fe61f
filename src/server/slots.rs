//! How many connections may be open, in all and per address. A slot is a guard: it comes back when it is dropped, wherever that happens.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;

/// The counts, shared by the accept loop and every open slot.
#[derive(Debug)]
pub(super) struct Slots {
    most: usize,
    most_per_address: usize,
    exempt: Vec<IpNet>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// All of them.
    All,
    /// All that one address may have.
    ByAddress,
}

/// One open connection.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    key: Option<IpAddr>,
}

impl Slots {
    /// Addresses in `exempt` (trusted proxies: they carry everybody) are counted in all but not on their own.
    pub(super) fn new(most: usize, most_per_address: usize, exempt: Vec<IpNet>) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_per_address,
            exempt,
            open: Mutex::default(),
        })
    }

    /// A slot for a connection from this address.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Result<Slot, Taken> {
        let address = address.to_canonical();
        let key = (!self.exempt.iter().any(|net| net.contains(&address))).then(|| network(address));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.all >= self.most {
            return Err(Taken::All);
        }
        if let Some(key) = key {
            let mine = open.by_address.entry(key).or_default();
            if *mine >= self.most_per_address {
                return Err(Taken::ByAddress); // the entry is not new: the limit is at least one
            }
            *mine += 1;
        }
        open.all += 1;
        Ok(Slot {
            slots: Arc::clone(self),
            key,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.slots.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all -= 1;
        let Some(key) = self.key else { return };
        if let Some(mine) = open.by_address.get_mut(&key) {
            *mine -= 1;
            if *mine == 0 {
                open.by_address.remove(&key);
            }
        }
    }
}

/// What counts as one address: a v4 address, or the /64 of a v6 one.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn slots_come_back_and_a_network_is_one_address() {
        let slots = Slots::new(3, 2, vec!["10.0.0.0/8".parse().unwrap()]);
        let first = slots.take(address("2001:db8::1")).unwrap();
        let _second = slots.take(address("2001:db8::2")).unwrap();
        assert_eq!(slots.take(address("2001:db8::3")).unwrap_err(), Taken::ByAddress);
        let _third = slots.take(address("192.0.2.1")).unwrap();
        assert_eq!(slots.take(address("192.0.2.2")).unwrap_err(), Taken::All);
        drop(first);
        assert!(slots.take(address("2001:db8::3")).is_ok());
        assert!(slots.take(address("::ffff:192.0.2.1")).is_ok());
        assert_eq!(slots.open.lock().unwrap().by_address.len(), 2);
    }

    #[test]
    fn a_trusted_proxy_is_not_counted_on_its_own() {
        let slots = Slots::new(9, 1, vec!["10.0.0.0/8".parse().unwrap()]);
        let open: Vec<_> = (0..9).map(|_| slots.take(address("::ffff:10.1.2.3")).unwrap()).collect();
        assert!(slots.take(address("10.1.2.3")).is_err());
        drop(open);
        assert_eq!(slots.open.lock().unwrap().all, 0);
    }
}

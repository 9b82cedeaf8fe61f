//! How many connections may be open, in all and per address. A slot is a guard: it comes back when it is dropped, wherever that happens.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::settings::ConnectionLimits;
use crate::visitor::network;

/// The counts, shared by the accept loops and every open slot.
#[derive(Debug, Default)]
pub(super) struct Slots {
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
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A slot for a connection from this address, where these limits have one left. Whoever carries everybody is counted in all but
    /// not on its own.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr, limits: &ConnectionLimits) -> Result<Slot, Taken> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.all >= limits.max_connections {
            return Err(Taken::All);
        }
        let key = open.enter(address, limits)?;
        open.all += 1;
        Ok(Slot {
            slots: Arc::clone(self),
            key,
        })
    }
}

impl Slot {
    /// The connection turns out to be this address's: it is counted there from now on, where these limits have room for it.
    pub(super) fn belongs_to(&mut self, address: IpAddr, limits: &ConnectionLimits) -> Result<(), Taken> {
        let mut open = self.slots.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.leave(self.key.take());
        self.key = open.enter(address, limits)?;
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.slots.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all -= 1;
        open.leave(self.key);
    }
}

impl Open {
    /// Counts one more of this address. Nothing is counted for whoever carries everybody.
    fn enter(&mut self, address: IpAddr, limits: &ConnectionLimits) -> Result<Option<IpAddr>, Taken> {
        let address = address.to_canonical();
        if limits.carriers.iter().any(|net| net.contains(&address)) {
            return Ok(None);
        }
        let key = network(address, limits.ipv6_prefix);
        let mine = self.by_address.get(&key).copied().unwrap_or_default();
        if mine >= limits.max_connections_per_address {
            return Err(Taken::ByAddress);
        }
        self.by_address.insert(key, mine + 1);
        Ok(Some(key))
    }

    fn leave(&mut self, key: Option<IpAddr>) {
        let Some(key) = key else { return };
        if let Some(mine) = self.by_address.get_mut(&key) {
            *mine -= 1;
            if *mine == 0 {
                self.by_address.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn limits(most: usize, most_per_address: usize) -> ConnectionLimits {
        let defaults = config::parse("client.trusted_proxies = [\"10.0.0.0/8\"]", "test.toml".as_ref()).unwrap();
        ConnectionLimits {
            max_connections: most,
            max_connections_per_address: most_per_address,
            ..ConnectionLimits::new(&defaults.server, &defaults.client)
        }
    }

    #[test]
    fn slots_come_back_and_a_network_is_one_address() {
        let (slots, limits) = (Slots::new(), limits(3, 2));
        let first = slots.take(address("2001:db8::1"), &limits).unwrap();
        let _second = slots.take(address("2001:db8::2"), &limits).unwrap();
        assert_eq!(slots.take(address("2001:db8::3"), &limits).unwrap_err(), Taken::ByAddress);
        let _third = slots.take(address("192.0.2.1"), &limits).unwrap();
        assert_eq!(slots.take(address("192.0.2.2"), &limits).unwrap_err(), Taken::All);
        drop(first);
        assert!(slots.take(address("2001:db8::3"), &limits).is_ok());
        assert!(slots.take(address("::ffff:192.0.2.1"), &limits).is_ok());
        assert_eq!(slots.open.lock().unwrap().by_address.len(), 2);
    }

    /// What counts as one network is a setting; here a provider gives each household a /56.
    #[test]
    fn the_size_of_a_network_is_the_settings_own() {
        let (slots, mut limits) = (Slots::new(), limits(9, 1));
        let _first = slots.take(address("2001:db8:0:1::1"), &limits).unwrap();
        let second = slots.take(address("2001:db8:0:2::1"), &limits);
        assert!(second.is_ok(), "another /64");
        drop(second);
        limits.ipv6_prefix = 56;
        let _third = slots.take(address("2001:db8:0:101::1"), &limits).unwrap();
        assert_eq!(slots.take(address("2001:db8:0:1ff::1"), &limits).unwrap_err(), Taken::ByAddress);
    }

    #[test]
    fn who_carries_everybody_is_not_counted_on_its_own_and_whom_it_names_is() {
        let (slots, limits) = (Slots::new(), limits(9, 1));
        let open: Vec<_> = (0..9).map(|_| slots.take(address("::ffff:10.1.2.3"), &limits).unwrap()).collect();
        assert!(slots.take(address("10.1.2.3"), &limits).is_err());
        let mut open = open.into_iter();
        let (mut one, mut other) = (open.next().unwrap(), open.next().unwrap());
        assert!(one.belongs_to(address("192.0.2.1"), &limits).is_ok());
        assert_eq!(other.belongs_to(address("192.0.2.1"), &limits), Err(Taken::ByAddress));
        drop(one);
        assert!(other.belongs_to(address("192.0.2.1"), &limits).is_ok());
        drop((open, other));
        let open = slots.open.lock().unwrap();
        assert_eq!((open.all, open.by_address.len()), (0, 0));
    }
}

//! Name services, and which of their answers are trusted.

use std::net::IpAddr;

use crate::sys;

/// A name service. Each call may take long, so no serving thread makes one. `None` from any of them
/// means that no responsible service answered, which differs from a negative answer.
pub trait NameService: Send + Sync {
    /// The addresses of a host, an empty list if it is unknown.
    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>>;

    /// The name that the reverse look-up of an address gives, if any.
    fn name(&self, address: IpAddr) -> Option<Option<String>>;

    /// Whether a netgroup contains a machine, by its name or by its address as text.
    fn in_netgroup(&self, group: &str, host: &str) -> Option<bool>;

    /// A user's groups, the main one first, if there is such a user.
    fn groups(&self, uid: u32) -> Option<Option<Vec<u32>>>;
}

/// The name services of this machine (nsswitch.conf).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemNames;

impl NameService for SystemNames {
    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        let found = sys::addresses_of(host)?;
        let mut addresses: Vec<IpAddr> = found.iter().map(IpAddr::to_canonical).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Some(addresses)
    }

    fn name(&self, address: IpAddr) -> Option<Option<String>> {
        sys::name_of(address)
    }

    fn in_netgroup(&self, group: &str, host: &str) -> Option<bool> {
        sys::in_netgroup(group, host)
    }

    fn groups(&self, uid: u32) -> Option<Option<Vec<u32>>> {
        sys::groups_of(uid)
    }
}

/// The name of a machine, in lower case and without the final dot. A name is trusted only if its
/// addresses include this one, because the owner of an address's reverse zone can set any name.
/// None: no responsible service answered.
pub(in crate::exports) fn checked_name(service: &dyn NameService, address: IpAddr) -> Option<Option<String>> {
    let Some(name) = service.name(address)? else {
        return Some(None);
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let addresses = service.addresses(&name)?;
    Some(addresses.contains(&address).then_some(name))
}

/// Whether a netgroup contains a machine, by its name, by the first label of its name, or by its
/// address. None: no match is known, and for one of these no responsible service answered.
pub(in crate::exports) fn is_member(service: &dyn NameService, group: &str, address: IpAddr) -> Option<bool> {
    let name = checked_name(service, address);
    let mut all_known = name.is_some();
    let name = name.flatten();
    let short = name.as_deref().and_then(|name| name.split_once('.'));
    let candidates = [
        name.as_deref().map(str::to_owned),
        short.map(|(first, _)| first.to_owned()),
        Some(address.to_string()),
    ];
    for host in candidates.into_iter().flatten() {
        match service.in_netgroup(group, &host) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => all_known = false,
        }
    }
    all_known.then_some(false)
}

#[cfg(test)]
pub(in crate::exports) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use parking_lot::Mutex;

    use super::*;

    /// A name service with the tables of a test.
    pub(in crate::exports) struct Scripted {
        pub(in crate::exports) asked: Arc<AtomicUsize>,
        pub(in crate::exports) users: Arc<Mutex<BTreeMap<u32, Vec<u32>>>>,
        pub(in crate::exports) before_name: Box<dyn Fn() + Send + Sync>,
        /// Whether no responsible service answers.
        pub(in crate::exports) silent: Arc<AtomicBool>,
        forward: BTreeMap<String, Vec<IpAddr>>,
        reverse: BTreeMap<IpAddr, String>,
        members: BTreeSet<(String, String)>,
    }

    impl Default for Scripted {
        fn default() -> Self {
            Self {
                asked: Arc::default(),
                users: Arc::default(),
                before_name: Box::new(|| {}),
                silent: Arc::default(),
                forward: BTreeMap::new(),
                reverse: BTreeMap::new(),
                members: BTreeSet::new(),
            }
        }
    }

    impl Scripted {
        fn answers(&self) -> bool {
            !self.silent.load(Ordering::Relaxed)
        }

        pub(in crate::exports) fn user(self, uid: u32, groups: &[u32]) -> Self {
            self.users.lock().insert(uid, groups.to_vec());
            self
        }

        /// A host whose name and address match each other.
        pub(in crate::exports) fn host(self, name: &str, address: &str) -> Self {
            self.forward(name, address).reverse(address, name)
        }

        pub(in crate::exports) fn forward(mut self, name: &str, address: &str) -> Self {
            let addresses = self.forward.entry(name.to_owned()).or_default();
            addresses.push(address.parse().unwrap());
            self
        }

        pub(in crate::exports) fn reverse(mut self, address: &str, name: &str) -> Self {
            self.reverse.insert(address.parse().unwrap(), name.to_owned());
            self
        }

        pub(in crate::exports) fn member(mut self, group: &str, host: &str) -> Self {
            self.members.insert((group.to_owned(), host.to_owned()));
            self
        }
    }

    impl NameService for Scripted {
        fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
            self.answers().then(|| self.forward.get(host).cloned().unwrap_or_default())
        }

        fn name(&self, address: IpAddr) -> Option<Option<String>> {
            (self.before_name)();
            self.answers().then(|| self.reverse.get(&address).cloned())
        }

        fn in_netgroup(&self, group: &str, host: &str) -> Option<bool> {
            let has = self.members.contains(&(group.to_owned(), host.to_owned()));
            self.answers().then_some(has)
        }

        fn groups(&self, uid: u32) -> Option<Option<Vec<u32>>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.answers().then(|| self.users.lock().get(&uid).cloned())
        }
    }

    #[test]
    fn a_name_counts_only_if_it_has_the_address() {
        let service = Scripted::default()
            .host("a.example.org", "10.0.0.1")
            .reverse("10.0.0.2", "A.example.org.")
            .forward("b.example.org", "10.0.0.3")
            .reverse("10.0.0.3", "B.Example.org.");
        let name = |address: &str| checked_name(&service, address.parse().unwrap()).unwrap();
        assert_eq!(name("10.0.0.1").as_deref(), Some("a.example.org"));
        assert_eq!(name("10.0.0.2"), None, "an invented name");
        assert_eq!(name("10.0.0.3").as_deref(), Some("b.example.org"));
        assert_eq!(name("10.0.0.4"), None);
    }

    #[test]
    fn members_of_a_netgroup_are_known_by_name_short_name_and_address() {
        let service = Scripted::default()
            .host("a.example.org", "10.0.0.1")
            .host("b.example.org", "10.0.0.2")
            .reverse("10.0.0.9", "a.example.org")
            .member("full", "a.example.org")
            .member("short", "b")
            .member("number", "10.0.0.3");
        let known = |group: &str, address: &str| is_member(&service, group, address.parse().unwrap());
        let is = |group: &str, address: &str| known(group, address).unwrap();
        assert!(is("full", "10.0.0.1") && is("short", "10.0.0.2") && is("number", "10.0.0.3"));
        assert!(!is("full", "10.0.0.2") && !is("short", "10.0.0.1") && !is("none", "10.0.0.1"));
        assert!(!is("full", "10.0.0.9"), "an invented name makes no member");
        service.silent.store(true, Ordering::Relaxed);
        assert_eq!(known("none", "10.0.0.1"), None, "nobody answers");
    }

    #[test]
    fn the_system_knows_its_own_host() {
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        assert!(SystemNames.addresses("localhost").unwrap().contains(&local));
        // Without a network no service answers.
        assert!(SystemNames.addresses("no-such-host.invalid").is_none_or(|all| all.is_empty()));
        assert_eq!(SystemNames.addresses("127.0.0.1"), Some(vec![local]));
        assert_eq!(SystemNames.addresses("::1"), Some(vec!["::1".parse().unwrap()]));
        assert_eq!(SystemNames.addresses("nul\0"), Some(vec![]));
    }
}

//! The mounts that DUMP lists. They are informative only, and lost when the server ends. The entry
//! of a client that never unmounts stays until newer entries evict it.

use std::collections::VecDeque;
use std::net::IpAddr;

use curt_proto::mount3::PATH_MAX;
use parking_lot::Mutex;

/// Maximum number of entries; with [`PATH_MAX`] it bounds the memory.
const CLIENTS_MAX: usize = 4096;
/// Maximum number of entries of one client. Above it, a client evicts its own entries and not those
/// of others: each spelling of a path is an entry.
const OF_ONE_MAX: usize = 64;

/// The entries, oldest first.
#[derive(Default)]
pub(crate) struct RemoteMountTable(Mutex<VecDeque<(IpAddr, Vec<u8>)>>);

impl RemoteMountTable {
    /// Adds or renews the entry of a client and a path.
    pub(crate) fn add(&self, client: IpAddr, path: &[u8]) {
        debug_assert!(path.len() <= PATH_MAX);
        let mut mounts = self.0.lock();
        mounts.retain(|(other, mounted)| *other != client || mounted != path);
        let mut own = mounts.iter().enumerate().filter(|(_, (other, _))| *other == client);
        let oldest_own = own.next().map(|(place, _)| place);
        if own.count() + 1 >= OF_ONE_MAX {
            oldest_own.map(|place| mounts.remove(place));
        } else if mounts.len() == CLIENTS_MAX {
            mounts.pop_front();
        }
        mounts.push_back((client, path.to_vec()));
    }

    /// Removes the entry of a client and a path.
    pub(crate) fn forget(&self, client: IpAddr, path: &[u8]) {
        self.0.lock().retain(|(other, mounted)| *other != client || mounted != path);
    }

    /// Removes all entries of a client.
    pub(crate) fn forget_all(&self, client: IpAddr) {
        self.0.lock().retain(|(other, _)| *other != client);
    }

    /// All entries, oldest first.
    pub(crate) fn list(&self) -> Vec<(String, Vec<u8>)> {
        self.0.lock().iter().map(|(client, path)| (client.to_string(), path.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn mounts_are_remembered_once_and_within_bounds() {
        let clients = RemoteMountTable::default();
        let client = |number: u32| IpAddr::V4(Ipv4Addr::from(number));
        clients.add(client(1), b"/a");
        clients.add(client(1), b"/b");
        clients.add(client(1), b"/a");
        clients.add(client(2), b"/a");
        assert_eq!(clients.list().len(), 3);
        clients.forget(client(1), b"/a");
        assert_eq!(clients.list(), [("0.0.0.1".into(), b"/b".to_vec()), ("0.0.0.2".into(), b"/a".to_vec())]);
        clients.forget_all(client(1));
        assert_eq!(clients.list().len(), 1);
        for number in 10..10 + u32::try_from(CLIENTS_MAX).unwrap_or(0) {
            clients.add(client(number), b"/a");
        }
        assert_eq!(clients.list().len(), CLIENTS_MAX);
        assert_eq!(clients.list()[0].0, "0.0.0.10");
        // A client at its maximum evicts only its own entries.
        for number in 0..10 * OF_ONE_MAX {
            clients.add(client(9), format!("/{number}").as_bytes());
        }
        let own = clients.list().into_iter().filter(|(name, _)| name == "0.0.0.9");
        let own: Vec<_> = own.map(|(_, path)| path).collect();
        assert_eq!((own.len(), &*own[0]), (OF_ONE_MAX, &b"/576"[..]));
        assert_eq!(clients.list().len(), CLIENTS_MAX);
    }
}

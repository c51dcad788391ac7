//! The name by which a server knows this client (RFC 8881 section 2.4).
//!
//! It is the same each time that the same mount starts, so that the server forgets what an earlier
//! instance had; and no other mount has it, because a server takes two instances of one name for
//! one client that was restarted (section 18.35.3). While one instance runs, as after `umount -l`
//! of a busy mount, another has a number in addition. The mount's program claims the name, so that
//! no other user can. A mount that cannot claim one has a name that is used only once.
//!
//! The mount namespace is part of the name: a mount in another one may not see the claims, as in a
//! container with its own `/run`, and have the same path and network. So after a restart of the
//! container, or of a service with its own mount namespace, the name is another.

use std::{
    any::Any,
    hash::{BuildHasher, RandomState},
    io,
    path::Path,
    sync::Arc,
};

use curt_proto::nfs4::{OPAQUE_MAX, Verifier4};

/// The name of a client, and its instance.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    pub(super) owner: Vec<u8>,
    pub(super) verifier: Verifier4,
    /// The claim of the name: no other mount that claims gets it as long as this exists.
    _claim: Option<Arc<dyn Any + Send + Sync>>,
}

/// The most instances of one mount that run at a time.
const INSTANCES_MAX: u32 = 1024;

impl ClientIdentity {
    /// The identity of a mount of `server` at `mount_point` in the mount namespace of this process,
    /// which starts now. In another namespace the same path is another place. `claim` takes the
    /// name with a hash for this process; `None`: another mount has it. The name is not that of
    /// another mount there as long as a copy of this identity exists. If nothing can be claimed, it
    /// is not that of the next mount either: the server keeps the state of this one until its lease
    /// ends.
    #[must_use]
    pub fn of_mount<C: Any + Send + Sync>(
        server: &str,
        mount_point: &Path,
        claim: impl Fn(u64) -> io::Result<Option<C>>,
    ) -> Self {
        let namespace = |kind: &str| std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
        let (network, mounts) = (namespace("net"), namespace("mnt"));
        let place = format!("{} {} {server} {}", network.display(), mounts.display(), mount_point.display());
        let user = rustix::process::geteuid();
        let user = if user.is_root() { String::new() } else { format!("user {} ", user.as_raw()) };
        let name = format!("Curt {} {user}{place}", machine());
        for number in 0..INSTANCES_MAX {
            let identity = Self::new(match number {
                0 => name.clone().into_bytes(),
                number => format!("{name} {number}").into_bytes(),
            });
            match claim(hash(&identity.owner)) {
                Ok(Some(claim)) => return Self { _claim: Some(Arc::new(claim)), ..identity },
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "the mount's name at the server cannot be claimed: it has one of its own");
                    break;
                }
            }
        }
        let number = u64::from_be_bytes(new_verifier().0);
        Self::new(format!("{name} alone {number:016x}").into_bytes())
    }

    /// Another instance of the client: the server discards what this one had when it is presented
    /// (RFC 8881 section 18.35.4).
    pub(super) fn next_instance(&self) -> Verifier4 {
        Verifier4(self.verifier.0.map(|byte| !byte))
    }

    /// The identity of a client with this name, which starts now.
    #[must_use]
    pub fn new(mut name: Vec<u8>) -> Self {
        if name.len() > OPAQUE_MAX {
            let hash = hash(&name);
            name.truncate(OPAQUE_MAX - 17);
            name.extend_from_slice(format!(" {hash:016x}").as_bytes());
        }
        Self { owner: name, verifier: new_verifier(), _claim: None }
    }
}

/// A verifier that no other instance has.
fn new_verifier() -> Verifier4 {
    // The keys of the state are random.
    Verifier4(RandomState::new().hash_one(std::process::id()).to_be_bytes())
}

/// A hash that is the same in each process: the keys of a default hasher are.
fn hash(name: &[u8]) -> u64 {
    std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default().hash_one(name)
}

/// The name of this machine.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let set = |text: &String| !text.is_empty() && text != "(null)";
    let unique_id = read("/sys/module/nfs/parameters/nfs4_unique_id").filter(set);
    let machine_id = read("/etc/machine-id").filter(set);
    machine_name(unique_id, machine_id, &rustix::system::uname().nodename().to_string_lossy())
}

/// The name of a machine: what the administrator has set for its NFS client, or the machine id and
/// the host name (cloned machines may have one machine id), or the host name alone.
fn machine_name(unique_id: Option<String>, machine_id: Option<String>, host: &str) -> String {
    match (unique_id, machine_id) {
        (Some(unique_id), _) => unique_id,
        (None, Some(machine_id)) => format!("{machine_id} {host}"),
        (None, None) => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Weak};

    use parking_lot::Mutex;

    use super::*;

    // SEMANTICS: sessions-23.
    #[test]
    fn two_mounts_that_run_at_one_place_have_two_names_and_the_next_has_the_first_again() {
        let claims: Mutex<BTreeMap<u64, Weak<u64>>> = Mutex::default();
        let claim = |hash| {
            let (mut claims, new) = (claims.lock(), Arc::new(hash));
            let is_taken = claims.get(&hash).is_some_and(|claim| claim.strong_count() > 0);
            claims.extend((!is_taken).then(|| (hash, Arc::downgrade(&new))));
            Ok((!is_taken).then_some(new))
        };
        let mount = || ClientIdentity::of_mount("server", Path::new("/two"), claim);
        let (first, second) = (mount(), mount());
        assert_ne!(first.owner, second.owner);
        let (name, copy) = (first.owner.clone(), first.clone());
        drop(first);
        assert_ne!(mount().owner, name, "it still runs");
        drop(copy);
        let third = mount();
        assert_eq!(third.owner, name);
        assert_ne!(mount().owner, second.owner);
    }

    // SEMANTICS: sessions-23.
    #[test]
    fn mounts_that_cannot_claim_their_name_have_names_that_no_other_mount_has() {
        let of_mount = |claim: fn(u64) -> io::Result<Option<()>>| {
            ClientIdentity::of_mount("server", Path::new("/two"), claim).owner
        };
        let claims: [fn(u64) -> _; 2] = [|_| Err(io::ErrorKind::StorageFull.into()), |_| Ok(None)];
        for refuses in claims {
            let (first, second) = (of_mount(refuses), of_mount(refuses));
            assert_ne!(first, second);
            assert_ne!(first, of_mount(|_| Ok(Some(()))), "that of a mount that may still run");
        }
    }

    // SEMANTICS: sessions-10.
    #[test]
    fn cloned_machines_are_told_apart_by_their_host_names() {
        let (unique, cloned) = (|| Some("set".to_owned()), || Some("0123abcd".to_owned()));
        assert_ne!(machine_name(None, cloned(), "one"), machine_name(None, cloned(), "two"));
        assert_eq!(machine_name(None, cloned(), "one"), machine_name(None, cloned(), "one"));
        assert_ne!(machine_name(None, None, "one"), machine_name(None, None, "two"));
        assert_eq!(machine_name(unique(), cloned(), "one"), "set", "the administrator decides");
    }

    // SEMANTICS: sessions-10.
    #[test]
    fn a_mount_has_the_same_name_each_time_and_no_other_has_it() {
        let claim = |_| Ok(Some(()));
        let name = |server: &str, path: &str| ClientIdentity::of_mount(server, Path::new(path), claim).owner;
        assert_eq!(name("server", "/mnt"), name("server", "/mnt"));
        assert_ne!(name("server", "/mnt"), name("server", "/srv"));
        assert_ne!(name("server", "/mnt"), name("other", "/mnt"));
        assert_ne!(name("server:/", "/mnt"), name("server:", "/mnt"), "it is taken as it was typed");
        let text = String::from_utf8_lossy(&name("server", "/mnt")).into_owned();
        assert!(
            text.contains("net:[") && text.contains("mnt:["),
            "containers share what is not a file: {text}"
        );
        let long = |last: &str| ClientIdentity::new(["x".repeat(2000).as_bytes(), last.as_bytes()].concat());
        assert_ne!(long("a").owner, long("b").owner);
        assert_eq!(long("a").owner, long("a").owner);
        assert!(long("a").owner.len() <= OPAQUE_MAX);
        assert_ne!(long("a").verifier, long("a").verifier, "each start is another instance");
    }
}

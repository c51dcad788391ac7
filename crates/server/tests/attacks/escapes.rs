//! Escapes from an export: guessed handles, handles of another export or the whole file system;
//! `..` at the root; names that lead from one export into another; symbolic links, and directories
//! that are replaced by links during a look-up (CVE-2021-3178, NetExec's and nfswolf's techniques,
//! CVE-2026-3864).

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use curt_proto::nfs3::{
    Cookie, CookieVerf3, DirectoryEntryPlus, Fattr, NfsFh3, NfsProcedure, NfsResult, NfsStat3, ReaddirOk,
    ReaddirPlusArguments,
};
use curt_vfs::{LocalOptions, LocalVfs, OnlyUser};
use curt_xdr::decode_all;

use crate::calls::{World, arguments, call};
use crate::wire::{Served, export, open_rules};

/// Far longer than what is waited for takes.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn handles_that_were_never_given_open_nothing() {
    let mut world = World::new();
    let good = world.object("file").as_bytes().to_vec();
    let mut forged: Vec<Vec<u8>> = vec![vec![], vec![0; 64], vec![0xff; 64], vec![1; 20]];
    for at in 0..good.len() {
        for value in [good[at] ^ 1, good[at].wrapping_add(1), 0, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            forged.push(bytes);
        }
        forged.push(good[..at].to_vec());
    }
    forged.push([&*good, &[0; 4]].concat());
    // The layouts of knfsd and Ganesha.
    forged.push([&[1, 0, 7, 1][..], &[2; 24]].concat());
    forged.push([&b"C"[..], &[0; 40]].concat());
    forged.retain(|bytes| *bytes != good);
    for bytes in forged {
        let handle = NfsFh3::new(&bytes).unwrap();
        for procedure in NfsProcedure::ALL.into_iter().filter(|procedure| *procedure != NfsProcedure::Null) {
            let arguments = arguments(procedure, handle, b"file", world.root);
            let status = call(&mut world.wire, procedure, &arguments).unwrap();
            assert!(
                matches!(status, NfsStat3::Stale | NfsStat3::Badhandle),
                "{procedure} of {bytes:02x?}: {status}"
            );
        }
    }
    world.is_unharmed();
}

#[test]
fn nothing_is_linked_or_renamed_from_one_export_into_another() {
    let mut world = World::new();
    let mut other = world.served.connect();
    let two = other.mount("/two");
    let file = world.object("file");
    let linked = arguments(NfsProcedure::Link, two, b"stolen", file);
    assert_eq!(call(&mut world.wire, NfsProcedure::Link, &linked), Ok(NfsStat3::Xdev));
    let renamed = arguments(NfsProcedure::Rename, world.root, b"file", two);
    assert_eq!(call(&mut world.wire, NfsProcedure::Rename, &renamed), Ok(NfsStat3::Xdev));
    world.is_unharmed();
}

/// A server of a directory below a directory with a secret.
struct Below {
    directory: tempfile::TempDir,
    served: Served,
}

impl Below {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let exported = directory.path().join("exported");
        fs::create_dir_all(exported.join("inside")).unwrap();
        fs::write(directory.path().join("secret"), "secret").unwrap();
        fs::write(exported.join("inside/file"), "inside").unwrap();
        let options =
            LocalOptions { table: Some(directory.path().join("handles.redb")), ..LocalOptions::default() };
        let vfs = LocalVfs::open(&exported, &options).unwrap();
        let only_user = vfs.only_user().unwrap_or(OnlyUser { uid: 0, gid: 0 });
        let mut rules = open_rules();
        rules.squash = curt_server::Squash::All;
        (rules.anonymous_uid, rules.anonymous_gid) = (only_user.uid, only_user.gid);
        let served = Served::new(vec![export("/exported", Arc::new(vfs), rules)]);
        Self { directory, served }
    }
}

#[test]
fn the_root_of_a_sub_directory_is_its_own_parent_and_links_lead_nowhere() {
    let below = Below::new();
    let exported = below.directory.path().join("exported");
    symlink(below.directory.path(), exported.join("absolute")).unwrap();
    symlink("..", exported.join("relative")).unwrap();
    symlink("/proc/self/root", exported.join("magic")).unwrap();
    let mut wire = below.served.connect();
    let root = wire.mount("/exported");
    let NfsResult::Ok(up) = wire.lookup(root, b"..") else { panic!("no parent") };
    assert_eq!(up.object, root);
    for link in ["absolute", "relative", "magic"] {
        let NfsResult::Ok(found) = wire.lookup(root, link.as_bytes()) else { panic!("no {link}") };
        for name in [&b"secret"[..], b".", b"..", b"etc"] {
            let looked_up = wire.lookup(found.object, name);
            assert!(matches!(looked_up, NfsResult::Failed(NfsStat3::Notdir, _)), "{link}: {looked_up:?}");
        }
    }
    let listing = ReaddirPlusArguments {
        directory: root,
        cookie: Cookie(0),
        verifier: CookieVerf3::default(),
        directory_count: 4096,
        max_count: 32_768,
    };
    let results = wire.nfs(NfsProcedure::ReaddirPlus, &listing);
    let listed: NfsResult<ReaddirOk<'_, DirectoryEntryPlus<'_>>, Option<Fattr>> =
        decode_all(&results).unwrap();
    let NfsResult::Ok(listed) = listed else { panic!("no listing") };
    let above = fs::metadata(below.directory.path()).unwrap();
    for entry in listed.entries {
        let entry = entry.unwrap();
        if matches!(entry.name.bytes(), b"." | b"..") {
            assert!(entry.handle.is_none_or(|handle| handle == root), "{:?}", entry.name);
            assert_ne!(entry.fileid.0, std::os::unix::fs::MetadataExt::ino(&above));
        }
    }
}

/// While a directory and a link to the secret's directory are exchanged, a look-up by the name
/// never leaves the export.
#[test]
fn a_directory_that_becomes_a_link_leads_nowhere() {
    let below = Below::new();
    let exported = below.directory.path().join("exported");
    symlink(below.directory.path(), exported.join("link")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (from, to) in
                    [("inside", "kept"), ("link", "inside"), ("inside", "link"), ("kept", "inside")]
                {
                    fs::rename(exported.join(from), exported.join(to)).unwrap();
                }
            }
        });
        let mut wire = below.served.connect();
        let root = wire.mount("/exported");
        let (mut found, mut links) = (0, 0);
        let (begin, mut turns) = (Instant::now(), 0);
        while (turns < 1000 || found == 0 || links == 0) && begin.elapsed() < LONG {
            turns += 1;
            let NfsResult::Ok(inside) = wire.lookup(root, b"inside") else {
                continue;
            };
            match wire.lookup(inside.object, b"secret") {
                NfsResult::Ok(_) => panic!("the secret was found"),
                NfsResult::Failed(NfsStat3::Notdir, _) => links += 1,
                NfsResult::Failed(..) => found += 1,
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(found > 0 && links > 0, "{found} times a directory, {links} times a link");
    });
}

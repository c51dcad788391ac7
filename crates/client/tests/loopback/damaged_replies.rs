//! Replies of which one result is malformed, as knfsd before Linux 6.14 makes them, and what the
//! server has executed behind it.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use curt_client::{DirEmit, InodeId, OpenFlags, ops};
use curt_observe::ClientCounter;
use curt_policy::CacheOptions;
use rustix::io::Errno;

use crate::{
    delegations::{delegated_many, world, write},
    nfs4_faults::{self, times, without_claims},
    scripted_server::{ScriptedServer, bytes, damage_getattr, getattr_at, op, set_word, status},
    world::{BenchMount, World, root},
};

const FILES: usize = FIRST + 1 + SIBLINGS;

/// The file that is opened with seven others.
pub(crate) const FIRST: usize = 3;
const SIBLINGS: usize = 7;

/// Files in the root that another client has made.
pub(crate) fn make_files(world: &World) -> Vec<String> {
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    let names: Vec<String> = (0..FILES).map(|number| format!("f{number:02}")).collect();
    for name in &names {
        maker.put(&root(), maker.client.root(), name, 0o644, b"one");
    }
    // Its opens end, or the server would not delegate the files.
    let _ = maker.lookup(&root(), maker.client.root(), "none");
    names
}

fn list(mounted: &BenchMount, directory: InodeId) -> Result<Vec<String>, Errno> {
    let op = mounted.client.op(&root());
    let open = ops::opendir(&op, directory).unwrap();
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let (before, from) = (names.len(), cookie);
        let mut take = |entry: &curt_client::DirEntry<'_>| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            cookie = entry.cookie;
            DirEmit::Taken
        };
        ops::readdir(&op, &open, from, true, &mut take)?;
        if names.len() == before {
            names.sort();
            return Ok(names);
        }
    }
}

/// A mount that has listed these files and read the first ones, so that it opens the next ones with
/// the file after them; with their numbers.
pub(crate) fn reading_in_order(
    world: &World,
    names: &[String],
) -> (Arc<ScriptedServer>, BenchMount, Vec<InodeId>) {
    let server = ScriptedServer::calling_back(world);
    let mounted = nfs4_faults::mounted(world, &server);
    assert_eq!(list(&mounted, mounted.client.root()).unwrap().len(), FILES + 2);
    let files = names.iter().map(|name| mounted.lookup(&root(), mounted.client.root(), name).unwrap().id);
    let files: Vec<_> = files.collect();
    for file in &files[..FIRST] {
        assert_eq!(mounted.cat(&root(), *file), Ok(b"one".to_vec()));
    }
    mounted.sent();
    (server, mounted, files)
}

// SEMANTICS: sessions-13.
#[test]
fn delegations_behind_a_malformed_result_are_returned_when_they_are_recalled() {
    let world = world();
    let names = make_files(&world);
    let (server, mounted, files) = reading_in_order(&world, &names);
    assert_eq!(mounted.counter(ClientCounter::DelegationGranted), FIRST as u64);
    let (is_first, damaged) = (times(1), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&damaged);
    server.script(move |asked| {
        (asked.main() == op::OPEN && is_first()).then(|| {
            asked.spoil(|reply| {
                count.fetch_add(u32::from(damage_getattr(reply, 3)), Relaxed);
            })
        })
    });
    assert_eq!(mounted.cat(&root(), files[FIRST]), Ok(b"one".to_vec()));
    assert_eq!(damaged.load(Relaxed), 1, "{}", mounted.sent());
    server.obey();
    let writer = world.mount_v4_over(CacheOptions::default(), "writer", world.way());
    for (name, file) in names.iter().zip(&files) {
        let before = server.executed(op::DELEGRETURN);
        write(&writer, name, b"two");
        assert_eq!(server.executed(op::DELEGRETURN), before + 1, "{name}");
        assert_eq!(mounted.cat(&root(), *file), Ok(b"two".to_vec()));
    }
}

// SEMANTICS: sessions-13.
#[test]
fn what_was_opened_by_a_reply_that_is_malformed_is_closed() {
    let world = world();
    let names = make_files(&world);
    let (server, mounted, files) = reading_in_order(&world, &names);
    let is_first = times(1);
    server.script(move |asked| {
        (asked.main() == op::OPEN && is_first())
            .then(|| asked.spoil(|reply| assert!(damage_getattr(reply, 0))))
    });
    assert_eq!(mounted.cat(&root(), files[FIRST]), Err(Errno::IO));
    server.obey();
    assert_eq!(server.executed(op::CLOSE), 0);
    for _ in 0..4 {
        ops::statfs(&mounted.client.op(&root()), mounted.client.root()).unwrap();
        world.seconds(10);
    }
    assert_eq!(server.executed(op::CLOSE), SIBLINGS);
}

#[test]
fn paths_behind_a_malformed_result_are_asked_for_again() {
    let world = World::new();
    let names = make_files(&world);
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let is_first = times(1);
    server.script(move |asked| {
        (asked.does(op::LOOKUP) && is_first()).then(|| asked.spoil(|reply| assert!(damage_getattr(reply, 3))))
    });
    mounted.sent();
    let paths: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let found = ops::stat_many(&mounted.client.op(&root()), mounted.client.root(), &paths).unwrap();
    assert!(found.iter().all(|found| found.as_ref().is_ok_and(|it| it.size == 3)), "{found:?}");
    assert_eq!(found.len(), FILES);
    assert_eq!(mounted.sent(), "NFSv4.LOOKUP 2");
}

#[test]
fn a_listing_is_complete_although_the_number_of_its_parent_is_malformed() {
    let world = World::new();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    let directory = ops::mkdir(&maker.client.op(&root()), maker.client.root(), b"d", 0o777).unwrap();
    maker.put(&root(), directory.id, "file", 0o644, b"one");
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let directory = mounted.lookup(&root(), mounted.client.root(), "d").unwrap();
    let damaged = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&damaged);
    server.script(move |asked| {
        asked.words.contains(&op::READDIR).then(|| {
            asked.spoil(|reply| {
                // That of the directory precedes.
                count.fetch_add(u32::from(damage_getattr(reply, 1)), Relaxed);
            })
        })
    });
    assert_eq!(list(&mounted, directory.id), Ok([".", "..", "file"].map(String::from).to_vec()));
    assert_eq!(damaged.load(Relaxed), 1);
}

// SEMANTICS: sessions-2.
#[test]
fn a_malformed_reply_to_a_reclaim_concerns_one_file() {
    const FILES: usize = 3;
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let op = || mounted.client.op(&root());
    let create = |number: usize| {
        let (name, flags) = (format!("f{number}"), OpenFlags::writing());
        let (_, opened) = ops::create(&op(), mounted.client.root(), name.as_bytes(), 0o644, flags).unwrap();
        ops::write(&op(), &opened.file, 0, b"kept").unwrap();
        opened
    };
    let files: Vec<_> = (0..FILES).map(create).collect();
    server.replace(world.way_after_restart());
    let (is_first, reclaims) = (times(1), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&reclaims);
    server.script(move |asked| {
        (asked.main() == op::OPEN).then(|| {
            without_claims(&asked.words, u32::MAX)?;
            count.fetch_add(1, Relaxed);
            // One operation of two has a result.
            is_first().then(|| asked.answer(2, 0, &[op::PUTFH, 0]))
        })?
    });
    assert_eq!(nfs4_faults::statfs(&world, &mounted), Ok(()));
    assert_eq!(reclaims.load(Relaxed), 2, "the others are reclaimed");
    for opened in &files {
        assert_eq!(ops::fsync(&op(), &opened.file, false), Ok(()));
    }
}

// SEMANTICS: sessions-2.
#[test]
fn reclaims_go_on_behind_attributes_that_are_malformed_or_refused() {
    // What was executed behind malformed attributes is executed again.
    let cases = [(None, 2 * FILES - 2), (Some(status::SERVERFAULT), FILES)];
    for ((refusal, expected), are_open) in cases.into_iter().flat_map(|case| [(case, true), (case, false)]) {
        let world = world();
        let server = ScriptedServer::calling_back(&world);
        let mounted = nfs4_faults::mounted(&world, &server);
        let names: Vec<String> = (0..FILES).map(|number| format!("f{number}")).collect();
        delegated_many(&world, &mounted, &names);
        let open = |name: &String| {
            let found = mounted.lookup(&root(), mounted.client.root(), name).unwrap();
            ops::open(&mounted.client.op(&root()), found.id, OpenFlags::reading()).unwrap()
        };
        let files: Vec<_> = names.iter().filter(|_| are_open).map(open).collect();
        server.replace(world.way_after_restart());
        let (is_first, executed) = (times(1), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&executed);
        server.script(move |asked| {
            if asked.main() != op::OPEN {
                return None;
            }
            without_claims(&asked.words, u32::MAX)?;
            let is_first = is_first();
            let most = if is_first && refusal.is_some() { 2 } else { u32::MAX };
            let (mut words, opens) = without_claims(&asked.words, most)?;
            count.fetch_add(opens, Relaxed);
            if !is_first {
                return Some(asked.execute_instead(&words));
            }
            // Before RECLAIM_COMPLETE the server opens nothing.
            words.splice(12..12, [op::RECLAIM_COMPLETE, 0]);
            words[2] += 1;
            let mut reply = asked.execute_instead(&words).unwrap();
            reply.drain(4 * 14..4 * 16);
            set_word(&mut reply, 2, words[2] - 1);
            match refusal {
                None => assert!(damage_getattr(&mut reply, 1)),
                Some(status) => {
                    reply.truncate(4 * getattr_at(&reply, 1).unwrap());
                    reply.extend(bytes(&[op::GETATTR, status]));
                    set_word(&mut reply, 0, status);
                }
            }
            Some(Ok(reply))
        });
        let done = ops::statfs(&mounted.client.op(&root()), mounted.client.root()).map(drop);
        assert_eq!(done, Ok(()), "{refusal:?}, {are_open}");
        assert_eq!(executed.load(Relaxed) as usize, expected, "{refusal:?}, {are_open}");
        for file in files {
            ops::close(&mounted.client.op(&root()), &file.file).unwrap();
        }
    }
}

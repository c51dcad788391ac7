//! Events of listings: requests, the results that they cache, and read-ahead that is not used.

use std::sync::Arc;

use curt_client::{ClientOptions, DirEmit, InodeId, Limits, OpenDirectory, Superblock, ops};
use curt_observe::ClientCounter;
use curt_policy::CacheOptions;

use crate::server::{DIRECTORY, Lie, Script, Scripted, list, me, mount, name, read_from};
use crate::world::{World, root};
use crate::{Seen, alone, field};

const PASS: &str = "nfs_readdir_cache_fill*,nfs_readdir_uncached*,nfs_readdir_plus_*,nfs_readdir_prefetch_*,nfs_readdir_dup_*,nfs_readdir_restart,nfs_readdir_bad_cookie";

fn of<'a>(told: &'a [String], event: &str) -> Vec<&'a String> {
    let begins = format!("{event}:");
    told.iter().filter(|line| line.starts_with(&begins)).collect()
}

/// A server of a directory with `count` names.
fn holding(count: u64) -> Arc<Scripted> {
    Scripted::new(Script { count, ..Script::default() })
}

/// Reads about twenty further names; returns their number.
fn some(client: &Superblock, open: &OpenDirectory, cookie: &mut u64) -> u64 {
    let (from, mut count) = (*cookie, 0);
    ops::readdir(&client.op(&me()), open, from, false, &mut |entry| {
        if entry.cookie > from + 20 {
            return DirEmit::Full;
        }
        count += 1;
        *cookie = entry.cookie;
        DirEmit::Taken
    })
    .unwrap();
    count
}

#[test]
fn a_pass_traces_its_chunks_in_order_and_the_change_to_readdir() {
    let _alone = alone();
    let server = holding(20_000);
    let client = mount(&server, &ClientOptions::default());
    let seen = Seen::begin(PASS);
    list(&client).0.unwrap();
    let told = seen.told();
    let (fills, done) = (of(&told, "nfs_readdir_cache_fill"), of(&told, "nfs_readdir_cache_fill_done"));
    let asked = server.asked();
    assert_eq!((fills.len(), done.len()), (asked.len(), asked.len()));
    for ((index, line), asked) in fills.iter().enumerate().zip(&asked) {
        assert_eq!(field(line, "cache_index"), index as u64);
        assert_eq!(field(line, "dir"), DIRECTORY);
        assert_eq!(
            (field(line, "cookie"), field(line, "dtsize"), field(line, "plus") == 1),
            (asked.cookie, u64::from(asked.count), asked.plus)
        );
    }
    let names: u64 = done.iter().map(|line| field(line, "entries")).sum();
    assert_eq!(names, 20_000);
    assert_eq!(field(done.last().unwrap(), "eof"), 1);
    let (on, off) = (of(&told, "nfs_readdir_plus_on"), of(&told, "nfs_readdir_plus_off"));
    assert_eq!((on.len(), off.len()), (1, 1), "{told:?}");
    assert_eq!(field(on[0], "cookie"), 0);
    assert!(field(off[0], "entries") > 1000, "{off:?}");
    let plain = asked.iter().find(|asked| !asked.plus).unwrap();
    assert_eq!(field(off[0], "cookie"), plain.cookie);
    assert_eq!(of(&told, "nfs_readdir_uncached"), Vec::<&String>::new());
}

#[test]
fn chunks_read_ahead_are_used_or_wasted() {
    let _alone = alone();
    let server = holding(20_000);
    let client = mount(&server, &ClientOptions::default());
    let seen = Seen::begin(PASS);
    let open = ops::opendir(&client.op(&me()), client.root()).unwrap();
    let (mut count, mut cookie, mut used) = (0, 0, Vec::new());
    while used.is_empty() && count < 20_000 {
        count += some(&client, &open, &mut cookie);
        used = of(&seen.told(), "nfs_readdir_prefetch_used").into_iter().cloned().collect();
    }
    assert!(count < 20_000, "a chunk was there when it was wanted");
    assert_eq!(field(&used[0], "dir"), DIRECTORY);
    // The reader stops in the middle, with one read-ahead sent.
    let before = client.counters().events.value(ClientCounter::ListingAheadWasted);
    let mut told = Vec::new();
    while of(&told, "nfs_readdir_cache_fill").is_empty() {
        some(&client, &open, &mut cookie);
        told = seen.told();
    }
    drop(open);
    let after = client.counters().events.value(ClientCounter::ListingAheadWasted);
    assert_eq!(after - before, 1);
    let told = seen.told();
    let wasted = of(&told, "nfs_readdir_prefetch_wasted");
    assert_eq!(wasted.len(), 1, "{told:?}");
    assert_eq!(field(wasted[0], "dir"), DIRECTORY);
}

#[test]
fn a_seek_and_a_restart_have_different_events() {
    let _alone = alone();
    let server = Scripted::new(Script {
        count: 3000,
        lie: Lie::BadCookie { from: 300, times: 1 },
        ..Script::default()
    });
    let client = mount(&server, &ClientOptions::default());
    let seen = Seen::begin(PASS);
    assert_eq!(list(&client), (Ok(()), 3000, 0));
    let told = seen.told();
    assert_eq!(of(&told, "nfs_readdir_bad_cookie").len(), 1, "{told:?}");
    assert_eq!(of(&told, "nfs_readdir_restart").len(), 1, "{told:?}");
    let suppressed = of(&told, "nfs_readdir_dup_suppressed");
    let left_out: u64 = suppressed.iter().map(|line| field(line, "entries")).sum();
    let again = of(&told, "nfs_readdir_restart")[0];
    // The cookies of names begin at 3.
    assert_eq!(left_out, field(again, "cookie") - 2, "{told:?}");
    assert!(suppressed.iter().all(|line| field(line, "dir") == DIRECTORY));
    // An open directory that was never at this cookie, which is not cached.
    let server = holding(3000);
    let client = mount(&server, &ClientOptions::default());
    let open = ops::opendir(&client.op(&me()), client.root()).unwrap();
    let _ = seen.told();
    let mut first = None;
    read_from(&client, &open, 2002, 5, &mut |entry| {
        first.get_or_insert_with(|| entry.name.to_vec());
    })
    .unwrap();
    assert_eq!(first, Some(name(2000).into_bytes()));
    let told = seen.told();
    let uncached = of(&told, "nfs_readdir_uncached");
    assert_eq!(field(uncached[0], "cookie"), 2002);
    assert_eq!(uncached.len(), of(&told, "nfs_readdir_uncached_done").len(), "{told:?}");
    assert_eq!(of(&told, "nfs_readdir_cache_fill"), Vec::<&String>::new());
}

#[test]
fn the_event_of_evicted_names_has_their_range() {
    let _alone = alone();
    let server = holding(20_000);
    let behaviour = ClientOptions {
        limits: Limits { listing_bytes: 256 << 10, ..Limits::default() },
        ..ClientOptions::default()
    };
    let client = mount(&server, &behaviour);
    let seen = Seen::begin("nfs_readdir_invalidate_cache_range");
    list(&client).0.unwrap();
    let told = seen.told();
    assert!(told.len() > 2, "{told:?}");
    for line in &told {
        assert!(line.contains(" reason=\"there is no room\""), "{line}");
        assert_eq!(field(line, "dir"), DIRECTORY);
        let range = field(line, "range_start")..field(line, "range_end");
        assert!(!range.is_empty() && range.end <= 20_000, "{line}");
    }
}

/// Reads all names of a directory, as `ls` does.
fn read_all(mounted: &crate::world::BenchMount, directory: InodeId) {
    let open = ops::opendir(&mounted.client.op(&root()), directory).unwrap();
    let (mut cookie, mut last) = (0, u64::MAX);
    while cookie != last {
        last = cookie;
        ops::readdir(&mounted.client.op(&root()), &open, cookie, true, &mut |entry| {
            if let Some(found) = entry.found {
                mounted.client.forget(found.id, 1);
            }
            cookie = entry.cookie;
            DirEmit::Taken
        })
        .unwrap();
    }
    drop(open);
}

#[test]
fn a_listing_caches_names_and_traces_those_with_another_object() {
    let _alone = alone();
    let world = World::new();
    let (mine, other) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    let me = root();
    let there = ops::mkdir(&mine.client.op(&me), mine.client.root(), b"d", 0o755).unwrap();
    for name in ["a", "b"] {
        other.put(&me, other.lookup(&me, other.client.root(), "d").unwrap().id, name, 0o644, b"");
    }
    world.seconds(3600);
    let dir = there.attributes.fileid;
    let seen = Seen::begin("nfs_readdir_lookup*,nfs_readdir_invalidate_cache_range");
    read_all(&mine, there.id);
    let told = seen.told();
    let names: Vec<_> = told.iter().map(|line| line.split(" fileid").next().unwrap()).collect();
    assert_eq!(
        names,
        [format!("nfs_readdir_lookup: dir={dir} name=a"), format!("nfs_readdir_lookup: dir={dir} name=b")]
    );
    // One of the names leads to another file now, and the directory is read again.
    let theirs = other.lookup(&me, other.client.root(), "d").unwrap().id;
    ops::unlink(&other.client.op(&me), theirs, b"b").unwrap();
    other.put(&me, theirs, "b", 0o644, b"");
    world.seconds(3600);
    seen.told();
    read_all(&mine, there.id);
    let told = seen.told();
    let void = of(&told, "nfs_readdir_invalidate_cache_range");
    assert_eq!(void.len(), 1, "{told:?}");
    assert!(void[0].contains(&format!(" dir={dir} range_start=0 ")), "{void:?}");
    assert!(void[0].contains(" reason=\"it changed at the server\""), "{void:?}");
    assert_eq!(of(&told, "nfs_readdir_lookup_revalidate").len(), 1, "{told:?}");
    let elsewhere = of(&told, "nfs_readdir_lookup_revalidate_failed");
    assert_eq!(elsewhere.len(), 1, "{told:?}");
    assert!(elsewhere[0].contains(" name=b "), "{told:?}");
}

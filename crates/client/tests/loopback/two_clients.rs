//! Two clients of one server.

use std::time::Duration;

use curt_client::{InodeId, OpenFlags, ops};
use curt_policy::{CacheOptions, RacyGuard};

use crate::world::{BenchMount, World, root};

/// A deterministic pseudorandom generator.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn overwrite(mounted: &BenchMount, id: InodeId, bytes: &[u8]) {
    let flags = OpenFlags { truncate: true, ..OpenFlags::writing() };
    let opened = ops::open(&mounted.client.op(&root()), id, flags).unwrap();
    assert_eq!(ops::write(&mounted.client.op(&root()), &opened.file, 0, bytes), Ok(bytes.len()));
    ops::close(&mounted.client.op(&root()), &opened.file).unwrap();
}

/// Two clients write, read, stat and list in random order, with short and long delays: each open
/// sees the last close.
fn see_each_other(world: &World, cache: CacheOptions, seed: u64) {
    const FILES: usize = 3;
    let clients = [world.mount(cache), world.mount(cache)];
    let mut dice = Dice(seed);
    let mut contents: Vec<Vec<u8>> = vec![b"first".to_vec(); FILES];
    for name in 0..FILES {
        clients[0].put(&root(), clients[0].client.root(), &format!("f{name}"), 0o644, b"first");
    }
    let mut ids = [[InodeId::ROOT; FILES]; 2];
    for (client, ids) in clients.iter().zip(&mut ids) {
        for (name, id) in ids.iter_mut().enumerate() {
            *id = client.lookup(&root(), client.client.root(), &format!("f{name}")).unwrap().id;
        }
    }
    for step in 0..3000_u64 {
        let which = usize::from(dice.below(2) == 1);
        let file = usize::try_from(dice.below(FILES as u64)).unwrap();
        let (client, id) = (&clients[which], ids[which][file]);
        match dice.below(6) {
            0 => {
                // Often of the same size: then the size does not show the change.
                let bytes = format!("{step:06} of {which}{}", "x".repeat(usize::from(dice.below(4) == 0)));
                overwrite(client, id, bytes.as_bytes());
                contents[file] = bytes.into_bytes();
            }
            1 => drop(ops::getattr(&client.client.op(&root()), id).unwrap()),
            _ => {
                let read = client.cat(&root(), id).unwrap();
                let (read, wanted) =
                    (String::from_utf8_lossy(&read), String::from_utf8_lossy(&contents[file]));
                assert_eq!(read, wanted, "seed {seed}, step {step}: client {which}, file {file}");
            }
        }
        match dice.below(8) {
            0 => world.pass(Duration::from_millis(dice.below(5000))),
            1 => world.pass(Duration::from_millis(dice.below(30))),
            _ => {}
        }
    }
}

// SEMANTICS: cto-1, mount-1.
#[test]
fn what_one_client_closed_the_other_sees_at_its_next_open() {
    for seed in 0..5 {
        see_each_other(&World::new(), CacheOptions::default(), seed);
    }
}

// SEMANTICS: cto-10.
#[test]
fn with_the_strict_guard_they_do_although_the_servers_clock_is_coarse() {
    let cache = CacheOptions { racy_guard: RacyGuard::On, ..CacheOptions::default() };
    for milliseconds in [4, 10, 1000] {
        see_each_other(&World::with_time_step(Duration::from_millis(milliseconds)), cache, milliseconds);
    }
}

/// Another client creates a name at every moment around the lookup that missed it, at servers with
/// various clock resolutions.
// SEMANTICS: name-8.
#[test]
fn no_name_made_within_the_servers_step_is_missed_beyond_the_guard() {
    // Without attribute lifetimes, so that only the guard can hide a name.
    let cache = CacheOptions { attribute_cache: false, ..CacheOptions::default() };
    let steps = [1, 1_000, 1_000_000, 4_000_000, 10_000_000, 100_000_000, 1_000_000_000];
    for step in steps.map(Duration::from_nanos) {
        let guard = (2 * step).max(Duration::from_millis(20));
        for phase in 0..5 {
            for gap in 0..5 {
                let world = World::with_time_step(step);
                let (there, here) = (world.mount(cache), world.mount(cache));
                let top = here.client.root();
                world.seconds(3);
                world.pass(step * phase / 5);
                there.put(&root(), top, "one", 0o644, b"");
                assert!(here.lookup(&root(), top, "two").is_err());
                world.pass(step * gap / 5);
                there.put(&root(), top, "two", 0o644, b"");
                // The clock may look twice as coarse as it is, if a time happens to be an even
                // number of seconds.
                world.pass(2 * guard + Duration::from_millis(1));
                assert!(here.lookup(&root(), top, "two").is_ok(), "step {step:?}, phase {phase}, gap {gap}");
            }
        }
    }
}

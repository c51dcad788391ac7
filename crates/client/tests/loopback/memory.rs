//! The memory of cached names.

use curt_client::{ClientOptions, Limits, ops};
use curt_policy::CacheOptions;

use crate::world::{World, root};

#[test]
fn names_beyond_the_bound_are_evicted_with_their_unused_inodes() {
    let world = World::new();
    let maker = world.mount(CacheOptions::default());
    let me = root();
    for number in 0..300 {
        ops::make_file(&maker.client.op(&me), maker.client.root(), format!("f{number}").as_bytes(), 0o644)
            .unwrap();
    }
    world.seconds(3600);
    let limits = Limits { names: 100, ..Limits::default() };
    let mounted = world.mount_with(ClientOptions { limits, ..ClientOptions::default() });
    let mut held = Vec::new();
    for number in 0..300 {
        let found = mounted.lookup(&me, mounted.client.root(), &format!("f{number}")).unwrap();
        if number < 10 {
            held.push(found);
        } else {
            mounted.client.forget(found.id, 1);
        }
    }
    let (objects, present, _) = mounted.client.cached_counts();
    assert_eq!(present, 100);
    assert_eq!(objects, 1 + 10 + 100, "the root, what is held, and what is named");
    for found in held {
        assert!(ops::getattr(&mounted.client.op(&me), found.id).is_ok());
        mounted.client.forget(found.id, 1);
    }
}

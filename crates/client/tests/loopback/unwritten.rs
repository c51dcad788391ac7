//! Unwritten bytes of a file when one of its names is removed.

use std::{mem, sync::Arc, time::Duration};

use curt_client::{Background, BackgroundTask, ClientOptions, OpenFile, OpenFlags, RenameMode, ops};
use curt_types::SetAttributes;
use parking_lot::Mutex;

use crate::{
    mutations::list,
    world::{BenchMount, World, root, user},
};

/// Holds write-back until a test runs it.
#[derive(Default)]
pub(crate) struct Later(Mutex<Vec<BackgroundTask>>);

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Later").field(&self.0.lock().len()).finish()
    }
}

impl Background for Later {
    fn spawn(&self, task: BackgroundTask) {
        self.0.lock().push(task);
    }

    fn spawn_after(&self, _: Duration, _: BackgroundTask) {}
}

impl Later {
    /// Whether work waits.
    pub(crate) fn has_work(&self) -> bool {
        !self.0.lock().is_empty()
    }

    pub(crate) fn run_all(&self) {
        loop {
            let tasks = mem::take(&mut *self.0.lock());
            if tasks.is_empty() {
                return;
            }
            for task in tasks {
                task();
            }
        }
    }
}

/// How a file loses its name.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Removed,
    RemovedWhileOpen,
    Replaced,
}

const WAYS: [Way; 3] = [Way::Removed, Way::RemovedWhileOpen, Way::Replaced];

const BYTES: &[u8] = b"written, not sent";

/// A file "f" that was written to, whose bytes are all unsent.
fn written(mounted: &BenchMount) -> Arc<OpenFile> {
    let (me, top) = (root(), mounted.client.root());
    let file = mounted.put(&me, top, "f", 0o644, b"");
    mounted.put(&me, top, "other", 0o644, b"");
    let opened = ops::open(&mounted.client.op(&me), file.id, OpenFlags::writing()).unwrap();
    ops::write(&mounted.client.op(&me), &opened.file, 0, BYTES).unwrap();
    opened.file
}

/// Removes the name "f", and closes the file like an application whose bytes are written back after
/// its last close(2).
fn lose_name(mounted: &BenchMount, open: &Arc<OpenFile>, way: Way) {
    let (me, top) = (root(), mounted.client.root());
    if way != Way::RemovedWhileOpen {
        ops::release(&mounted.client, open);
    }
    match way {
        Way::Removed | Way::RemovedWhileOpen => ops::unlink(&mounted.client.op(&me), top, b"f").unwrap(),
        Way::Replaced => {
            ops::rename(&mounted.client.op(&me), top, b"other", top, b"f", RenameMode::Replace).unwrap();
        }
    }
    ops::release(&mounted.client, open);
}

#[test]
fn bytes_of_a_file_that_got_another_name_elsewhere_reach_it() {
    for way in WAYS {
        let world = World::new();
        let later = Arc::new(Later::default());
        let mounted = world.mount_in(ClientOptions::default(), world.way(), later.clone());
        let other = world.mount_with(ClientOptions::default());
        let file = written(&mounted);
        let (me, there) = (root(), other.client.root());
        let found = other.lookup(&me, there, "f").unwrap();
        ops::link(&other.client.op(&me), found.id, there, b"second").unwrap();
        lose_name(&mounted, &file, way);
        later.run_all();
        world.seconds(60);
        let second = other.lookup(&me, there, "second").unwrap();
        assert_eq!(other.cat(&me, second.id).as_deref(), Ok(BYTES), "{way:?}");
    }
}

#[test]
fn bytes_stay_where_the_removal_is_refused() {
    let world = World::new();
    let later = Arc::new(Later::default());
    let mounted = world.mount_in(ClientOptions::default(), world.way(), later.clone());
    let file = written(&mounted);
    let (me, top) = (root(), mounted.client.root());
    ops::unlink(&mounted.client.op(&user(1000)), top, b"f").unwrap();
    // The name that it has until its last close cannot be removed any more.
    let other = world.mount_with(ClientOptions::default());
    let there = other.client.root();
    let closed = SetAttributes { mode: Some(0o555), ..SetAttributes::default() };
    ops::setattr(&other.client.op(&me), there, &closed).unwrap();
    ops::release(&mounted.client, &file);
    later.run_all();
    world.seconds(60);
    let names = list(&other, there);
    let silly = names.iter().find(|name| name.starts_with(".nfs")).unwrap();
    let left = other.lookup(&me, there, silly).unwrap();
    assert_eq!(other.cat(&me, left.id).as_deref(), Ok(BYTES));
}

#[test]
fn bytes_of_a_file_that_is_gone_are_not_sent() {
    for way in WAYS {
        let world = World::new();
        let later = Arc::new(Later::default());
        let mounted = world.mount_in(ClientOptions::default(), world.way(), later.clone());
        let file = written(&mounted);
        lose_name(&mounted, &file, way);
        let sent = mounted.sent();
        assert!(!sent.contains("WRITE"), "{way:?}: {sent}");
        later.run_all();
        assert_eq!(mounted.sent(), "", "{way:?}");
        assert!(mounted.client.unwritten().is_empty(), "{way:?}");
    }
}

//! A restart of the server.

use curt_client::ops;
use curt_policy::CacheOptions;
use curt_vfs::{Error, FaultPoint};
use rustix::io::Errno;

use crate::world::{World, root};

// SEMANTICS: name-11.
#[test]
fn after_a_restart_of_the_server_each_directory_is_revalidated_once_and_names_stay_cached() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let top = mounted.client.root();
    let directory = ops::mkdir(&mounted.client.op(&root()), top, b"d", 0o755).unwrap().id;
    mounted.put(&root(), directory, "there", 0o644, b"x");
    mounted.teach_time(&world);
    let look = || {
        assert!(mounted.lookup(&root(), directory, "there").is_ok());
        assert!(mounted.lookup(&root(), directory, "missing").is_err());
        mounted.sent()
    };
    look();
    assert_eq!(look(), "", "all is known");
    // The write verifier changes, as after a restart of the server.
    world.vfs.fail_next(FaultPoint::Commit, Error::Lost(Errno::IO), 1);
    let flags = curt_client::OpenFlags::writing();
    let (_, opened) = ops::create(&mounted.client.op(&root()), top, b"large", 0o644, flags).unwrap();
    ops::write(&mounted.client.op(&root()), &opened.file, 0, &[1; 3 << 20]).unwrap();
    let _ = ops::close(&mounted.client.op(&root()), &opened.file);
    mounted.put(&root(), top, "after", 0o644, b"x");
    mounted.sent();
    assert_eq!(look(), "GETATTR 1", "the directory is asked about, the names are not");
    assert_eq!(look(), "");
}

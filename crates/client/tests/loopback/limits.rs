//! What PATHCONF says of a server, and what is believed of it.

use curt_client::{OpenFlags, RenameMode};
use rustix::io::Errno;

use crate::world::{Mounted, World, root};

/// What each operation that takes a name says to `name`.
fn refusals(mounted: &Mounted, name: &[u8]) -> Vec<Result<(), Errno>> {
    let (client, me, top) = (&mounted.client, root(), mounted.client.root());
    let known = client.make_file(&me, top, b"known", 0o644).unwrap();
    let refusals = vec![
        client.lookup(&me, top, name).map(drop),
        client.make_file(&me, top, name, 0o644).map(drop),
        client
            .create(&me, top, name, 0o644, OpenFlags::writing())
            .map(drop),
        client.mkdir(&me, top, name, 0o755).map(drop),
        client.symlink(&me, top, name, b"known").map(drop),
        client.link(&me, known.id, top, name).map(drop),
        client.rename(&me, (top, b"known"), (top, name), RenameMode::Replace),
        client.rename(&me, (top, name), (top, b"known"), RenameMode::Replace),
        client.unlink(&me, top, name),
        client.rmdir(&me, top, name),
    ];
    client.unlink(&me, top, b"known").unwrap();
    refusals
}

#[test]
fn names_have_255_bytes_at_most_whatever_the_server_says() {
    for (said, longest) in [(1024, 255), (255, 255), (0, 255), (100, 100)] {
        let world = World::new();
        let mounted = world.mount_limited(|root| root.path_limits.name_max = said);
        let (me, top) = (root(), mounted.client.root());
        let told = mounted.client.statfs(&me, top).unwrap().name_max;
        assert_eq!(told, longest, "{said}");
        let name = vec![b'n'; usize::try_from(longest).unwrap() + 1];
        mounted.client.make_file(&me, top, &name[1..], 0o644).unwrap();
        mounted.client.unlink(&me, top, &name[1..]).unwrap();
        mounted.sent();
        for (number, refusal) in refusals(&mounted, &name).into_iter().enumerate() {
            assert_eq!(refusal, Err(Errno::NAMETOOLONG), "{said}: operation {number}");
        }
        assert_eq!(
            mounted.sent(),
            "CREATE 1 REMOVE 1",
            "{said}: of the file that is known"
        );
    }
}
